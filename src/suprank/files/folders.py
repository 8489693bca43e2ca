"""Folders that a command writes into: no other process writes there meanwhile, and nothing else lies there."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.files.atomic import DRAFT

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK = ".lock"
_LOCKS = (LOCK, "sweep.lock")


class ForeignFilesError(ValueError):
    """A folder of other things, into which nothing of ours is written."""


def foreign_file(folder: Path, mark: str) -> str | None:
    """The name of something in a folder that is not ours, which is to say that it has no file `mark`; None where it is fine.

    A folder that is not there, or is empty, is fine; so are locks and half-written files that a killed process left.
    """
    if not folder.is_dir() or (folder / mark).exists():
        return None
    return min((one.name for one in folder.iterdir() if one.name not in _LOCKS and not DRAFT.fullmatch(one.name)), default=None)


def refuse_foreign_files(folder: Path, mark: str, kind: str, way_out: str) -> None:
    """Raise a `ForeignFilesError` for a folder that holds other things, so that ours are not mixed with them."""
    found = foreign_file(folder, mark)
    if found is not None:
        raise ForeignFilesError(f"{folder} is not empty, and no folder of {kind}: it has {found}, and no {mark}; {way_out}.")


@contextmanager
def locked_folder(folder: Path, doing: str, way_out: str) -> Iterator[None]:
    """Keep other processes out while the block runs. Where one is in it, raise a `BlockingIOError` at once, which says so.

    The folder is made. The file .lock stays behind and means nothing by itself: on Linux, macOS and Windows the lock is the
    kernel's, and ends with the process that holds it, however that ends.
    """
    from filelock import FileLock, Timeout  # here, so that the package works without the extra that brings it

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise BlockingIOError(f"another process is {doing} {folder}; {way_out}.") from None
    try:
        yield
    finally:
        lock.release()
