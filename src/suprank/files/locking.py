"""Locks on folders, so that two processes do not write into one folder at the same time, and folders that are built once."""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from suprank.files.atomic import explain_full_disk, own_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOCK = ".lock"
_WAIT_SECONDS = 24 * 3600.0  # for another process that builds a folder; the system drops its lock if it dies


@contextmanager
def lock_folder(folder: Path, doing: str, way_out: str, *, name: str = LOCK, seconds: float = 0) -> Iterator[int]:
    """Hold the lock of a folder while the block runs, and yield the lock's file descriptor.

    If another process holds the lock, and still after `seconds`, a `BlockingIOError` is raised: "process 12 on host is `doing`
    folder; `way_out`."
    The folder is created if necessary. The lock is the operating system's and ends with the process, however that ends; the
    lock file `name` stays in the folder and means nothing by itself. Forked children (such as the workers of a data loader) do
    not hold the lock; a program started with `pass_fds=[descriptor]` does, and keeps it if this process is killed.
    """
    from filelock import FileLock, Timeout  # lazily: packages that lock nothing do without filelock

    descriptors: list[int] = []

    def sign(descriptor: int) -> None:
        descriptors.append(descriptor)
        with suppress(OSError):  # a full disk: the lock holds without a name in it
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {platform.node()}\n".encode())

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(own_file(folder / name), preserve_lock_file=True, on_acquired=sign)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise BlockingIOError(f"{_holder(folder / name)} is {doing} {folder}; {way_out}.") from None
    try:
        yield descriptors[0]
    finally:
        lock.release()


def _holder(file: Path) -> str:
    """The process that wrote its name into the lock file. Windows does not let others read a locked file."""
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text(encoding="utf-8").strip() or "another process"
    return "another process"


def build_once(folder: Path, build: Callable[[Path], None], way_out: str) -> Path:
    """Return the folder; if it does not exist, `build(unfinished)` fills another one first, which is renamed when complete.

    So it is never incomplete, and a build that fails leaves nothing. Other processes wait for the one that builds. To build it
    again, delete it. If it cannot be written, the error ends in `way_out`.
    """
    if folder.is_dir():
        return folder
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    with ExitStack() as stack:
        try:
            lock = lock_folder(folder.parent, "building", "wait for it", name=f".{folder.name}.lock", seconds=_WAIT_SECONDS)
            stack.enter_context(lock)
            if folder.is_dir():
                return folder
            shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
            unfinished.mkdir()
        except BlockingIOError:
            raise
        except OSError as error:
            raise OSError(f"{folder.parent} is not writable ({error.strerror}); {way_out}.") from error
        stack.callback(shutil.rmtree, unfinished, ignore_errors=True)
        with explain_full_disk(folder):
            build(unfinished)
        unfinished.rename(folder)
    return folder
