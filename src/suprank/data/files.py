"""The bytes behind a manifest's paths: files under a root, and members of archives under it."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.data.archives import MAX_BYTES, Archive

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEPARATOR = "::"
"""Between an archive and its member, in the path of an image."""


class Files:
    """Reads what paths of a manifest mean: `a/b.jpg` under the root, or the member `b.jpg` of `a.zip::b.jpg`, `a.tar::b.jpg`.

    Threads, forked and spawned workers may share one: see `Archive`. An archive is listed when first asked for, or ahead of
    that by `index`, so that workers started later need not.

    A path that is absolute or climbs with `..` is refused; symbolic links under the root are followed wherever they lead.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise FileNotFoundError(f"the root {self.root} is not a folder; give the one that the paths are relative to.")
        self._archives: dict[str, Archive] = {}

    def read(self, path: str) -> bytes:
        """The bytes of a file or member.

        Raises FileNotFoundError naming the path and the root, ValueError for a path out of the root, a device, a pipe or a file
        of more than 1 GiB, UnreadableArchiveError for an archive or member that cannot be read.
        """
        archive, name = divided(path)
        if archive is not None:
            return self.archive(archive).read(name)
        try:
            with open(self.root / name, "rb", buffering=0, opener=_without_waiting) as file:
                status = os.fstat(file.fileno())
                if not S_ISREG(status.st_mode):
                    raise ValueError(f"{path} under {self.root} is a device or a pipe, not an image.")
                if status.st_size > MAX_BYTES:
                    size = f"{status.st_size:,} bytes; more than {MAX_BYTES:,}"
                    raise ValueError(f"{path} under {self.root} has {size} are no image.")
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{path} is not under {self.root}.") from None
        except IsADirectoryError:
            raise FileNotFoundError(f"{path} under {self.root} is a folder, not an image.") from None

    def exists(self, path: str) -> bool:
        """Whether there is such a file or member; not whether it can be read. An unreadable archive raises."""
        archive, name = divided(path)
        if archive is None:
            return (self.root / name).is_file()
        return (self.root / archive).is_file() and name in self.archive(archive).members

    def archive(self, name: str) -> Archive:
        """The archive under the root, listed at the first call."""
        if name not in self._archives:
            self._archives[name] = Archive(self.root / name)
        return self._archives[name]

    def index(self, paths: pa.Array | pa.ChunkedArray) -> None:
        """List every archive that these paths name, and that is there. One that cannot be listed raises."""
        for name in archives_in(paths):
            if (self.root / name).is_file():
                self.archive(name)


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file; or a pipe, which would else wait for somebody to write."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def divided(path: str) -> tuple[str | None, str]:
    """The archive and the member that a path means; None and the file, where it means a file. Refused out of the root."""
    if path.startswith("/") or (".." in path and ".." in path.replace(SEPARATOR, "/").split("/")) or "\0" in path:
        raise ValueError(f"path {path!r} leads out of the root; paths are relative to it and climb nowhere.")
    archive, separator, member = path.partition(SEPARATOR)
    return (archive, member) if separator else (None, path)


def archives_in(paths: pa.Array | pa.ChunkedArray) -> list[str]:
    """The archives that the paths name, each once."""
    members = paths.filter(pc.match_substring(paths, SEPARATOR))
    return sorted(holder.removesuffix(SEPARATOR) for holder in pc.unique(holders_of(members)).to_pylist())


def absent(paths: pa.Array | pa.ChunkedArray, root: str | os.PathLike[str] | Files) -> NDArray[np.int64]:
    """The rows, ascending, whose file or member is not under the root.

    Each folder and each archive is listed once, instead of a question for every file: millions of paths take seconds. A root
    that is no folder raises, and so does an archive that cannot be listed. `root` may be a `Files`, whose lists are used.
    """
    files = root if isinstance(root, Files) else Files(root)
    if not len(paths):
        return np.empty(0, np.int64)
    holders = holders_of(paths)
    coded = (holders.combine_chunks() if isinstance(holders, pa.ChunkedArray) else holders).dictionary_encode()
    codes = coded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(coded.dictionary)))
    missing = []
    for holder, rows in zip(coded.dictionary.to_pylist(), np.split(order, ends[:-1]), strict=True):
        names = [path.removeprefix(holder).lstrip("/") for path in paths.take(pa.array(rows)).to_pylist()]
        there = _names_in(files, holder)
        missing.append(rows[[name not in there for name in names]])
    return np.sort(np.concatenate(missing))


def holders_of(paths: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """What holds each path: its archive with the separator behind it, or else its folder, "" being the root."""
    return pc.replace_substring_regex(paths, r"(?s)^(?:(.+?::).*|(.*)/[^/]*|[^/]*)$", r"\1\2")


def _names_in(files: Files, holder: str) -> Container[str]:
    """The files of a folder, or the members of an archive; none where it is not there."""
    archive, folder = divided(holder)
    if archive is not None:
        return files.archive(archive).members if (files.root / archive).is_file() else ()
    try:
        with os.scandir(files.root / folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return ()
