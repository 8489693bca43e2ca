"""The kinds of a local index, and which suits how many items: exact, IVF or HNSW, all on faiss.

`exact` compares a query with every item. `ivf` sorts items into cells around centroids, and looks into the nearest `effort`
cells. `hnsw` walks a graph of neighbors with a list of `effort` candidates; it takes several times as long to build. The last
two hold a vector in 2 bytes a dimension, or in 1 (`codes`), so that scores are a little off, and are measured by their recall.
One byte counts from the least to the greatest number of the embeddings that an index was built of, and cuts off what lies
beyond: embeddings unlike those are refused.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.explorer.index.vectors import unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.evaluation.embeddings import Embeddings

KINDS = ("exact", "ivf", "hnsw")
CODES = ("float16", "int8")
EXACT_NUMBERS = 100_000 * 512
"""Up to so many numbers (items × dim) an exact search takes some 20 ms a query on 2 cores."""

_LINKS = 32  # of a node of HNSW: its usual value for hundreds of dimensions
_PER_CELL = 50  # items that train a centroid; faiss complains below 39
_TRAINING_BYTES = 512 * 2**20
_PER_HIT = 10  # items that IVF looks at for each that it is to find, at least
_LOOKED_AT, _KEPT = 1024, 0.98
_MOST = 0.7  # of the items: a selection of more changes little; removed items are fewer than the rest


def faiss() -> ModuleType:
    """The library, imported when it is first needed."""
    try:
        import faiss as found
    except ModuleNotFoundError as error:
        if error.name != "faiss":
            raise
        said = 'a local index needs faiss, which is not installed; pip install "suprank[explore]"'
        raise ModuleNotFoundError(said, name="faiss") from None
    return found  # type: ignore[no-any-return, unused-ignore]


def chosen_kind(kind: str, items: int, dim: int) -> str:
    """The kind itself, or what suits so many items where it is `auto`.

    Example:
        >>> chosen_kind("auto", 60_000, 512), chosen_kind("auto", 1_000_000, 512)
        ('exact', 'ivf')
    """
    if kind != "auto" and kind not in KINDS:
        raise ValueError(f"there is no kind of index {kind!r}; choose from auto, {', '.join(KINDS)}.")
    if kind == "auto":
        return "exact" if items * dim <= EXACT_NUMBERS else "ivf"
    return kind


def cells(items: int) -> int:
    """Cells of an IVF index, 2√items: a search then spends about as much on finding cells as in 10 to 20 of them."""
    return max(1, min(round(2 * math.sqrt(items)), items // _PER_CELL))


def empty_index(kind: str, codes: str, embeddings: Embeddings) -> Any:
    """A trained faiss index without items, of inner products. It is trained on a sample of rows in bounded memory."""
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


def refuse_unlike(index: Any, kind: str, vectors: NDArray[np.float32], name: str) -> None:
    """Raise where the codes of an index cannot hold new vectors: half of them have a cosine with themselves below 0.98."""
    codec = faiss().downcast_index(index.storage) if kind == "hnsw" else index
    decoded = codec.sa_decode(codec.sa_encode(np.ascontiguousarray(vectors[:_LOOKED_AT])))
    kept = np.einsum("ij,ij->i", decoded, vectors[:_LOOKED_AT]) / np.maximum(np.linalg.norm(decoded, axis=1), 1e-9)
    if np.median(kept) < _KEPT:
        raise ValueError(
            f"{name} are unlike those that the index was built of, and its codes, int8, cut them off (their cosine with "
            f"themselves is {np.median(kept):.2f}); build it again with them, or with codes float16."
        )


def least_effort(index: Any, kind: str, k: int) -> int:
    """What a list of k takes at least, however close the items: candidates for HNSW, cells with 10 k items for IVF."""
    return max(1, math.ceil(_PER_HIT * k * index.nlist / max(index.ntotal, 1))) if kind == "ivf" else k


def searched(
    index: Any, kind: str, effort: int, queries: NDArray[np.float32], k: int, selected: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores and positions of the k best among selected positions, `[queries, k]`; there must be as many.

    A selection may lie anywhere, far from the cells or paths that a query would take. So few enough items are all compared with
    it, and for more the effort grows as the selection shrinks. Queries that find fewer than k are compared with all.
    """
    share = 1.0 if selected is None else float(selected.mean())
    narrow = share < _MOST
    bits = None if selected is None else faiss().IDSelectorBitmap(np.packbits(selected, bitorder="little"))
    if narrow and share * index.ntotal * index.d <= EXACT_NUMBERS:
        return _compared(index, kind, queries, k, bits)
    effort = max(effort, least_effort(index, kind, k))
    effort = math.ceil(effort / share) if narrow else effort
    scores, positions = _approached(index, kind, effort, queries, k, bits)
    short = (positions < 0).any(1)
    if short.any():
        scores[short], positions[short] = _compared(index, kind, queries[short], k, bits)
    return scores, positions


def _approached(
    index: Any, kind: str, effort: int, queries: NDArray[np.float32], k: int, bits: Any
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """By the way of the kind, with an effort; −1 where it finds no more."""
    if kind == "exact":
        return _compared(index, kind, queries, k, bits)
    if kind == "ivf":
        options = faiss().SearchParametersIVF(sel=bits, nprobe=min(effort, index.nlist))
    else:
        options = faiss().SearchParametersHNSW(sel=bits, efSearch=min(effort, index.ntotal))
    return _searched(index, queries, k, options)


def _compared(
    index: Any, kind: str, queries: NDArray[np.float32], k: int, bits: Any
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """With every selected item."""
    library = faiss()
    cells = {"nprobe": index.nlist} if kind == "ivf" else {}
    options = (library.SearchParametersIVF if cells else library.SearchParameters)(sel=bits, **cells)
    vectors = library.downcast_index(index.storage) if kind == "hnsw" else index
    return _searched(vectors, queries, k, options)


def _searched(index: Any, queries: NDArray[np.float32], k: int, options: Any) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    # pytorch-metric-learning loads faiss.contrib.torch_utils, whose `search` takes no params; it keeps the one that does.
    search = getattr(index, "search_numpy", index.search)
    scores, positions = search(queries, k, params=options)
    return scores, positions


def _sample(embeddings: Embeddings, rows: int) -> NDArray[np.float32]:
    """Rows drawn at random, the same ones every time, in the order of the file."""
    import torch

    rows = min(rows, len(embeddings), _TRAINING_BYTES // (4 * embeddings.dim))
    drawn = np.sort(np.random.default_rng(0).choice(len(embeddings), rows, replace=False))
    return unit(embeddings.rows(torch.from_numpy(drawn)).cpu().numpy(), embeddings.name)
