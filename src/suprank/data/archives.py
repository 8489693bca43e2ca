"""Random access to the members of archives and to images in Parquet and Arrow files, by threads and worker processes at once;
and writing a .zip."""

from __future__ import annotations

import bz2
import lzma
import os
import struct
import tarfile
import threading
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from suprank.data.columnar import BYTE_RANGE, ColumnMembers, CompressedArrowError, read_from_row_group
from suprank.files.atomic import atomic_writer

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPEN_AT_ONCE = 64
"""Archives that a process keeps open. Google Landmarks has 500; a process can often open no more than 1,024 files."""

MAX_BYTES = 1 << 30
"""The largest file or member that is read: no image is larger, and a few megabytes of zip can claim terabytes."""

Entry: TypeAlias = "tuple[int, int, int, int, int]"
"""(offset, stored bytes, content bytes, CRC-32 or −1, method). The offset is that of a zip's local header or a tar's data."""

# Methods of zip are positive; negative ones say why a member cannot be read.
_ENCRYPTED, _LINK, _SPARSE, _SPECIAL = -1, -2, -3, -4
_REFUSED = {
    _ENCRYPTED: "is encrypted; write the archive again without a password",
    _LINK: "is a symbolic link, or a hard link to nothing; write the archive again with `tar --dereference`",
    _SPARSE: "is a sparse file; write the archive again without `tar --sparse`",
    _SPECIAL: "is a device or a pipe, not a file",
}
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ZIP_ENCRYPTED = 0x1 | 0x40
_LZMA_ENDS_ITSELF = 0x2


class UnreadableArchiveError(ValueError):
    """An archive or a member is damaged, or of a kind that has no random access."""


@dataclass(frozen=True)
class Members:
    """The index of an archive: sorted names in one `bytes`, and their entries in one array.

    It takes about 100 bytes a member, which forked workers share and which pickle as they are, unlike a dictionary.
    """

    names: bytes
    ends: NDArray[np.int64]
    entries: NDArray[np.int64]

    @classmethod
    def from_entries(cls, by_name: dict[bytes, Entry]) -> Members:
        names = sorted(by_name)
        ends = np.cumsum(np.fromiter(map(len, names), np.int64, len(names)))
        entries = np.array([by_name[name] for name in names], np.int64).reshape(-1, 5)
        return cls(b"".join(names), ends, entries)

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[str]:
        return (self._name(index).decode(errors="surrogateescape") for index in range(len(self)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.entry(name) is not None

    def entry(self, name: str) -> Entry | None:
        wanted = name.encode(errors="surrogateescape")
        index = bisect_left(range(len(self)), wanted, key=self._name)
        if index == len(self) or self._name(index) != wanted:
            return None
        return tuple(self.entries[index].tolist())

    def _name(self, index: int) -> bytes:
        return self.names[int(self.ends[index - 1]) if index else 0 : int(self.ends[index])]


class Archive:
    """A .zip or an uncompressed .tar file, or a .parquet or .arrow file with a column of images, listed once.

    It is read with `os.pread`, which has no file position, so that any number of threads and forked processes can share one
    descriptor. Pickling includes the list of members; the file is opened again in the other process.

    Of two members with one name the later counts, as for `unzip` and `tar`; a leading `./` or `/` is dropped, and a backslash
    is a slash. Folders are not members. A hard link in a tar is the member it links to. The members of a Parquet or Arrow file
    are `<column>/<row>`, such as `image/17`: see `suprank.data.columnar`.

    Raises FileNotFoundError if there is no such file, UnreadableArchiveError if it is damaged or compressed as a whole.
    """

    def __init__(self, path: Path) -> None:
        list_members = _LISTING.get(path.suffix.lower())
        if list_members is None:
            raise UnreadableArchiveError(_unsupported(path))
        self.path = path
        try:
            self._version = _version(path.stat())
            self.members = list_members(path)
        except FileNotFoundError:
            raise FileNotFoundError(f"the archive {path} does not exist.") from None
        except UnreadableArchiveError:
            raise
        except CompressedArrowError as error:
            raise UnreadableArchiveError(f"{path} {error}.") from error
        # zipfile and tarfile can raise anything on damaged files, because they trust the lengths and offsets they read.
        except Exception as error:
            raise UnreadableArchiveError(
                f"{path} cannot be read as {path.suffix[1:]} ({error}); it is damaged or incomplete: copy it again."
            ) from error

    def read(self, member: str) -> bytes:
        """The content of a member; in a zip, its checksum is verified."""
        entry = self.members.entry(member)
        if entry is None:
            raise FileNotFoundError(f"{self.path} has no member {member!r}.")
        try:
            return self._content(entry) if len(entry) == 5 else self._value(member, *entry)
        except (UnreadableArchiveError, zlib.error, lzma.LZMAError, OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk; bz2 raises OSError without a number
                raise
            raise UnreadableArchiveError(f"{self.path}: member {member!r} {_problem(error)}.") from error

    def _content(self, entry: Entry) -> bytes:
        offset, stored, size, crc, method = entry
        if method in _REFUSED:
            raise UnreadableArchiveError(_REFUSED[method])
        if method not in _DECOMPRESS:
            raise UnreadableArchiveError(f"is compressed by method {method}; only stored, deflate, bzip2 and lzma can be read")
        if max(size, stored) > MAX_BYTES:
            raise UnreadableArchiveError(f"has {size:,} bytes; an image has at most {MAX_BYTES:,}")
        file = _open(str(self.path), self._version)
        if self.path.suffix.lower() == ".zip":
            offset = _data_offset(file, offset)
        content = _DECOMPRESS[method](file.read(stored, offset), size)
        if len(content) != size or (crc >= 0 and zlib.crc32(content) != crc):
            raise UnreadableArchiveError("is damaged: its length or checksum is wrong; copy the archive again")
        return content

    def _value(self, member: str, method: int, first: int, second: int) -> bytes:
        """The bytes in a row of a Parquet or Arrow file."""
        if method == BYTE_RANGE:
            return self._content((first, second, second, -1, zipfile.ZIP_STORED))
        _check_version(self.path.stat(), self._version)
        try:
            value = read_from_row_group(self.path, member.rpartition("/")[0], first, second)
        except (ValueError, NotImplementedError) as error:  # of pyarrow; the latter for structures of more than 2 GB
            way_out = "copy the file again, or write it with smaller row groups"
            raise UnreadableArchiveError(f"cannot be decoded ({error}); {way_out}") from error
        if value is None:
            raise UnreadableArchiveError("is blank: the row has no image")
        return value


def _problem(error: Exception) -> str:
    return str(error) if isinstance(error, UnreadableArchiveError) else f"is damaged ({error}); copy the archive again"


def _unsupported(path: Path) -> str:
    name = path.name.lower()
    if name.endswith((".tgz", ".tbz2", ".txz")) or ".tar." in name:
        return f"{path} is compressed as a whole, so it has no random access; unpack it, or make it an uncompressed .tar."
    return f"{path} is not a .zip, .tar, .parquet or .arrow file; unpack it, or pack it again as a .zip or .tar."


# Listing


def _zip_members(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return Members.from_entries(
            {
                _normalize(info.filename): (info.header_offset, info.compress_size, info.file_size, info.CRC, _zip_method(info))
                for info in archive.infolist()
                if not info.filename.endswith(("/", "\\"))
            }
        )


def _zip_method(info: zipfile.ZipInfo) -> int:
    if info.flag_bits & _ZIP_ENCRYPTED:
        return _ENCRYPTED
    if info.compress_type == zipfile.ZIP_LZMA and info.flag_bits & _LZMA_ENDS_ITSELF:
        return _LZMA_WITH_END
    return info.compress_type


_LZMA_WITH_END = 1000 + zipfile.ZIP_LZMA


def _tar_members(path: Path) -> Members:
    """One pass over the headers, seeking past the data."""
    with path.open("rb") as file:
        start = file.read(8)
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise UnreadableArchiveError(f"{path} is compressed with {name}, which has no random access; unpack it to a .tar.")
    entries: dict[bytes, Entry] = {}
    with tarfile.open(path, "r:") as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # it would keep an object for each member: a gigabyte for a million
            if not member.isdir():
                entries[_normalize(member.name)] = _tar_entry(member, entries)
    return Members.from_entries(entries)


def _tar_entry(member: tarfile.TarInfo, entries: dict[bytes, Entry]) -> Entry:
    if member.islnk() and _normalize(member.linkname) in entries:  # a hard link comes after the file it means
        return entries[_normalize(member.linkname)]
    refused = _LINK if member.islnk() or member.issym() else _SPARSE if member.issparse() else 0 if member.isreg() else _SPECIAL
    return (member.offset_data, member.size, member.size, -1, refused)


def _normalize(name: str) -> bytes:
    name = name.replace("\\", "/")
    while name.startswith(("./", "/")):
        name = name.removeprefix(".").removeprefix("/")
    return name.encode(errors="surrogateescape")


_LISTING: dict[str, Callable[[Path], Members | ColumnMembers]] = {
    ".zip": _zip_members,
    ".tar": _tar_members,
    ".parquet": ColumnMembers.from_file,
    ".arrow": ColumnMembers.from_file,
}
"""Extension → how the members of such a file are listed."""


# Reading


class _File:
    """A descriptor that is closed when nobody uses it any more, so that one thread may evict what another is reading."""

    def __init__(self, path: str, version: tuple[int, int]) -> None:
        # One flag exists on Unix, the other on Windows.
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        _check_version(os.fstat(self._descriptor), version)

    def read(self, size: int, offset: int) -> bytes:
        parts = []
        while offset >= 0 and size > 0 and (part := _read_at(self._descriptor, size, offset)):
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        if size:
            raise UnreadableArchiveError("is incomplete: the archive is damaged or truncated; copy it again")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


_SEEKING = threading.Lock()


def _read_at(descriptor: int, size: int, offset: int) -> bytes:
    """`os.pread`, or on Windows, which has none, seek and read, one thread at a time."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    with _SEEKING:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


@lru_cache(maxsize=OPEN_AT_ONCE)
def _open(path: str, version: tuple[int, int]) -> _File:
    """The open file of this version of an archive, shared by the process; a forked process may use its parent's."""
    return _File(path, version)


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _check_version(status: os.stat_result, version: tuple[int, int]) -> None:
    if _version(status) != version:
        raise UnreadableArchiveError("cannot be read, because the archive has changed since it was listed; start again")


def _data_offset(file: _File, header: int) -> int:
    """The offset of the data: the local header repeats the name and has extra fields whose length is stored only there."""
    signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size, header))
    if signature != b"PK\3\4":
        raise UnreadableArchiveError("is not where the archive's index says; the archive is damaged: copy it again")
    return header + _LOCAL_HEADER.size + name + extra


def _inflate(data: bytes, size: int) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)


def _from_bzip2(data: bytes, size: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, size + 1)


def _from_lzma(data: bytes, size: int, ends_itself: bool = False) -> bytes:
    """Zip's variant of LZMA (4 bytes of versions and lengths, 5 of properties, the data), given the header of a .lzma file."""
    length = b"\xff" * 8 if ends_itself else size.to_bytes(8, "little")
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_ALONE)
    return decompressor.decompress(data[4:9] + length + data[9:], size + 1)


_DECOMPRESS: dict[int, Callable[[bytes, int], bytes]] = {
    zipfile.ZIP_STORED: lambda data, size: data,
    zipfile.ZIP_DEFLATED: _inflate,
    zipfile.ZIP_BZIP2: _from_bzip2,
    zipfile.ZIP_LZMA: _from_lzma,
    _LZMA_WITH_END: lambda data, size: _from_lzma(data, size, ends_itself=True),
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
