"""Where sets that suprank makes itself are kept, so that each is made once."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from suprank.files.atomic import explain_full_disk

_ABANDONED = 24 * 3600.0  # seconds after which an unfinished folder can only be what a killed process left


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """The folder given, or $SUPRANK_CACHE, or ~/.cache/suprank. It need not exist yet."""
    chosen = cache if cache is not None else os.environ.get("SUPRANK_CACHE") or "~/.cache/suprank"
    return Path(chosen).expanduser()


def cache_key(*parts: object) -> str:
    """16 hexadecimal digits that stand for these parts, through their `repr`: equal parts, equal key, in every process.

    Example:
        >>> cache_key("recipe 1", 64) == cache_key("recipe 1", 64), cache_key("recipe 1", 64) == cache_key("recipe 1", 65)
        (True, False)
    """
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def kept(name: str, key: str, build: Callable[[Path], None], *, cache: str | os.PathLike[str] | None = None) -> Path:
    """The folder `<cache>/<name>/<key>`, filled by `build(folder)` when it is not there yet.

    All or nothing: the set is built in a temporary folder beside and renamed when complete, so whoever finds the folder finds
    all of it, and a build that fails leaves nothing. Two processes that build at once both succeed, and the first to finish
    is kept. To make a set anew, delete its folder.
    """
    final = cache_folder(cache) / name / key
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _sweep(final.parent)
        beside = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=final.parent))
    except OSError as error:
        raise OSError(
            f"{final.parent}: {name} would be kept there, and the folder cannot be written ({error.strerror}); "
            f"set SUPRANK_CACHE to a folder that can."
        ) from error
    try:
        unfinished = beside / key  # a plain folder in the private one that mkdtemp makes: readable by whoever the umask says
        unfinished.mkdir()
        with explain_full_disk(final):
            build(unfinished)
        _rename(unfinished, final)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return final


def _rename(unfinished: Path, final: Path) -> None:
    try:
        unfinished.rename(final)
    except OSError:
        if not final.is_dir():  # else another process was faster, and made the same
            raise


def _sweep(folder: Path) -> None:
    """Remove what killed builds left: a process that is killed outright cannot tidy up after itself."""
    for left in folder.glob(".*-*"):
        try:
            if time.time() - left.stat().st_mtime > _ABANDONED:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # another process sweeps too
            continue
