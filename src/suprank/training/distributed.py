"""Collective operations on tensors, which do nothing in a run of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor


def world_size() -> int:
    """The number of training processes."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def all_gather(local: Tensor) -> Tensor:
    """The rows `[n, ...]` of every process, by rank: `[world_size · n, ...]`. Every process must have as many."""
    if world_size() == 1:
        return local
    parts = [torch.empty_like(local) for _ in range(world_size())]
    distributed.all_gather(parts, local.contiguous())
    return torch.cat(parts)


def local_part(gathered: Tensor) -> Tensor:
    """The rows of this process in a tensor that `all_gather` returned, or in its gradient."""
    if world_size() == 1:
        return gathered
    share = len(gathered) // world_size()
    return gathered.narrow(0, distributed.get_rank() * share, share)


def average(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over the processes."""
    if world_size() > 1:
        for tensor in tensors:
            distributed.all_reduce(tensor)
            tensor /= world_size()


def broadcast_from_first(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by that of the first process."""
    if world_size() > 1:
        for tensor in tensors:
            distributed.broadcast(tensor, 0)


def all_max(flags: Sequence[int], device: torch.device) -> list[int]:
    """The largest of each flag over the processes, so that all do what one of them wants. It waits for all of them."""
    if world_size() == 1:
        return list(flags)
    largest = torch.tensor(flags, device=device)
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return largest.tolist()
