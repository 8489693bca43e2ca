"""Which classes are confused: metrics by class, the class of each query's first item, and images at the border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.explorer.findings.curves import sample_queries, score_blocks
from suprank.explorer.images import best_items, unit_blocks, unit_embeddings

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from suprank.evaluation import Report
    from suprank.evaluation.retrieval_data import RetrievalData

PAIRS = 300_000_000
"""Query-item pairs that are searched at most, unless told otherwise: a few seconds."""


class ClassMetrics(NamedTuple):
    """Mean AP and R@1 at one level, by label number; NaN for a class without queries that have a positive.

    `queries` counts the queries of the means, and `images` the gallery's images of each class.
    """

    ap: NDArray[np.float64]
    r1: NDArray[np.float64]
    queries: NDArray[np.int64]
    images: NDArray[np.int64]


def class_metrics(data: RetrievalData, report: Report, level: int = 0) -> ClassMetrics:
    """Metrics of the queries of each class at a level (0: the finest). `report` has the values of every query."""
    if report.per_query is None:
        raise ValueError("metrics by class need the values of every query; evaluate with per_query=True.")
    values = [_level_values(report, "AP", data.levels[level]), _hits(report, data.levels[level])]
    number = len(data.names[data.levels[level]])
    own = data.queries.labels[:, level]
    valid = ~np.isnan(values[0]) & (own >= 0)
    queries = np.bincount(own[valid], minlength=number)
    with np.errstate(invalid="ignore"):
        ap, r1 = (np.bincount(own[valid], one[valid], minlength=number) / queries for one in values)
    gallery = data.items.labels[:, level]
    return ClassMetrics(ap, r1, queries, np.bincount(gallery[gallery >= 0], minlength=number))


def _level_values(report: Report, name: str, level: str) -> NDArray[np.float64]:
    """The values of every query at a level; with one level, a metric has no level in its name."""
    assert report.per_query is not None
    key = f"{name}/{level}"
    return np.asarray(report.per_query[key if key in report.per_query else name])


def _hits(report: Report, level: str) -> NDArray[np.float64]:
    """R@1 of every query at a level, also where k = 1 is none of the recipe's `ks`."""
    if report.per_query is not None and "R@1" in report.per_query:
        return _level_values(report, "R@1", level)
    reciprocal = _level_values(report, "MRR", level)
    return np.where(np.isnan(reciprocal), np.nan, reciprocal == 1)


def weakest_classes(metrics: ClassMetrics, number: int, min_queries: int = 2) -> NDArray[np.int64]:
    """Labels with the lowest mean AP among those with enough queries; at equal AP the label with more queries comes first."""
    labels = np.flatnonzero(metrics.queries >= max(min_queries, 1))
    return labels[np.lexsort((labels, -metrics.queries[labels], metrics.ap[labels]))][:number]


def first_item_levels(report: Report) -> NDArray[np.int64]:
    """Numbers of queries by the levels that their first item shares with them: `[levels + 1]`, from none to all.

    Only queries with a positive at the finest level count, so that the last number divided by their sum is R@1. In a tie the
    item that shares fewer levels comes first, as in evaluation.
    """
    shared = np.sum([_hits(report, level) for level in report.levels], axis=0)
    return np.bincount(shared[~np.isnan(shared)].astype(np.int64), minlength=len(report.levels) + 1)


class NearestItems(NamedTuple):
    """Query rows, the gallery row that each of them finds first (−1 if there is none), and its cosine.

    These are all queries with a label, or if `sampled` a random sample of them.
    """

    queries: NDArray[np.int64]
    items: NDArray[np.int64]
    scores: NDArray[np.float32]
    sampled: bool


def nearest_items(
    data: RetrievalData,
    *,
    seed: int = 0,
    pairs: int = PAIRS,
    queries: NDArray[np.int64] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> NearestItems:
    """Find the first item of every query with a label, or of a random sample with at most `pairs` query-item pairs.

    `queries` are rows to search for instead of all. In a tie the item that shares fewer levels comes first, as in evaluation.
    """
    rows = sample_queries(data, seed, pairs) if queries is None else queries
    sampled = len(rows) < len(data.queries)
    rows = rows[(data.queries.labels[rows] >= 0).any(1)]
    if not len(rows):
        return NearestItems(rows, rows, np.empty(0, np.float32), sampled)
    items, scores = best_items(data, rows, 2, progress=progress)
    first, tied = items[:, 0], np.flatnonzero(((scores[:, :1] == scores[:, 1:]) & (items[:, 1:] >= 0)).any(1))
    if len(tied):
        first[tied] = _first_of_ties(data, rows[tied])
    return NearestItems(rows, first, scores[:, 0], sampled)


def _first_of_ties(data: RetrievalData, queries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Choose among the items with the highest score: the one that shares the fewest levels with the query, then by row."""
    most = len(data.levels) + 1
    blocks = score_blocks(data, queries)
    return np.concatenate([np.where(scores == scores.max(1)[:, None], levels, most).argmin(1) for scores, levels in blocks])


def with_positives(data: RetrievalData, report: Report, nearest: NearestItems, level: int = 0) -> NearestItems:
    """Those queries that have a positive at the level; the others cannot find their own label first."""
    chosen = ~np.isnan(_level_values(report, "AP", data.levels[level])[nearest.queries])
    return NearestItems(nearest.queries[chosen], nearest.items[chosen], nearest.scores[chosen], nearest.sampled)


class ConfusedPair(NamedTuple):
    """Two labels: how many queries of the one find the other first, and the other way around."""

    one: int
    other: int
    one_as_other: int
    other_as_one: int

    @property
    def mistakes(self) -> int:
        return self.one_as_other + self.other_as_one


@dataclass(frozen=True, eq=False)
class Confusions:
    """Which label the first item has, by the label of the query, at one level (0: the finest).

    `counts[i]` queries of the label `labels[i]` find an item of the label `found[i]` first; labels are numbers of
    `RetrievalData.names`, and `found` is −1 for an item without a label. `queries` is the number of queries of each label.
    """

    level: int
    queries: NDArray[np.int64]
    labels: NDArray[np.int64]
    found: NDArray[np.int64]
    counts: NDArray[np.int64]

    def pairs(self, number: int | None = None) -> list[ConfusedPair]:
        """The pairs of labels that are confused most often, in either direction; ties by label number."""
        wrong = (self.labels != self.found) & (self.found >= 0)
        directed = dict(
            zip(
                zip(self.labels[wrong].tolist(), self.found[wrong].tolist(), strict=True),
                self.counts[wrong].tolist(),
                strict=True,
            )
        )
        both = {(min(pair), max(pair)) for pair in directed}
        pairs = [ConfusedPair(*pair, directed.get(pair, 0), directed.get(pair[::-1], 0)) for pair in both]
        return sorted(pairs, key=lambda pair: (-pair.mistakes, pair.one, pair.other))[:number]

    def mistaken_for(self, label: int) -> list[tuple[int, int]]:
        """The other labels that queries of a label find first, with the number of queries, the most frequent first.

        Label −1 stands for items without a label.
        """
        wrong = (self.labels == label) & (self.found != label)
        pairs = zip(self.found[wrong].tolist(), self.counts[wrong].tolist(), strict=True)
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))

    def matrix(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Counts of these labels: a row for the label of the query, a column for that of its first item.

        The last column counts the items of other labels and those without one, so that a row sums to its number of queries.
        """
        position = np.full(len(self.queries) + 1, len(labels), np.int64)  # the last entry is for label −1
        position[labels] = np.arange(len(labels))
        own = position[self.labels]
        counts = np.zeros((len(labels), len(labels) + 1), np.int64)
        inside = own < len(labels)
        np.add.at(counts, (own[inside], position[self.found[inside]]), self.counts[inside])
        return counts


def count_confusions(data: RetrievalData, nearest: NearestItems, level: int = 0) -> Confusions:
    """Count the labels of the first items at a level. Queries without a label there, or without an item, are left out."""
    own = data.queries.labels[nearest.queries, level]
    valid = (own >= 0) & (nearest.items >= 0)
    own, found = own[valid], data.items.labels[nearest.items[valid], level]
    pairs, counts = np.unique(np.stack([own, found], 1), axis=0, return_counts=True)
    queries = np.bincount(own, minlength=len(data.names[data.levels[level]]))
    return Confusions(level, queries, pairs[:, 0], pairs[:, 1], counts)


def confused_queries(data: RetrievalData, nearest: NearestItems, label: int, found: int, level: int = 0) -> NDArray[np.int64]:
    """Positions in `nearest` of the queries of a label whose first item has another label, the most similar first."""
    own = data.queries.labels[nearest.queries, level]
    chosen = np.flatnonzero((own == label) & (nearest.items >= 0))
    chosen = chosen[data.items.labels[nearest.items[chosen], level] == found]
    return chosen[np.lexsort((chosen, -nearest.scores[chosen]))]


class Border(NamedTuple):
    """Queries of a label with their best item of the same label and their best item of any other: rows and cosines.

    A row is −1, and its cosine −∞, if there is no such item. The `margin` is positive if the item of the same label is ahead.
    """

    queries: NDArray[np.int64]
    own_items: NDArray[np.int64]
    own_scores: NDArray[np.float32]
    other_items: NDArray[np.int64]
    other_scores: NDArray[np.float32]

    @property
    def margin(self) -> NDArray[np.float32]:
        """How far the item of the same label is ahead; NaN if there is neither."""
        with np.errstate(invalid="ignore"):
            return self.own_scores - self.other_scores


def measure_border(data: RetrievalData, queries: NDArray[np.int64], level: int = 0) -> Border:
    """Compare the best item of the same label with the best item of another, for queries that have a label at the level."""
    units = unit_embeddings(data.queries, queries)
    own = data.queries.labels[queries, level]
    rows = np.full((2, len(queries)), -1, np.int64)
    best = np.full((2, len(queries)), -np.inf, np.float32)
    itself = [data.self_rows(int(query)) for query in queries]
    for start, block in unit_blocks(data.items):
        scores = units @ block.T
        for number, hidden in enumerate(itself):
            inside = hidden[(hidden >= start) & (hidden < start + len(block))]
            scores[number, inside - start] = -np.inf
        same = data.items.labels[start : start + len(block), level] == own[:, None]
        for side, wanted in enumerate((same, ~same)):
            some = np.where(wanted, scores, -np.inf)
            at = some.argmax(1)
            top = some[np.arange(len(queries)), at]
            better = top > best[side]
            rows[side, better], best[side, better] = start + at[better], top[better]
    return Border(queries, rows[0], best[0], rows[1], best[1])
