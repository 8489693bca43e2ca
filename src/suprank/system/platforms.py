"""What only some operating systems have: locks on files, the cores of a process, how much memory there is."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike
    from types import ModuleType


def file_locks(folder: str | PathLike[str]) -> ModuleType | None:
    """The module `fcntl`; None, with a warning, on a system without it (Windows), where nothing keeps a second process out."""
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
    """The cores that this process may use; all of the machine's where the system does not say (macOS, Windows)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes(pages: str = "SC_PHYS_PAGES") -> int | None:
    """The machine's memory, or that of other pages: "SC_AVPHYS_PAGES" are the free ones. None where the system does not say."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, macOS not every name
        return None
