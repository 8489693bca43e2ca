"""Files that are there whole, or not at all: for all packages that write what takes long to make."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or, after a crash, not at all (or as it was before)."""
    with writing_atomically(path) as file:
        file.write(data)


@contextmanager
def writing_atomically(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes its name when the block ends, and is removed where the block fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
