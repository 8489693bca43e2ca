"""Two reports on the same queries: do their means differ by more than chance?"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.evaluation.metric_names import parse_metric
from suprank.evaluation.report_text import align_columns, p_value_text, percent
from suprank.evaluation.statistics import holm, paired_randomizations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from suprank.evaluation.report import Report

SIGNIFICANT = 0.05
"""Where a table or a sentence calls a difference better or worse, its Holm-corrected p is below this."""


class MetricComparison(NamedTuple):
    """One metric of two reports: means over the queries where both are defined, and p-values of their difference."""

    metric: str
    mine: float
    other: float
    difference: float
    p_value: float
    queries: int
    p_holm: float


@dataclass(frozen=True)
class ReportComparison:
    """The result of `Report.compare`, by metric: `comparison["AP"].p_value`.

    `p_holm` is the p-value corrected for all the metrics of this comparison (`holm`). A metric without any query where
    both reports are defined has NaN everywhere.
    """

    rows: tuple[MetricComparison, ...]
    samples: int
    seed: int

    def __getitem__(self, key: str) -> MetricComparison:
        try:
            metric = str(parse_metric(key))
        except ValueError as unknown:
            raise KeyError(str(unknown)) from None
        for row in self.rows:
            if row.metric == metric:
                return row
        raise KeyError(f"{metric} was not compared; choose from {', '.join(row.metric for row in self.rows)}.")

    def __iter__(self) -> Iterator[MetricComparison]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return self.table()

    def table(self, *, holm: bool = False) -> str:
        """Metrics as rows, means and differences in percent, p-values as they are; `holm` adds the corrected p-values."""
        head = ["%", "mine", "other", "difference", "p", *(["p (Holm)"] if holm else []), "queries"]
        lines = [
            [
                *(row.metric, percent(row.mine), percent(row.other), percent(row.difference, sign="+z")),
                *(p_value_text(row.p_value), *([p_value_text(row.p_holm)] if holm else []), f"{row.queries:,}"),
            ]
            for row in self.rows
        ]
        title = f"paired randomization test over queries, two-sided, {self.samples:,} samples"
        return "\n".join([title, "", *align_columns([head, *lines])])


def compare_reports(
    report: Report, other: Report, metrics: Sequence[str] | None, *, samples: int, seed: int
) -> ReportComparison:
    """See `Report.compare`."""
    mine, theirs = report.values_per_query("a comparison"), other.values_per_query("a comparison")
    _check_same_queries(report, other)
    if metrics is not None:
        keys = [report.resolve(key) for key in ([metrics] if isinstance(metrics, str) else metrics)]
        for key, (one, columns) in itertools.product(keys, ((report, mine), (other, theirs))):
            if one.resolve(key) not in columns:
                raise ValueError(f"{key} has no values per query in one of the reports; leave it out of metrics.")
    else:
        keys = [key for key in mine if key in theirs]
        if not keys:
            raise ValueError(
                f"the reports share no metric: one has {', '.join(mine) or 'none'}, the other "
                f"{', '.join(theirs) or 'none'}; evaluate both with the same metrics."
            )
    pairs = np.array([(mine[key], theirs[key]) for key in keys]).reshape(len(keys), 2, report.queries)
    p_values = paired_randomizations((pairs[:, 0] - pairs[:, 1]).T, samples=samples, seed=seed)
    rows = []
    for key, pair, p_value, p_holm in zip(keys, pairs, p_values, holm(p_values), strict=True):
        shared = pair[:, ~np.isnan(pair).any(0)]
        first, second = shared.mean(1).tolist() if shared.size else (math.nan, math.nan)
        rows.append(MetricComparison(key, first, second, first - second, float(p_value), shared.shape[1], float(p_holm)))
    return ReportComparison(tuple(rows), samples, seed)


def _check_same_queries(mine: Report, other: Report) -> None:
    if mine.queries != other.queries:
        raise ValueError(
            f"the reports have {mine.queries} and {other.queries} queries, but a paired test needs the same ones; "
            f"evaluate both on one set of queries."
        )
    if mine.query_ids is None or other.query_ids is None or np.array_equal(mine.query_ids, other.query_ids):
        return
    place = int(np.flatnonzero(mine.query_ids != other.query_ids)[0])
    difference = (
        "the same queries in another order"
        if set(mine.query_ids.tolist()) == set(other.query_ids.tolist())
        else "other queries"
    )
    raise ValueError(
        f"the reports have {difference}: query {place} is {mine.query_ids[place]!s} and {other.query_ids[place]!s}; "
        f"a paired test needs the same ones, so evaluate both on one set of queries in one order."
    )
