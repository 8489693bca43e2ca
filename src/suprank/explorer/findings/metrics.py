"""The metrics of a source with intervals, and by level; and whether two sources differ by chance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from suprank.evaluation import Comparison, Report
    from suprank.explorer.source import Source

KS = (1, 10, 100)


@dataclass(frozen=True)
class LevelPrecision:
    """AP at a level, with its interval; `queries` have a positive there, and the others are left out."""

    level: str
    value: float
    low: float
    high: float
    queries: int


def metrics(
    source: Source,
    *,
    ks: Sequence[int] = KS,
    bootstrap: int = 1000,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Every metric of `evaluate`, with each query's values and 95 % bootstrap intervals."""
    return source.evaluated(ks=ks, per_query=True, bootstrap=bootstrap, progress=progress)


def by_level(report: Report) -> list[LevelPrecision]:
    """AP at each level, finest first."""
    found = []
    for level in report.levels:
        key = f"AP/{level}" if f"AP/{level}" in report else "AP"  # one level has no other name for it
        low, high = (report.intervals or {}).get(key, (float("nan"), float("nan")))
        found.append(LevelPrecision(level, report[key], low, high, report.queries - report.without_positives.get(level, 0)))
    return found


def of_all_levels(report: Report) -> str:
    """The metric by which queries are compared: H-AP, or AP where one level is all there is, and both are the same."""
    return "H-AP" if "H-AP" in report and len(report.levels) > 1 else "AP"


def same_queries(source: Source, other: Source) -> NDArray[np.int64]:
    """For each query of the source its row in the other: by id, or else by path and box.

    Refused where the two do not have the same queries and as many items, because then their values are of different questions.
    """
    mine, theirs = (_numbered(one.query_names) for one in (source, other))
    places = {name: row for row, name in enumerate(theirs)}
    missing = [name for name in mine if name not in places]
    if missing or len(mine) != len(theirs):
        said = f"{missing[0][0]!r} is in {source.name} only" if missing else f"{len(theirs):,} are in {other.name}"
        raise ValueError(
            f"{source.name} and {other.name} have different queries ({len(mine):,} in {source.name}; {said}), so they cannot "
            f"be compared query by query; embed the same test images with both."
        )
    if len(source.gallery) != len(other.gallery):
        raise ValueError(
            f"{source.name} ranks {len(source.gallery):,} items and {other.name} {len(other.gallery):,}, and a shorter list is "
            f"easier; embed the same gallery with both."
        )
    return np.array([places[name] for name in mine], np.int64)


def in_order_of(report: Report, rows: NDArray[np.int64]) -> Report:
    """The other source's report with its queries in the order of ours, given `same_queries`."""
    assert report.per_query is not None
    return replace(report, per_query={key: values[rows] for key, values in report.per_query.items()}, query_ids=None)


def compared(mine: Report, theirs: Report, metrics: Sequence[str] | None = None) -> Comparison:
    """A paired randomization test of these metrics, or of all that both have; `theirs` in our order (`in_order_of`)."""
    return replace(mine, query_ids=None).compare(replace(theirs, query_ids=None), metrics=metrics)


def _numbered(names: Sequence[str]) -> list[tuple[str, int]]:
    """Each with how often it came before: a crop may be there twice."""
    times: dict[str, int] = {}
    found = []
    for name in names:
        found.append((name, times.get(name, 0)))
        times[name] = times.get(name, 0) + 1
    return found
