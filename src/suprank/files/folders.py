"""Checks that an output folder is empty or already holds output of the same kind, so that unrelated files are never mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.files.atomic import TEMPORARY_FILE
from suprank.files.locking import LOCK

if TYPE_CHECKING:
    from pathlib import Path


class ForeignFilesError(ValueError):
    """An output folder contains files of something else."""


def foreign_file(folder: Path, marker: str) -> str | None:
    """The name of a file that shows that the folder is used for something else, or None if we may write there.

    A folder with the file `marker` is ours. So is one that does not exist, is empty, or holds only locks and the half-written
    files of a killed process.
    """
    if not folder.is_dir() or (folder / marker).exists():
        return None
    return min(
        (one.name for one in folder.iterdir() if one.name != LOCK and not TEMPORARY_FILE.fullmatch(one.name)),
        default=None,
    )


def refuse_foreign_files(folder: Path, marker: str, kind: str, way_out: str) -> None:
    """Raise a `ForeignFilesError` if the folder is used for something else than `kind`."""
    name = foreign_file(folder, marker)
    if name is not None:
        raise ForeignFilesError(
            f"{folder} is not empty and not the folder of {kind}: it has {name}, but no {marker}; {way_out}."
        )
