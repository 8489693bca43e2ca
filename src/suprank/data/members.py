"""The list of an archive's members: sorted names and where each member is, in a few arrays."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

Entry: TypeAlias = "tuple[int, int, int, int, int]"
"""(offset, stored bytes, content bytes, CRC-32 or −1, method). The offset is that of a zip's local header or a tar's data."""

# Methods of zip are positive; negative ones say why a member cannot be read.
ENCRYPTED, LINK, SPARSE, SPECIAL = -1, -2, -3, -4
_DOT, _SLASH = ord("."), ord("/")


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
    def from_dict(cls, by_name: Mapping[bytes, Entry]) -> Members:
        names = pa.array(by_name.keys(), pa.large_binary())
        return cls.from_names(names, np.array(list(by_name.values()), np.int64).reshape(-1, 5))

    @classmethod
    def from_names(cls, names: pa.LargeBinaryArray, entries: NDArray[np.int64]) -> Members:
        """The members of these normalized names, in the order of the archive: of equal names the last counts."""
        if not pc.all(pc.less(names[:-1], names[1:]), min_count=0).as_py():  # many archives are sorted: that is seen at once
            order = pc.sort_indices(names)  # stable, and by bytes
            names, entries = names.take(order), entries[np.asarray(order)]
            last = np.append(np.asarray(pc.not_equal(names[1:], names[:-1])), True)
            if not last.all():
                names, entries = names.filter(pa.array(last)), entries[last]
        blob, bounds = name_bytes(names)
        return cls(blob.tobytes(), bounds, entries)

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
        return self.entry_at(index)

    def name_at(self, index: int) -> str:
        """The name of the member of this index."""
        return self._name(index).decode(errors="surrogateescape")

    def entry_at(self, index: int) -> Entry:
        """Where the member of this index is."""
        return tuple(self.entries[index].tolist())

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
        return binary_array(self.names, self.bounds)

    def _name(self, index: int) -> bytes:
        return self.names[int(self.bounds[index]) : int(self.bounds[index + 1])]


# Many names at once


def binary_array(blob: bytes | NDArray[np.uint8], bounds: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """The array of the slices `blob[bounds[i] : bounds[i + 1]]`, without a copy."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds, np.int64)), pa.py_buffer(blob)]
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)


def name_bytes(names: pa.LargeBinaryArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of all names, and where each begins and ends in them."""
    _, bounds, data = names.buffers()
    edges = np.frombuffer(bounds, np.int64)[names.offset : names.offset + len(names) + 1]
    if not len(edges):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    blob = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return blob[edges[0] : edges[-1]], edges - edges[0]


def join_slices(blob: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """The array of `blob[starts[i] : ends[i]]`, which are in order and do not overlap."""
    slices = binary_array(blob, np.append(0, np.stack([starts, ends], axis=1)))  # these, and what lies before each
    return slices.take(pa.array(np.arange(1, 2 * len(starts), 2)))


def split_folders(names: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, pa.LargeBinaryArray]:
    """The folder of each name, up to and including its last slash, and what follows it."""
    blob, bounds = name_bytes(names)
    starts, ends = bounds[:-1], bounds[1:]
    after = np.append(0, np.flatnonzero(blob == _SLASH) + 1)  # a slash
    last = np.maximum(after[np.searchsorted(after, ends, "right") - 1], starts)
    return join_slices(blob, starts, last), join_slices(blob, last, ends)


def ends_in(names: pa.LargeBinaryArray, endings: bytes) -> NDArray[np.bool_]:
    """Whether each name ends in one of these bytes."""
    blob, bounds = name_bytes(names)
    last = np.append(blob, np.uint8(0))[bounds[1:] - 1]
    return np.isin(last, np.frombuffer(endings, np.uint8)) & (bounds[1:] > bounds[:-1])


def replace_names(names: pa.LargeBinaryArray, replaced: Mapping[int, bytes]) -> pa.LargeBinaryArray:
    """The names, with those at some indices replaced."""
    if not replaced:
        return names
    mask = np.zeros(len(names), np.bool_)
    mask[list(replaced)] = True
    return pc.replace_with_mask(names, mask, pa.array([replaced[index] for index in sorted(replaced)], pa.large_binary()))


def normalize(name: bytes) -> bytes:
    r"""The name without leading `./` and `/`, and with slashes for backslashes.

    Example:
        >>> normalize(b".//a\\b.jpg")
        b'a/b.jpg'
    """
    name = name.replace(b"\\", b"/")
    while name.startswith((b"./", b"/")):
        name = name.removeprefix(b".").removeprefix(b"/")
    return name


def normalize_all(names: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Each name as by `normalize`."""
    blob, bounds = name_bytes(names)
    content = blob.tobytes()
    if b"\\" in content:
        content = content.replace(b"\\", b"/")
    blob = np.frombuffer(content + b"\0\0", np.uint8)  # so that there is something after an empty last name
    starts, ends = bounds[:-1].copy(), bounds[1:]
    while True:
        slash = (blob[starts] == _SLASH) & (ends > starts)
        dot = (blob[starts] == _DOT) & (blob[starts + 1] == _SLASH) & (ends > starts + 1)
        if not (slash | dot).any():
            break
        starts += slash + 2 * dot
    return binary_array(content, bounds) if (starts == bounds[:-1]).all() else join_slices(blob, starts, ends)
