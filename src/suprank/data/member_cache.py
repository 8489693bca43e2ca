"""The members of archives, listed once: the list of a large archive is kept in the user's cache for the next process.

It is not beside the archive, where somebody else could have put a forged one.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np

from suprank.data.members import Members, UnreadableArchiveError, tar_members, zip_members
from suprank.files.atomic import atomic_writer
from suprank.system.platforms import default_cache

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIX = ".npz"

MIN_MEMBERS = 1_000
"""Archives with fewer members are not worth a file."""

MAX_AGE = 90 * 24 * 3600.0
"""Seconds for which the user's cache keeps a list: the archive may be gone, and if it is not, it is listed again in seconds."""

FORMAT = 2
CHANGED = "cannot be read, because the archive has changed since it was listed; start again"
_KEPT = 4  # lists of this process, for those who open an archive again
_AT_ONCE = 1 << 20  # bytes that are read to be hashed

T = TypeVar("T")
Version = tuple[int, int]
"""(time of the last change in nanoseconds, bytes) of an archive."""

LIST_MEMBERS: dict[str, Callable[[Path], tuple[Members, NDArray[np.int64]]]] = {".zip": zip_members, ".tar": tar_members}
"""Extension → how such an archive is listed."""


class _List(NamedTuple):
    """The members of an archive, and a hash of the byte ranges (offset, length) that tell it from another."""

    members: Members
    ranges: NDArray[np.int64]
    digest: bytes

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        return cls(Members.from_arrays(arrays), arrays["ranges"].reshape(-1, 2), arrays["digest"].tobytes())

    def describes(self, archive: Path) -> bool:
        """Whether this is still the list of the archive: another one may have the same size and time."""
        try:
            return _hash(archive, self.ranges) == self.digest
        except (OSError, ValueError):
            return False


_lists: dict[tuple[str, Version], _List] = {}


def list_members(archive: Path, version: Version) -> Members:
    """The members of this version of an archive: from this process, from the cache, or from the archive itself."""
    key = os.path.abspath(archive), version  # noqa: PTH100 (it need not exist)
    found = _lists.get(key)
    if found is None or not found.describes(archive):
        found = _load(archive, version, _List.from_arrays)
    if found is None or not found.describes(archive):
        if archive_version(archive.stat()) != version:  # in another process, which was sent the archive
            raise UnreadableArchiveError(f"{archive} {CHANGED}.")
        members, ranges = LIST_MEMBERS[archive.suffix.lower()](archive)
        found = _List(members, ranges, _hash(archive, ranges))
        _save(archive, version, found)
    if len(_lists) >= _KEPT:
        _lists.clear()
    _lists[key] = found
    return found.members


def forget_list(archive: Path) -> None:
    """Drop the list of an archive that turns out to be that of another one."""
    _lists.clear()
    with suppress(OSError):
        cache_file(archive).unlink()


def archive_version(status: os.stat_result) -> Version:
    return status.st_mtime_ns, status.st_size


def cache_file(archive: Path) -> Path:
    """Where the list of an archive is, if there is one."""
    name = hashlib.blake2b(os.path.realpath(archive).encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return default_cache() / "archives" / f"{name}{SUFFIX}"


def has_list(archive: Path, version: Version) -> bool:
    """Whether the list of this version of an archive is in the cache."""
    return _load(archive, version, lambda arrays: True) is not None


def _hash(archive: Path, ranges: NDArray[np.int64]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    with archive.open("rb", buffering=0) as file:
        for offset, length in ranges.tolist():
            file.seek(offset)
            while length > 0 and (data := file.read(min(length, _AT_ONCE))):
                digest.update(data)
                length -= len(data)
    return digest.digest()


def _load(archive: Path, version: Version, read: Callable[[Mapping[str, NDArray[Any]]], T]) -> T | None:
    """What `read` makes of the list of this version of an archive; None if there is none, or a damaged or another one."""
    with suppress(Exception), cache_file(archive).open("rb") as file, np.load(file) as arrays:  # numpy raises many kinds
        if arrays["stamp"].tolist() == [FORMAT, *version]:
            return read(arrays)
    return None


def _save(archive: Path, version: Version, found: _List) -> None:
    """Save the list of a large archive, if it can be saved anywhere; two processes may do so at once.

    One that was written to while it was listed gets none.
    """
    if len(found.members) < MIN_MEMBERS:
        return
    stamp, digest = np.array([FORMAT, *version], np.int64), np.frombuffer(found.digest, np.uint8)
    file = cache_file(archive)
    with suppress(OSError):  # a read-only folder, or a full disk
        if archive_version(archive.stat()) != version:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_old(file.parent)
        with atomic_writer(file) as opened:
            arrays = found.members.to_arrays()
            np.savez(opened, allow_pickle=False, stamp=stamp, ranges=found.ranges, digest=digest, **arrays)


def _remove_old(folder: Path) -> None:
    """Remove old lists, and what a killed process left of one."""
    for file in folder.glob(f"*{SUFFIX}*"):
        with suppress(OSError):  # another process removes it too
            if time.time() - file.stat().st_mtime > MAX_AGE:
                file.unlink()
