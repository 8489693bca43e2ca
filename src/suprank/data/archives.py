"""Random access to the members of archives and to images in Arrow files, by threads and worker processes at once;
and writing a .zip."""

from __future__ import annotations

import bz2
import lzma
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from stat import S_ISREG
from typing import Any

from suprank.data.columnar import ColumnMembers
from suprank.data.member_cache import CHANGED, LIST_MEMBERS, Version, archive_version, forget_list, has_list, list_members
from suprank.data.members import (
    ENCRYPTED,
    LINK,
    LZMA_WITH_END,
    SPARSE,
    SPECIAL,
    Entry,
    Members,
    UnreadableArchiveError,
)
from suprank.files.atomic import atomic_writer
from suprank.files.reading import reading

OPEN_AT_ONCE = 64
"""Archives that a process keeps open. Google Landmarks has 500; a process can often open no more than 1,024 files."""

MAX_BYTES = 1 << 30
"""The largest file or member that is read: no image is larger, and a few megabytes of zip can claim terabytes."""

_REFUSED = {
    ENCRYPTED: "is encrypted; write the archive again without a password",
    LINK: "is a symbolic link, or a hard link to nothing; write the archive again with `tar --dereference`",
    SPARSE: "is a sparse file; write the archive again without `tar --sparse`",
    SPECIAL: "is a device or a pipe, not a file",
}
_ARROW = ".arrow"
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_NAME_AND_EXTRA = 256  # bytes between a local header and its data that are read with it; more take a second call
_BLOCK = 1 << 16  # small members in as many bytes are read together, if they are wanted together
_INCOMPLETE = "is incomplete: the archive is damaged or truncated; copy it again"


class Archive:
    """A .zip or an uncompressed .tar file, or an .arrow file with a column of images, listed once.

    It is read with `os.pread`, which has no file position, so that any number of threads and forked processes can share one
    descriptor. The list of a large archive is cached: see `suprank.data.member_cache`. Pickling includes the list of members,
    unless it is in the cache, from which the other process reads it; the file is opened again there.

    Of two members with one name the later counts, as for `unzip` and `tar`; a leading `./` or `/` is dropped, and a backslash
    is a slash. Folders are not members. A hard link in a tar is the member it links to. The members of an Arrow file are
    `<column>/<row>`, such as `image/17`: see `suprank.data.columnar`.

    Raises FileNotFoundError if there is no such file, UnreadableArchiveError if it is damaged or compressed as a whole.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in {*LIST_MEMBERS, _ARROW}:
            raise UnreadableArchiveError(_unsupported(path))
        self.path = path
        self._name, self._has_local_headers = str(path), path.suffix.lower() == ".zip"
        try:
            status = path.stat()
        except FileNotFoundError:
            raise FileNotFoundError(f"the archive {path} does not exist.") from None
        if not S_ISREG(status.st_mode):
            raise UnreadableArchiveError(f"{path} is a folder, a device or a pipe, not an archive.")
        self._version = archive_version(status)
        self._members: Members | ColumnMembers | None = self._list()

    @property
    def members(self) -> Members | ColumnMembers:
        """The names of the members, sorted in a zip or tar, and where they are."""
        if self._members is None:
            self._members = self._list()
        return self._members

    def _list(self) -> Members | ColumnMembers:
        path = self.path
        try:
            with reading(path, f"{path.suffix[1:]} file"):
                if path.suffix.lower() == _ARROW:
                    return ColumnMembers.from_file(path)
                return list_members(path, self._version)
        except FileNotFoundError:
            raise FileNotFoundError(f"the archive {path} does not exist.") from None
        except UnreadableArchiveError:
            raise
        except ValueError as error:
            raise UnreadableArchiveError(str(error)) from error

    def __getstate__(self) -> dict[str, Any]:
        """Without the members if the cache has them."""
        return vars(self) | ({"_members": None} if has_list(self.path, self._version) else {})

    def read(self, member: str) -> bytes:
        """The content of a member. In a zip its checksum is verified; in a tar its headers must be those that were listed."""
        entry = self.members.entry(member)
        if entry is None:
            raise FileNotFoundError(f"{self.path} has no member {member!r}.")
        return self._read(member, entry)

    def read_each(self, indices: Sequence[int]) -> Iterator[tuple[int, bytes | OSError | ValueError]]:
        """The contents of members of a zip or tar by their indices in the list, or the errors that `read` raises.

        Each comes with its place in `indices`. The order is that of the archive, and small members near each other are read by
        one system call.
        """
        entries: list[Entry] = self.members.entries[list(indices)].tolist()  # type: ignore[union-attr]
        order = sorted(range(len(entries)), key=entries.__getitem__)
        for _, near in groupby(order, lambda place: entries[place][0] // _BLOCK):
            places = list(near)
            block = self._read_block([entries[place] for place in places])
            for place in places:
                content: bytes | OSError | ValueError
                try:
                    content = self._read(indices[place], entries[place], block)
                except (OSError, ValueError) as error:
                    content = error
                yield place, content

    def _read_block(self, entries: Sequence[Entry]) -> _Block | None:
        """The bytes from the first to the last of these entries, without large ones; None if there are not two of them."""
        header = _LOCAL_HEADER.size + _NAME_AND_EXTRA if self._has_local_headers else 0
        ends = [offset + header + stored for offset, stored, *_ in entries if stored <= _BLOCK]
        try:
            return _Block(_open(self._name, self._version), entries[0][0], max(ends)) if len(ends) > 1 else None
        except (OSError, UnreadableArchiveError):
            return None  # each is read alone, and what is wrong is said of it

    def _read(self, member: str | int, entry: Entry, block: _Block | None = None) -> bytes:
        """The content of the member of this name, or of this index in the list."""
        try:
            return self._content(entry, block)
        except (UnreadableArchiveError, zlib.error, lzma.LZMAError, OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk; bz2 raises OSError without a number
                raise
            name = member if isinstance(member, str) else self.members.name_at(member)  # type: ignore[union-attr]
            raise UnreadableArchiveError(f"{self.path}: member {name!r} {_problem(error)}.") from error

    def _content(self, entry: Entry, block: _Block | None = None) -> bytes:
        offset, stored, size, crc, method = entry
        if method in _REFUSED:
            raise UnreadableArchiveError(_REFUSED[method])
        if method not in _DECOMPRESS:
            raise UnreadableArchiveError(f"is compressed by method {method}; only stored, deflate, bzip2 and lzma can be read")
        if max(size, stored) > MAX_BYTES:
            raise UnreadableArchiveError(f"has {size:,} bytes; an image has at most {MAX_BYTES:,}")
        file = block or _open(self._name, self._version)
        if not self._has_local_headers:
            return self._without_headers(file.read(stored, offset), size, crc)
        content = _DECOMPRESS[method](_read_member(file, offset, stored), size)
        if len(content) != size or zlib.crc32(content) != crc:
            raise UnreadableArchiveError("is damaged: its length or checksum is wrong; copy the archive again")
        return content

    def _without_headers(self, data: bytes, size: int, crc: int) -> bytes:
        """The content of a member of a tar, whose headers must be those that were listed, or of an Arrow file, without any."""
        headers = len(data) - size
        if crc >= 0 and zlib.crc32(data[:headers]) != crc:
            forget_list(self.path)
            raise UnreadableArchiveError(CHANGED)
        return data[headers:]


def _problem(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if isinstance(error, UnreadableArchiveError) else f"is damaged ({line}); copy the archive again"


def _unsupported(path: Path) -> str:
    name = path.name.lower()
    if name.endswith((".tgz", ".tbz2", ".txz")) or ".tar." in name:
        return f"{path} is compressed as a whole, so it has no random access; unpack it, or make it an uncompressed .tar."
    return f"{path} is not a .zip, .tar or .arrow file; unpack it, or pack it again as a .zip or .tar."


# Reading


class _File:
    """A descriptor that is closed when nobody uses it any more, so that one thread may evict what another is reading."""

    def __init__(self, path: str, version: Version) -> None:
        # One flag exists on Unix, the other on Windows.
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        _check_version(os.fstat(self._descriptor), version)

    def read(self, size: int, offset: int) -> bytes:
        parts = []
        while offset >= 0 and size > 0 and (part := _read_at(self._descriptor, size, offset)):
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        if size:
            raise UnreadableArchiveError(_INCOMPLETE)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_some(self, size: int, offset: int) -> bytes:
        """At most `size` bytes, in one system call."""
        return _read_at(self._descriptor, size, offset) if offset >= 0 else b""

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class _Block:
    """Bytes of a file that were read before, as a `_File`; what they do not have is read from it."""

    def __init__(self, file: _File, begin: int, end: int) -> None:
        self._file, self._begin, self._data = file, begin, file.read_some(end - begin, begin)

    def read(self, size: int, offset: int) -> bytes:
        data = self._data[offset - self._begin : offset - self._begin + size]
        return data if len(data) == size else self._file.read(size, offset)

    def read_some(self, size: int, offset: int) -> bytes:
        data = self._data[offset - self._begin : offset - self._begin + size]
        return data if len(data) == size else self._file.read_some(size, offset)


_SEEKING = threading.Lock()


def _read_at(descriptor: int, size: int, offset: int) -> bytes:
    """`os.pread`, or on Windows, which has none, seek and read, one thread at a time."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    with _SEEKING:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


@lru_cache(maxsize=OPEN_AT_ONCE)
def _open(path: str, version: Version) -> _File:
    """The open file of this version of an archive, shared by the process; a forked process may use its parent's."""
    return _File(path, version)


def _check_version(status: os.stat_result, version: Version) -> None:
    if archive_version(status) != version:
        raise UnreadableArchiveError(CHANGED)


def _read_member(file: _File | _Block, header: int, stored: int) -> bytes:
    """The data after a local header, which repeats the name and has extra fields whose length is stored only there."""
    start = file.read_some(_LOCAL_HEADER.size + _NAME_AND_EXTRA + stored, header)
    if len(start) < _LOCAL_HEADER.size:
        raise UnreadableArchiveError(_INCOMPLETE)
    signature, name, extra = _LOCAL_HEADER.unpack_from(start)
    if signature != b"PK\3\4":
        raise UnreadableArchiveError("is not where the archive's index says; the archive is damaged: copy it again")
    begin = _LOCAL_HEADER.size + name + extra
    data = start[begin : begin + stored]
    return data if len(data) == stored else file.read(stored, header + begin)


def _inflate(data: bytes, size: int) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)


def _from_bzip2(data: bytes, size: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, size + 1)


def _from_lzma(data: bytes, size: int, ends_itself: bool = False) -> bytes:
    """Zip's variant of LZMA (4 bytes of versions and lengths, 5 of properties, the data), given the header of a .lzma file."""
    length = b"\xff" * 8 if ends_itself else size.to_bytes(8, "little")
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=MAX_BYTES)
    return decompressor.decompress(data[4:9] + length + data[9:], size + 1)


_DECOMPRESS: dict[int, Callable[[bytes, int], bytes]] = {
    zipfile.ZIP_STORED: lambda data, size: data,
    zipfile.ZIP_DEFLATED: _inflate,
    zipfile.ZIP_BZIP2: _from_bzip2,
    zipfile.ZIP_LZMA: _from_lzma,
    LZMA_WITH_END: lambda data, size: _from_lzma(data, size, ends_itself=True),
}


# Writing


IMAGES_ZIP = "images.zip"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of the format, so that equal content gives equal bytes


def write_images_zip(folder: Path, images: Iterable[tuple[str, bytes]]) -> list[str]:
    """Write (name, encoded image) pairs into `images.zip` in the folder, and return their paths for a manifest."""
    return [f"{IMAGES_ZIP}::{name}" for name in write_zip(folder / IMAGES_ZIP, images)]


def write_zip(path: Path, images: Iterable[tuple[str, bytes]], comment: bytes = b"") -> list[str]:
    """Write (name, encoded image) pairs into a .zip, completely or not at all, and return their names.

    They are stored, not compressed, because images are compressed already. With a comment, an archive that has the same one is
    complete already, and is left as it is.
    """
    if comment and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if archive.comment == comment:
                return archive.namelist()
    names = []
    with atomic_writer(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in images:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
            names.append(name)
        archive.comment = comment
    return names
