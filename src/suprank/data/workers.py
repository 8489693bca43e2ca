"""The worker processes of a loader of images: how many, and how they and their parent get along."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


def cores() -> int:
    """How many this process may use, and 16 at most: as many workers decode images, unless told otherwise."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16)


def next_batch(batches: Iterator[Any], *, alone: bool) -> Any | None:
    """The next batch, or None at the end. Where this process decodes `alone`, it does so on one thread, as workers do.

    Images are too small to share: on a busy machine, threads that wait for each other took 20 times as long.
    """
    if not alone:
        return next(batches, None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return next(batches, None)
    finally:
        torch.set_num_threads(threads)


def ignore_signals(worker: int) -> None:
    """For `DataLoader(worker_init_fn=...)`: Ctrl-C and a scheduler's signal reach workers too, but are meant for their parent.

    It may have something to save first, and errors of workers that are gone would be in its way. They end with it. Nor do they
    tell of a parent that is gone while they hand it an image: the thread that does so would print a traceback.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = _told_unless_the_parent_is_gone


def _told_unless_the_parent_is_gone(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)
