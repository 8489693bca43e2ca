"""Waiting for what another process or thread does, however busy the machine is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_until(happened: Callable[[], object], seconds: float = 120) -> None:
    """Return when `happened()` is true; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"it did not happen in {seconds} seconds"
        time.sleep(0.005)
