"""When a loss may read values to check them, and how a GPU is waited for once instead of once for each check."""

from __future__ import annotations

from contextlib import contextmanager
from functools import reduce
from threading import local
from typing import TYPE_CHECKING

import torch

from suprank.ranking.recording import is_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

FINE = -1
"""A suspicion at or above this number is none, and neither is −1 as a label."""

_values_trusted = False


class _Postponed(local):
    """The checks that `reading_once` runs at its end, by thread; None outside of it."""

    checks: list[tuple[Tensor, Callable[[], None]]] | None = None


_postponed = _Postponed()


@contextmanager
def skip_value_checks() -> Iterator[None]:
    """Within this context losses check shapes and types but no values: not whether embeddings are finite or labels in range.

    On a GPU such checks wait for the device. Use it in a training loop that checks for NaN itself, once a step.
    """
    global _values_trusted
    before, _values_trusted = _values_trusted, True
    try:
        yield
    finally:
        _values_trusted = before


def may_read_values(values: Tensor) -> bool:
    """Whether a check may read the values of a tensor.

    It may not within `skip_value_checks`, nor while torch.compile or a CUDA graph records operations to run later.
    """
    return not (_values_trusted or is_recording(values))


def check_values(values: Tensor, suspicion: Callable[[], Tensor], check: Callable[[], None]) -> None:
    """Run `check`, which reads values and raises an error, if it may read them.

    Within `reading_once` a GPU is not waited for here: `suspicion` computes a number that is NaN, or below `FINE`, if anything
    can be wrong, and `check` runs at the end, if it is.
    """
    if not may_read_values(values):
        return
    if _postponed.checks is None or values.device.type == "cpu":
        check()
    else:
        _postponed.checks.append((suspicion(), check))


@contextmanager
def reading_once() -> Iterator[None]:
    """Postpone the checks of values on a GPU to the end of this context, which then reads one number for all of them.

    By then everything is launched, so that the device computes while the host waits.
    """
    before, _postponed.checks = _postponed.checks, []
    try:
        yield
        postponed = _postponed.checks
    finally:
        _postponed.checks = before
    if postponed:
        worst = reduce(torch.minimum, (suspicion for suspicion, _ in postponed))
        if not worst.item() >= FINE:
            for _, check in postponed:
                check()
