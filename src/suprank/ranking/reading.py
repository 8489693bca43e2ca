"""Whether values of tensors may be read now, the checks of values in one call, and the choices that values decided.

Values cannot be read while operations are recorded to run later (torch.compile, CUDA graphs) or transformed (torch.func), nor
where a caller forbids it. On a GPU, the host waits for each value that it reads.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import torch

from suprank.ranking.seam import transforming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    Check = Callable[[], None]

LOWEST = -1
"""Values are in order if their suspicion is this number or more. It is −1, because the smallest label, −1, is in order."""


class Reading(IntEnum):
    """What values may be read for; each includes those before it."""

    NOTHING = 0
    TO_CHOOSE = 1  # the fastest way to compute the same numbers
    TO_CHECK = 2


class _Context(NamedTuple):
    limit: Reading = Reading.TO_CHECK
    choices: list[str] | None = None


_ANYTHING = _Context()
_context = ContextVar("_context", default=_ANYTHING)


def may_read(purpose: Reading) -> bool:
    """Whether values may be read for this purpose: not while operations are recorded or transformed."""
    if torch.compiler.is_compiling() or transforming() or _context.get().limit < purpose:
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


@contextmanager
def reading_at_most(purpose: Reading) -> Iterator[None]:
    """Read values of tensors for this purpose at most, in this thread."""
    if torch.compiler.is_compiling():  # it reads nothing, and cannot trace a ContextVar
        yield
        return
    before = _context.set(_context.get()._replace(limit=min(purpose, _context.get().limit)))
    try:
        yield
    finally:
        _context.reset(before)


@contextmanager
def skip_value_checks() -> Iterator[None]:
    """Within this context losses check shapes and types but no values: not whether embeddings are finite or labels in range.

    On a GPU such checks wait for the device. Use it in a training loop that checks for NaN itself, once a step. Other threads
    check on.
    """
    with reading_at_most(Reading.TO_CHOOSE):
        yield


@contextmanager
def noting_choices() -> Iterator[list[str]]:
    """Collect what `note_choice` is told within this context, in this thread."""
    choices: list[str] = []
    before = _context.set(_context.get()._replace(choices=choices))
    try:
        yield choices
    finally:
        _context.reset(before)


def note_choice(name: str) -> None:
    """Note that values decided on this way to compute something, which a recording could not repeat for other values."""
    choices = _context.get().choices
    if choices is not None:
        choices.append(name)


class Checks:
    """The checks of values in one call of a loss. With `postpone`, those on a GPU wait for its end: one number is read for all.

    By then all is launched, and the device computes.
    """

    def __init__(self, *, postpone: bool = False) -> None:
        self.allowed = may_read(Reading.TO_CHECK)
        self._postpone = postpone
        self._waiting: list[tuple[Tensor, Check]] = []
        self._sent: list[tuple[Tensor, torch.cuda.Event, list[Check]]] = []

    def add(self, values: Tensor, suspicion: Callable[[], Tensor], check: Check) -> None:
        """Run `check`, which reads the values and raises an error, if it may read them: now, or at the end.

        At the end it runs only if `suspicion` says so: a number that is NaN, or below `LOWEST`, if anything can be wrong.
        """
        if not self.allowed:
            return
        if self._postpone and values.device.type != "cpu":
            self._waiting.append((suspicion(), check))
        else:
            check()

    def send(self) -> None:
        """Let the device send the suspicions so far to the host, which waits for these alone, and not for what is launched."""
        if not self._waiting or not self._waiting[0][0].is_cuda:
            return
        worst, checks = self._worst()
        sent = torch.empty((), dtype=worst.dtype, device="cpu", pin_memory=True).copy_(worst, non_blocking=True)
        self._sent.append((sent, torch.cuda.current_stream(worst.device).record_event(), checks))

    def run(self) -> None:
        """Read one number for all checks, and run them if it is suspicious."""
        if self._waiting:
            self.send()
        for sent, event, checks in self._sent:
            event.synchronize()
            _run_if(sent, checks)
        if self._waiting:
            _run_if(*self._worst())

    def _worst(self) -> tuple[Tensor, list[Check]]:
        worst = reduce(torch.minimum, (suspicion for suspicion, _ in self._waiting))
        checks = [check for _, check in self._waiting]
        self._waiting = []
        return worst, checks


def _run_if(worst: Tensor, checks: list[Check]) -> None:
    if not worst.item() >= LOWEST:
        for check in checks:
            check()
