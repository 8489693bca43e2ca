"""Whether values of tensors may be read now: not while operations are recorded to run later, nor where a caller forbids it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


class Reading(IntEnum):
    """What values may be read for; each includes those before it."""

    NOTHING = 0
    TO_CHOOSE = 1  # the fastest way to compute the same numbers
    TO_CHECK = 2


_limit = ContextVar("_limit", default=Reading.TO_CHECK)
_grids = 0


def may_read(values: Tensor, purpose: Reading) -> bool:
    """Whether a value of this tensor may be read: not while torch.compile or a CUDA graph records what is done with it."""
    if torch.compiler.is_compiling() or _limit.get() < purpose:
        return False
    return not (values.is_cuda and torch.cuda.is_current_stream_capturing())


@contextmanager
def reading_at_most(purpose: Reading) -> Iterator[None]:
    """Read values of tensors for this purpose at most, in this thread."""
    if torch.compiler.is_compiling():  # it reads nothing, and cannot trace a ContextVar
        yield
        return
    before = _limit.set(min(purpose, _limit.get()))
    try:
        yield
    finally:
        _limit.reset(before)


def count_grid() -> None:
    """Note that ranks were computed in a way that depends on values, which a recording could not repeat: on a grid."""
    global _grids
    _grids += 1


def grids_so_far() -> int:
    """How often that was noted, to see whether it happens between two calls of this."""
    return _grids
