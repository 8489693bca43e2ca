"""The cache of generated image sets, so that each is generated once."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from suprank.files.atomic import explain_full_disk
from suprank.system.platforms import default_cache

_ABANDONED = 24 * 3600.0  # seconds after which an unfinished folder must be that of a killed process


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """The folder given, or that of the environment or the user (`default_cache`). It need not exist."""
    return default_cache() if cache is None else Path(cache).expanduser()


def cache_key(*parts: object) -> str:
    """A hash of 16 hexadecimal digits of the parts' `repr`: equal parts give equal keys, in every process.

    Example:
        >>> cache_key("recipe 1", 64) == cache_key("recipe 1", 64), cache_key("recipe 1", 64) == cache_key("recipe 1", 65)
        (True, False)
    """
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def build_once(name: str, key: str, build: Callable[[Path], None], *, cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder `<cache>/<name>/<key>`; if it does not exist, `build(folder)` fills it first.

    The set is built in a temporary folder and renamed when complete, so that the folder is never incomplete and a build that
    fails leaves nothing. If two processes build at once, both succeed and the result of the first is used. To build a set
    again, delete its folder.
    """
    final = cache_folder(cache) / name / key
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(final.parent)
        private = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=final.parent))
    except OSError as error:
        raise OSError(
            f"{final.parent}, the cache of {name}, is not writable ({error.strerror}); set SUPRANK_CACHE to a writable folder."
        ) from error
    try:
        unfinished = private / key  # an ordinary folder inside the one of mkdtemp, which is readable by its owner only
        unfinished.mkdir()
        with explain_full_disk(final):
            build(unfinished)
        _rename(unfinished, final)
    finally:
        shutil.rmtree(private, ignore_errors=True)
    return final


def _rename(unfinished: Path, final: Path) -> None:
    try:
        unfinished.rename(final)
    except OSError:
        if not final.is_dir():  # otherwise another process was faster, and built the same
            raise


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary folders of killed builds."""
    for left in folder.glob(".*-*"):
        try:
            if time.time() - left.stat().st_mtime > _ABANDONED:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # another process removes it too
            continue
