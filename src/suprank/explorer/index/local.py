"""An index in a folder, searched by faiss: memory-mapped when opened; a change happens completely or not at all."""

from __future__ import annotations

import datetime
import threading
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from suprank.data.columns import decode_dictionaries
from suprank.explorer.index.kinds import (
    empty_index,
    exact_neighbors,
    faiss,
    refuse_unlike_embeddings,
    resolve_kind,
    search_faiss,
    tune_effort,
)
from suprank.explorer.index.protocol import (
    BLOCK_BYTES,
    Hits,
    IndexItem,
    Progress,
    Where,
    check_k,
    checked_ids,
    checked_queries,
    empty_hits,
    no_progress,
    open_embeddings,
    refuse_taken,
    refuse_unknown,
    refuse_unknown_levels,
    sort_hits,
    unit_blocks,
    unit_rows,
)
from suprank.explorer.index.storage import (
    ID,
    META,
    REMOVED,
    IndexFolder,
    append_rows,
    item_table,
    items_at,
    levels_in,
    matching_rows,
)
from suprank.files.folders import refuse_foreign_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    import pyarrow as pa
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.embeddings import Embeddings, EmbeddingSource

RECALL_AT = 10
_MAX_REMOVED = 0.25  # share of removed vectors; a change that leaves more drops them


class LocalIndex:
    """See `Index`. Vectors are at positions 0, 1, ... of a faiss index; their ids, paths and labels are in a table next to it.

    Removed items stay in the faiss index, ignored by every search, until they make up a quarter of it: HNSW cannot remove, and
    the other kinds would have to be rewritten for every item. Then they are dropped (for HNSW, the graph is rebuilt). Adding
    rewrites the whole index. Any number of threads may search at the same time.
    """

    _columns: tuple[NDArray[np.int64], NDArray[np.bool_]] | None
    _sorted: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    _full_table: pa.Table | None

    def __init__(self, folder: IndexFolder, meta: dict[str, Any]) -> None:
        """Use `build` or `open` instead."""
        self._folder, self._read_lock = folder, threading.Lock()
        self._load(meta)

    @classmethod
    def build(
        cls,
        folder: str | PathLike[str],
        embeddings: EmbeddingSource,
        manifest: Manifest | Sequence[IndexItem] | None = None,
        *,
        ids: NDArray[np.int64] | None = None,
        next_id: int = 0,
        kind: str = "auto",
        codes: str = "float16",
        recall: float = 0.95,
        overwrite: bool = False,
        head: str | None = None,
        progress: Progress = no_progress,
    ) -> Self:
        """Build an index of embeddings `[items, dim]` with these ids (0, 1, ... by default) in a new or empty folder.

        Embeddings are read block by block; memory holds the index itself (two bytes per number for `ivf` and `hnsw`, one with
        `codes="int8"`) and a sample of at most 512 MiB. The search effort is tuned to find `recall` of the 10 best items on
        queries drawn at random, if possible; the recall is measured and stored (see `info`). So is `head`, the fingerprint of
        the head that the embeddings went through, if any. Instead of a manifest, the items of another index will do. Later
        additions get ids from `next_id` on, and above those given.
        """
        target, source = IndexFolder(folder), open_embeddings(embeddings)
        kind = resolve_kind(kind, len(source), source.dim)
        if not 0 < recall <= 1:
            raise ValueError(f"recall={recall} must be above 0 and at most 1, the share of neighbors to find; try 0.95.")
        own = np.arange(len(source)) if ids is None else checked_ids(ids, len(source))
        table = item_table(own, manifest)
        if not target.has_leftovers:
            refuse_foreign_files(target.path, META, "an index", "name another folder")
        with target.lock():
            if target.exists and not overwrite:
                raise FileExistsError(f"{target} already holds an index; add to it, name another folder, or overwrite it.")
            progress(0, len(source))  # before the training, which takes some time
            index = empty_index(kind, codes, source)
            _add_blocks(index, source, progress)
            meta = {
                "dim": source.dim,
                "kind": kind,
                "codes": "float32" if kind == "exact" else codes,
                "normalized": True,
                "vectors": len(source),
                "removed": 0,
                "next_id": max(next_id, int(own.max()) + 1),
                "effort": 1,
                "recall": {"at": RECALL_AT, "value": 1.0, "queries": 0, "items": len(source)},
                "built": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            }
            if head is not None:
                meta["head"] = head
            if kind != "exact":
                known = exact_neighbors(source, RECALL_AT)
                measured = tune_effort(index, kind, known, recall)
                meta["effort"] = measured.effort
                meta["recall"] = {
                    "at": RECALL_AT,
                    "value": round(measured.recall, 4),
                    "queries": len(known.rows),
                    "items": len(source),
                }
            meta = target.write({**meta, "number": target.last_number()}, index=_writer(index), items=table)
        return cls(target, meta)

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> Self:
        """Open the index in a folder. Its vectors stay on disk until a search needs them.

        An open index does not see changes by other processes; open it again to see them.
        """
        source = IndexFolder(folder)
        meta = source.read_meta()
        try:
            return cls(source, meta)
        except (ValueError, OSError):
            if source.read_meta() == meta:
                raise
        return cls.open(folder)  # it was changed between reading meta.json and the other files

    def __len__(self) -> int:
        return int(self._meta["vectors"] - self._meta["removed"])

    def __repr__(self) -> str:
        return f"LocalIndex({self._folder}: {len(self):,} × {self.dim}, {self.kind})"

    @property
    def kind(self) -> str:
        return str(self._meta["kind"])

    @property
    def levels(self) -> tuple[str, ...]:
        return levels_in(self._file.schema_arrow.names)

    def add(
        self,
        embeddings: EmbeddingSource,
        manifest: Manifest | None = None,
        *,
        ids: NDArray[np.int64] | None = None,
        progress: Progress = no_progress,
    ) -> NDArray[np.int64]:
        """See `Index`; automatic ids continue from the largest ever used, so that no id is ever reused."""
        source = open_embeddings(embeddings, self.dim, str(self._folder))
        with self._folder.lock():
            self._load(self._folder.read_meta())
            first = int(self._meta["next_id"])
            own = np.arange(first, first + len(source)) if ids is None else checked_ids(ids, len(source))
            refuse_taken(own[np.isin(own, self._ids[~self._removed])], str(self._folder))
            table = append_rows(self._table, item_table(own, manifest))
            progress(0, len(source))
            index = self._read(mapped=False)
            if self._meta["codes"] == "int8":
                refuse_unlike_embeddings(index, self.kind, next(unit_blocks(source))[1], source.name)
            _add_blocks(index, source, progress)
            self._change(table, index, next_id=max(first, int(own.max()) + 1))
        return own

    def remove(self, ids: NDArray[np.int64] | Sequence[int]) -> None:
        """See `Index`."""
        wanted = checked_ids(ids)
        with self._folder.lock():
            self._load(self._folder.read_meta())
            refuse_unknown(wanted[~np.isin(wanted, self._ids[~self._removed])], str(self._folder))
            if len(wanted):
                removed = self._removed | np.isin(self._ids, wanted)
                column = self._table.column_names.index(REMOVED)
                self._change(self._table.set_column(column, REMOVED, [removed]))

    def search(self, queries: NDArray[Any], k: int = 10, where: Where | None = None) -> Hits:
        """See `Index`. Scores of an approximate index are computed from its codes: off by about 0.001 with int8."""
        check_k(k)
        vectors = checked_queries(queries, self.dim, str(self._folder))
        selected: NDArray[np.bool_] | None = None
        if where:
            refuse_unknown_levels(where, self.levels, str(self._folder))
            selected = matching_rows(self._table, where)
        elif self._meta["removed"]:
            selected = ~self._removed
        depth = min(k, len(self) if selected is None else int(selected.sum()))
        hits = empty_hits(len(vectors), k)
        if depth:
            scores, positions = search_faiss(self._index, self.kind, int(self._meta["effort"]), vectors, depth, selected)
            valid = positions >= 0
            hits.ids[:, :depth] = np.where(valid, self._ids[positions.clip(0)], -1)
            hits.scores[:, :depth] = np.where(valid, scores, -np.inf)
        return sort_hits(hits)

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """See `Index`."""
        if not where:
            return np.sort(self._ids[~self._removed])
        refuse_unknown_levels(where, self.levels, str(self._folder))
        return np.sort(self._ids[matching_rows(self._table, where)])

    def items(self, ids: NDArray[np.int64] | Sequence[int]) -> list[IndexItem]:
        """See `Index`."""
        return items_at(self._table, self._positions(ids))

    def vectors(self, ids: NDArray[np.int64] | Sequence[int]) -> NDArray[np.float32]:
        """See `Index`. Of an approximate index they are decoded from its codes, and have 3 (float16) or 2 (int8) digits."""
        index: Any = self._index
        positions = self._positions(ids)
        if hasattr(index, "make_direct_map"):
            index.make_direct_map()  # does nothing the second time
        return unit_rows(index.reconstruct_batch(positions), str(self._folder))

    def info(self) -> dict[str, Any]:
        """See `Index`; `recall` was measured at the build, `removed` counts removed items that still take up space."""
        meta = self._meta
        size = sum(file[1] for file in meta["files"].values())
        keys = ("kind", "codes", "dim", "normalized", "removed", "next_id", "effort", "recall", "built", "head")
        return {"address": str(self._folder), "items": len(self), "levels": list(self.levels), "bytes": size} | {
            key: meta[key] for key in keys if key in meta
        }

    def close(self) -> None:
        """See `Index`."""
        self._index = None
        self._file.close()

    def _positions(self, ids: NDArray[np.int64] | Sequence[int]) -> NDArray[np.int64]:
        """Where these items are in the faiss index and in the table."""
        wanted = np.asarray(ids, np.int64).reshape(-1)
        if self._sorted is None:
            live = np.flatnonzero(~self._removed)
            order = live[np.argsort(self._ids[live], kind="stable")]
            self._sorted = order, self._ids[order]
        order, ids_in_order = self._sorted
        if not len(order):
            refuse_unknown(wanted, str(self._folder))
            return np.empty(0, np.int64)
        positions = np.searchsorted(ids_in_order, wanted).clip(max=len(order) - 1)
        refuse_unknown(wanted[ids_in_order[positions] != wanted], str(self._folder))
        return order[positions]

    def _load(self, meta: dict[str, Any]) -> None:
        """Open the files that `meta` names; their content is read when needed."""
        self._meta, self.dim = meta, int(meta["dim"])
        self._file = self._folder.open_items(meta)
        self._index = self._read(mapped=True)
        self._columns = self._sorted = self._full_table = None

    @property
    def _ids(self) -> NDArray[np.int64]:
        return self._read_columns()[0]

    @property
    def _removed(self) -> NDArray[np.bool_]:
        return self._read_columns()[1]

    def _read_columns(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The columns that every search needs, a small part of the table."""
        with self._read_lock:
            if self._columns is None:
                table = self._file.read([ID, REMOVED])
                self._columns = table[ID].to_numpy(), table[REMOVED].to_numpy().astype(bool)
            return self._columns

    @property
    def _table(self) -> pa.Table:
        with self._read_lock:
            if self._full_table is None:
                self._full_table = self._file.read().unify_dictionaries().combine_chunks()
            return self._full_table

    def _read(self, *, mapped: bool) -> Any:
        library, file = faiss(), self._folder.file(self._meta, "index")
        try:
            index = library.read_index(str(file), library.IO_FLAG_MMAP_IFC if mapped else 0)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{file} is damaged: faiss cannot read it ({reason}); build the index again.") from error
        if (index.ntotal, index.d) != (self._meta["vectors"], self.dim):
            actual, expected = f"{index.ntotal:,} × {index.d}", f"{self._meta['vectors']:,} × {self.dim}"
            raise ValueError(f"{file} holds {actual} vectors instead of {expected}; build the index again.")
        return index

    def _change(self, table: pa.Table, index: Any = None, **meta: Any) -> None:
        """Write these rows and, if it changed, this index; drop the removed items if there are many."""
        table = decode_dictionaries(table).combine_chunks()
        removed = np.asarray(table[REMOVED].to_numpy(), bool)
        if removed.sum() > _MAX_REMOVED * len(removed):
            if index is None:
                index, smaller = self._index, self._read(mapped=False)
            else:
                smaller = faiss().clone_index(index)
            index = _compact(index, removed, smaller)
            table, removed = table.filter(~removed), removed[~removed]
        counts = {"vectors": len(removed), "removed": int(removed.sum())}
        written = self._folder.write(
            {**self._meta, **meta, **counts}, index=None if index is None else _writer(index), items=table
        )
        self._load(written)


def _add_blocks(index: Any, source: Embeddings, progress: Progress) -> None:
    for rows, vectors in unit_blocks(source):
        index.add(vectors)
        progress(rows.stop, len(source))


def _writer(index: Any) -> Callable[[IO[bytes]], None]:
    # Through a callback: if faiss opens the file itself, a full disk raises an indistinct RuntimeError.
    return lambda file: faiss().write_index(index, faiss().PyCallbackIOWriter(file.write, 2**24))


def _compact(index: Any, removed: NDArray[np.bool_], smaller: Any) -> Any:
    """Refill `smaller`, an index with the same training, with the positions that are not removed, in their order."""
    remaining = np.flatnonzero(~removed)
    if hasattr(index, "make_direct_map"):
        index.make_direct_map()
    smaller.reset()
    step = max(1, BLOCK_BYTES // (4 * index.d))
    for start in range(0, len(remaining), step):
        # Decoding and encoding again gives the same codes, so nothing is lost.
        smaller.add(index.reconstruct_batch(remaining[start : start + step]))
    return smaller
