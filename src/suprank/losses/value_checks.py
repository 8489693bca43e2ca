"""When a loss may read values to check them, and how a GPU is waited for once instead of once for each check."""

from __future__ import annotations

from contextlib import contextmanager
from functools import reduce
from threading import local
from typing import TYPE_CHECKING

import torch

from suprank.ranking.reading import Reading, may_read, reading_at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    Check = Callable[[], None]

FINE = -1
"""Values are in order if their suspicion is this number or more. It is −1, because the smallest label, −1, is in order."""


class PostponedChecks:
    """Checks of values on a GPU that wait for the end of `reading_once`."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Tensor, Check]] = []
        self._copied: list[tuple[Tensor, torch.cuda.Event, list[Check]]] = []

    def add(self, suspicion: Tensor, check: Check) -> None:
        self._waiting.append((suspicion, check))

    def copy(self) -> None:
        """Let the device copy the checks so far to the host, which then waits for these alone, and not for what is launched."""
        if not self._waiting or not self._waiting[0][0].is_cuda:
            return
        worst, checks = self._worst()
        copied = torch.empty((), dtype=worst.dtype, device="cpu", pin_memory=True).copy_(worst, non_blocking=True)
        self._copied.append((copied, torch.cuda.current_stream(worst.device).record_event(), checks))

    def run(self) -> None:
        """Read one number for all checks, and run them if it is suspicious."""
        self.copy()
        for copied, event, checks in self._copied:
            event.synchronize()
            _run_if(copied, checks)
        if self._waiting:
            _run_if(*self._worst())

    def _worst(self) -> tuple[Tensor, list[Check]]:
        worst = reduce(torch.minimum, (suspicion for suspicion, _ in self._waiting))
        checks = [check for _, check in self._waiting]
        self._waiting = []
        return worst, checks


def _run_if(worst: Tensor, checks: list[Check]) -> None:
    if not worst.item() >= FINE:
        for check in checks:
            check()


class _Current(local):
    """The checks of `reading_once`, by thread; None outside of it."""

    postponed: PostponedChecks | None = None


_current = _Current()


@contextmanager
def skip_value_checks() -> Iterator[None]:
    """Within this context losses check shapes and types but no values: not whether embeddings are finite or labels in range.

    On a GPU such checks wait for the device. Use it in a training loop that checks for NaN itself, once a step. Other threads
    check on.
    """
    with reading_at_most(Reading.TO_CHOOSE):
        yield


def check_values(values: Tensor, suspicion: Callable[[], Tensor], check: Callable[[], None]) -> None:
    """Run `check`, which reads values and raises an error, if it may read them.

    Within `reading_once` a GPU is not waited for here: `suspicion` computes a number that is NaN, or below `FINE`, if anything
    can be wrong, and `check` runs at the end, if it is.
    """
    if not may_read(values, Reading.TO_CHECK):
        return
    if _current.postponed is None or values.device.type == "cpu":
        check()
    else:
        _current.postponed.add(suspicion(), check)


@contextmanager
def reading_once() -> Iterator[PostponedChecks]:
    """Postpone the checks of values on a GPU to the end of this context. By then all is launched, and the device computes."""
    before, _current.postponed = _current.postponed, PostponedChecks()
    try:
        yield _current.postponed
        postponed = _current.postponed
    finally:
        _current.postponed = before
    postponed.run()
