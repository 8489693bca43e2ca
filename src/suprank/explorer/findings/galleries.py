"""Queries worth looking at, and what each of them finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from suprank.explorer.findings.metrics import of_all_levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.evaluation import Report
    from suprank.explorer.source import Source


@dataclass(frozen=True, eq=False)
class Gallery:
    """A query's best items: gallery rows, their cosines, and how many levels each shares with the query (0 is a negative).

    The query itself is left out by its number or id; a copy of it is an item like any other. `value` is the query's H-AP (AP
    with one level), NaN where nothing is relevant to it.
    """

    query: int
    value: float
    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    levels: NDArray[np.int64]


def galleries(source: Source, report: Report, queries: Sequence[int] | NDArray[np.int64], k: int = 10) -> list[Gallery]:
    """The top k of these queries, in their order; shorter where the collection is."""
    chosen = np.asarray(queries, np.int64)
    if not len(chosen):
        return []
    assert report.per_query is not None
    values = report.per_query[of_all_levels(report)]
    found = []
    for query, rows, scores in zip(chosen.tolist(), *source.found(chosen, k), strict=True):
        there = rows >= 0
        found.append(Gallery(query, float(values[query]), rows[there], scores[there], source.levels_of(query, rows[there])))
    return found


def worst(report: Report, number: int = 12) -> NDArray[np.int64]:
    """The queries of the lowest H-AP among those with positives, the worst first; of equal ones the first."""
    values = _values(report)
    order = np.argsort(values, kind="stable")  # NaN last
    return order[: min(number, int((~np.isnan(values)).sum()))]


def at_random(source: Source, number: int = 12, seed: int = 0) -> NDArray[np.int64]:
    """Queries drawn at random, the same for the same seed."""
    count = len(source.queries)
    return np.random.default_rng(seed).choice(count, min(number, count), replace=False)


def most_different(report: Report, theirs: Report, number: int = 12) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The queries whose H-AP is higher here by the most, and those where it is higher there; largest difference first.

    `theirs` is in our order (`in_order_of`). Queries without a difference are in neither.
    """
    difference = _values(report) - _values(theirs)
    order = np.argsort(-difference, kind="stable")
    order = order[~np.isnan(difference[order])]
    better, worse = order[difference[order] > 0], order[::-1][difference[order[::-1]] < 0]
    return better[:number], worse[:number]


def _values(report: Report) -> NDArray[np.float64]:
    assert report.per_query is not None
    return np.asarray(report.per_query[of_all_levels(report)])
