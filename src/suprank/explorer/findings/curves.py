"""Precision against recall at each level, scores by level, and H-P and H-R by the length of the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from suprank.explorer.findings.lists import looked_at, ranked_levels, scored

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from suprank.explorer.source import Source

POINTS, BINS = 101, 100
_PAIRS_BY_K = 300_000_000  # of query and item, some ten seconds


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Interpolated precision at the recalls 0, 0.01, .., 1: the highest precision at that recall or a higher one.

    It is the mean over the queries that have a positive at the level; `precision[level]` is NaN where none has. `queries` were
    looked at, of `of`: a random sample where not all.
    """

    recall: NDArray[np.float64]
    precision: dict[str, NDArray[np.float64]]
    queries: int
    of: int


@dataclass(frozen=True, eq=False)
class ScoreHistograms:
    """How the cosines of pairs are spread, `[levels + 1, bins]`: row l of pairs whose closest common level is the l-th from the
    coarsest on, row 0 of negatives.

    `counts` are pairs, the query with itself left out; `shares` sum to 1 in each row that has pairs, and are 0 in others.
    `rows` tells what each row is: None for the negatives, else the name of the level. `queries` were looked at, of `of`: a
    random sample where not all.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    rows: tuple[str | None, ...]
    queries: int
    of: int

    @property
    def shares(self) -> NDArray[np.float64]:
        return self.counts / np.maximum(self.counts.sum(1, keepdims=True), 1)


@dataclass(frozen=True, eq=False)
class AtK:
    """H-P@k and H-R@k by k, means over queries (`suprank.ranking.hierarchical_precision_at`).

    `queries` were looked at, of `of`: a random sample where not all.
    """

    ks: NDArray[np.int64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    queries: int
    of: int


def precision_recall_and_scores(
    source: Source, *, seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[PrecisionRecall, ScoreHistograms]:
    """Both, in one pass over the scores of all queries, or of a sample of them: see `looked_at`."""
    rows, levels = looked_at(source, seed), len(source.levels)
    total, valid = np.zeros((levels, POINTS)), np.zeros(levels, np.int64)
    counts = np.zeros((levels + 1) * BINS, np.int64)
    done = 0
    for block in scored(source, rows):
        there = block.scores > -np.inf
        bins = ((np.where(there, block.scores, 0) + 1) * (BINS / 2)).astype(np.int64).clip(0, BINS - 1)
        counts += np.bincount((bins + block.levels.astype(np.int64) * BINS)[there], minlength=len(counts))
        order = ranked_levels(block)
        for place in range(levels):
            found = interpolated_precision(order >= levels - place)
            total[place] += found.sum(0)
            valid[place] += len(found)
        done += len(order)
        progress(done, len(rows))
    with np.errstate(invalid="ignore"):
        means = total / valid[:, None]
    precision = dict(zip(source.levels, means, strict=True))
    named = (None, *reversed(source.levels))
    edges = np.linspace(-1, 1, BINS + 1)
    return (
        PrecisionRecall(np.linspace(0, 1, POINTS), precision, len(rows), len(source.queries)),
        ScoreHistograms(edges, counts.reshape(levels + 1, BINS), named, len(rows), len(source.queries)),
    )


def interpolated_precision(positive: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The curve of each row, `[rows with a positive, 101]`, of items in their order and whether they are positive.

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
    number = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of the positive in its row, from 0 on
    best = np.zeros((len(sizes), int(sizes.max(initial=0))))
    best[row, number] = (number + 1) / (column + 1)
    best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
    # In integers: the first positive that brings the recall to i/100 is the ⌈i·R/100⌉-th.
    needed = np.maximum(-(-np.arange(POINTS) * sizes[:, None] // (POINTS - 1)), 1)
    return np.take_along_axis(best, needed - 1, axis=1)


def at_k(
    source: Source, *, most: int = 1000, seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> AtK:
    """About 25 lengths of the list, from 1 to the whole gallery or `most`, evenly on a logarithmic axis."""
    longest = max(1, min(most, len(source.gallery) - int(source.against_each_other)))
    ks = np.unique(np.round(np.geomspace(1, longest, 25)).astype(np.int64))
    names = [f"{metric}@{k}" for metric in ("H-P", "H-R") for k in ks]
    # AP ranks all items, which is faster than a sorted list of a good part of them: 1.2 s instead of 4 s for 6,000².
    whole = ["AP"] if 20 * longest > len(source.gallery) else []
    rows = looked_at(source, seed, _PAIRS_BY_K)
    chosen = rows if len(rows) < len(source.queries) else None
    report = source.evaluated(chosen, metrics=[*names, *whole], progress=progress)
    values = np.array([report[name] for name in names]).reshape(2, len(ks))
    return AtK(ks, values[0], values[1], len(rows), len(source.queries))
