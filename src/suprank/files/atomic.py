"""Atomic writes (after a crash or on a full disk a file is complete, absent, or as it was), and links that are not followed."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPORARY_FILE = re.compile(r"\..+\.\d+\.tmp(-\w+)?")
"""Names of temporary files, which a killed process leaves behind; the suffix is SQLite's."""

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers for a full disk, an exceeded quota and a file over the size limit."""

_ATTEMPTS, _SECONDS_BETWEEN = 50 if os.name == "nt" else 1, 0.02


class DiskFullError(OSError):
    """There is no room to write a file. The message names the file and a way out; `strerror` is the reason alone."""

    def __init__(self, path: str | os.PathLike[str], error: OSError) -> None:
        self.path, self.reason = path, error.strerror
        super().__init__(error.errno, f"the disk is full: {error.strerror}")

    def __str__(self) -> str:
        return f"{self.path} cannot be written ({self.strerror}). Make room on it, or write to another disk."

    def __reduce__(self) -> tuple[object, ...]:  # so that worker processes can send it to their parent
        return DiskFullError, (self.path, OSError(self.errno, self.reason))


@contextmanager
def explain_full_disk(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise a `DiskFullError` that names `path` if the block runs out of room: the system's error does not name a file."""
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise DiskFullError(path, error) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file completely or, after a crash, not at all (or leave it as it was before)."""
    with atomic_writer(path) as file:
        file.write(data)


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing, which is renamed to `path` at the end of the block, or removed if the block fails.

    If `path` is a symbolic link, the link stays and its target is replaced. A device or a pipe, such as /dev/stdout, is written
    to directly. If the disk is full, a `DiskFullError` names `path`.
    """
    with explain_full_disk(path):
        if is_stream(path):
            with path.open("wb") as file:
                yield file
            return
        path = Path(os.path.realpath(path))
        # Threads of one process may write the same file: each has its own temporary file.
        temporary = path.with_name(f".{path.name}.{os.getpid()}{threading.get_ident()}.tmp")
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _replace(temporary: Path, path: Path) -> None:
    """Rename a file over another. Windows refuses it while somebody reads the other, so there it is tried for a second."""
    for _ in range(_ATTEMPTS - 1):
        try:
            temporary.replace(path)
            return
        except PermissionError:
            time.sleep(_SECONDS_BETWEEN)
    temporary.replace(path)


def own_file(path: Path) -> Path:
    """The path, or an `OSError` if it is a link that leaves its folder, or a pipe or a device; it need not exist.

    A run, embeddings or a model may come from a stranger: through a link we would read or replace another file, and a pipe
    would block us for ever. The folder itself may be a link, and files in the Hub's cache are links to its blobs.
    """
    real, folder = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))
    blob = real.parent.name == "blobs" and real.parent.parent / "snapshots" in folder.parents
    leaves = not (blob or real.is_relative_to(folder) or real.is_dir())
    if leaves or real.is_fifo() or real.is_socket() or real.is_char_device() or real.is_block_device():
        wrong = "a link that leaves its folder" if leaves else "a pipe or a device"
        raise OSError(f"{path} is {wrong}, not a file of its own; put a copy of the file there, or delete it.")
    return path


def is_stream(path: Path) -> bool:
    """Whether this is a device or a pipe, or the name of one: /dev/stdout may point to a file, and must not be replaced."""
    name = str(path.absolute())
    device_name = name.startswith(("/dev/", "/proc/")) and not name.startswith("/dev/shm/")
    return path.exists() and not path.is_dir() and (device_name or not path.is_file())
