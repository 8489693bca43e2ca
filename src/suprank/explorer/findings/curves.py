"""Precision-recall curves at each level, score histograms by level, and H-P@k and H-R@k, counted block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.evaluation import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import RetrievalData


PAIRS = 50_000_000
"""Query-item pairs that are scored at most: more would take minutes and change no curve visibly."""

MIN_QUERIES = 200
"""Queries that are scored at least, even in a gallery of millions."""

_BLOCK = 2**21  # pairs at once: about 50 MB including what is computed from them


class ScoreBlock(NamedTuple):
    """Some queries against all items, `[queries, items]`: cosines and shared levels; −∞ and 0 for the query itself."""

    scores: NDArray[np.float32]
    levels: NDArray[np.int8]


def sample_queries(data: RetrievalData, seed: int = 0, pairs: int | None = None) -> NDArray[np.int64]:
    """Rows of all queries, or for a large collection of a random sample with at most `pairs` query-item pairs (`PAIRS`).

    The sample is sorted, and the same for the same seed.
    """
    number = len(data.queries)
    most = max((PAIRS if pairs is None else pairs) // len(data.items), MIN_QUERIES)
    if number <= most:
        return np.arange(number)
    return np.sort(np.random.default_rng(seed).choice(number, most, replace=False))


def score_blocks(data: RetrievalData, rows: NDArray[np.int64]) -> Iterator[ScoreBlock]:
    """Score the queries of these rows, some at a time. The scores equal those of `evaluate` to the last bit."""
    import torch  # when it is used: the explorer page opens without it

    from suprank.evaluation.search import Search

    queries, items = data.queries.embeddings, data.items.embeddings
    search = Search(queries, items, device=torch.device("cpu"), positives_per_query=len(items))
    labels = data.items.labels.astype(np.int32)
    step = max(1, _BLOCK // len(items))
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        scores = np.empty((len(some), len(items)), np.float32)
        ignored = [data.self_rows(int(row)) for row in some]
        for start, piece in search.score(some):
            width = min(piece.shape[1], len(items) - start)
            scores[:, start : start + width] = piece[:, :width].numpy()
        levels = _levels(data.queries.labels[some].astype(np.int32), labels)
        for row, own in enumerate(ignored):
            scores[row, own], levels[row, own] = -np.inf, 0
        yield ScoreBlock(scores, levels)


def levels_by_rank(block: ScoreBlock) -> NDArray[np.int64]:
    """Shared levels of each query's items, ranked as in evaluation: by descending score, and for ties the lower level first."""
    # The bits of a float as an integer that sorts like the float; −0 and 0 are equal.
    bits = (block.scores + np.float32(0)).view(np.int32)
    sortable = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64)
    return np.sort((-sortable << 8) | block.levels, axis=1) & 0xFF


def _levels(own: NDArray[np.int32], theirs: NDArray[np.int32]) -> NDArray[np.int8]:
    """`shared_levels` for every query and item, using the memory of only a few masks."""
    levels = np.zeros((len(own), len(theirs)), np.int8)
    shared = np.ones(levels.shape, bool)
    for column in range(own.shape[1] - 1, -1, -1):
        shared &= (own[:, column, None] == theirs[:, column]) & (own[:, column, None] >= 0)
        levels += shared
    return levels


POINTS, BINS = 101, 100
_PAIRS_BY_K = 300_000_000  # query-item pairs: about ten seconds


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Interpolated precision at the recalls 0, 0.01, .., 1: the highest precision at that recall or a higher one.

    Precision is the mean over the queries that have a positive at the level; `precision[level]` is NaN if none has. It is
    measured on `queries` of the `total_queries`, a random sample if not all.
    """

    recall: NDArray[np.float64]
    precision: dict[str, NDArray[np.float64]]
    queries: int
    total_queries: int


@dataclass(frozen=True, eq=False)
class ScoreHistograms:
    """Histograms of the cosines of pairs, `[levels + 1, bins]`: row l counts pairs that share l levels, row 0 the negatives.

    `counts` are pairs, without the query itself; `shares` sum to 1 in each row that has pairs and are 0 in the others. `rows`
    names each row: None for the negatives, else the finest shared level. Measured on `queries` of the `total_queries`, a random
    sample if not all.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    rows: tuple[str | None, ...]
    queries: int
    total_queries: int

    @property
    def shares(self) -> NDArray[np.float64]:
        return self.counts / np.maximum(self.counts.sum(1, keepdims=True), 1)


@dataclass(frozen=True, eq=False)
class HierarchicalAtK:
    """H-P@k and H-R@k for each k, means over queries (`suprank.ranking.hierarchical_precision_at`)."""

    ks: NDArray[np.int64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]


def precision_recall_and_scores(
    data: RetrievalData, *, seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[PrecisionRecall, ScoreHistograms]:
    """Compute both in one pass over the scores of all queries, or of a sample of them (`sample_queries`)."""
    rows, levels = sample_queries(data, seed), len(data.levels)
    total, with_positives = np.zeros((levels, POINTS)), np.zeros(levels, np.int64)
    counts = np.zeros((levels + 1) * BINS, np.int64)
    done = 0
    for block in score_blocks(data, rows):
        valid = block.scores > -np.inf
        bins = ((np.where(valid, block.scores, 0) + 1) * (BINS / 2)).astype(np.int64).clip(0, BINS - 1)
        counts += np.bincount((bins + block.levels.astype(np.int64) * BINS)[valid], minlength=len(counts))
        order = levels_by_rank(block)
        for level in range(levels):
            curves = interpolated_precision(order >= levels - level)
            total[level] += curves.sum(0)
            with_positives[level] += len(curves)
        done += len(order)
        progress(done, len(rows))
    with np.errstate(invalid="ignore"):
        means = total / with_positives[:, None]
    precision = dict(zip(data.levels, means, strict=True))
    rows_of_histogram = (None, *reversed(data.levels))
    edges = np.linspace(-1, 1, BINS + 1)
    return (
        PrecisionRecall(np.linspace(0, 1, POINTS), precision, len(rows), len(data.queries)),
        ScoreHistograms(edges, counts.reshape(levels + 1, BINS), rows_of_histogram, len(rows), len(data.queries)),
    )


def interpolated_precision(positive: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The curve of each row that has a positive, `[rows with a positive, 101]`; `positive` lists the items by rank.

    Example:
        >>> curve = interpolated_precision(np.array([[False, True, True, False]]))[0]  # precision 1/2, then 2/3
        >>> curve[[0, 50, 51, 100]].round(3).tolist()
        [0.667, 0.667, 0.667, 0.667]
        >>> curve = interpolated_precision(np.array([[True, False, False, True], [False] * 4]))
        >>> curve[:, [0, 50, 51, 100]].tolist()
        [[1.0, 1.0, 0.5, 0.5]]
    """
    sizes = positive.sum(1)
    positive, sizes = positive[sizes > 0], sizes[sizes > 0]
    row, column = positive.nonzero()
    number = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of the positive in its row, from 0
    best = np.zeros((len(sizes), int(sizes.max(initial=0))))
    best[row, number] = (number + 1) / (column + 1)
    best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
    # In integers: recall i/100 is first reached by the ⌈i·R/100⌉-th positive.
    needed = np.maximum(-(-np.arange(POINTS) * sizes[:, None] // (POINTS - 1)), 1)
    return np.take_along_axis(best, needed - 1, axis=1)


def hierarchical_at_k(
    data: RetrievalData, *, max_k: int = 1000, seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> HierarchicalAtK:
    """H-P@k and H-R@k for about 25 values of k, evenly spaced on a logarithmic axis from 1 to the gallery size or `max_k`.

    Means over all queries, or for a large collection over a random sample.
    """
    longest = max(1, min(max_k, len(data.items) - int(data.gallery is None)))
    ks = np.unique(np.round(np.geomspace(1, longest, 25)).astype(np.int64))
    names = [f"{metric}@{k}" for metric in ("H-P", "H-R") for k in ks]
    # AP ranks all items, which is faster than sorting a large part of them: 1.2 s instead of 4 s for 6,000².
    rank_all = ["AP"] if 20 * longest > len(data.items) else []
    rows = sample_queries(data, seed, _PAIRS_BY_K)
    chosen = data.take(rows) if len(rows) < len(data.queries) else data
    report = evaluate(chosen, metrics=[*names, *rank_all], progress=progress)
    values = np.array([report[name] for name in names]).reshape(2, len(ks))
    return HierarchicalAtK(ks, values[0], values[1])
