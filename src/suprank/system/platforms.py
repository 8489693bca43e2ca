"""Calls that only some operating systems have: file locks, the cores of a process, the size of memory."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike
    from types import ModuleType


def file_locks(folder: str | PathLike[str]) -> ModuleType | None:
    """The module `fcntl`, or None and a warning on a system without it (Windows). New code uses `files.locking`."""
    try:
        import fcntl
    except ImportError:
        warnings.warn(
            f"this system cannot lock {folder}: see to it yourself that no other process writes there.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return fcntl


def usable_cores() -> int:
    """The number of cores that this process may use; all of the machine's if the system does not say (macOS, Windows)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes(pages: str = "SC_PHYS_PAGES") -> int | None:
    """The machine's memory in bytes, or with "SC_AVPHYS_PAGES" its free memory. None if the system does not say."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, macOS not every name
        return None
