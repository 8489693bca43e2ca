"""What differs between operating systems: the cores of a process, the size of memory, the folders for caches and settings."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def usable_cores() -> int:
    """The number of cores that this process may use; all of the machine's if the system does not say (macOS, Windows)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes(pages: str = "SC_PHYS_PAGES") -> int | None:
    """The machine's memory in bytes, or with "SC_AVPHYS_PAGES" its free memory. None if the system does not say."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, macOS not every name
        return None


def default_cache() -> Path:
    """$SUPRANK_CACHE, $XDG_CACHE_HOME/suprank or ~/.cache/suprank; a temporary folder if there is no home. It need not exist.

    It is the same on every system. A relative XDG_CACHE_HOME is ignored, as the XDG specification asks.
    """
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    default = (shared if shared.is_absolute() else Path("~/.cache")) / "suprank"
    try:
        return Path(os.environ.get("SUPRANK_CACHE") or default).expanduser()
    except RuntimeError:  # a container may run as a user without an entry in /etc/passwd
        user = f"-{os.getuid()}" if hasattr(os, "getuid") else ""  # other users share the folder above it
        return Path(tempfile.gettempdir(), f"suprank-cache{user}")


def config_folder() -> Path | None:
    """$XDG_CONFIG_HOME/suprank, or where the system has a user's settings (~/.config on Linux); None if there is no home."""
    shared = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    own = {"darwin": "~/Library/Application Support", "win32": os.environ.get("APPDATA", "~/AppData/Roaming")}
    try:
        return (shared if shared.is_absolute() else Path(own.get(sys.platform, "~/.config"))).expanduser() / "suprank"
    except RuntimeError:
        return None
