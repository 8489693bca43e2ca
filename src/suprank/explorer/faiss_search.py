"""The kinds of index, all on faiss: how they are built, searched, and tuned to a recall.

`exact` compares a query with every item. `ivf` sorts items into cells around centroids and searches the nearest `effort` cells.
In a large index it does so first by short codes of one bit per number, which faiss scans from registers, and then compares the
best `rescored` of these by their longer codes. `hnsw` walks a graph of neighbors with a list of `effort` candidates; it takes
several times as long to build. Both store each number in 2 bytes, so their scores are slightly off.

An IVF index with short codes has a `base_index`. A small one has none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import faiss as _faiss
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from suprank.evaluation.embeddings import Embeddings

    Found: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64]]
    """Scores and rows, best first, `[queries, k]`."""

faiss: Any = _faiss
"""Its types lack what it defines at run time."""

KINDS = ("exact", "ivf", "hnsw")
EXACT_NUMBERS = 100_000 * 512
"""Up to this many numbers (items × dim), exact search takes about 20 ms per query on 2 cores."""

_LINKS = 32  # per node of HNSW: the usual value for hundreds of dimensions
_PER_CELL = 50  # training items per centroid; faiss complains below 39
_TRAINING_BYTES = 512 * 2**20
_BLOCK_BYTES = 32 * 2**20  # of float32 at once: faiss assigns large blocks faster than small ones
_PER_HIT = 10  # items that IVF examines for each one it should find, at least
_SHORT_BITS, _NUMBERS_PER_CODE = 4, 4  # of the short codes: faiss's fast scan takes 4 bits, here for 4 numbers
_SHORT_CODES_ABOVE = EXACT_NUMBERS  # at 100,000 × 512 they doubled the time of a query, at 400,000 × 128 they halved it
_RESCORED, _RESCORED_PER_HIT, _MAX_RESCORED = 500, 10, 2**15
_SPARE = 64  # hits of an exact search beyond twice as many as wanted, of which several may be equal

RECALL_AT = 10
_QUERIES, _FEWER_QUERIES, _COMPARED_NUMBERS = 1024, 512, 2**37  # the last one takes some seconds
_STANDARD_ERRORS = 2  # by which the recall must exceed what is wanted, since these queries are a sample
_GAIN = 0.002  # from doubling the effort: below this the codes, not the effort, limit the recall
_FINE = 16  # the effort found is at most 1/16 above the least


def unit_rows(vectors: Any, name: str, first: int = 0) -> NDArray[np.float32]:
    """The rows in float32, scaled to length 1; zeros stay zeros. Raise if one is not finite; `first` numbers the first row."""
    rows = np.ascontiguousarray(vectors, np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    wrong = np.flatnonzero(~np.isfinite(lengths))
    if len(wrong):
        raise ValueError(
            f"{name}: row {first + wrong[0]} contains NaN or infinity, so it has no cosine; remove such rows and their labels."
        )
    return np.asarray(rows / np.where(lengths > 0, lengths, 1)[:, None], np.float32)


def resolve_kind(kind: str, items: int, dim: int) -> str:
    """The kind, or for `auto` the one that suits this many items.

    Example:
        >>> resolve_kind("auto", 60_000, 512), resolve_kind("auto", 1_000_000, 512)
        ('exact', 'ivf')
    """
    if kind != "auto" and kind not in KINDS:
        raise ValueError(f"there is no index kind {kind!r}; choose from auto, {', '.join(KINDS)}.")
    if kind == "auto":
        return "exact" if items * dim <= EXACT_NUMBERS else "ivf"
    return kind


def build_faiss(kind: str, vectors: Embeddings, progress: Callable[[int, int], None]) -> Any:
    """A faiss index of inner products of all rows, in memory; the rows are read block by block."""
    items, dim = vectors.shape
    progress(0, items)  # before the training, which takes some time
    index = _trained(kind, vectors)
    step = max(1, _BLOCK_BYTES // (4 * dim))
    for start in range(0, items, step):
        index.add(unit_rows(vectors[start : start + step], "the embeddings", start))
        progress(min(start + step, items), items)
    return index


def _trained(kind: str, vectors: Embeddings) -> Any:
    """An index without items, trained on a sample of the rows."""
    items, dim = vectors.shape
    product, half = faiss.METRIC_INNER_PRODUCT, faiss.ScalarQuantizer.QT_fp16
    if kind == "exact":
        return faiss.IndexFlatIP(dim)
    if kind == "hnsw":
        index = faiss.IndexHNSWSQ(dim, half, _LINKS, product)
        index.train(_sample(vectors, 2**16))
        return index
    # Finding one of 2√n cells costs about as much as searching 10 to 20 of them.
    count = max(1, min(round(2 * math.sqrt(items)), items // _PER_CELL))
    sample = _sample(vectors, max(_PER_CELL * count, 2**14))
    if items * dim <= _SHORT_CODES_ABOVE:
        index = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(dim), dim, count, half, product)
        index.cp.niter, index.cp.spherical, index.cp.min_points_per_centroid = 10, True, 1
        index.train(sample)
        return index
    short = faiss.IndexIVFPQFastScan(faiss.IndexFlatIP(dim), dim, count, _code_parts(dim), _SHORT_BITS, product)
    short.cp.niter, short.cp.spherical, short.cp.min_points_per_centroid = 10, True, 1
    short.pq.cp.min_points_per_centroid = 1
    index = faiss.IndexRefine(short, faiss.IndexScalarQuantizer(dim, half, product))
    values = 2**_SHORT_BITS  # of a code: faiss wants as many rows
    index.train(sample if len(sample) >= values else np.resize(sample, (values, dim)))
    return index


def _code_parts(dim: int) -> int:
    """The number of parts into which the short codes divide a vector: the least divisor of `dim` with at most 4 numbers each.

    Example:
        >>> _code_parts(256), _code_parts(6), _code_parts(37)
        (64, 2, 37)
    """
    return next(parts for parts in range(math.ceil(dim / _NUMBERS_PER_CODE), dim + 1) if dim % parts == 0)


def _sample(vectors: Embeddings, rows: int) -> NDArray[np.float32]:
    """Rows drawn at random, always the same ones, in file order."""
    rows = min(rows, len(vectors), _TRAINING_BYTES // (4 * vectors.shape[1]))
    drawn = np.sort(np.random.default_rng(0).choice(len(vectors), rows, replace=False))
    return unit_rows(vectors[drawn], "a sample of the embeddings")


class Probe(NamedTuple):
    """How an index is searched; `rescored` is the number of candidates, besides 10 per hit, whose long codes IVF compares."""

    kind: str
    effort: int = 1
    rescored: int = _RESCORED


def search_faiss(
    index: Any, probe: Probe, queries: NDArray[np.float32], k: int, rows: NDArray[np.bool_] | None = None
) -> Found:
    """The k best of the rows that the mask selects, of which there must be k.

    Selected items may be far from the cells or paths that a query visits. So a small selection is compared exhaustively, and
    for a larger one the effort grows as the selection shrinks. Queries that still find fewer than k are compared with all.
    """
    selected = index.ntotal if rows is None else int(np.count_nonzero(rows))
    bits = None if rows is None else faiss.IDSelectorBitmap(np.packbits(rows, bitorder="little"))
    if probe.kind == "exact":
        return _exact_search(index, queries, k, bits, selected, 2 * k + _SPARE)
    if rows is not None and selected * index.d <= EXACT_NUMBERS:
        return _exhaustive_search(index, probe.kind, queries, k, bits)
    effort = max(probe.effort, _least_effort(index, probe.kind, k)) * index.ntotal / selected
    scores, found = _approximate_search(index, probe._replace(effort=math.ceil(effort)), queries, k, bits)
    short = (found < 0).any(1)
    if short.any():
        scores[short], found[short] = _exhaustive_search(index, probe.kind, queries[short], k, bits)
    return scores, found


def _exact_search(index: Any, queries: NDArray[np.float32], k: int, bits: Any, selected: int, depth: int) -> Found:
    """Compare the queries with every selected item, ties in the order of rows.

    faiss keeps any of equal scores at the end of a list. So it searches for `depth` items, and for more where the last of them
    is still as good as the k-th.
    """
    depth = min(depth, selected)
    scores, found = _exhaustive_search(index, "exact", queries, depth, bits)
    order, last = np.lexsort((found, -scores))[:, :k], scores[:, -1]
    scores, found = np.take_along_axis(scores, order, 1), np.take_along_axis(found, order, 1)
    tied = scores[:, -1] == last
    if depth < selected and tied.any():
        scores[tied], found[tied] = _exact_search(index, queries[tied], k, bits, selected, 4 * depth)
    return scores, found


def _approximate_search(index: Any, probe: Probe, queries: NDArray[np.float32], k: int, bits: Any) -> Found:
    """Search as the kind does, with this effort; −1 once it finds no more."""
    if probe.kind == "hnsw":
        return _faiss_search(index, queries, k, faiss.SearchParametersHNSW(sel=bits, efSearch=min(probe.effort, index.ntotal)))
    visited = faiss.SearchParametersIVF(sel=bits, nprobe=min(probe.effort, cells_in(index).nlist))
    if not hasattr(index, "base_index"):
        return _faiss_search(index, queries, k, visited)
    candidates = min(probe.rescored + _RESCORED_PER_HIT * k, index.ntotal)
    # `visited` stays in a variable: faiss does not keep it.
    return _faiss_search(
        index, queries, k, faiss.IndexRefineSearchParameters(k_factor=candidates / k, base_index_params=visited)
    )


def _exhaustive_search(index: Any, kind: str, queries: NDArray[np.float32], k: int, bits: Any) -> Found:
    """Compare the queries with the codes of every selected item."""
    codes = index
    if kind == "hnsw":
        codes = faiss.downcast_index(index.storage)
    elif hasattr(index, "refine_index"):
        codes = faiss.downcast_index(index.refine_index)
    if hasattr(codes, "nlist"):
        return _faiss_search(codes, queries, k, faiss.SearchParametersIVF(sel=bits, nprobe=codes.nlist))
    return _faiss_search(codes, queries, k, faiss.SearchParameters(sel=bits))


def _faiss_search(index: Any, queries: NDArray[np.float32], k: int, options: Any) -> Found:
    # pytorch-metric-learning loads faiss.contrib.torch_utils, whose `search` takes no params; the original is `search_numpy`.
    search = getattr(index, "search_numpy", index.search)
    scores, found = search(queries, k, params=options)
    return scores, found


def cells_in(index: Any) -> Any:
    """The IVF index itself; `index` must be kept as long as this is used."""
    return faiss.downcast_index(index.base_index) if hasattr(index, "base_index") else index


def _least_effort(index: Any, kind: str, k: int) -> int:
    """The effort that a list of k needs at least: k candidates for HNSW, cells with 10 k items for IVF."""
    return max(1, math.ceil(_PER_HIT * k * cells_in(index).nlist / max(index.ntotal, 1))) if kind == "ivf" else k


class ExactNeighbors(NamedTuple):
    """Query rows, their unit vectors, and the k best rows for each without itself, `[queries, k]`."""

    rows: NDArray[np.int64]
    queries: NDArray[np.float32]
    best: NDArray[np.int64]


class Recall(NamedTuple):
    """The share of the k best items that is found by this probe, and its standard error."""

    probe: Probe
    value: float
    error: float

    def reaches(self, wanted: float) -> bool:
        """Whether other queries, too, can be expected to find this share."""
        return self.value - _STANDARD_ERRORS * self.error >= wanted


def exact_neighbors(vectors: Embeddings, k: int = RECALL_AT, queries: int | None = None) -> ExactNeighbors:
    """Exact neighbors of rows drawn at random, always the same ones; in bounded memory, by `suprank.evaluation.top_k`.

    There are 1,024 queries by default, fewer from 130 million numbers on, and 512 at least.
    """
    import torch  # when it is used: a small gallery is searched without it

    from suprank.evaluation import top_k

    if queries is None:
        queries = min(_QUERIES, max(_FEWER_QUERIES, _COMPARED_NUMBERS // (len(vectors) * vectors.shape[1])))
    rows = np.sort(np.random.default_rng(1).choice(len(vectors), min(queries, len(vectors)), replace=False))
    own = unit_rows(vectors[rows], "a sample of the embeddings")
    k = min(k, len(vectors) - 1)
    if k < 1:
        return ExactNeighbors(rows, own, np.empty((len(rows), 0), np.int64))
    found = top_k(own, vectors, k, self_index=torch.from_numpy(rows), progress=False)
    return ExactNeighbors(rows, own, found.rows)


def measure_recall(index: Any, probe: Probe, known: ExactNeighbors) -> Recall:
    """The share of the exact neighbors that the index finds, leaving the query itself out of its list."""
    count, k = known.best.shape
    if not k:
        return Recall(probe, 1.0, 0.0)
    _, found = search_faiss(index, probe, known.queries, k + 1)
    others = [row[row != own][:k] for row, own in zip(found, known.rows, strict=True)]
    shares = np.array([len(np.intersect1d(mine, best)) / k for mine, best in zip(others, known.best, strict=True)])
    return Recall(probe, float(shares.mean()), float(shares.std()) / math.sqrt(count))


def tune_probe(index: Any, kind: str, known: ExactNeighbors, wanted: float) -> Recall:
    """The least probe, nearly, that reaches the recall `wanted`; or that beyond which more effort gains little."""
    probe = Probe(kind, min(_least_effort(index, kind, known.best.shape[1] + 1), _most_effort(index, kind)))
    measured = _tune_effort(index, probe, known, wanted)
    most = min(index.ntotal, _MAX_RESCORED) if hasattr(index, "base_index") else 0
    while not measured.reaches(wanted) and measured.probe.rescored < most:
        probe = probe._replace(rescored=4 * probe.rescored)
        measured = _tune_effort(index, probe, known, wanted)
    while most and measured.reaches(wanted) and measured.probe.rescored > 1:  # they take a third of the time of a query
        fewer = measure_recall(index, measured.probe._replace(rescored=measured.probe.rescored // 2), known)
        if not fewer.reaches(wanted):
            break
        measured = fewer
    return measured


def _most_effort(index: Any, kind: str) -> int:
    return int(index.ntotal if kind == "hnsw" else cells_in(index).nlist)


def _tune_effort(index: Any, probe: Probe, known: ExactNeighbors, wanted: float) -> Recall:
    """Double the effort until the recall is reached or more effort gains little; then halve the last step where possible."""

    def measure(effort: int) -> Recall:
        return measure_recall(index, probe._replace(effort=effort), known)

    most, measured = _most_effort(index, probe.kind), measure(probe.effort)
    too_little = probe.effort
    while not measured.reaches(wanted) and measured.probe.effort < most:
        too_little = measured.probe.effort
        more = measure(min(2 * too_little, most))
        if measured.value > 0.5 and more.value - measured.value < _GAIN:
            return measured
        measured = more
    while measured.probe.effort - too_little > max(1, too_little // _FINE):
        between = measure((too_little + measured.probe.effort) // 2)
        if between.reaches(wanted):
            measured = between
        else:
            too_little = between.probe.effort
    return measured
