"""Signals as requests to stop: training finishes its step, saves a checkpoint and returns."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""Ctrl-C, the signal that schedulers send before they kill, and the one that `sbatch --signal=USR1@120` sends earlier."""


class StopRequest:
    """The signal that requested a stop; 0 if none did."""

    signal = 0


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Record signals for the caller to act on; a second Ctrl-C interrupts at once. Outside of the main thread, do nothing."""
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    interrupted = False

    def record(number: int, frame: Any) -> None:
        nonlocal interrupted
        if number == signal.SIGINT:
            if interrupted:
                raise KeyboardInterrupt
            interrupted = True
        stop.signal = stop.signal or number

    previous = {number: signal.signal(number, record) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
