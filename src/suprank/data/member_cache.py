"""The cache of lists of members: a file in the user's cache for a large archive, so that the next process need not list it.

It is not beside the archive, where somebody else could have put a forged one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from suprank.data.cache import cache_folder, cache_key
from suprank.files.atomic import atomic_writer

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIX = ".npz"

MIN_MEMBERS = 1_000
"""Archives with fewer members are not worth a file."""

MAX_AGE = 90 * 24 * 3600.0
"""Seconds for which the user's cache keeps a list: the archive may be gone, and if it is not, it is listed again in seconds."""

FORMAT = 1
_STAMP = "stamp"
_SETTLED = 2_000_000_000  # nanoseconds; the coarsest clock of a file system, that of FAT, has steps of two seconds

Version = tuple[int, int]
"""(time of the last change in nanoseconds, bytes) of an archive."""


class _Saveable(Protocol):
    def __len__(self) -> int: ...
    def to_arrays(self) -> dict[str, NDArray[Any]]: ...


T = TypeVar("T")


def cache_file(archive: Path) -> Path:
    """Where the list of an archive is, if there is one."""
    return cache_folder() / "archives" / f"{cache_key(os.path.realpath(archive))}{SUFFIX}"


def is_settled(version: Version) -> bool:
    """Whether the archive was not changed just now: it could be changed again without a change of its time."""
    return abs(time.time_ns() - version[0]) > _SETTLED


def has_list(archive: Path, version: Version) -> bool:
    """Whether the list of this version of an archive is in the cache."""
    return load_list(archive, version, lambda arrays: True) is not None


def load_list(archive: Path, version: Version, from_arrays: Callable[[Mapping[str, NDArray[Any]]], T]) -> T | None:
    """The list of this version of an archive; None if there is none, or one that is damaged or of another version or format."""
    try:
        with cache_file(archive).open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:  # checks its checksums
            return from_arrays(arrays) if arrays[_STAMP].tolist() == [FORMAT, *version] else None
    except Exception:  # whatever is wrong with it, it is made again; numpy and zipfile raise many kinds
        return None


def save_list(archive: Path, version: Version, members: _Saveable) -> None:
    """Save the list of a large archive, if it can be saved anywhere; two processes may do so at once.

    One that was just written, or was written to meanwhile, gets none.
    """
    if len(members) < MIN_MEMBERS or not is_settled(version):
        return
    arrays = members.to_arrays() | {_STAMP: np.array([FORMAT, *version], np.int64)}
    file = cache_file(archive)
    with suppress(OSError):  # a read-only folder, or a full disk
        status = archive.stat()
        if (status.st_mtime_ns, status.st_size) != version:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_old(file.parent)
        with atomic_writer(file) as opened:
            np.savez(opened, allow_pickle=False, **arrays)


def _remove_old(folder: Path) -> None:
    """Remove old lists, and what a killed process left of one."""
    for file in folder.glob(f"*{SUFFIX}*"):
        with suppress(OSError):  # another process removes it too
            if time.time() - file.stat().st_mtime > MAX_AGE:
                file.unlink()
