"""Check a place for output before hours of work depend on it: it can be written to, and holds nothing of something else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from suprank.files.atomic import DISK_FULL, TEMPORARY_FILE, DiskFullError, is_stream
from suprank.files.locking import LOCK


class ForeignFilesError(ValueError):
    """An output folder contains files of something else."""


def check_writable(file: Path) -> None:
    """Raise an `OSError` if the file cannot be written. Its folder is created; an existing file stays as it is."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{file} cannot be written: the folder cannot be made ({error.strerror}); name another.") from error
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder; name a file in it.")
    if file.exists() and not os.access(file, os.W_OK):
        raise PermissionError(f"{file} cannot be written: it is read-only; name another file.")
    if not is_stream(file):
        _check_takes_files(Path(os.path.realpath(file)).parent, file)


def check_folder(folder: Path) -> None:
    """Raise an `OSError` if the folder cannot be written to, or cannot be created. It is not created yet."""
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name a folder.")
    if folder.is_dir():
        _check_takes_files(folder, folder)
    else:
        check_writable(folder)


def _check_takes_files(folder: Path, named: Path) -> None:
    """Write a file into the folder and remove it, because permissions do not tell of root or of a read-only disk."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".suprank-") as file:
            file.write(b"0")
    except OSError as error:
        if error.errno in DISK_FULL:
            raise DiskFullError(named, error) from error
        raise OSError(f"{named} cannot be written ({error.strerror}); name another place.") from error


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
