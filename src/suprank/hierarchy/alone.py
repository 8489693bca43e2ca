"""One process at a time, for what two must not do to a project at once: make it, and scrape."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from suprank.hierarchy.project import BusyError
from suprank.system.platforms import file_locks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder while the block runs; `BusyError` where another process does. One that is killed lets go."""
    fcntl = file_locks(folder)
    if fcntl is None:
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"{folder} is being made or scraped by another process; let it end, or stop it.") from None
        yield
    finally:
        os.close(held)
