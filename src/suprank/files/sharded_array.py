"""One array in several files: its rows follow each other from file to file, and only those that are asked for are read."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.files.binary import open_npy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

OPEN_FILES = 128
"""Files that are mapped at once: each takes a file descriptor, of which a process has 1,024 on most systems."""


class NpyFile:
    """The rows of a `.npy` file, which is mapped when they are read; `kept` are the row numbers to read, by default all."""

    def __init__(self, path: Path, shape: tuple[int, int], dtype: np.dtype[Any], kept: NDArray[np.int64] | None = None) -> None:
        self.path, self.dtype, self.kept = path, dtype, kept
        self.shape = (shape[0] if kept is None else len(kept), shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: slice | NDArray[np.int64]) -> NDArray[Any]:
        rows = _mapped(self)
        return rows[which] if self.kept is None else rows[self.kept[which]]


@lru_cache(OPEN_FILES)
def _mapped(file: NpyFile) -> NDArray[Any]:
    return open_npy(file.path)


class Shards:
    """The rows of several matrices, one after the other, read like one array: by a row number, slices, row numbers or a mask.

    `np.asarray` makes one array of them, in memory if they are more than one.
    """

    ndim = 2

    def __init__(self, parts: Sequence[NDArray[Any] | NpyFile]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])
        self.shape = (int(self.ends[-1]), int(parts[0].shape[1]))
        self.dtype = np.result_type(*{part.dtype for part in parts})

    @property
    def paths(self) -> list[Path]:
        """The files, if all parts are files as a whole; otherwise none."""
        files = [part.path for part in self.parts if isinstance(part, NpyFile) and part.kept is None]
        return files if len(files) == len(self.parts) else []

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the rows of several files cannot be one array without a copy.")
        rows = np.asarray(self[:], dtype or self.dtype)
        return rows.copy() if copy and not rows.flags.owndata else rows

    def __getitem__(self, which: Any) -> NDArray[Any]:
        if isinstance(which, slice):
            start, stop, step = which.indices(self.shape[0])
            if step != 1:
                return self[np.arange(start, stop, step)]
            return self._block(start, stop)
        which = np.asarray(which)
        if which.dtype == bool:
            if which.shape != (self.shape[0],):
                raise IndexError(f"a mask of shape {which.shape} does not fit {self.shape[0]} rows.")
            which = np.flatnonzero(which)
        if which.ndim == 0:
            return self[which[None]][0]
        which = which.astype(np.int64, copy=False)
        if len(which) and not -len(self) <= which.min() <= which.max() < len(self):
            raise IndexError(f"rows {which.min()} to {which.max()} are not all among the {len(self)} there are.")
        which = np.where(which < 0, which + len(self), which)
        rows = np.empty((len(which), self.shape[1]), self.dtype)
        shard = np.searchsorted(self.ends, which, side="right")
        for number in np.unique(shard).tolist():
            here = shard == number
            rows[here] = self.parts[number][which[here] - (self.ends[number] - len(self.parts[number]))]
        return rows

    def _block(self, start: int, stop: int) -> NDArray[Any]:
        number = int(np.searchsorted(self.ends, start, side="right"))
        if start < stop <= self.ends[number]:
            first = int(self.ends[number]) - len(self.parts[number])
            return self.parts[number][start - first : stop - first]
        # Copied one by one: views would keep all files open.
        rows = np.empty((max(0, stop - start), self.shape[1]), self.dtype)
        filled = 0
        while filled < len(rows):
            part, first = self.parts[number], int(self.ends[number]) - len(self.parts[number])
            some = part[start + filled - first : stop - first]
            rows[filled : filled + len(some)] = some
            filled, number = filled + len(some), number + 1
        return rows

    def take(self, mask: NDArray[np.bool_]) -> Shards:
        """The rows where the mask is true, in place: files stay where they are, and are read when needed."""
        parts: list[NDArray[Any] | NpyFile] = []
        for part, last in zip(self.parts, self.ends.tolist(), strict=True):
            here = mask[last - len(part) : last]
            if here.all():
                parts.append(part)
            elif isinstance(part, NpyFile):
                kept = np.flatnonzero(here) if part.kept is None else part.kept[here]
                parts.append(NpyFile(part.path, part.shape, part.dtype, kept))
            else:
                parts.append(part[here])
        return Shards(parts)


def concatenate(one: NDArray[Any] | Shards, other: NDArray[Any] | Shards) -> NDArray[Any] | Shards:
    """The rows of both; what is in several files stays there."""
    if isinstance(one, Shards) or isinstance(other, Shards):
        return Shards([part for rows in (one, other) for part in (rows.parts if isinstance(rows, Shards) else [rows])])
    joined: NDArray[Any] = np.concatenate([one, other])
    return joined
