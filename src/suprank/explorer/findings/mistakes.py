"""The mistakes of two runs in the first items of the same queries: which are near misses, and where both fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.explorer.findings.curves import sample_queries
from suprank.explorer.images import best_items, shared_levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.evaluation import Report
    from suprank.evaluation.retrieval_data import RetrievalData

_PAIRS = 300_000_000  # query-item pairs: a few seconds


class ItemCounts(NamedTuple):
    """Numbers of first items of each query: of its finest class, with only a coarser label in common, and negatives."""

    fine: NDArray[np.int64]
    coarse: NDArray[np.int64]
    negative: NDArray[np.int64]

    def near_miss_share(self, queries: NDArray[np.int64] | slice = slice(None)) -> float:
        """Share of the mistakes (all items but those of the finest class) that share a coarser label; NaN without mistakes."""
        near, mistakes = self.coarse[queries].sum(), (self.coarse + self.negative)[queries].sum()
        return float(near / mistakes) if mistakes else float("nan")


class QueryRanking(NamedTuple):
    """Indices into `FirstItems.queries`, those that fit a rule best first; the first `matches` of them obey it."""

    order: NDArray[np.int64]
    matches: int


class FirstItems(NamedTuple):
    """Rows of queries in the first of two runs, and counts of the first items that each has for them.

    Only queries with an item of their finest class to find are there: all, or if `sampled` those of a random sample.
    """

    queries: NDArray[np.int64]
    own: ItemCounts
    other: ItemCounts
    sampled: bool

    def swapped(self) -> FirstItems:
        """The same with the runs in each other's place."""
        return self._replace(own=self.other, other=self.own)


def count_first_items(
    data: RetrievalData,
    other: RetrievalData,
    same: NDArray[np.int64],
    k: int = 10,
    *,
    seed: int = 0,
    queries: NDArray[np.int64] | None = None,
) -> FirstItems:
    """Count the first k items of both for the same queries; `same` comes from `RetrievalData.match`.

    `queries` are rows to count instead of all.
    """
    rows = sample_queries(data, seed, _PAIRS)
    sampled = len(rows) < len(data.queries)
    if queries is not None:
        sampled = len(rows) < len(queries)
        rows = np.sort(np.random.default_rng(seed).choice(queries, len(rows), replace=False)) if sampled else queries
    rows = rows[_has_positives(data, rows)]
    return FirstItems(rows, count_items(data, rows, k), count_items(other, same[rows], k), sampled)


def misses_class(report: Report, k: int) -> NDArray[np.bool_]:
    """Whether a query has items of its finest class to find, but none of them is among the first k."""
    assert report.per_query is not None
    return np.asarray(report.per_query["MRR"]) * k < 1 - 1e-6  # NaN, without such an item, is not smaller


def _has_positives(data: RetrievalData, queries: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the gallery has an item of each query's finest class that is not the query itself."""
    own, gallery = data.queries.labels[queries, 0], data.items.labels[:, 0]
    positives = np.bincount(gallery[gallery >= 0], minlength=len(data.names[data.levels[0]]))[own]
    itself = [(gallery[data.self_rows(row)] == label).sum() for row, label in zip(queries.tolist(), own, strict=True)]
    return (own >= 0) & (positives > np.array(itself, np.int64))


def count_items(data: RetrievalData, queries: NDArray[np.int64], k: int = 10) -> ItemCounts:
    """Count the first k items of these queries by what they share with the query."""
    if not len(queries):
        return ItemCounts(*np.zeros((3, 0), np.int64))
    found, _ = best_items(data, queries, k)
    shared = shared_levels(data.queries.labels[queries][:, None], data.items.labels[found])
    there, most = found >= 0, len(data.levels)
    fine = (there & (shared == most)).sum(1)
    negative = (there & (shared == 0)).sum(1)
    return ItemCounts(fine, there.sum(1) - fine - negative, negative)


def better_mistakes(items: FirstItems) -> QueryRanking:
    """Queries whose mistakes in the own list all share a coarser label, and in the other list mostly share nothing.

    This is fig:sup_qual_inat_good. A mistake is an item of another finest class; both lists must have mistakes, and items of
    the query's class. The first queries are those with the most mistakes of these kinds, and the fewest near misses in the
    other list. Queries that break the rule follow, by the number of items that do so.
    """
    own, other = items.own, items.other
    breaches = own.negative + (other.coarse - other.negative + 1).clip(min=0)
    for required in (own.fine, own.coarse, other.fine):
        breaches = breaches + (required == 0)
    return _rank(breaches, other.coarse - np.minimum(own.coarse, other.negative))


def both_fail(items: FirstItems) -> QueryRanking:
    """Queries for which neither list has an item of the query's class (fig:sup_qual_inat_error).

    The first queries are those where the own list has fewer negatives than the other by the most. Queries that break the rule
    follow, by the number of items of the query's class.
    """
    own, other = items.own, items.other
    return _rank(own.fine + other.fine, own.negative - other.negative)


def _rank(breaches: NDArray[np.int64], then: NDArray[np.int64]) -> QueryRanking:
    return QueryRanking(np.lexsort((then, breaches)), int((breaches == 0).sum()))
