"""An index in a folder, searched by faiss: opened memory-mapped, changed all or nothing."""

from __future__ import annotations

import datetime
import threading
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from suprank.explorer.index import table as rows_of
from suprank.explorer.index.folder import Folder
from suprank.explorer.index.kinds import chosen_kind, empty_index, faiss, refuse_unlike, searched
from suprank.explorer.index.protocol import (
    Hits,
    Item,
    Progress,
    Where,
    check_k,
    checked_ids,
    no_hits,
    ordered,
    refuse_taken,
    refuse_unknown,
    refuse_unknown_levels,
)
from suprank.explorer.index.recall import truth, tuned
from suprank.explorer.index.vectors import BLOCK_BYTES, checked_queries, opened, unit_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    import pyarrow as pa
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.embeddings import Embeddings, Source

RECALL_AT = 10
_ROOM = 0.25  # of the vectors may be removed ones; a change that leaves more drops them


def _no_progress(done: int, total: int) -> None:
    pass


class LocalIndex:
    """See `Index`. Vectors stand at positions 0, 1, ... of a faiss index, and their ids, paths and labels in a table beside it.

    Removed items stay in the faiss index, passed over by every search, until they are a quarter of it: HNSW cannot remove, and
    the others would be written anew for every item. They are then dropped (of HNSW the graph is built anew). Adding writes the
    whole index anew. Any number of threads may search at once.
    """

    _columns: tuple[NDArray[np.int64], NDArray[np.bool_]] | None
    _sorted: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    _whole: pa.Table | None

    def __init__(self, folder: Folder, meta: dict[str, Any]) -> None:
        """For `build` and `open`."""
        self._folder, self._reading = folder, threading.Lock()
        self._take(meta)

    @classmethod
    def build(
        cls,
        folder: str | PathLike[str],
        embeddings: Source,
        manifest: Manifest | None = None,
        *,
        ids: NDArray[np.int64] | None = None,
        kind: str = "auto",
        codes: str = "float16",
        recall: float = 0.95,
        overwrite: bool = False,
        progress: Progress = _no_progress,
    ) -> Self:
        """Index embeddings `[items, dim]` under these ids, by default 0, 1, ...; into a folder that has no index yet.

        The embeddings are read a block at a time; memory holds the index itself (for `ivf` and `hnsw` two bytes a number, with
        `codes="int8"` one) and a sample of 512 MiB at most. The effort of a search is the least that finds `recall` of the
        10 best of items drawn at random, where any does; what it finds is measured and kept (see `info`).
        """
        place, source = Folder(folder), opened(embeddings)
        kind = chosen_kind(kind, len(source), source.dim)
        if not 0 < recall <= 1:
            raise ValueError(f"recall={recall} is a share of neighbors to find, above 0 and at most 1; try 0.95.")
        own = np.arange(len(source)) if ids is None else checked_ids(ids, len(source))
        table = rows_of.table_of(own, manifest)
        with place.writing():
            if place.is_there and not overwrite:
                raise FileExistsError(f"{place} holds an index already; add to it, name another folder, or overwrite it.")
            progress(0, len(source))  # before the training, which takes a while
            index = empty_index(kind, codes, source)
            _fill(index, source, progress)
            meta = {
                "dim": source.dim,
                "kind": kind,
                "codes": "float32" if kind == "exact" else codes,
                "normalized": True,
                "vectors": len(source),
                "removed": 0,
                "next_id": int(own.max()) + 1,
                "effort": 1,
                "recall": {"at": RECALL_AT, "value": 1.0, "queries": 0, "items": len(source)},
                "built": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            }
            if kind != "exact":
                known = truth(source, RECALL_AT)
                measured = tuned(index, kind, known, recall)
                meta["effort"] = measured.effort
                meta["recall"] = {
                    "at": RECALL_AT,
                    "value": round(measured.recall, 4),
                    "queries": len(known.rows),
                    "items": len(source),
                }
            meta = place.write({**meta, "number": place.last_number()}, index=_writer(index), items=table)
        return cls(place, meta)

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> Self:
        """The index of a folder. Its vectors stay on disk until a search needs them.

        It stays as it is while another process changes the folder; open it again to see that.
        """
        place = Folder(folder)
        meta = place.meta()
        try:
            return cls(place, meta)
        except (ValueError, OSError):
            if place.meta() == meta:
                raise
        return cls.open(folder)  # it was changed in the moment between

    def __len__(self) -> int:
        return int(self._meta["vectors"] - self._meta["removed"])

    def __repr__(self) -> str:
        return f"LocalIndex({self._folder}: {len(self):,} × {self.dim}, {self.kind})"

    @property
    def kind(self) -> str:
        return str(self._meta["kind"])

    @property
    def levels(self) -> tuple[str, ...]:
        return rows_of.levels_of(self._file.schema_arrow.names)

    def add(
        self,
        embeddings: Source,
        manifest: Manifest | None = None,
        *,
        ids: NDArray[np.int64] | None = None,
        progress: Progress = _no_progress,
    ) -> NDArray[np.int64]:
        """See `Index`; ids not given go on from the largest there ever was, so that none comes to mean another item."""
        source = opened(embeddings, self.dim, str(self._folder))
        with self._folder.writing():
            self._take(self._folder.meta())
            first = int(self._meta["next_id"])
            own = np.arange(first, first + len(source)) if ids is None else checked_ids(ids, len(source))
            refuse_taken(own[np.isin(own, self._ids[~self._removed])], str(self._folder))
            table = rows_of.joined(self._table, rows_of.table_of(own, manifest))
            progress(0, len(source))
            index = self._read(mapped=False)
            if self._meta["codes"] == "int8":
                refuse_unlike(index, self.kind, next(unit_blocks(source))[1], source.name)
            _fill(index, source, progress)
            self._change(table, index, next_id=max(first, int(own.max()) + 1))
        return own

    def remove(self, ids: NDArray[np.int64] | Sequence[int]) -> None:
        """See `Index`."""
        wanted = checked_ids(ids)
        with self._folder.writing():
            self._take(self._folder.meta())
            refuse_unknown(wanted[~np.isin(wanted, self._ids[~self._removed])], str(self._folder))
            if len(wanted):
                gone = self._removed | np.isin(self._ids, wanted)
                place = self._table.column_names.index(rows_of.REMOVED)
                self._change(self._table.set_column(place, rows_of.REMOVED, [gone]))

    def search(self, queries: NDArray[Any], k: int = 10, where: Where | None = None) -> Hits:
        """See `Index`. Scores of an approximate index are those of its codes: off by some 0.001 with int8."""
        check_k(k)
        asked = checked_queries(queries, self.dim, str(self._folder))
        selected: NDArray[np.bool_] | None = None
        if where:
            refuse_unknown_levels(where, self.levels, str(self._folder))
            selected = rows_of.kept(self._table, where)
        elif self._meta["removed"]:
            selected = ~self._removed
        depth = min(k, len(self) if selected is None else int(selected.sum()))
        found = no_hits(len(asked), k)
        if depth:
            scores, positions = searched(self._index, self.kind, int(self._meta["effort"]), asked, depth, selected)
            there = positions >= 0
            found.ids[:, :depth] = np.where(there, self._ids[positions.clip(0)], -1)
            found.scores[:, :depth] = np.where(there, scores, -np.inf)
        return ordered(found)

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """See `Index`."""
        if not where:
            return np.sort(self._ids[~self._removed])
        refuse_unknown_levels(where, self.levels, str(self._folder))
        return np.sort(self._ids[rows_of.kept(self._table, where)])

    def items(self, ids: NDArray[np.int64] | Sequence[int]) -> list[Item]:
        """See `Index`."""
        wanted = np.asarray(ids, np.int64).reshape(-1)
        if self._sorted is None:
            live = np.flatnonzero(~self._removed)
            order = live[np.argsort(self._ids[live], kind="stable")]
            self._sorted = order, self._ids[order]
        order, ids_in_order = self._sorted
        if not len(order):
            refuse_unknown(wanted, str(self._folder))
            return []
        places = np.searchsorted(ids_in_order, wanted).clip(max=len(order) - 1)
        refuse_unknown(wanted[ids_in_order[places] != wanted], str(self._folder))
        return rows_of.items_at(self._table, order[places])

    def info(self) -> dict[str, Any]:
        """See `Index`; `recall` is that of the build, `removed` are the items that still take room."""
        meta = self._meta
        size = sum(file[1] for file in meta["files"].values())
        told = ("kind", "codes", "dim", "normalized", "removed", "next_id", "effort", "recall", "built")
        return {"address": str(self._folder), "items": len(self), "levels": list(self.levels), "bytes": size} | {
            key: meta[key] for key in told if key in meta
        }

    def close(self) -> None:
        """See `Index`."""
        self._index = None
        self._file.close()

    def _take(self, meta: dict[str, Any]) -> None:
        """Open the files that a `meta` names; they are read when they are needed."""
        self._meta, self.dim = meta, int(meta["dim"])
        self._file = self._folder.open_items(meta)
        self._index = self._read(mapped=True)
        self._columns = self._sorted = self._whole = None

    @property
    def _ids(self) -> NDArray[np.int64]:
        return self._read_columns()[0]

    @property
    def _removed(self) -> NDArray[np.bool_]:
        return self._read_columns()[1]

    def _read_columns(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """What every search needs, which is a small part of the table."""
        with self._reading:
            if self._columns is None:
                table = self._file.read([rows_of.ID, rows_of.REMOVED])
                self._columns = table[rows_of.ID].to_numpy(), table[rows_of.REMOVED].to_numpy().astype(bool)
            return self._columns

    @property
    def _table(self) -> pa.Table:
        with self._reading:
            if self._whole is None:
                self._whole = self._file.read().unify_dictionaries().combine_chunks()
            return self._whole

    def _read(self, *, mapped: bool) -> Any:
        library, file = faiss(), self._folder.file(self._meta, "index")
        try:
            index = library.read_index(str(file), library.IO_FLAG_MMAP_IFC if mapped else 0)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{file} is damaged, faiss cannot read it ({reason}); build the index again.") from error
        if (index.ntotal, index.d) != (self._meta["vectors"], self.dim):
            there, told = f"{index.ntotal:,} × {index.d}", f"{self._meta['vectors']:,} × {self.dim}"
            raise ValueError(f"{file} holds {there} vectors instead of {told}; build the index again.")
        return index

    def _change(self, table: pa.Table, index: Any = None, **meta: Any) -> None:
        """Write these rows and, if it changed, this index; without the removed ones where they are many."""
        table = rows_of.plain(table).combine_chunks()
        removed = np.asarray(table[rows_of.REMOVED].to_numpy(), bool)
        if removed.sum() > _ROOM * len(removed):
            if index is None:
                index, smaller = self._index, self._read(mapped=False)
            else:
                smaller = faiss().clone_index(index)
            index = _without(index, removed, smaller)
            table, removed = table.filter(~removed), removed[~removed]
        counts = {"vectors": len(removed), "removed": int(removed.sum())}
        written = self._folder.write(
            {**self._meta, **meta, **counts}, index=None if index is None else _writer(index), items=table
        )
        self._take(written)


def _fill(index: Any, source: Embeddings, progress: Progress) -> None:
    for rows, vectors in unit_blocks(source):
        index.add(vectors)
        progress(rows.stop, len(source))


def _writer(index: Any) -> Callable[[IO[bytes]], None]:
    # By a function of ours: where faiss opens the file itself, a full disk is a RuntimeError like any other.
    return lambda file: faiss().write_index(index, faiss().PyCallbackIOWriter(file.write, 2**24))


def _without(index: Any, removed: NDArray[np.bool_], smaller: Any) -> Any:
    """The other positions, moved together in their order, in `smaller`: an index of the same training, emptied for this."""
    left = np.flatnonzero(~removed)
    if hasattr(index, "make_direct_map"):
        index.make_direct_map()
    smaller.reset()
    step = max(1, BLOCK_BYTES // (4 * index.d))
    for start in range(0, len(left), step):
        # What codes stand for has the same codes again, so that nothing is lost.
        smaller.add(index.reconstruct_batch(left[start : start + step]))
    return smaller
