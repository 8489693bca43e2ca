"""Files that are there whole, or not at all: for all packages that write what takes long to make."""

from __future__ import annotations

import errno
import os
import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

DRAFT = re.compile(r"\..+\.\d+\.tmp(-\w+)?")
"""Names of the files that a process was writing when it was killed; the suffix is SQLite's."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of the system that mean that there is no room: of the disk, of the user's quota, of the largest file allowed."""


class DiskFullError(OSError):
    """A file for which there is no room. The message names the file and the way out; `strerror` is the reason alone."""

    def __init__(self, path: str | os.PathLike[str], error: OSError) -> None:
        self.path, self.reason = path, error.strerror
        super().__init__(error.errno, f"the disk is full: {error.strerror}")

    def __str__(self) -> str:
        return f"{self.path} cannot be written ({self.strerror}). Make room on it, or write to another disk."

    def __reduce__(self) -> tuple[object, ...]:  # processes send each other what they raise
        return DiskFullError, (self.path, OSError(self.errno, self.reason))


@contextmanager
def explain_full_disk(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise a `DiskFullError` that names `path` where the block runs out of room: the system does not say which file it was."""
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFullError(path, error) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or, after a crash, not at all (or as it was before)."""
    with writing_atomically(path) as file:
        file.write(data)


@contextmanager
def writing_atomically(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes its name when the block ends, and is removed where the block fails.

    A link stays, and the file it leads to is replaced. A device or a pipe, such as /dev/stdout, is written to directly. Where
    the disk is full, a `DiskFullError` names `path`.
    """
    with explain_full_disk(path):
        if is_stream(path):
            with path.open("wb") as file:
                yield file
            return
        path = Path(os.path.realpath(path))
        # Threads of one process may write the same file: each has a draft of its own.
        temporary = path.with_name(f".{path.name}.{os.getpid()}{threading.get_ident()}.tmp")
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Whether it is a device, a pipe, or the name of one: /dev/stdout may lead to a file, and must not be replaced itself."""
    name = str(path.absolute())
    named = name.startswith(("/dev/", "/proc/")) and not name.startswith("/dev/shm/")
    return path.exists() and not path.is_dir() and (named or not path.is_file())
