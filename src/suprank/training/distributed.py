"""One batch over several processes: what each has of it, put together in all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor


def world_size() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def gathered(own: Tensor) -> Tensor:
    """The rows `[n, ...]` of every process, by rank: `[world_size · n, ...]`. Every process must have as many."""
    if world_size() == 1:
        return own
    parts = [torch.empty_like(own) for _ in range(world_size())]
    distributed.all_gather(parts, own.contiguous())
    return torch.cat(parts)


def own_part(everything: Tensor) -> Tensor:
    """Of what `gathered` gives, or of a gradient on it, the rows of this process."""
    if world_size() == 1:
        return everything
    share = len(everything) // world_size()
    return everything.narrow(0, distributed.get_rank() * share, share)


def average(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over the processes."""
    if world_size() > 1:
        for tensor in tensors:
            distributed.all_reduce(tensor)
            tensor /= world_size()


def share_first(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by that of the first process."""
    if world_size() > 1:
        for tensor in tensors:
            distributed.broadcast(tensor, 0)


def agreed(flags: Sequence[int], device: torch.device) -> list[int]:
    """The largest of each flag over the processes: what one of them wants, all do. Waits for all of them, and for a GPU."""
    if world_size() == 1:
        return list(flags)
    found = torch.tensor(flags, device=device)
    distributed.all_reduce(found, op=distributed.ReduceOp.MAX)
    return found.tolist()
