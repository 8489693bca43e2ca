"""The kinds of local index, all on faiss: exact, IVF or HNSW, and how they are searched.

`exact` compares a query with every item. `ivf` sorts items into cells around centroids and searches the nearest `effort` cells.
In a large index it does so first by short codes of one bit per number, which faiss scans from registers, and then compares the
best `rescored` of these by their longer codes. `hnsw` walks a graph of neighbors with a list of `effort` candidates; it takes
several times as long to build. Both store each number in 2 bytes, or in 1 (`codes`), so their scores are slightly off. One byte
covers the range of the embeddings that the index was built from and clips values outside it, so embeddings that do not fit are
refused.

An IVF index with short codes has a `base_index`. A small one has none, nor has one of before version 2.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.explorer.index.protocol import BLOCK_BYTES, unit_rows

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
_SHORT_BITS, _NUMBERS_PER_CODE = 4, 4  # of the short codes: faiss's fast scan takes 4 bits, here for 4 numbers
_SHORT_CODES_ABOVE = EXACT_NUMBERS  # at 100,000 × 512 they doubled the time of a query, at 400,000 × 128 they halved it
RESCORED, _RESCORED_PER_HIT = 500, 10
_SPARE = 64  # hits of an exact search beyond twice as many as wanted


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
    sample_rows = max(_PER_CELL * count, 2**14)
    if len(embeddings) * dim <= _SHORT_CODES_ABOVE:
        index = library.IndexIVFScalarQuantizer(library.IndexFlatIP(dim), dim, count, bits, product)
        index.cp.niter, index.cp.spherical, index.cp.min_points_per_centroid = 10, True, 1
        index.train(_sample(embeddings, sample_rows))
        return index
    short = library.IndexIVFPQFastScan(library.IndexFlatIP(dim), dim, count, _code_parts(dim), _SHORT_BITS, product)
    short.cp.niter, short.cp.spherical, short.cp.min_points_per_centroid = 10, True, 1
    short.pq.cp.min_points_per_centroid = 1
    index = library.IndexRefine(short, library.IndexScalarQuantizer(dim, bits, product))
    sample = _sample(embeddings, sample_rows)
    values = 2**_SHORT_BITS  # of a code: faiss wants as many rows
    index.train(sample if len(sample) >= values else np.resize(sample, (values, dim)))
    return index


def empty_tail(kind: str, dim: int) -> Any:
    """A faiss index without items for additions, which are compared one by one: float32 for `exact`, else float16."""
    library = faiss()
    if kind == "exact":
        return library.IndexFlatIP(dim)
    return library.IndexScalarQuantizer(dim, library.ScalarQuantizer.QT_fp16, library.METRIC_INNER_PRODUCT)


def _code_parts(dim: int) -> int:
    """The number of parts into which the short codes divide a vector: the least divisor of `dim` with at most 4 numbers each.

    Example:
        >>> _code_parts(256), _code_parts(6), _code_parts(37)
        (64, 2, 37)
    """
    return next(parts for parts in range(math.ceil(dim / _NUMBERS_PER_CODE), dim + 1) if dim % parts == 0)


def cells_in(index: Any) -> Any:
    """The IVF index itself; `index` must be kept as long as this is used."""
    return faiss().downcast_index(index.base_index) if hasattr(index, "base_index") else index


def _codes_in(index: Any, kind: str) -> Any:
    """The part of an index that has the codes of the vectors, by position; `index` must be kept as long as this is used."""
    if kind == "hnsw":
        return faiss().downcast_index(index.storage)
    return faiss().downcast_index(index.refine_index) if hasattr(index, "refine_index") else index


def decoded_vectors(index: Any, positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """The vectors at these positions, decoded."""
    if hasattr(index, "make_direct_map"):
        index.make_direct_map()  # does nothing the second time
    vectors: NDArray[np.float32] = index.reconstruct_batch(positions)
    return vectors


def drop_positions(index: Any, kind: str, removed: NDArray[np.bool_]) -> Any:
    """An IVF or HNSW index, read into memory, without these positions: the others move up and keep their codes."""
    library = faiss()
    if kind == "hnsw":  # its graph cannot lose nodes; decoding and encoding again gives the same codes
        remaining, smaller = np.flatnonzero(~removed), library.clone_index(index)
        smaller.reset()
        step = max(1, BLOCK_BYTES // (4 * index.d))
        for start in range(0, len(remaining), step):
            smaller.add(index.reconstruct_batch(remaining[start : start + step]))
        return smaller
    selector = library.IDSelectorBitmap(np.packbits(removed, bitorder="little"))
    short = cells_in(index)
    short.remove_ids(selector)
    lists, moved = library.downcast_InvertedLists(short.invlists), np.cumsum(~removed) - 1
    for cell in range(short.nlist):
        size = lists.list_size(cell)
        if size:
            renumbered = moved[library.rev_swig_ptr(lists.get_ids(cell), size)]
            library.memcpy(lists.get_ids(cell), library.swig_ptr(renumbered), renumbered.nbytes)
    if hasattr(index, "refine_index"):
        _codes_in(index, kind).remove_ids(selector)
        index.ntotal = short.ntotal
    return index


def refuse_unlike_embeddings(index: Any, kind: str, vectors: NDArray[np.float32], name: str) -> None:
    """Raise if the codes of an index cannot represent new vectors: the median cosine with their own code is below 0.98."""
    codec = _codes_in(index, kind)
    decoded = codec.sa_decode(codec.sa_encode(np.ascontiguousarray(vectors[:_CHECKED_ROWS])))
    similarity = np.einsum("ij,ij->i", decoded, vectors[:_CHECKED_ROWS]) / np.maximum(np.linalg.norm(decoded, axis=1), 1e-9)
    if np.median(similarity) < _MIN_SELF_COSINE:
        raise ValueError(
            f"{name} are unlike those that the index was built from, and its int8 codes clip them (their cosine with their own "
            f"code is {np.median(similarity):.2f}); build it again including them, or with float16 codes."
        )


class SearchSettings(NamedTuple):
    """How an index is searched; `rescored` is the number of candidates, besides 10 per hit, whose long codes IVF compares."""

    kind: str
    effort: int = 1
    rescored: int = RESCORED


class Selection:
    """Some positions of an index, as faiss takes them."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self.mask, self.count = mask, int(np.count_nonzero(mask))
        self.share = self.count / len(mask) if len(mask) else 1.0
        self.bits = faiss().IDSelectorBitmap(np.packbits(mask, bitorder="little"))


def least_effort(index: Any, kind: str, k: int) -> int:
    """The effort that a list of k needs at least: k candidates for HNSW, cells with 10 k items for IVF."""
    return max(1, math.ceil(_PER_HIT * k * cells_in(index).nlist / max(index.ntotal, 1))) if kind == "ivf" else k


def search_faiss(
    index: Any, settings: SearchSettings, queries: NDArray[np.float32], k: int, selection: Selection | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores and positions of the k best among the selected positions, `[queries, k]`; at least k must be selected.

    Selected items may be far from the cells or paths that a query visits. So a small selection is compared exhaustively, and
    for a larger one the effort grows as the selection shrinks. Queries that still find fewer than k are compared with all.
    """
    kind, share, bits = settings.kind, 1.0, None
    if selection is not None:
        share, bits = selection.share, selection.bits
    narrow = share < _NARROW
    if kind == "exact":
        return _exact_search(index, queries, k, selection)
    if narrow and share * index.ntotal * index.d <= EXACT_NUMBERS:
        return _exhaustive_search(index, kind, queries, k, bits)
    effort = max(settings.effort, least_effort(index, kind, k))
    effort = math.ceil(effort / share) if narrow else effort
    scores, positions = _approximate_search(index, settings._replace(effort=effort), queries, k, bits)
    short = (positions < 0).any(1)
    if short.any():
        scores[short], positions[short] = _exhaustive_search(index, kind, queries[short], k, bits)
    return scores, positions


def _exact_search(
    index: Any, queries: NDArray[np.float32], k: int, selection: Selection | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Compare the queries with every item; of equal scores at the end of a list, the first positions remain.

    faiss takes up to twice as long if it has to look up each item in a selection. So if most are selected, it searches for more
    than k of all, and the others are dropped. It keeps any of equal scores at the end of a list, which is why it searches for
    more than k in any case; this does not help if more than 64 are equal.
    """
    depth, bits = min(2 * k + _SPARE, index.ntotal), None if selection is None else selection.bits
    if selection is None or selection.share < _NARROW:
        return _first(*_exhaustive_search(index, "exact", queries, depth, bits), k)
    scores, positions = _exhaustive_search(index, "exact", queries, depth, None)
    scores[~selection.mask[positions]] = -np.inf
    scores, positions = _first(scores, positions, k)
    lacking = np.isneginf(scores[:, -1])
    if lacking.any():
        scores[lacking], positions[lacking] = _first(*_exhaustive_search(index, "exact", queries[lacking], depth, bits), k)
    return scores, positions


def _first(scores: NDArray[np.float32], positions: NDArray[np.int64], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The k best of each row, of equal scores those with the lowest positions."""
    order = np.lexsort((positions, -scores))[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(positions, order, 1)


def _approximate_search(
    index: Any, settings: SearchSettings, queries: NDArray[np.float32], k: int, bits: Any
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Search as the kind does, with this effort; −1 once it finds no more."""
    library = faiss()
    if settings.kind == "hnsw":
        return _faiss_search(
            index, queries, k, library.SearchParametersHNSW(sel=bits, efSearch=min(settings.effort, index.ntotal))
        )
    visited = library.SearchParametersIVF(sel=bits, nprobe=min(settings.effort, cells_in(index).nlist))
    if not hasattr(index, "base_index"):
        return _faiss_search(index, queries, k, visited)
    candidates = min(settings.rescored + _RESCORED_PER_HIT * k, index.ntotal)
    # `visited` stays in a variable: faiss does not keep it.
    return _faiss_search(
        index, queries, k, library.IndexRefineSearchParameters(k_factor=candidates / k, base_index_params=visited)
    )


def _exhaustive_search(
    index: Any, kind: str, queries: NDArray[np.float32], k: int, bits: Any
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Compare the queries with every selected item."""
    library, codes = faiss(), _codes_in(index, kind)
    cells = {"nprobe": codes.nlist} if hasattr(codes, "nlist") else {}
    options = (library.SearchParametersIVF if cells else library.SearchParameters)(sel=bits, **cells)
    return _faiss_search(codes, queries, k, options)


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
