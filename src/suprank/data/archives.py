"""Members of zip and tar archives, read at random by workers and threads at once: a list of offsets, and no cursor."""

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPEN_AT_ONCE = 64
"""Archives kept open in a process. Google Landmarks has 500; a process may often open no more than 1,024 files."""

MAX_BYTES = 1 << 30
"""What one file or member may hold: no image has more, and a few megabytes of zip can claim terabytes."""

Entry: TypeAlias = "tuple[int, int, int, int, int]"
"""offset, bytes stored, bytes of content, CRC-32 (−1: none), method. The offset is of a zip's local header, of a tar's data."""

# Methods of zip are positive; these say why a member cannot be read.
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
    """An archive that is damaged, or of a kind that has no random access, or a member of it that is."""


@dataclass(frozen=True)
class Members:
    """Where each member lies. Names are sorted in one `bytes`, numbers are in one array: some 100 bytes a member, that forked
    workers share and that pickle as they are; a dictionary of strings would do neither."""

    names: bytes
    ends: NDArray[np.int64]
    entries: NDArray[np.int64]

    @classmethod
    def of(cls, found: dict[bytes, Entry]) -> Members:
        names = sorted(found)
        ends = np.cumsum(np.fromiter(map(len, names), np.int64, len(names)))
        entries = np.array([found[name] for name in names], np.int64).reshape(-1, 5)
        return cls(b"".join(names), ends, entries)

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[str]:
        return (self._name(place).decode(errors="surrogateescape") for place in range(len(self)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.entry(name) is not None

    def entry(self, name: str) -> Entry | None:
        wanted = name.encode(errors="surrogateescape")
        place = bisect_left(range(len(self)), wanted, key=self._name)
        if place == len(self) or self._name(place) != wanted:
            return None
        return tuple(self.entries[place].tolist())

    def _name(self, place: int) -> bytes:
        return self.names[int(self.ends[place - 1]) if place else 0 : int(self.ends[place])]


class Archive:
    """A .zip or an uncompressed .tar file, listed once.

    ImageLoaderSettings goes through `os.pread`, which has no position to share: any number of threads and forked processes read from one
    descriptor. Pickling takes the list along, and opens the file again where it arrives.

    Names: of two members with one name the later counts, as for `unzip` and `tar`; a leading `./` or `/` is dropped, and a
    backslash is a slash. Folders are no members. A hard link in a tar is the member it links to.

    Raises FileNotFoundError where there is no such file, UnreadableArchiveError where it is damaged or compressed as a whole.
    """

    def __init__(self, path: Path) -> None:
        listed = _LISTED.get(path.suffix.lower())
        if listed is None:
            raise UnreadableArchiveError(_why_not(path))
        self.path = path
        try:
            self._version = _version(path.stat())
            self.members = Members.of(listed(path))
        except FileNotFoundError:
            raise FileNotFoundError(f"the archive {path} is not there.") from None
        except UnreadableArchiveError:
            raise
        # What zipfile and tarfile raise on damaged files is not settled: they trust lengths and offsets that they read.
        except Exception as error:
            raise UnreadableArchiveError(
                f"{path} cannot be read as {path.suffix[1:]} ({error}); it is damaged or incomplete: copy it again."
            ) from error

    def read(self, member: str) -> bytes:
        """The content of a member, its checksum verified where there is one (zip)."""
        entry = self.members.entry(member)
        if entry is None:
            raise FileNotFoundError(f"{self.path} has no member {member!r}.")
        try:
            return self._content(entry)
        except (UnreadableArchiveError, zlib.error, lzma.LZMAError, OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk; bz2 raises it without a number
                raise
            raise UnreadableArchiveError(f"{self.path}: member {member!r} {_reason(error)}.") from error

    def _content(self, entry: Entry) -> bytes:
        offset, stored, size, crc, method = entry
        if method in _REFUSED:
            raise UnreadableArchiveError(_REFUSED[method])
        if method not in _CONTENT:
            raise UnreadableArchiveError(f"is compressed by method {method}; only stored, deflate, bzip2 and lzma are read")
        if max(size, stored) > MAX_BYTES:
            raise UnreadableArchiveError(f"has {size:,} bytes; more than {MAX_BYTES:,} are no image")
        file = _opened(str(self.path), self._version)
        if self.path.suffix.lower() == ".zip":
            offset = _data_offset(file, offset)
        content = _CONTENT[method](file.read(stored, offset), size)
        if len(content) != size or (crc >= 0 and zlib.crc32(content) != crc):
            raise UnreadableArchiveError("is damaged: its length or checksum is not the recorded one; copy the archive again")
        return content


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UnreadableArchiveError) else f"is damaged ({error}); copy the archive again"


def _why_not(path: Path) -> str:
    name = path.name.lower()
    if name.endswith((".tgz", ".tbz2", ".txz")) or ".tar." in name:
        return f"{path} is compressed as a whole, so it has no random access; unpack it, or make it an uncompressed .tar."
    return f"{path} is not a .zip or .tar file, the archives that are read; unpack it, or pack it again as one of these."


# Listing


def _zip_entries(path: Path) -> dict[bytes, Entry]:
    with zipfile.ZipFile(path) as archive:
        return {
            _plain(info.filename): (info.header_offset, info.compress_size, info.file_size, info.CRC, _zip_method(info))
            for info in archive.infolist()
            if not info.filename.endswith(("/", "\\"))
        }


def _zip_method(info: zipfile.ZipInfo) -> int:
    if info.flag_bits & _ZIP_ENCRYPTED:
        return _ENCRYPTED
    if info.compress_type == zipfile.ZIP_LZMA and info.flag_bits & _LZMA_ENDS_ITSELF:
        return _LZMA_WITH_END
    return info.compress_type


_LZMA_WITH_END = 1000 + zipfile.ZIP_LZMA


def _tar_entries(path: Path) -> dict[bytes, Entry]:
    """One pass over the headers, which seeks past the data."""
    with path.open("rb") as file:
        start = file.read(8)
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise UnreadableArchiveError(f"{path} is compressed with {name}, which has no random access; unpack it to a .tar.")
    found: dict[bytes, Entry] = {}
    with tarfile.open(path, "r:") as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # it would keep an object for each, a gigabyte a million
            if not member.isdir():
                found[_plain(member.name)] = _tar_entry(member, found)
    return found


def _tar_entry(member: tarfile.TarInfo, found: dict[bytes, Entry]) -> Entry:
    if member.islnk() and _plain(member.linkname) in found:  # the file a hard link means comes before it
        return found[_plain(member.linkname)]
    refused = _LINK if member.islnk() or member.issym() else _SPARSE if member.issparse() else 0 if member.isreg() else _SPECIAL
    return (member.offset_data, member.size, member.size, -1, refused)


def _plain(name: str) -> bytes:
    name = name.replace("\\", "/")
    while name.startswith(("./", "/")):
        name = name.removeprefix(".").removeprefix("/")
    return name.encode(errors="surrogateescape")


_LISTED: dict[str, Callable[[Path], dict[bytes, Entry]]] = {".zip": _zip_entries, ".tar": _tar_entries}


# ImageLoaderSettings


class _File:
    """A descriptor that closes when nobody reads from it any more, so that one thread may evict what another is using."""

    def __init__(self, path: str, version: tuple[int, int]) -> None:
        # The flags are of Unix, and of Windows.
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        if _version(os.fstat(self._descriptor)) != version:
            raise UnreadableArchiveError("cannot be read, for the archive was written to since it was listed; start again")

    def read(self, size: int, offset: int) -> bytes:
        parts = []
        while offset >= 0 and size > 0 and (part := _read_at(self._descriptor, size, offset)):
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        if size:
            raise UnreadableArchiveError("is not all there: the archive is damaged or incomplete; copy it again")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


_SEEKING = threading.Lock()


def _read_at(descriptor: int, size: int, offset: int) -> bytes:
    """`os.pread`; on Windows, which has none, one thread at a time."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    with _SEEKING:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


@lru_cache(maxsize=OPEN_AT_ONCE)
def _opened(path: str, version: tuple[int, int]) -> _File:
    """The one open file of this process for this version of an archive; a forked process may go on with its parent's."""
    return _File(path, version)


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _data_offset(file: _File, header: int) -> int:
    """Where the data begin: the local header repeats the name and has extra fields of its own, which no other place tells."""
    signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size, header))
    if signature != b"PK\3\4":
        raise UnreadableArchiveError("is not where the archive's list says; the archive is damaged: copy it again")
    return header + _LOCAL_HEADER.size + name + extra


def _inflated(data: bytes, size: int) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)


def _from_bzip2(data: bytes, size: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, size + 1)


def _from_lzma(data: bytes, size: int, ends_itself: bool = False) -> bytes:
    """Zip's variant, given the header of a .lzma file: 4 bytes of versions and lengths, 5 of properties, the data."""
    length = b"\xff" * 8 if ends_itself else size.to_bytes(8, "little")
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_ALONE)
    return decompressor.decompress(data[4:9] + length + data[9:], size + 1)


_CONTENT: dict[int, Callable[[bytes, int], bytes]] = {
    zipfile.ZIP_STORED: lambda data, size: data,
    zipfile.ZIP_DEFLATED: _inflated,
    zipfile.ZIP_BZIP2: _from_bzip2,
    zipfile.ZIP_LZMA: _from_lzma,
    _LZMA_WITH_END: lambda data, size: _from_lzma(data, size, ends_itself=True),
}
