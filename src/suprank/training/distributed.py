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
