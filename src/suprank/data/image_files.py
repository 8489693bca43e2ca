"""The bytes of a manifest's images: files under a root, and members of archives under it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PureWindowsPath
from stat import S_ISREG
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.data.archives import MAX_BYTES, Archive
from suprank.data.members import Members

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEPARATOR = "::"
"""Separates an archive and its member in the path of an image."""

_WINDOWS = os.name == "nt"


class ImageFiles:
    """Reads the paths of a manifest: `a/b.jpg` is a file under the root, `a.zip::b.jpg` or `a.tar::b.jpg` a member of an
    archive.

    Threads and worker processes, forked or spawned, may share one: see `Archive`. An archive is listed when it is first used,
    or ahead of that by `index`, so that workers started later need not list it.

    An absolute path or one with `..` is refused; symbolic links under the root are followed wherever they lead.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise FileNotFoundError(f"the root {self.root} is not a folder; give the folder that the paths are relative to.")
        self._archives: dict[str, Archive] = {}

    def read(self, path: str) -> bytes:
        """The bytes of a file or member.

        Raises FileNotFoundError naming the path and the root, ValueError for a path out of the root, a device, a pipe or a file
        over 1 GiB, UnreadableArchiveError for an archive or member that cannot be read.
        """
        archive, name = split_path(path)
        if archive is not None:
            return self.archive(archive).read(name)
        try:
            with open(self.root / name, "rb", buffering=0, opener=_open_without_waiting) as file:
                status = os.fstat(file.fileno())
                if not S_ISREG(status.st_mode):
                    raise ValueError(f"{path} under {self.root} is a device or a pipe, not an image.")
                if status.st_size > MAX_BYTES:
                    size = f"{status.st_size:,} bytes; an image has at most {MAX_BYTES:,}"
                    raise ValueError(f"{path} under {self.root} has {size}.")
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{path} is not under {self.root}.") from None
        except IsADirectoryError:
            raise FileNotFoundError(f"{path} under {self.root} is a folder, not an image.") from None

    def exists(self, path: str) -> bool:
        """Whether the file or member exists; it may still be unreadable. An unreadable archive raises."""
        archive, name = split_path(path)
        if archive is None:
            return (self.root / name).is_file()
        return (self.root / archive).is_file() and name in self.archive(archive).members

    def archive(self, name: str) -> Archive:
        """The archive of this name under the root, listed at the first call."""
        if name not in self._archives:
            self._archives[name] = Archive(self.root / name)
        return self._archives[name]

    def index(self, paths: pa.Array | pa.ChunkedArray) -> None:
        """List every existing archive that these paths name. One that cannot be listed raises."""
        for name in archive_names(paths):
            if (self.root / name).is_file():
                self.archive(name)

    def read_each(self, paths: Sequence[str], indices: Sequence[int]) -> Iterator[tuple[int, bytes | OSError | ValueError]]:
        """The bytes of many files, or the errors that `read` raises, each with its place in `paths`; in any order.

        `indices` are those of `find_files`. Members of archives are read as by `Archive.read_each`.
        """
        members: dict[str, list[int]] = {}
        for place, (path, index) in enumerate(zip(paths, indices, strict=True)):
            if index >= 0:
                members.setdefault(path.partition(SEPARATOR)[0], []).append(place)
                continue
            content: bytes | OSError | ValueError
            try:
                content = self.read(path)
            except (OSError, ValueError) as error:
                content = error
            yield place, content
        for name, places in members.items():
            for number, content in self.archive(name).read_each([indices[place] for place in places]):
                yield places[number], content


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe would otherwise wait for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def split_path(path: str) -> tuple[str | None, str]:
    """(archive, member), or (None, path) for a file. A path out of the root is refused."""
    outside = path.startswith("/") or (".." in path and ".." in path.replace(SEPARATOR, "/").split("/")) or "\0" in path
    if outside or (_WINDOWS and _leads_out_on_windows(path)):
        raise ValueError(f"path {path!r} leads out of the root; paths are relative to the root and may not contain '..'.")
    archive, separator, member = path.partition(SEPARATOR)
    return (archive, member) if separator else (None, path)


def _leads_out_on_windows(path: str) -> bool:
    """Whether Windows takes it for an absolute path, or for one with '..', as in C:a.jpg and a\\..\\..\\b.jpg."""
    file = PureWindowsPath(path.partition(SEPARATOR)[0])
    return bool(file.anchor) or ".." in file.parts


def archive_names(paths: pa.Array | pa.ChunkedArray) -> list[str]:
    """The archives in these paths, each once."""
    ends = np.asarray(pc.fill_null(pc.find_substring(paths, SEPARATOR), -1))
    names: set[str] = set()
    for end in np.unique(ends[ends > 0]).tolist():  # few, because the names of a collection's archives are about as long
        same = paths if (ends == end).all() else paths.filter(pa.array(ends == end))
        names.update(name.decode() for name in pc.unique(pc.binary_slice(same.cast(pa.binary()), 0, end)).to_pylist())
    return sorted(names)


def file_times(root: Path, names: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of change of every file; −1 if it does not exist."""
    for name in names:
        path = root / name
        try:
            status = path.stat()
        except OSError:
            yield str(path), -1, -1
        else:
            yield str(path), status.st_size, status.st_mtime_ns


def missing_rows(paths: pa.Array | pa.ChunkedArray, root: str | os.PathLike[str] | ImageFiles) -> NDArray[np.int64]:
    """The rows, ascending, whose file or member does not exist under the root, or that of an `ImageFiles`: see `find_files`."""
    return np.flatnonzero(~find_files(paths, root if isinstance(root, ImageFiles) else ImageFiles(root))[0])


def find_files(paths: pa.Array | pa.ChunkedArray, files: ImageFiles) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether each file or member exists, and the index of each member of a zip or tar in its archive, −1 for all else.

    Each folder and each archive is listed once, instead of one system call per file: millions of paths take seconds. An archive
    that cannot be listed raises.
    """
    exist, indices = np.zeros(len(paths), np.bool_), np.full(len(paths), -1, np.int64)
    for container, rows, names in _by_container(paths):
        archive, folder = split_path(container)
        if archive is None:
            exist[rows] = _are_in_folder(files.root / folder, names)
        elif (files.root / archive).is_file():
            members = files.archive(archive).members
            found = members.find(names) if isinstance(members, Members) else indices[rows]
            exist[rows], indices[rows] = found >= 0, found
            if (found < 0).any():  # rows of an Arrow file, or names with a slash before them
                exist[rows[found < 0]] = members.contain(pc.utf8_ltrim(names.filter(pa.array(found < 0)), characters="/"))
    return exist, indices


def _by_container(paths: pa.Array | pa.ChunkedArray) -> Iterator[tuple[str, NDArray[np.int64], pa.Array]]:
    """The folders and archives of the paths, the rows of each, ascending, and what follows its name in their paths."""
    paths = paths.combine_chunks() if isinstance(paths, pa.ChunkedArray) else paths
    coded = container_names(paths).dictionary_encode()
    codes = coded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(coded.dictionary)))
    for container, rows in zip(coded.dictionary.to_pylist(), np.split(order, ends[:-1]), strict=bool(len(paths))):
        inside = paths if len(rows) == len(paths) else paths.take(pa.array(rows))
        yield container, rows, pc.utf8_slice_codeunits(inside, len(container))


def container_names(paths: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The container of each path: its archive followed by the separator, or else its folder ("" for the root)."""
    first = pc.min_max(pc.find_substring(paths, SEPARATOR)).as_py()
    if first["min"] == first["max"] and (first["min"] or 0) > 0:  # all in one archive, or as if: no need for the slow regex
        return pc.binary_slice(paths.cast(pa.binary()), 0, first["min"] + len(SEPARATOR)).cast(pa.string())
    return pc.replace_substring_regex(paths, r"(?s)^(?:(.+?::).*|(.*)/[^/]*|[^/]*)$", r"\1\2")


def _are_in_folder(folder: Path, names: pa.Array) -> NDArray[np.bool_]:
    """Whether each name is a file of this folder; none is if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            listed = {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        listed = set()
    return np.array([name.lstrip("/") in listed for name in names.to_pylist()], np.bool_)
