"""List the members of an uncompressed .tar from header to header; `tarfile` lists what is unusual."""

from __future__ import annotations

import os
import re
import tarfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.data.members import (
    LINK,
    SPARSE,
    SPECIAL,
    Entry,
    Members,
    UnreadableArchiveError,
    binary_array,
    normalize,
    normalize_all,
    replace_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}
_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_AT_ONCE = 4096  # headers
_NAME, _SIZE, _CHECKSUM, _LINKNAME, _PREFIX = slice(0, 100), slice(124, 136), slice(148, 156), slice(157, 257), slice(345, 500)
_KIND = 156
_REGULAR, _OLD_REGULAR, _FOLDER, _SPARSE_FILE = b"\x0007", 0, ord("5"), ord("S")
_HARD_LINK, _LINKS, _WITHOUT_DATA = ord("1"), b"12", b"123456"
_LONG_NAME, _LONG_LINK, _GLOBAL, _EXTENSIONS = ord("L"), ord("K"), ord("g"), b"LKgxX"
_LARGEST_EXTENSION = 1 << 20
_PAX_RECORD = re.compile(rb"(\d{1,7}) ([^=]+)=")
_PAX_HARMLESS = frozenset((b"atime", b"ctime", b"mtime", b"uid", b"gid", b"uname", b"gname", b"comment"))


class _UnusualError(Exception):
    """Something that is left to tarfile: damage, for its error, or what hardly any archive has."""


def tar_members(path: Path) -> Members:
    """List a tar as `tarfile` does, in one pass over the headers, seeking past the data.

    Of two members with one name the later counts. Folders are no members, and a hard link is the member it links to. Half a
    header or a damaged one, which tarfile takes for the end, is refused.
    """
    with path.open("rb", buffering=0) as file:
        start = file.read(8)
        for magic, name in _COMPRESSED.items():
            if start.startswith(magic):
                raise UnreadableArchiveError(
                    f"{path} is compressed with {name}, which has no random access; unpack it to a .tar."
                )
        try:
            return _Listing(_reader(file.fileno()), os.fstat(file.fileno()).st_size).members()
        except _UnusualError:
            return list_with_tarfile(path)


def list_with_tarfile(path: Path) -> Members:
    """The same, by `tarfile`, which takes several times as long."""
    entries: dict[bytes, Entry] = {}
    # Names are the bytes they are, whatever the locale is.
    with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # it would keep an object for each member: a gigabyte for a million
            if not member.isdir():
                entries[_encode(member.name)] = _entry(member, entries)
        end = archive.offset
    with path.open("rb") as file:
        file.seek(end)
        if file.read(_BLOCK).strip(b"\0"):  # tarfile takes half a header, or a damaged one, for the end
            raise UnreadableArchiveError(
                f"{path} is damaged or cut off at byte {end:,}, after {len(entries):,} members; copy it again."
            )
    return Members.from_dict(entries)


def _encode(name: str) -> bytes:
    return normalize(name.encode(errors="surrogateescape"))


def _entry(member: tarfile.TarInfo, entries: dict[bytes, Entry]) -> Entry:
    if member.islnk() and _encode(member.linkname) in entries:  # a hard link comes after the file it means
        return entries[_encode(member.linkname)]
    refused = LINK if member.islnk() or member.issym() else SPARSE if member.issparse() else 0 if member.isreg() else SPECIAL
    return (member.offset_data, member.size, member.size, -1, refused)


def _reader(descriptor: int) -> Callable[[int, int], bytes]:
    """A function (size, offset) → bytes."""
    if hasattr(os, "pread"):
        return lambda size, offset: os.pread(descriptor, size, offset)

    def read(size: int, offset: int) -> bytes:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)

    return read


@dataclass
class _Listing:
    """The headers of a tar. Python only goes from one to the next; names and checksums are taken from thousands at once."""

    read: Callable[[int, int], bytes]
    file_size: int
    headers: list[bytes] = field(default_factory=list)  # of members, since the last block
    extensions: list[bytes] = field(default_factory=list)  # headers of long names and the like, since the last block
    names: list[pa.LargeBinaryArray] = field(default_factory=list)
    kinds: list[NDArray[np.uint8]] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    long_names: dict[int, bytes] = field(default_factory=dict)
    targets: dict[int, bytes] = field(default_factory=dict)  # of hard links
    old_folders: list[int] = field(default_factory=list)  # called files, but their names end in a slash

    def members(self) -> Members:
        self._walk()
        self._finish_block()
        names = replace_names(pa.concat_arrays(self.names), self.long_names)
        kinds, offsets, sizes = np.concatenate(self.kinds), np.array(self.offsets, np.int64), np.array(self.sizes, np.int64)
        kinds[self.old_folders] = _FOLDER
        refused = np.where(_is_one_of(kinds, _REGULAR), 0, np.where(_is_one_of(kinds, _LINKS), LINK, SPECIAL))
        entries = np.stack([offsets, sizes, sizes, np.full_like(sizes, -1), refused], axis=1)
        files = kinds != _FOLDER
        names = normalize_all(names if files.all() else names.filter(pa.array(files)))
        entries, numbers = entries[files], np.flatnonzero(files)
        links = np.flatnonzero(kinds[files] == _HARD_LINK)
        if len(links):
            _follow_links(names, entries, {row: normalize(self.targets[int(numbers[row])]) for row in links.tolist()})
        return Members.from_names(names, entries)

    def _walk(self) -> None:
        """Go from header to header, to the end of the archive."""
        at, read = 0, self.read
        extended: dict[bytes, bytes] = {}
        while True:
            header = read(_BLOCK, at)
            if len(header) != _BLOCK or (not header[0] and header == _ZEROS):
                # A tar may lack the zeros at its end. If it ends anywhere else, it was cut off.
                if at == 0 or extended or (header != _ZEROS and at != self.file_size):
                    raise _UnusualError
                return
            at += _BLOCK
            kind, size = header[_KIND], _octal(header[_SIZE])
            if kind in _EXTENSIONS:
                self.extensions.append(header)
                for key, value in self._extension(kind, at, size).items():
                    extended.setdefault(key, value)  # of two names, tarfile takes the first
                at += _padded(size)
                continue
            row, has_data = len(self.offsets), kind not in _WITHOUT_DATA
            if extended:
                size = int(extended.get(b"size", size))
                if b"path" in extended:
                    self.long_names[row] = extended[b"path"]
            if kind == _HARD_LINK:
                self.targets[row] = extended.get(b"linkpath") or _text(header[_LINKNAME])
            elif kind == _OLD_REGULAR and _text(header[_NAME]).endswith(b"/"):
                self.old_folders.append(row)
                has_data = False
            elif kind == _SPARSE_FILE:
                raise _UnusualError
            self.headers.append(header)
            self.offsets.append(at)
            self.sizes.append(size)
            if has_data:
                at += _padded(size)
            if extended:
                extended = {}
            if len(self.headers) + len(self.extensions) >= _AT_ONCE:
                self._finish_block()

    def _extension(self, kind: int, at: int, size: int) -> dict[bytes, bytes]:
        """What a header for a long name, or an extended one, says of the next member: `path`, `linkpath` or `size`."""
        data = self.read(size, at)
        if size > _LARGEST_EXTENSION or len(data) != size:
            raise _UnusualError
        if kind in (_LONG_NAME, _LONG_LINK):
            return {b"path" if kind == _LONG_NAME else b"linkpath": _text(data)}
        found = {}
        place = 0
        while place < size:
            record = _PAX_RECORD.match(data, place)
            end = place + int(record[1]) if record else 0
            if record is None or end <= record.end() or end > size or data[end - 1] != ord("\n"):
                raise _UnusualError
            found[record[2]] = data[record.end() : end - 1]
            place = end
        found = {key: value for key, value in found.items() if key not in _PAX_HARMLESS}
        if found and (kind == _GLOBAL or not found.keys() <= {b"path", b"linkpath", b"size"}):
            raise _UnusualError
        if b"path" in found:
            found[b"path"] = found[b"path"].rstrip(b"/")
        if not found.get(b"size", b"0").isdigit():
            raise _UnusualError
        return found

    def _finish_block(self) -> None:
        """Check the headers that were read, and take the names from them."""
        _check_headers(self.extensions)
        headers = _check_headers(self.headers)
        field, numbers = headers[:, _NAME], np.arange(100)
        lengths = np.where((field != 0).all(1), 100, (field == 0).argmax(1))
        names = binary_array(field[numbers < lengths[:, None]], np.append(0, np.cumsum(lengths)))
        prefixed = np.flatnonzero(headers[:, _PREFIX.start])
        joined = {row: b"/".join((_text(self.headers[row][_PREFIX]), names[row].as_py())) for row in prefixed.tolist()}
        self.names.append(replace_names(names, joined))
        self.kinds.append(headers[:, _KIND].copy())
        self.headers, self.extensions = [], []


def _is_one_of(kinds: NDArray[np.uint8], wanted: bytes) -> NDArray[np.bool_]:
    return np.isin(kinds, np.frombuffer(wanted, np.uint8))


def _padded(size: int) -> int:
    """The bytes that data of this size take: whole blocks."""
    return -(-size // _BLOCK) * _BLOCK


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _octal(field: bytes) -> int:
    """A number in octal digits. Sizes of 8 GiB and more are in binary, and left to tarfile."""
    try:
        number = int(_text(field) or b"0", 8)
    except ValueError:
        raise _UnusualError from None
    if number < 0:
        raise _UnusualError
    return number


def _check_headers(headers: list[bytes]) -> NDArray[np.uint8]:
    """The headers as an array `[headers, 512]`, if their checksums are right: the sum of all bytes, its own being blanks."""
    block = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, _BLOCK)
    field = block[:, _CHECKSUM]
    digits = field[:, :6] - np.uint8(ord("0"))
    usual = (digits < 8).all(1) & (field[:, 6] == 0)
    stated = digits.astype(np.int64) @ 8 ** np.arange(5, -1, -1)
    for row in np.flatnonzero(~usual):
        stated[row] = _octal(field[row].tobytes())
    blanks = 8 * ord(" ")
    unsigned = block.sum(1, dtype=np.int64) - field.sum(1, dtype=np.int64) + blanks
    wrong = stated != unsigned
    if wrong.any():  # some old programs took bytes for signed
        signed = block[wrong].view(np.int8)
        if (stated[wrong] != signed.sum(1, dtype=np.int64) - signed[:, _CHECKSUM].sum(1, dtype=np.int64) + blanks).any():
            raise _UnusualError
    return block


def _follow_links(names: pa.LargeBinaryArray, entries: NDArray[np.int64], targets: dict[int, bytes]) -> None:
    """Give hard links the entry of the last member before them that has the name they link to; row → name in `targets`."""
    wanted = pa.array(set(targets.values()), pa.large_binary())
    rows = np.union1d(np.flatnonzero(pc.is_in(names, value_set=wanted)), list(targets))
    latest: dict[bytes, int] = {}
    for row in rows.tolist():
        if row in targets and targets[row] in latest:
            entries[row] = entries[latest[targets[row]]]
        latest[names[row].as_py()] = row
