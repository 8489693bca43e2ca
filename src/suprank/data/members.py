"""The members of an archive, as sorted names and where each is, in a few arrays; zipfile and tarfile list them."""

from __future__ import annotations

import logging
import math
import tarfile
import time
import zipfile
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

Entry: TypeAlias = "tuple[int, int, int, int, int]"
"""(offset, stored bytes, content bytes, CRC-32 or −1 for none, method).

In a zip the offset is that of the local header, before the stored bytes, and the CRC that of the content. In a tar the stored
bytes begin with the member's headers, whose CRC it is.
"""

# Methods of zip are positive; negative ones say why a member cannot be read.
ENCRYPTED, LINK, SPARSE, SPECIAL = -1, -2, -3, -4
LZMA_WITH_END = 1000 + zipfile.ZIP_LZMA
"""The method of LZMA data that marks its own end."""

_FLAG_ENCRYPTED, _FLAG_LZMA_END = 0x1 | 0x40, 0x2
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}
_TAR_BLOCK = 512
_LARGEST_HEADERS = 1 << 16  # bytes before a member of a tar; extended attributes can be larger, names cannot
_SAMPLED = 64  # headers of a tar that tell it from another with the same size and time
_PATIENCE = 5.0  # seconds until a message says that an archive is being listed

_log = logging.getLogger(__name__)


class UnreadableArchiveError(ValueError):
    """An archive or a member is damaged, or of a kind that has no random access."""


@dataclass(frozen=True)
class Members:
    """The index of an archive: sorted names in one `bytes`, and their entries in one array.

    Name `i` is `names[bounds[i] : bounds[i + 1]]`. It takes about 100 bytes a member, which forked workers share and which
    pickle as they are, unlike a dictionary.
    """

    names: bytes
    bounds: NDArray[np.int64]
    entries: NDArray[np.int64]

    @classmethod
    def from_names(cls, names: pa.LargeBinaryArray, entries: NDArray[np.int64]) -> Members:
        """The members of these names, in the order of the archive: of equal names the last counts."""
        if not pc.all(pc.less(names[:-1], names[1:]), min_count=0).as_py():  # many archives are sorted: that is seen at once
            order = pc.sort_indices(names)  # stable, and by bytes
            names, entries = names.take(order), entries[np.asarray(order)]
            last = np.append(np.asarray(pc.not_equal(names[1:], names[:-1])), True)
            if not last.all():
                names, entries = names.filter(pa.array(last)), entries[last]
        return cls(*_name_bytes(names), entries)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Members:
        """The members of `to_arrays`, checked: a wrong offset would make pyarrow read other memory."""
        names, bounds, entries = arrays["names"].tobytes(), arrays["bounds"], arrays["entries"]
        right = bounds.dtype == entries.dtype == np.int64 and entries.shape == (len(bounds) - 1, 5)
        if not right or bounds[0] != 0 or bounds[-1] != len(names) or (bounds[1:] < bounds[:-1]).any():
            raise ValueError("these arrays are not those of a list of members.")
        return cls(names, bounds, entries)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays to save."""
        return {"names": np.frombuffer(self.names, np.uint8), "bounds": self.bounds, "entries": self.entries}

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[str]:
        return map(self.name_at, range(len(self)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.entry(name) is not None

    def entry(self, name: str) -> Entry | None:
        """Where a member is; None if there is none of this name."""
        wanted = name.encode(errors="surrogateescape")
        index = bisect_left(range(len(self)), wanted, key=self._name)
        if index == len(self) or self._name(index) != wanted:
            return None
        return tuple(self.entries[index].tolist())

    def name_at(self, index: int) -> str:
        """The name of the member of this index."""
        return self._name(index).decode(errors="surrogateescape")

    def contain(self, names: pa.Array) -> NDArray[np.bool_]:
        """Whether each of these names is a member."""
        return self.find(names) >= 0

    def find(self, names: pa.Array) -> NDArray[np.int64]:
        """The index of each of these names, or −1 if there is no such member. A million take half a second."""
        wanted, members = names.cast(pa.large_binary()), self.to_arrow()
        if wanted.equals(members):  # as after an import of the whole archive: that is seen at once
            return np.arange(len(self))
        found = pc.index_in(wanted, value_set=members)
        return np.asarray(pc.fill_null(found, -1), np.int64)

    def to_arrow(self) -> pa.LargeBinaryArray:
        """The sorted names, without a copy."""
        return _binary_array(self.names, self.bounds)

    def _name(self, index: int) -> bytes:
        return self.names[int(self.bounds[index]) : int(self.bounds[index + 1])]


# Listing: each function returns the members, and byte ranges [n, 2] (offset, length) by whose content the archive can be told
# from another. Of a zip that is its directory, with a checksum of every member; of a tar, some of its headers and its end.


class _Rows:
    """Names and entries in the order of the archive, in flat arrays: as objects, a million would take a gigabyte."""

    def __init__(self, path: Path) -> None:
        self.names, self.ends, self.entries = bytearray(), array("q", (0,)), array("q")
        self._path, self._message_at = path, time.monotonic() + _PATIENCE

    def __len__(self) -> int:
        return len(self.ends) - 1

    def add(self, name: str, entry: Entry) -> None:
        self.names += normalize(name)
        self.ends.append(len(self.names))
        self.entries.extend(entry)
        if not len(self) % 10_000 and time.monotonic() > self._message_at:
            # A warning, because those are shown by every command and every program.
            _log.warning(
                "%s is being listed, %s members so far; its list is cached for the next time", self._path, f"{len(self):,}"
            )
            self._message_at = math.inf

    def members(self, links: Mapping[int, bytes]) -> Members:
        """The members; the rows in `links` get the entry of the last member before them that has the name they link to."""
        entries = np.array(self.entries, np.int64).reshape(-1, 5)
        latest: dict[bytes, int] = {}
        for row, (begin, end) in enumerate(zip(self.ends, self.ends[1:], strict=False)) if links else ():
            if row in links and links[row] in latest:
                entries[row] = entries[latest[links[row]]]
            latest[bytes(self.names[begin:end])] = row
        return Members.from_names(_binary_array(bytes(self.names), np.array(self.ends, np.int64)), entries)


def normalize(name: str) -> bytes:
    r"""The name without leading `./` and `/`, and with slashes for backslashes.

    Example:
        >>> normalize(".//a\\b.jpg")
        b'a/b.jpg'
    """
    found = name.encode(errors="surrogateescape").replace(b"\\", b"/")
    while found.startswith((b"./", b"/")):
        found = found.removeprefix(b".").removeprefix(b"/")
    return found


class _ZipEntries:
    """Takes the place of the list and the dictionary in which a ZipFile keeps its entries: a million ZipInfo take 600 MB."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def append(self, info: zipfile.ZipInfo) -> None:
        method = info.compress_type
        if info.flag_bits & _FLAG_ENCRYPTED:
            method = ENCRYPTED
        elif method == zipfile.ZIP_LZMA and info.flag_bits & _FLAG_LZMA_END:
            method = LZMA_WITH_END
        if not info.filename.endswith(("/", "\\")):
            self._rows.add(info.filename, (info.header_offset, info.compress_size, info.file_size, info.CRC, method))

    def __setitem__(self, name: str, info: zipfile.ZipInfo) -> None:
        pass

    def __iter__(self) -> Iterator[zipfile.ZipInfo]:  # some versions of zipfile sort the list
        return iter(())


class _ZipDirectory(zipfile.ZipFile):
    """A zip that adds its entries to `rows` as it reads them."""

    def __init__(self, path: Path, rows: _Rows) -> None:
        self._rows = rows
        super().__init__(path)

    def _RealGetContents(self) -> None:  # noqa: N802
        self.filelist = self.NameToInfo = _ZipEntries(self._rows)  # type: ignore[assignment]
        super()._RealGetContents()  # type: ignore[misc]


def zip_members(path: Path) -> tuple[Members, NDArray[np.int64]]:
    """List a zip: of two members with one name the later counts, and folders are no members."""
    rows = _Rows(path)
    with _ZipDirectory(path, rows) as archive:
        begin = archive.start_dir
    return rows.members({}), np.array([[begin, path.stat().st_size - begin]], np.int64)


class _TarFile(FileIO):
    """A tar of which few bytes may be read between two members: a header can claim any size."""

    left = _LARGEST_HEADERS

    def read(self, size: int | None = -1, /) -> bytes:
        self.left -= self.left + 1 if size is None or size < 0 else size
        if self.left < 0:
            raise UnreadableArchiveError(
                f"{self.name} has more than {_LARGEST_HEADERS:,} bytes of headers before a member; write it again without "
                f"extended attributes, or copy it again if it has none."
            )
        return super().read(size)

    def headers(self, member: tarfile.TarInfo) -> bytes:
        """The bytes of a member's headers, which were read before. As many may be read before the next member."""
        self.seek(member.offset)
        self.left = _LARGEST_HEADERS
        return super().read(member.offset_data - member.offset)


def tar_members(path: Path) -> tuple[Members, NDArray[np.int64]]:
    """List an uncompressed tar: of two members with one name the later counts, and a hard link is the member it links to.

    Folders are no members. Half a header or a damaged one, which tarfile takes for the end, is refused.
    """
    rows, links = _Rows(path), {}
    with _TarFile(path) as file:
        start = file.read(8)
        for magic, name in _COMPRESSED.items():
            if start.startswith(magic):
                no_access = f"is compressed with {name}, which has no random access"
                raise UnreadableArchiveError(f"{path} {no_access}; unpack it to a .tar.")
        file.seek(0)
        # Names are the bytes they are, whatever the locale is.
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            end = 0
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would keep an object for each member
                if archive.offset <= end:
                    raise UnreadableArchiveError(f"{path} is damaged: a member before byte {end:,} leads back; copy it again.")
                end = archive.offset
                headers = file.headers(member)
                if member.isdir():
                    continue
                if member.islnk():
                    links[len(rows)] = normalize(member.linkname)
                stored, crc = len(headers) + member.size, zlib.crc32(headers)
                rows.add(member.name, (member.offset, stored, member.size, crc, _kind(member)))
            file.seek(end := archive.offset)
            if file.read(_TAR_BLOCK).strip(b"\0"):
                at = f"at byte {end:,}, after {len(rows):,} members"
                raise UnreadableArchiveError(f"{path} is damaged or cut off {at}; copy it again.")
    members = rows.members(links)
    in_order = members.entries[np.argsort(members.entries[:, 0])]
    sampled = in_order[np.linspace(0, len(members) - 1, min(len(members), _SAMPLED)).astype(np.int64)]
    return members, np.vstack([np.stack([sampled[:, 0], sampled[:, 1] - sampled[:, 2]], axis=1), (end, _TAR_BLOCK)])


def _kind(member: tarfile.TarInfo) -> int:
    if member.islnk() or member.issym():
        return LINK
    return SPARSE if member.issparse() else 0 if member.isreg() else SPECIAL


# Many names at once


def _binary_array(blob: bytes, bounds: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """The array of the slices `blob[bounds[i] : bounds[i + 1]]`, without a copy."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds, np.int64)), pa.py_buffer(blob)]
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)


def _name_bytes(names: pa.LargeBinaryArray) -> tuple[bytes, NDArray[np.int64]]:
    """The bytes of all names, and where each begins and ends in them."""
    _, bounds, data = names.buffers()
    edges = np.frombuffer(bounds, np.int64)[names.offset : names.offset + len(names) + 1]
    if not len(edges) or data is None:
        return b"", np.zeros(len(names) + 1, np.int64)
    return data[edges[0] : edges[-1]].to_pybytes(), edges - edges[0]
