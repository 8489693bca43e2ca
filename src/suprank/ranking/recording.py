"""Whether operations run now, or are recorded to run later, when nobody can look at their results."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_rehearsing = False


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
