"""A segment of a local index: some of its items, with their vectors in one faiss index, and which of them are removed.

The first segment is the base, a faiss index of the chosen kind. Additions become further segments, the tail, whose vectors are
compared one by one. `merge_from` says which segments an addition is merged with.
"""

from __future__ import annotations

import copy
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from suprank.explorer.index.kinds import SearchSettings, Selection, decoded_vectors, faiss, search_faiss
from suprank.explorer.index.protocol import BLOCK_BYTES
from suprank.explorer.index.storage import ID, REMOVED, filter_rows, items_at, levels_in, matching_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from suprank.explorer.index.protocol import IndexItem, Where
    from suprank.explorer.index.storage import IndexFolder, SegmentFiles

SMALL = 1024
MAX_REMOVED = 0.3
MAX_TAIL = 0.02  # of the base: 20,000 × 256 numbers take as long to compare as IVF takes to search a million vectors


def merge_from(sizes: Sequence[int], new: int, kind: str) -> int:
    """The first of the segments of these sizes that an addition of `new` vectors is merged with; len(sizes) if with none.

    It is merged with the segments before it as long as these are no larger than what they are merged with, or small (1,024
    vectors), so that there are few segments and a vector is rewritten few times. That includes the base of an exact index. An
    approximate base, whose search is faster than that of the tail, takes in the whole tail once that exceeds 2 % of it.

    Example:
        >>> merge_from([1_000_000], 1, "exact"), merge_from([1_000_000, 9_000, 700], 1, "exact")
        (1, 2)
        >>> merge_from([1_000_000, 9_000], 100_000, "exact"), merge_from([1_000_000, 9_000], 100_000, "ivf")
        (1, 0)
    """
    if kind != "exact" and sum(sizes[1:]) + new > MAX_TAIL * sizes[0]:
        return 0
    first, least = len(sizes), 0 if kind == "exact" else 1
    while first > least and sizes[first - 1] <= max(new, SMALL):
        first -= 1
        new += sizes[first]
    return first


class Segment:
    """The items of a segment, at positions 0, 1, ... in its files. What the files hold is read when needed."""

    def __init__(self, folder: IndexFolder, files: SegmentFiles, dim: int) -> None:
        self.files, self._folder, self._lock = files, folder, threading.Lock()
        self.stamp = folder.stamp(files)
        self._items = folder.open_items(files)
        self._removed = folder.read_removed(files)  # now, as the file is deleted when more is removed
        self.index: Any = self.read_index(dim, mapped=True)
        self.levels = levels_in(self._items.schema_arrow.names)

    def __len__(self) -> int:
        return self.files.vectors - self.files.removed

    def read_index(self, dim: int, *, mapped: bool) -> Any:
        """Read the faiss index, or map its file into memory."""
        library, file = faiss(), self._folder.path / self.files.files["index"][0]
        try:
            index = library.read_index(str(file), library.IO_FLAG_MMAP_IFC if mapped else 0)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{file} is damaged: faiss cannot read it ({reason}); build the index again.") from error
        if (index.ntotal, index.d) != (self.files.vectors, dim):
            actual, expected = f"{index.ntotal:,} × {index.d}", f"{self.files.vectors:,} × {dim}"
            raise ValueError(f"{file} holds {actual} vectors instead of {expected}; build the index again.")
        return index

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """The ids by position, also of removed items."""
        with self._lock:
            ids = self._items.read([ID])[ID].combine_chunks()
        return np.from_dlpack(ids).view(np.int64)  # `to_numpy` would import pandas

    @cached_property
    def removed(self) -> NDArray[np.bool_]:
        """Mask of the removed items, by position."""
        removed = self._removed
        if removed is None and REMOVED in self._items.schema_arrow.names:  # of version 1
            with self._lock:
                removed = np.from_dlpack(self._items.read([REMOVED])[REMOVED].cast("uint8").combine_chunks()).astype(bool)
        return np.zeros(self.files.vectors, bool) if removed is None else removed

    @cached_property
    def table(self) -> pa.Table:
        """All columns of the items, also of removed ones."""
        with self._lock:
            return self._items.read().unify_dictionaries().combine_chunks()

    @cached_property
    def _live(self) -> Selection | None:
        """The items that are not removed; None for all."""
        return Selection(~self.removed) if self.files.removed else None

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ids of the items that were not removed when this was read, ascending, and their positions."""
        positions = np.flatnonzero(~self.removed)
        ids = self.ids[positions]
        if (ids[1:] > ids[:-1]).all():
            return ids, positions
        order = np.argsort(ids, kind="stable")
        return ids[order], positions[order]

    def live_ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """The ids of the items that match `where`, by position."""
        return self.ids[self._matching(where)] if where else self.ids[~self.removed] if self.files.removed else self.ids

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of these items, −1 for those that are not here."""
        known, positions = self._sorted
        if not len(known):
            return np.full(len(ids), -1)
        places = np.searchsorted(known, ids).clip(max=len(known) - 1)
        found = np.where(known[places] == ids, positions[places], -1)
        found[self.removed[found]] = -1
        return found

    def items(self, positions: NDArray[np.int64]) -> list[IndexItem]:
        """The items at these positions."""
        return items_at(self.table, positions)

    def vectors(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors at these positions, as far as the codes have their digits."""
        with self._lock:  # the first call may write to the index
            return decoded_vectors(self.index, positions)

    def live_vectors(self) -> Iterator[NDArray[np.float32]]:
        """The vectors of all items that are not removed, a block at a time; of the base, only if it is exact."""
        step = max(1, BLOCK_BYTES // (4 * self.index.d))
        for start in range(0, self.files.vectors, step):
            block = self.index.reconstruct_n(start, min(step, self.files.vectors - start))
            yield block[~self.removed[start : start + step]] if self.files.removed else block

    def live_table(self) -> pa.Table:
        """The columns of the items that are not removed."""
        table = filter_rows(self.table, ~self.removed) if self.files.removed else self.table
        return table.drop_columns([REMOVED]) if REMOVED in table.column_names else table

    def search(
        self, settings: SearchSettings, queries: NDArray[np.float32], k: int, where: Where | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and ids of the best items that match `where`, at most k for each query; −∞ and −1 if there are fewer."""
        selection = Selection(self._matching(where)) if where else self._live
        depth = min(k, len(self) if selection is None else selection.count)
        if not depth:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        scores, positions = search_faiss(self.index, settings, queries, depth, selection)
        valid = positions >= 0
        return np.where(valid, scores, -np.inf), np.where(valid, self.ids[positions.clip(0)], -1)

    def with_removed(self, files: SegmentFiles, removed: NDArray[np.bool_]) -> Self:
        """This segment after further removals; what was read is kept."""
        changed = copy.copy(self)
        changed.files = files
        changed.__dict__.pop("_live", None)
        changed.__dict__["removed"] = removed
        return changed

    def close(self) -> None:
        """Close the files."""
        self.index = None
        self._items.close()

    def _matching(self, where: Where) -> NDArray[np.bool_]:
        mask = matching_rows(self.table, where)
        return mask & ~self.removed if self.files.removed else mask
