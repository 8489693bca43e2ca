"""List the members of a .zip: its central directory is parsed as a whole with numpy, and by `zipfile` if it is unusual."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa

from suprank.data.members import (
    ENCRYPTED,
    Entry,
    Members,
    ends_in,
    join_slices,
    name_bytes,
    normalize,
    normalize_all,
    replace_names,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

LZMA_WITH_END = 1000 + zipfile.ZIP_LZMA
"""The method of LZMA data that marks its own end."""

_END, _LOCATOR, _END64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
_LONGEST_COMMENT = 1 << 16
_RECORD = np.dtype(
    [
        ("signature", "<u4"),
        ("made_by", "<u2"),
        ("version", "u1"),
        ("reserved", "u1"),
        ("flags", "<u2"),
        ("method", "<u2"),
        ("time", "<u4"),
        ("crc", "<u4"),
        ("stored", "<u4"),
        ("size", "<u4"),
        ("name", "<u2"),
        ("extra", "<u2"),
        ("comment", "<u2"),
        ("disk", "<u2"),
        ("internal", "<u2"),
        ("external", "<u4"),
        ("offset", "<u4"),
    ]
)
"""The fixed part of an entry in the central directory; name, extra fields and comment follow."""

_SIGNATURE = b"PK\1\2"
_NEWEST_VERSION = 63  # that zipfile reads
_FLAG_ENCRYPTED, _FLAG_LZMA_END, _FLAG_UTF8 = 0x1 | 0x40, 0x2, 0x800
_ZIP64, _UNICODE_PATH = 0x0001, 0x7075
_IN_ZIP64 = 0xFFFFFFFF


class _UnusualError(Exception):
    """Something that is left to zipfile: damage, for its error, or what hardly any archive has."""


def zip_members(path: Path) -> Members:
    """List a zip as `zipfile` does, a million members in about a second of CPU.

    Of two members with one name the later counts. Folders are no members.
    """
    try:
        with path.open("rb") as file:
            return _members(*_central_directory(file))
    except _UnusualError:
        return list_with_zipfile(path)


def list_with_zipfile(path: Path) -> Members:
    """The same, by `zipfile`: an object for each member, 8 seconds for a million."""
    with zipfile.ZipFile(path) as archive:
        members: dict[bytes, Entry] = {
            normalize(info.filename.encode(errors="surrogateescape")): (
                info.header_offset,
                info.compress_size,
                info.file_size,
                info.CRC,
                int(_methods(np.int64(info.compress_type), np.int64(info.flag_bits))),
            )
            for info in archive.infolist()
            if not info.filename.endswith(("/", "\\"))
        }
    return Members.from_dict(members)


def _central_directory(file: BinaryIO) -> tuple[bytes, int]:
    """The bytes of the central directory, and how much has to be added to its offsets: what stands before the zip."""
    size = file.seek(0, os.SEEK_END)
    tail_size = min(size, _LONGEST_COMMENT + _END.size + _LOCATOR.size + _END64.size)
    file.seek(size - tail_size)
    tail = file.read(tail_size)
    at = len(tail) - _END.size
    if at < 0 or tail[at : at + 4] != b"PK\5\6" or tail[-2:] != b"\0\0":  # with a comment at the end
        at = tail.rfind(b"PK\5\6", max(0, len(tail) - _LONGEST_COMMENT - _END.size))
        if at < 0 or at + _END.size > len(tail):
            raise _UnusualError
    *_, length, offset, _ = _END.unpack_from(tail, at)
    end = size - tail_size + at
    if at >= _LOCATOR.size and tail[at - _LOCATOR.size :].startswith(b"PK\6\7"):
        _, disk, _, disks = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
        before = at - _LOCATOR.size - _END64.size
        if disk or disks > 1 or before < 0 or not tail[before:].startswith(b"PK\6\6"):
            raise _UnusualError
        *_, length, offset = _END64.unpack_from(tail, before)
        end -= _LOCATOR.size + _END64.size
    start = end - length
    if start < 0:
        raise _UnusualError
    file.seek(start)
    return file.read(length), start - offset


def _members(directory: bytes, before: int) -> Members:
    if not directory:
        return Members.from_dict({})
    blob = np.frombuffer(directory, np.uint8)
    begins = _find_records(directory)
    records = np.ndarray(len(directory) - _RECORD.itemsize + 1, _RECORD, directory, strides=(1,))[begins]
    names = begins + _RECORD.itemsize
    extras = names + records["name"]
    ends = extras + records["extra"] + records["comment"]
    # A signature in a name or comment breaks the chain too.
    if begins[0] or ends[-1] != len(directory) or (ends[:-1] != begins[1:]).any() or records["version"].max() > _NEWEST_VERSION:
        raise _UnusualError
    size, stored, offset = (records[field].astype(np.int64) for field in ("size", "stored", "offset"))
    _read_zip64(blob, extras, extras + records["extra"], (size, stored, offset))
    method = _methods(records["method"].astype(np.int64), records["flags"].astype(np.int64))
    entries = np.stack([offset + before, stored, size, records["crc"].astype(np.int64), method], axis=1)
    texts = _decode(join_slices(blob, names, extras), records["flags"] & _FLAG_UTF8 != 0)
    folders = ends_in(texts, b"/\\")
    if folders.any():
        texts, entries = texts.filter(pa.array(~folders)), entries[~folders]
    return Members.from_names(normalize_all(texts), entries)


def _find_records(directory: bytes) -> NDArray[np.int64]:
    """Where the signature of a record stands, in order."""
    blob = np.frombuffer(directory, np.uint8)
    begins = np.flatnonzero(blob[: max(0, len(blob) - _RECORD.itemsize + 1)] == _SIGNATURE[0])
    for index in range(1, len(_SIGNATURE)):
        begins = begins[blob[begins + index] == _SIGNATURE[index]]
    if not len(begins):
        raise _UnusualError
    return begins


def _read_zip64(
    blob: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], numbers: tuple[NDArray[np.int64], ...]
) -> None:
    """Replace numbers that do not fit into 4 bytes by those of the extra fields: the nth field of every record at once."""
    rows = np.flatnonzero(ends - starts >= 4)
    at = starts[rows]
    words = np.ndarray(max(0, len(blob) - 1), "<u2", blob, strides=(1,))
    longs = np.ndarray(max(0, len(blob) - 7), "<u8", blob, strides=(1,))
    while len(rows):
        kind, after = words[at], at + 4 + words[at + 2]
        if (after > ends[rows]).any() or (kind == _UNICODE_PATH).any():  # only some versions of zipfile read the latter
            raise _UnusualError
        has = kind == _ZIP64
        owners, value, limit = rows[has], at[has] + 4, after[has]
        for number in numbers:
            wanted = number[owners] == _IN_ZIP64
            if (value[wanted] + 8 > limit[wanted]).any():
                raise _UnusualError
            found = longs[value[wanted]]
            if (found >> np.uint64(62)).any():
                raise _UnusualError
            number[owners[wanted]] = found.astype(np.int64)
            value = value + 8 * wanted
        more = ends[rows] - after >= 4
        rows, at = rows[more], after[more]


def _methods(method: NDArray[np.int64] | np.int64, flags: NDArray[np.int64] | np.int64) -> NDArray[np.int64]:
    method = np.where((method == zipfile.ZIP_LZMA) & (flags & _FLAG_LZMA_END != 0), LZMA_WITH_END, method)
    return np.where(flags & _FLAG_ENCRYPTED != 0, ENCRYPTED, method)


def _decode(names: pa.LargeBinaryArray, utf8: NDArray[np.bool_]) -> pa.LargeBinaryArray:
    """The names in UTF-8: without its flag a name is in code page 437."""
    blob, bounds = name_bytes(names)
    if (blob == 0).any():  # zipfile cuts such a name
        raise _UnusualError
    rows = np.unique(np.searchsorted(bounds, np.flatnonzero(blob >= 0x80), "right") - 1)
    try:
        names.take(pa.array(rows[utf8[rows]])).cast(pa.large_string())  # checks them
    except pa.ArrowInvalid:
        raise _UnusualError from None
    return replace_names(names, {row: names[row].as_py().decode("cp437").encode() for row in rows[~utf8[rows]].tolist()})
