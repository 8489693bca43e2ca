"""Metrics for every query: with intervals, by level, compared between two runs; and queries worth showing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from suprank.explorer.images import best_items, shared_levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.evaluation import Report, ReportComparison
    from suprank.evaluation.retrieval_data import RetrievalData


@dataclass(frozen=True)
class LevelPrecision:
    """AP at a level with its interval, over the queries that have a positive at that level."""

    level: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Example:
    """A query with its best items: gallery rows, their cosines, and the number of levels each shares with the query.

    The query itself is left out by its row number or id; a copy of it is an item like any other. `value` is the query's H-AP
    (AP if there is one level), NaN if it has no relevant items.
    """

    query: int
    value: float
    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    levels: NDArray[np.int64]


def precision_by_level(report: Report) -> list[LevelPrecision]:
    """AP at each level, finest first."""
    rows = []
    for level in report.levels:
        key = f"AP/{level}" if f"AP/{level}" in report else "AP"  # with one level, AP is its only name
        low, high = (report.intervals or {}).get(key, (float("nan"), float("nan")))
        rows.append(LevelPrecision(level, report[key], low, high))
    return rows


def main_metric(report: Report) -> str:
    """The metric by which queries are compared: H-AP, or AP if there is only one level (then both are equal)."""
    return "H-AP" if "H-AP" in report and len(report.levels) > 1 else "AP"


def reorder_queries(report: Report, rows: NDArray[np.int64]) -> Report:
    """The other report with its queries in our order; `rows` comes from `RetrievalData.match`."""
    assert report.per_query is not None
    assert report.classes is not None
    return replace(
        report,
        per_query={key: values[rows] for key, values in report.per_query.items()},
        classes={level: own[rows] for level, own in report.classes.items()},
        query_ids=None,
    )


def compare_reports(own: Report, other: Report, metrics: Sequence[str] | None = None) -> ReportComparison:
    """Paired test of these metrics, or of all that both have; `other` in our order (`reorder_queries`)."""
    return replace(own, query_ids=None).compare(replace(other, query_ids=None), metrics=metrics)


def examples(data: RetrievalData, report: Report, queries: Sequence[int] | NDArray[np.int64], k: int = 10) -> list[Example]:
    """The top k of these queries, in their order; fewer if the gallery is smaller."""
    chosen = np.asarray(queries, np.int64)
    if not len(chosen):
        return []
    values = _query_values(report)
    found = []
    for query, rows, scores in zip(chosen.tolist(), *best_items(data, chosen, k), strict=True):
        valid = rows >= 0
        levels = shared_levels(data.queries.labels[query], data.items.labels[rows[valid]])
        found.append(Example(query, float(values[query]), rows[valid], scores[valid], levels))
    return found


def worst_queries(report: Report, number: int = 12) -> NDArray[np.int64]:
    """The queries with the lowest H-AP among those with positives, worst first; ties in row order."""
    values = _query_values(report)
    order = np.argsort(values, kind="stable")  # NaN last
    return order[: min(number, int((~np.isnan(values)).sum()))]


def random_queries(data: RetrievalData, number: int = 12, seed: int = 0) -> NDArray[np.int64]:
    """Queries drawn at random, the same for the same seed."""
    count = len(data.queries)
    return np.random.default_rng(seed).choice(count, min(number, count), replace=False)


def most_different_queries(report: Report, other: Report, number: int = 12) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The queries whose H-AP is higher here by the most, and those where it is higher there; largest difference first.

    `other` is in our order (`reorder_queries`). Queries with equal values are in neither list.
    """
    difference = _query_values(report) - _query_values(other)
    order = np.argsort(-difference, kind="stable")
    order = order[~np.isnan(difference[order])]
    better, worse = order[difference[order] > 0], order[::-1][difference[order[::-1]] < 0]
    return better[:number], worse[:number]


def _query_values(report: Report) -> NDArray[np.float64]:
    assert report.per_query is not None
    return np.asarray(report.per_query[main_metric(report)])
