"""What an approximate index misses, measured against exact search on items drawn from it; and the effort that misses little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.evaluation.evaluate import top_k
from suprank.explorer.index.kinds import least_effort, searched
from suprank.explorer.index.vectors import unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.evaluation.embeddings import Embeddings

QUERIES = 256
_GAIN = 0.002  # of twice the effort: less is not worth it, and the codes are what is missed


class Truth(NamedTuple):
    """Rows that are asked for, as queries of length 1, and the rows `[queries, k]` that are best for each but itself."""

    rows: NDArray[np.int64]
    queries: NDArray[np.float32]
    best: NDArray[np.int64]


class Measured(NamedTuple):
    """The share of the k best that are found with an effort."""

    effort: int
    recall: float


def truth(embeddings: Embeddings, k: int, queries: int = QUERIES) -> Truth:
    """Exact neighbors of rows drawn at random, the same ones every time; in bounded memory, by `suprank.evaluation.top_k`."""
    import torch

    rows = np.sort(np.random.default_rng(1).choice(len(embeddings), min(queries, len(embeddings)), replace=False))
    asked = unit(embeddings.rows(torch.from_numpy(rows)).cpu().numpy(), embeddings.name)
    k = min(k, len(embeddings) - 1)
    if k < 1:
        return Truth(rows, asked, np.empty((len(rows), 0), np.int64))
    found = top_k(asked, embeddings, k, self_index=torch.from_numpy(rows), progress=False)
    return Truth(rows, asked, np.asarray(found.item_ids, np.int64))


def recall(index: Any, kind: str, effort: int, known: Truth) -> float:
    """The share of the exact neighbors that the index finds, with the query itself left out of its list."""
    count, k = known.best.shape
    if not k:
        return 1.0
    _, found = searched(index, kind, effort, known.queries, k + 1)
    others = [row[row != own][:k] for row, own in zip(found, known.rows, strict=True)]
    hits = sum(len(np.intersect1d(mine, best)) for mine, best in zip(others, known.best, strict=True))
    return hits / (count * k)


def tuned(index: Any, kind: str, known: Truth, wanted: float) -> Measured:
    """The least effort, doubled from a small one, whose recall is `wanted`; or beyond which there is little to gain."""
    most = index.ntotal if kind == "hnsw" else index.nlist
    effort = min(least_effort(index, kind, known.best.shape[1] + 1), most)
    measured = Measured(effort, recall(index, kind, effort, known))
    while measured.recall < wanted and effort < most:
        effort = min(2 * effort, most)
        more = Measured(effort, recall(index, kind, effort, known))
        if measured.recall > 0.5 and more.recall - measured.recall < _GAIN:
            break
        measured = more
    return measured
