"""Signals as a wish to stop: a step is finished, a checkpoint written, and the process ends."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""Ctrl-C, what schedulers send before they kill, and what `sbatch --signal=USR1@120` sends some time before."""


class Stop:
    """Which signal has asked to stop; 0 for none."""

    signal = 0


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Signals are noted down, and left to the caller; a second Ctrl-C stops at once. Outside of the main thread, nothing."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    interrupted = False

    def note(number: int, frame: Any) -> None:
        nonlocal interrupted
        if number == signal.SIGINT:
            if interrupted:
                raise KeyboardInterrupt
            interrupted = True
        stop.signal = stop.signal or number

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
