"""Whether operations run now, or are recorded to run later, when nobody can look at their results."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_rehearsing = False
_grids = 0


def is_recording(values: Tensor) -> bool:
    """Whether torch.compile or a CUDA graph records what is done with this tensor, or `rehearsal` runs as if one did."""
    if torch.compiler.is_compiling() or _rehearsing:
        return True
    return values.is_cuda and torch.cuda.is_current_stream_capturing()


@contextmanager
def rehearsal() -> Iterator[None]:
    """Run operations as they will be recorded: without a look at values."""
    global _rehearsing
    before, _rehearsing = _rehearsing, True
    try:
        yield
    finally:
        _rehearsing = before


def count_grid() -> None:
    """Note that ranks were computed in a way that depends on values, which a recording could not repeat: on a grid."""
    global _grids
    _grids += 1


def grids_so_far() -> int:
    """How often that was noted, to see whether it happens between two calls of this."""
    return _grids
