"""The folder of what suprank can make again: generated image sets, and what it found out about this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """The folder given, or $SUPRANK_CACHE, or $XDG_CACHE_HOME/suprank, or ~/.cache/suprank, on every system. It need not exist.

    A relative XDG_CACHE_HOME is ignored, as the XDG specification asks.
    """
    chosen = cache if cache is not None else os.environ.get("SUPRANK_CACHE")
    if not chosen:
        shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
        chosen = (shared if shared.is_absolute() else Path("~/.cache")) / "suprank"
    return Path(chosen).expanduser()
