"""Calls that only some operating systems have: the cores of a process, the size of memory."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The number of cores that this process may use; all of the machine's if the system does not say (macOS, Windows)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes(pages: str = "SC_PHYS_PAGES") -> int | None:
    """The machine's memory in bytes, or with "SC_AVPHYS_PAGES" its free memory. None if the system does not say."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, macOS not every name
        return None
