"""An index in a folder, searched by faiss: memory-mapped when opened; a change happens completely or not at all."""

from __future__ import annotations

import datetime
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from suprank.explorer.index.kinds import (
    RESCORED,
    SearchSettings,
    drop_positions,
    empty_index,
    empty_tail,
    faiss,
    refuse_unlike_embeddings,
    resolve_kind,
)
from suprank.explorer.index.protocol import (
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
from suprank.explorer.index.recall import exact_neighbors, tune_search
from suprank.explorer.index.segments import MAX_REMOVED, Segment, merge_from
from suprank.explorer.index.storage import META, IndexFolder, SegmentFiles, item_table, join_tables
from suprank.files.folders import refuse_foreign_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    import pyarrow as pa
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.embeddings import Embeddings, EmbeddingSource

RECALL_AT = 10


class LocalIndex:
    """See `Index`. Vectors are in faiss indexes; their ids, paths and labels are in tables next to them.

    An index consists of segments. The first one, the base, is what was built. An addition writes a small segment of its own,
    which is searched too, and which later additions are merged with (see `merge_from`). A removal writes a bit for each item
    of a segment, and searches ignore these items; a segment that has lost 30 % is rewritten. `compact` makes one segment of
    all. Any number of threads may search at the same time.
    """

    def __init__(self, folder: IndexFolder, meta: dict[str, Any], segments: Sequence[SegmentFiles]) -> None:
        """Use `build` or `open` instead."""
        self._folder, self._segments = folder, list[Segment]()
        self._load(meta, segments)

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
        made_by: Mapping[str, Any] | None = None,
        progress: Progress = no_progress,
    ) -> Self:
        """Build an index of embeddings `[items, dim]` with these ids (0, 1, ... by default) in a new or empty folder.

        Embeddings are read block by block; memory holds the index itself (two bytes per number for `ivf` and `hnsw`, one with
        `codes="int8"`) and a sample of at most 512 MiB. The search effort is tuned to find `recall` of the 10 best items on
        queries drawn at random, if possible; the recall is measured and stored (see `info`). So is `made_by`, what is known
        of the model and the images of the embeddings. Instead of a manifest, the items of another index will do. Later
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
                raise FileExistsError(
                    f"{target} already holds an index; add to it, name another folder, or overwrite it (--overwrite)."
                )
            progress(0, len(source))  # before the training, which takes some time
            index = empty_index(kind, codes, source)
            for vectors in _unit_blocks(source, progress):
                index.add(vectors)
            meta: dict[str, Any] = {
                "dim": source.dim,
                "kind": kind,
                "codes": "float32" if kind == "exact" else codes,
                "normalized": True,
                "next_id": max(next_id, int(own.max()) + 1),
                "effort": 1,
                "rescored": RESCORED,
                "recall": {"at": RECALL_AT, "value": 1.0, "queries": 0, "items": len(source)},
                "built": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            }
            if made_by:
                meta["made_by"] = dict(made_by)
            if kind != "exact":
                known = exact_neighbors(source, RECALL_AT)
                measured = tune_search(index, kind, known, recall)
                meta |= {"effort": measured.settings.effort, "rescored": measured.settings.rescored}
                meta["recall"] = {
                    "at": RECALL_AT,
                    "value": round(measured.recall, 4),
                    "queries": len(known.rows),
                    "items": len(source),
                }
            meta["number"] = target.last_number() + 1
            base = target.write_segment(meta["number"], _writer(index), table)
            target.commit(meta, [base])
        return cls(target, meta, [base])

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> Self:
        """Open the index in a folder. Its vectors stay on disk until a search needs them.

        An open index does not see changes by other processes; open it again to see them.
        """
        source = IndexFolder(folder)
        while True:
            before = source.meta_stamp()
            try:
                return cls(source, *source.read_meta())
            except (ValueError, OSError):
                if source.meta_stamp() == before:
                    raise
            # It was changed after meta.json was read, and files named there were deleted.

    def __len__(self) -> int:
        return sum(map(len, self._segments))

    def __repr__(self) -> str:
        return f"LocalIndex({self._folder}: {len(self):,} × {self.dim}, {self.kind})"

    @property
    def kind(self) -> str:
        return str(self._meta["kind"])

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(level for segment in self._segments for level in segment.levels))

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
            self._load(*self._folder.read_meta())
            first = int(self._meta["next_id"])
            own = np.arange(first, first + len(source)) if ids is None else checked_ids(ids, len(source))
            earlier = own[own < first]
            refuse_taken(earlier[self._find(earlier)[0] >= 0], str(self._folder))
            table = item_table(own, manifest)
            progress(0, len(source))
            if self._meta["codes"] == "int8":
                refuse_unlike_embeddings(self._segments[0].index, self.kind, next(unit_blocks(source))[1], source.name)
            merged = merge_from([len(segment) for segment in self._segments], len(source), self.kind)
            new = self._write_merged(
                self._segments[merged:], self._next_number(), table, _unit_blocks(source, progress), base=merged == 0
            )
            kept = [segment.files for segment in self._segments[:merged]]
            self._commit([*kept, new], next_id=max(first, int(own.max()) + 1))
        return own

    def remove(self, ids: NDArray[np.int64] | Sequence[int]) -> None:
        """See `Index`."""
        wanted = checked_ids(ids)
        with self._folder.lock():
            self._load(*self._folder.read_meta())
            owners, positions = self._find(wanted)
            refuse_unknown(wanted[owners < 0], str(self._folder))
            files, opened, number = list[SegmentFiles](), list[Segment](), int(self._meta["number"])
            for place, segment in enumerate(self._segments):
                gone = positions[owners == place]
                if not len(gone):
                    files.append(segment.files)
                    continue
                removed, number = segment.removed.copy(), number + 1
                removed[gone] = True
                count = int(np.count_nonzero(removed))
                smaller = segment.with_removed(segment.files._replace(removed=count), removed)
                if count <= MAX_REMOVED * len(removed):
                    smaller.files = self._folder.write_removed(number, segment.files, removed)
                    files.append(smaller.files)
                    opened.append(smaller)
                elif place == 0 or len(smaller):  # an empty base stays, since it was trained
                    files.append(self._write_merged([smaller], number, base=place == 0))
            if len(wanted):
                self._commit(files, opened, number=number)

    def compact(self, progress: Progress = no_progress) -> None:
        """Make one segment of all, without the removed items. Memory holds the index, as when it is built."""
        with self._folder.lock():
            self._load(*self._folder.read_meta())
            if len(self._segments) > 1 or self._segments[0].files.removed:
                progress(0, len(self))
                self._commit([self._write_merged(self._segments, self._next_number(), base=True, progress=progress)])
                progress(len(self), len(self))

    def search(self, queries: NDArray[Any], k: int = 10, where: Where | None = None) -> Hits:
        """See `Index`. Scores of an approximate index are computed from its codes: off by about 0.001 with int8."""
        check_k(k)
        vectors = checked_queries(queries, self.dim, str(self._folder))
        if where:
            refuse_unknown_levels(where, self.levels, str(self._folder))
        base = SearchSettings(self.kind, int(self._meta["effort"]), int(self._meta.get("rescored", RESCORED)))
        found = [
            segment.search(base if place == 0 else SearchSettings("exact"), vectors, k, where)
            for place, segment in enumerate(self._segments)
        ]
        scores, ids = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
        if len(found) > 1:
            # Of equal items at the end of a list, the earlier ones remain, however they are spread over segments.
            best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            scores, ids = np.take_along_axis(scores, best, 1), np.take_along_axis(ids, best, 1)
        hits = empty_hits(len(vectors), k)
        hits.scores[:, : scores.shape[1]], hits.ids[:, : ids.shape[1]] = scores, ids
        return sort_hits(hits)

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """See `Index`."""
        refuse_unknown_levels(where, self.levels, str(self._folder))
        return np.sort(np.concatenate([segment.live_ids(where) for segment in self._segments]))

    def items(self, ids: NDArray[np.int64] | Sequence[int]) -> list[IndexItem]:
        """See `Index`."""
        wanted, found = np.asarray(ids, np.int64).reshape(-1), dict[int, IndexItem]()
        for _, segment, positions in self._located(wanted):
            found |= {item.id: item for item in segment.items(positions)}
        return [found[one] for one in wanted.tolist()]

    def vectors(self, ids: NDArray[np.int64] | Sequence[int]) -> NDArray[np.float32]:
        """See `Index`. Of an approximate index they are decoded from its codes, and have 3 (float16) or 2 (int8) digits."""
        wanted = np.asarray(ids, np.int64).reshape(-1)
        found = np.empty((len(wanted), self.dim), np.float32)
        for rows, segment, positions in self._located(wanted):
            found[rows] = segment.vectors(positions)
        return unit_rows(found, str(self._folder))

    def info(self) -> dict[str, Any]:
        """See `Index`; `recall` was measured at the build, `removed` counts removed items that still take up space."""
        files = [segment.files for segment in self._segments]
        keys = ("kind", "codes", "dim", "normalized", "next_id", "effort", "recall", "built", "made_by", "head")
        return {
            "address": str(self._folder),
            "items": len(self),
            "levels": list(self.levels),
            "bytes": sum(size for one in files for _, size in one.files.values()),
            "segments": len(files),
            "removed": sum(one.removed for one in files),
        } | {key: self._meta[key] for key in keys if key in self._meta}

    def close(self) -> None:
        """See `Index`."""
        for segment in self._segments:
            segment.close()

    def _find(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The numbers of the segments that have these items, −1 for none, and the positions there."""
        owners, positions = np.full(len(ids), -1), np.full(len(ids), -1)
        for place, segment in enumerate(self._segments):
            missing = np.flatnonzero(owners < 0)
            if not len(missing):
                break
            found = segment.find(ids[missing])
            here = missing[found >= 0]
            owners[here], positions[here] = place, found[found >= 0]
        return owners, positions

    def _located(self, ids: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Segment, NDArray[np.int64]]]:
        """For each segment with some of these items: which of them, and their positions there. Raise if one is nowhere."""
        owners, positions = self._find(ids)
        refuse_unknown(ids[owners < 0], str(self._folder))
        for place, segment in enumerate(self._segments):
            rows = np.flatnonzero(owners == place)
            if len(rows):
                yield rows, segment, positions[rows]

    def _load(self, meta: dict[str, Any], segments: Sequence[SegmentFiles], opened: Sequence[Segment] = ()) -> None:
        """Open the files of these segments, except for those that are already open."""
        dim, loaded = int(meta["dim"]), list[Segment]()
        for files in segments:
            stamp = self._folder.stamp(files)
            ready = [one for one in (*self._segments, *opened) if (one.files, one.stamp) == (files, stamp)]
            loaded.append(ready[0] if ready else Segment(self._folder, files, dim))
        self._meta, self.dim, self._segments = meta, dim, loaded

    def _next_number(self) -> int:
        return int(self._meta["number"]) + 1

    def _write_merged(
        self,
        segments: Sequence[Segment],
        number: int,
        table: pa.Table | None = None,
        blocks: Iterable[NDArray[np.float32]] = (),
        *,
        base: bool,
        progress: Progress = no_progress,
    ) -> SegmentFiles:
        """Write one segment of the items of several that are not removed, and of further items; `base` if it is the first."""
        rest, total = segments, sum(map(len, segments))
        if base and self.kind != "exact":  # keep what was trained
            index = segments[0].read_index(self.dim, mapped=False)
            if segments[0].files.removed:
                index = drop_positions(index, self.kind, segments[0].removed)
            rest = segments[1:]
        else:
            index = empty_tail(self.kind, self.dim)
        for segment in rest:
            for vectors in segment.live_vectors():
                index.add(vectors)
                progress(index.ntotal, total)
        for vectors in blocks:
            index.add(vectors)
        tables = [segment.live_table() for segment in segments]
        return self._folder.write_segment(number, _writer(index), join_tables(tables if table is None else [*tables, table]))

    def _commit(self, segments: Sequence[SegmentFiles], opened: Sequence[Segment] = (), **meta: Any) -> None:
        """Make these the segments of the index, on disk and here; `opened` are some of them."""
        changed = {**self._meta, "number": self._next_number(), **meta}
        self._folder.commit(changed, segments)
        self._load(changed, segments, opened)


def _unit_blocks(source: Embeddings, progress: Progress) -> Iterator[NDArray[np.float32]]:
    for rows, vectors in unit_blocks(source):
        yield vectors
        progress(rows.stop, len(source))


def _writer(index: Any) -> Callable[[IO[bytes]], None]:
    # Through a callback: if faiss opens the file itself, a full disk raises an indistinct RuntimeError.
    return lambda file: faiss().write_index(index, faiss().PyCallbackIOWriter(file.write, 2**24))
