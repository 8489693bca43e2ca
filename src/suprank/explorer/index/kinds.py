"""The kinds of local index, all on faiss: exact, IVF or HNSW; how they are searched, and how their recall is measured.

`exact` compares a query with every item. `ivf` sorts items into cells around centroids and searches the nearest `effort` cells.
`hnsw` walks a graph of neighbors with a list of `effort` candidates; it takes several times as long to build. Both store each
number in 2 bytes, or in 1 (`codes`), so their scores are slightly off; their recall is measured against exact search, on items
drawn at random. One byte covers the range of the embeddings that the index was built from and clips values outside it, so
embeddings that do not fit are refused.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.evaluation import top_k
from suprank.explorer.index.protocol import unit_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.evaluation.embeddings import Embeddings


KINDS = ("exact", "ivf", "hnsw")
CODES = ("float16", "int8")
EXACT_NUMBERS = 100_000 * 512
"""Up to this many numbers (items × dim), exact search takes about 20 ms per query on 2 cores."""

_LINKS = 32  # per node of HNSW: the usual value for hundreds of dimensions
_PER_CELL = 50  # training items per centroid; faiss complains below 39
_TRAINING_BYTES = 512 * 2**20
_PER_HIT = 10  # items that IVF examines for each one it should find, at least
_CHECKED_ROWS, _MIN_SELF_COSINE = 1024, 0.98
_NARROW = 0.7  # share of the items: a larger selection changes little; removed items are fewer than the rest


def faiss() -> ModuleType:
    """The faiss library, imported on first use."""
    try:
        import faiss as library
    except ModuleNotFoundError as error:
        if error.name != "faiss":
            raise
        message = 'a local index needs faiss, which is not installed; pip install "suprank[explore]"'
        raise ModuleNotFoundError(message, name="faiss") from None
    return library  # type: ignore[no-any-return, unused-ignore]


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


def cells(items: int) -> int:
    """Number of cells of an IVF index, 2√items: finding cells then costs about as much as searching 10 to 20 of them."""
    return max(1, min(round(2 * math.sqrt(items)), items // _PER_CELL))


def empty_index(kind: str, codes: str, embeddings: Embeddings) -> Any:
    """A faiss index of inner products without items, trained on a sample of the rows in bounded memory."""
    if codes not in CODES:
        raise ValueError(f"there are no codes {codes!r}; choose from {', '.join(CODES)}.")
    library, dim = faiss(), embeddings.dim
    quantizer = library.ScalarQuantizer
    bits = {"int8": quantizer.QT_8bit, "float16": quantizer.QT_fp16}[codes]
    product = library.METRIC_INNER_PRODUCT
    if kind == "exact":
        return library.IndexFlatIP(dim)
    if kind == "hnsw":
        index = library.IndexHNSWSQ(dim, bits, _LINKS, product)
        index.train(_sample(embeddings, 2**16))
        return index
    count = cells(len(embeddings))
    index = library.IndexIVFScalarQuantizer(library.IndexFlatIP(dim), dim, count, bits, product)
    index.cp.niter, index.cp.spherical, index.cp.min_points_per_centroid = 10, True, 1
    index.train(_sample(embeddings, max(_PER_CELL * count, 2**14)))
    return index


def refuse_unlike_embeddings(index: Any, kind: str, vectors: NDArray[np.float32], name: str) -> None:
    """Raise if the codes of an index cannot represent new vectors: the median cosine with their own code is below 0.98."""
    codec = faiss().downcast_index(index.storage) if kind == "hnsw" else index
    decoded = codec.sa_decode(codec.sa_encode(np.ascontiguousarray(vectors[:_CHECKED_ROWS])))
    similarity = np.einsum("ij,ij->i", decoded, vectors[:_CHECKED_ROWS]) / np.maximum(np.linalg.norm(decoded, axis=1), 1e-9)
    if np.median(similarity) < _MIN_SELF_COSINE:
        raise ValueError(
            f"{name} are unlike those that the index was built from, and its int8 codes clip them (their cosine with their own "
            f"code is {np.median(similarity):.2f}); build it again including them, or with float16 codes."
        )


def least_effort(index: Any, kind: str, k: int) -> int:
    """The effort that a list of k needs at least: k candidates for HNSW, cells with 10 k items for IVF."""
    return max(1, math.ceil(_PER_HIT * k * index.nlist / max(index.ntotal, 1))) if kind == "ivf" else k


def search_faiss(
    index: Any, kind: str, effort: int, queries: NDArray[np.float32], k: int, selected: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores and positions of the k best among the selected positions, `[queries, k]`; at least k must be selected.

    Selected items may be far from the cells or paths that a query visits. So a small selection is compared exhaustively, and
    for a larger one the effort grows as the selection shrinks. Queries that still find fewer than k are compared with all.
    """
    share = 1.0 if selected is None else float(selected.mean())
    narrow = share < _NARROW
    bits = None if selected is None else faiss().IDSelectorBitmap(np.packbits(selected, bitorder="little"))
    if narrow and share * index.ntotal * index.d <= EXACT_NUMBERS:
        return _exhaustive_search(index, kind, queries, k, bits)
    effort = max(effort, least_effort(index, kind, k))
    effort = math.ceil(effort / share) if narrow else effort
    scores, positions = _approximate_search(index, kind, effort, queries, k, bits)
    short = (positions < 0).any(1)
    if short.any():
        scores[short], positions[short] = _exhaustive_search(index, kind, queries[short], k, bits)
    return scores, positions


def _approximate_search(
    index: Any, kind: str, effort: int, queries: NDArray[np.float32], k: int, bits: Any
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Search as the kind does, with this effort; −1 once it finds no more."""
    if kind == "exact":
        return _exhaustive_search(index, kind, queries, k, bits)
    if kind == "ivf":
        options = faiss().SearchParametersIVF(sel=bits, nprobe=min(effort, index.nlist))
    else:
        options = faiss().SearchParametersHNSW(sel=bits, efSearch=min(effort, index.ntotal))
    return _faiss_search(index, queries, k, options)


def _exhaustive_search(
    index: Any, kind: str, queries: NDArray[np.float32], k: int, bits: Any
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Compare the queries with every selected item."""
    library = faiss()
    cells = {"nprobe": index.nlist} if kind == "ivf" else {}
    options = (library.SearchParametersIVF if cells else library.SearchParameters)(sel=bits, **cells)
    vectors = library.downcast_index(index.storage) if kind == "hnsw" else index
    return _faiss_search(vectors, queries, k, options)


def _faiss_search(
    index: Any, queries: NDArray[np.float32], k: int, options: Any
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    # pytorch-metric-learning loads faiss.contrib.torch_utils, whose `search` takes no params; the original is `search_numpy`.
    search = getattr(index, "search_numpy", index.search)
    scores, positions = search(queries, k, params=options)
    return scores, positions


def _sample(embeddings: Embeddings, rows: int) -> NDArray[np.float32]:
    """Rows drawn at random, always the same ones, in file order."""
    import torch

    rows = min(rows, len(embeddings), _TRAINING_BYTES // (4 * embeddings.dim))
    drawn = np.sort(np.random.default_rng(0).choice(len(embeddings), rows, replace=False))
    return unit_rows(embeddings.rows(torch.from_numpy(drawn)).cpu().numpy(), embeddings.name)


QUERIES = 256
_GAIN = 0.002  # from doubling the effort: below this the codes, not the effort, limit the recall


class ExactNeighbors(NamedTuple):
    """Query rows, their unit vectors, and the k best rows for each without itself, `[queries, k]`."""

    rows: NDArray[np.int64]
    queries: NDArray[np.float32]
    best: NDArray[np.int64]


class MeasuredRecall(NamedTuple):
    """The share of the k best items that is found with this effort."""

    effort: int
    recall: float


def exact_neighbors(embeddings: Embeddings, k: int, queries: int = QUERIES) -> ExactNeighbors:
    """Exact neighbors of rows drawn at random, always the same ones; in bounded memory, by `suprank.evaluation.top_k`."""
    import torch

    rows = np.sort(np.random.default_rng(1).choice(len(embeddings), min(queries, len(embeddings)), replace=False))
    queries_of_rows = unit_rows(embeddings.rows(torch.from_numpy(rows)).cpu().numpy(), embeddings.name)
    k = min(k, len(embeddings) - 1)
    if k < 1:
        return ExactNeighbors(rows, queries_of_rows, np.empty((len(rows), 0), np.int64))
    found = top_k(queries_of_rows, embeddings, k, self_index=torch.from_numpy(rows), progress=False)
    return ExactNeighbors(rows, queries_of_rows, np.asarray(found.item_ids, np.int64))


def measure_recall(index: Any, kind: str, effort: int, known: ExactNeighbors) -> float:
    """The share of the exact neighbors that the index finds, leaving the query itself out of its list."""
    count, k = known.best.shape
    if not k:
        return 1.0
    _, found = search_faiss(index, kind, effort, known.queries, k + 1)
    others = [row[row != own][:k] for row, own in zip(found, known.rows, strict=True)]
    hits = sum(len(np.intersect1d(mine, best)) for mine, best in zip(others, known.best, strict=True))
    return hits / (count * k)


def tune_effort(index: Any, kind: str, known: ExactNeighbors, wanted: float) -> MeasuredRecall:
    """Double the effort until the recall reaches `wanted`, or until more effort gains little."""
    most = index.ntotal if kind == "hnsw" else index.nlist
    effort = min(least_effort(index, kind, known.best.shape[1] + 1), most)
    measured = MeasuredRecall(effort, measure_recall(index, kind, effort, known))
    while measured.recall < wanted and effort < most:
        effort = min(2 * effort, most)
        more = MeasuredRecall(effort, measure_recall(index, kind, effort, known))
        if measured.recall > 0.5 and more.recall - measured.recall < _GAIN:
            break
        measured = more
    return measured
