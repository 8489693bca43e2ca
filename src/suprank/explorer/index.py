"""The nearest items of a gallery: an index of its embeddings, which are kept beside them and made again if they are others.

    FOLDER/ivf.json                what it was built of, and how it is searched for each recall that was asked for
    FOLDER/ivf-0123456789abcdef.faiss    the vectors, named by their digest

An exact index of up to 100,000 × 512 numbers is made in memory each time, which takes less than reading it from a file.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from suprank.evaluation.embeddings import Embeddings
from suprank.explorer.faiss_search import (
    EXACT_NUMBERS,
    RECALL_AT,
    Probe,
    build_faiss,
    exact_neighbors,
    faiss,
    resolve_kind,
    search_faiss,
    tune_probe,
    unit_rows,
)
from suprank.files.atomic import atomic_writer, write_atomically
from suprank.system.platforms import default_cache
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.system.progress import Progress

RESCORED = 256
"""Number of an approximate index's hits whose cosines are computed from the embeddings, each read from its place in the file.
With all of a thousand, one search in twenty took 0.6 s on a busy machine."""

_DIGEST_BYTES = 2**24  # read at once


class Hits(NamedTuple):
    """The best items for each query, best first: rows and cosines, `[queries, k]`; −1 and −∞ if there are fewer than k."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]


class Index:
    """Embeddings `[items, dim]`, searched by cosine: exactly, or approximately with a measured recall.

    Any number of threads may search at the same time.

    Example:
        >>> index = Index.build(np.eye(3, dtype=np.float32))
        >>> index.search(np.array([[0.0, 1.0, 0.5]]), k=2).rows
        array([[1, 2]])
    """

    def __init__(self, index: Any, probe: Probe, vectors: Embeddings, recall: float = 1.0) -> None:
        """Use `build` or `cached` instead."""
        self._index, self._probe, self._vectors, self.recall = index, probe, vectors, recall

    @classmethod
    def build(
        cls, vectors: EmbeddingSource, kind: str = "auto", recall: float = 0.95, progress: bool | Progress = True
    ) -> Self:
        """Index the rows in memory, two bytes per number, four for `exact`; `kind` is auto, exact, ivf or hnsw.

        The search effort is tuned to find `recall` of the 10 best items on queries drawn at random, if possible.
        """
        vectors = Embeddings.from_source(vectors)
        kind = _checked_kind(kind, recall, vectors)
        index = build_faiss(kind, vectors, progress_function(progress, "indexing"))
        return cls._tuned(index, kind, vectors, {}, recall)

    @classmethod
    def cached(
        cls,
        vectors: EmbeddingSource,
        folder: str | PathLike[str],
        kind: str = "auto",
        recall: float = 0.95,
        progress: bool | Progress = True,
        warn: Callable[[str], object] = warnings.warn,
    ) -> Self:
        """As `build`, but the index is kept in a folder, and opened from there as long as the vectors are the same.

        If the folder cannot be written to, the index is in the cache ($SUPRANK_CACHE, ~/.cache/suprank); if that cannot be
        either, `warn` says why and the index stays in memory. What is opened is memory-mapped.
        """
        vectors = Embeddings.from_source(vectors)
        kind = _checked_kind(kind, recall, vectors)
        if kind == "exact" and vectors.shape[0] * vectors.shape[1] <= EXACT_NUMBERS:
            return cls.build(vectors, kind)
        place = hashlib.sha256(str(Path(folder).resolve()).encode()).hexdigest()[:16]
        stores = [_Store(where, kind) for where in (Path(folder), default_cache() / "index" / place)]
        for store in stores:
            if (index := store.open(vectors)) is not None:
                break
        else:
            index, store = build_faiss(kind, vectors, progress_function(progress, "indexing")), stores[0]
            made_of, problems = identity(vectors), []
            for store in stores:
                try:
                    index = store.write(index, made_of, vectors)
                    break
                except OSError as error:
                    problems.append(str(error))
            else:
                warn(f"no index can be stored, so the next search builds it again: {'; '.join(problems)}")
        before = len(store.tuned)
        found = cls._tuned(index, kind, vectors, store.tuned, recall)
        if len(store.tuned) > before:
            with suppress(OSError):
                store.save()
        return found

    @classmethod
    def _tuned(cls, index: Any, kind: str, vectors: Embeddings, tuned: dict[str, Any], recall: float) -> Self:
        """The index, searched so that it finds this share; `tuned` are the probes that are known, and takes a new one."""
        if kind == "exact":
            return cls(index, Probe(kind), vectors)
        if f"{recall:g}" not in tuned:
            found = tune_probe(index, kind, exact_neighbors(vectors), recall)
            tuned[f"{recall:g}"] = [found.probe.effort, found.probe.rescored, round(found.value, 4)]
        effort, rescored, value = tuned[f"{recall:g}"]
        return cls(index, Probe(kind, effort, rescored), vectors, value)

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def dim(self) -> int:
        return int(self._vectors.shape[1])

    @property
    def kind(self) -> str:
        return self._probe.kind

    @property
    def description(self) -> str:
        """Exact, or approximate with its kind and recall."""
        if self.kind == "exact":
            return "exact search"
        return f"approximate search ({self.kind}, finds {self.recall:.1%} of the {RECALL_AT} nearest)"

    def search(self, queries: NDArray[Any], k: int = 10, rows: NDArray[np.bool_] | None = None) -> Hits:
        """The k best items for each row of `queries`, of those that the mask `rows` selects; ties in the order of rows.

        An approximate index stores numbers in half precision: the cosines of its first 256 hits are computed from the
        embeddings, those of the others may be off by 0.001.
        """
        vectors = checked_queries(queries, self.dim)
        check_k(k)
        if rows is not None and (rows.dtype != bool or rows.shape != (len(self),)):
            raise ValueError(f"rows has shape {rows.shape} and type {rows.dtype}; give a mask of {len(self):,} booleans.")
        hits = empty_hits(len(vectors), k)
        depth = min(k, len(self) if rows is None else int(np.count_nonzero(rows)))
        if depth:
            scores, found = search_faiss(self._index, self._probe, vectors, depth, rows)
            if self.kind != "exact":
                self._rescore(vectors, scores, found)
            hits.rows[:, :depth], hits.scores[:, :depth] = found, scores
        return hits

    def _rescore(self, queries: NDArray[np.float32], scores: NDArray[np.float32], found: NDArray[np.int64]) -> None:
        """Replace the scores of the first hits by exact ones, in place, and sort them; those of the others stay below."""
        for query, score, row in zip(queries, scores, found, strict=True):
            first = np.sort(row[:RESCORED])  # in file order
            exact = unit_rows(self._vectors[first], "the embeddings") @ query
            order = np.lexsort((first, -exact))
            row[: len(first)], score[: len(first)] = first[order], exact[order]
            np.minimum(score[len(first) :], exact.min(), out=score[len(first) :])


class _Store:
    """The files of a kind of index in a folder. The vectors are written before the description that names them."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind, self.meta = folder, kind, dict[str, Any]()

    @property
    def tuned(self) -> dict[str, Any]:
        """Recall → effort, rescored and the recall that was measured."""
        found: dict[str, Any] = self.meta.setdefault("tuned", {})
        return found

    def open(self, vectors: Embeddings) -> Any:
        """The faiss index, memory-mapped; None if there is none of these vectors, or if its files are damaged."""
        try:
            meta = json.loads((self.folder / f"{self.kind}.json").read_bytes())
            made_of = identity(vectors, meta)
            file = self._file(meta)
            if made_of["digest"] != meta["digest"] or file.stat().st_size != meta["bytes"]:
                return None
            index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
            self.meta = {**meta, "tuned": {key: list(probe) for key, probe in meta["tuned"].items() if len(probe) == 3}}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):  # the last is faiss's
            return None
        if (index.ntotal, index.d) != tuple(vectors.shape):
            return None
        if made_of["stamp"] != meta.get("stamp"):  # the same vectors in a copy of their files
            self.meta |= made_of
            with suppress(OSError):
                self.save()
        return index

    def write(self, index: Any, made_of: Mapping[str, Any], vectors: Embeddings) -> Any:
        """Write the index and return it memory-mapped; indexes of other vectors are deleted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self._file(made_of)
        with atomic_writer(file) as opened:
            # Through a callback: if faiss opens the file itself, a full disk raises an indistinct RuntimeError.
            faiss.write_index(index, faiss.PyCallbackIOWriter(opened.write, 2**24))
        self.meta = {**made_of, "bytes": file.stat().st_size, "tuned": {}}
        self.save()
        for old in (*self.folder.glob(f"{self.kind}-*.faiss"), *self.folder.glob(f".{self.kind}[-.]*.tmp")):
            if old != file:
                with suppress(OSError):  # Windows keeps a file that somebody searches
                    old.unlink()
        return self.open(vectors) or index

    def save(self) -> None:
        write_atomically(self.folder / f"{self.kind}.json", json.dumps(self.meta, indent=1).encode())

    def _file(self, made_of: Mapping[str, Any]) -> Path:
        return self.folder / f"{self.kind}-{made_of['digest'][:16]}.faiss"


def identity(vectors: Embeddings, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The digest of the vectors, and the sizes and times of their files, if they are files.

    As long as these are those of an earlier identity, `known`, the digest is taken from there, and nothing is read.
    """
    stamp = _stamp(vectors)
    if known is not None and stamp is not None and stamp == known.get("stamp"):
        return {"digest": known["digest"], "stamp": stamp}
    digest = hashlib.sha256(f"{vectors.shape}".encode())
    step = max(1, _DIGEST_BYTES // (4 * vectors.dim))
    for start in range(0, len(vectors), step):
        digest.update(np.ascontiguousarray(vectors[start : start + step]).data)
    return {"digest": digest.hexdigest(), "stamp": stamp}


def _stamp(vectors: Embeddings) -> list[list[int]] | None:
    try:
        return [[found.st_size, found.st_mtime_ns] for found in map(Path.stat, vectors.paths)] or None
    except OSError:  # it was deleted since
        return None


def empty_hits(queries: int, k: int) -> Hits:
    """Hits without any item, to be filled in."""
    return Hits(np.full((queries, k), -1, np.int64), np.full((queries, k), -np.inf, np.float32))


def check_k(k: int) -> None:
    """Raise unless k is a valid list length."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k={k!r} must be an integer of at least 1; try 10.")


def checked_queries(queries: Any, dim: int) -> NDArray[np.float32]:
    """Queries as unit vectors `[queries, dim]`; a single vector is one query."""
    rows = np.atleast_2d(np.asarray(queries))
    if rows.ndim != 2 or rows.shape[1] != dim or rows.dtype.kind != "f":
        raise ValueError(
            f"the queries have shape {list(rows.shape)} and type {rows.dtype}, but the items have {dim} dimensions; embed them "
            f"with the model that embedded the items."
        )
    vectors = unit_rows(rows, "the queries")
    zeros = np.flatnonzero(~vectors.any(1))
    if len(zeros):
        raise ValueError(f"the queries: row {zeros[0]} is all zeros, so it has no cosine; leave such rows out.")
    return vectors


def _checked_kind(kind: str, recall: float, vectors: Embeddings) -> str:
    if not 0 < recall <= 1:
        raise ValueError(f"recall={recall} must be above 0 and at most 1, the share of neighbors to find; try 0.95.")
    return resolve_kind(kind, *vectors.shape)
