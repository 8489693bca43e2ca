"""Two reports on the same queries: do their means differ by more than chance?"""

from __future__ import annotations

import itertools
import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.evaluation.metric_names import LEVEL_MEANS, parse_metric
from suprank.evaluation.report_text import align_columns, in_words, p_value_text, percent, pluralize
from suprank.evaluation.statistics import holm, mean_intervals, needed_samples, paired_randomizations, smallest_p
from suprank.evaluation.units import TRAINING, Units, same_classes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from suprank.evaluation.report import Report

SIGNIFICANT = 0.05
"""Where a table or a sentence calls a difference better or worse, its Holm-corrected p is below this."""

LABELS = "labels"
"""The key in `Report.settings` of the `label_digests` of queries and gallery, where the names of their labels are known."""

WIDTH = 100  # of the sentences above a table


class MetricComparison(NamedTuple):
    """One metric of two reports: means over the queries where both are defined, their difference with its 95 % interval, and
    p-values; `p_holm` is corrected for all the metrics of the comparison. `identical`: each query has one value in both."""

    metric: str
    mine: float
    other: float
    difference: float
    low: float
    high: float
    p_value: float
    queries: int
    p_holm: float
    identical: bool

    @property
    def winner(self) -> int | None:
        """0 or 1 for the report that is significantly ahead, or None."""
        return None if not self.p_holm < SIGNIFICANT else 0 if self.difference > 0 else 1


@dataclass(frozen=True)
class ReportComparison:
    """The result of `Report.compare`, by metric: `comparison["AP"].p_value`.

    p-values are those of `paired_randomizations` over `units`, corrected for all the metrics of this comparison (`holm`). A
    metric without any query where both reports are defined has NaN everywhere; one with values in too few units has no p.
    `levels` are those evaluated, `trainings` is what is known of each trained model (`suprank.evaluation.units.TRAINING`).
    """

    rows: tuple[MetricComparison, ...]
    units: Units
    levels: tuple[str, ...]
    trainings: tuple[Mapping[str, Any], ...]
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

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that any metric could have, before Holm's correction; NaN if there are too few units."""
        return smallest_p(self.units.count, self.samples) if self.units.enough else math.nan

    def sentence(self) -> str:
        """What was tested, in words: on which classes, in which units, and what that does not cover; see `Units.sentence`."""
        metrics = [parse_metric(row.metric) for row in self.rows]
        whole_tree = self.levels if any(metric.hierarchical for metric in metrics) else ()
        return self.units.sentence([*whole_tree, *(metric.level or "" for metric in metrics)], self.trainings)

    def test(self) -> str:
        """The name of the test, for captions."""
        unit = f"{self.units.level} by {self.units.level}" if self.units.level else "query by query"
        return f"paired randomization test, {unit}, two-sided, Holm-corrected for {pluralize(len(self), 'row')}"

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
        about = textwrap.wrap(self.sentence(), WIDTH, break_on_hyphens=False)
        return "\n".join([self.test(), *about, "", *align_columns([head, *lines])])

    def summary(self) -> dict[str, Any]:
        """For a JSON file: what was tested, on what, and each row; NaN is null."""
        rows = [{name: _null(value) for name, value in row._asdict().items()} for row in self.rows]
        about = {"test": self.test(), "measured": self.sentence(), "unit": self.units.summary()}
        return {**about, "samples": self.samples, "smallest_p": _null(self.smallest_p), "rows": rows}


def compare_reports(
    report: Report, other: Report, metrics: Sequence[str] | None, *, samples: int | None, seed: int
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
    _check_same_levels(report, other, keys)
    samples = needed_samples(len(keys)) if samples is None else samples
    pairs = np.array([(mine[key], theirs[key]) for key in keys]).reshape(len(keys), 2, report.n_queries)
    differences = (pairs[:, 0] - pairs[:, 1]).T
    classes = max(report.classes or {}, other.classes or {}, key=len)
    units = Units.choose(classes, ~np.isnan(differences).all(1))
    p_values = paired_randomizations(differences, units.of_query, samples=samples, seed=seed)
    intervals = mean_intervals(differences, units.of_query, skewed=False).clip(-1, 1)
    rows = []
    for key, pair, (low, high), p_value, p_holm in zip(
        keys, pairs, intervals.tolist(), p_values.tolist(), holm(p_values).tolist(), strict=True
    ):
        shared = pair[:, ~np.isnan(pair).any(0)]
        first, second = shared.mean(1).tolist() if shared.size else (math.nan, math.nan)
        identical = bool(shared.size) and bool((shared[0] == shared[1]).all())
        rows.append(
            MetricComparison(key, first, second, first - second, low, high, p_value, shared.shape[1], p_holm, identical)
        )
    trainings = tuple(one.settings[TRAINING] for one in (report, other) if TRAINING in one.settings)
    return ReportComparison(tuple(rows), units, report.levels, trainings, samples, seed)


def _null(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _check_same_queries(mine: Report, other: Report) -> None:
    if mine.n_queries != other.n_queries:
        raise ValueError(
            f"the reports have {mine.n_queries} and {other.n_queries} queries, but a paired test needs the same ones; "
            f"evaluate both on one set of queries."
        )
    if mine.query_ids is None or other.query_ids is None or np.array_equal(mine.query_ids, other.query_ids):
        _check_same_labels(mine, other)
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


def _check_same_labels(mine: Report, other: Report) -> None:
    """Refuse other labels of the same queries. Without ids, labels show that both have the same queries in the same order."""
    with_ids = [one.query_ids is not None for one in (mine, other)]
    # Digests are by id or by position, and of one kind only if both reports are.
    digests = [one.settings.get(LABELS, {}) if with_ids[0] == with_ids[1] else {} for one in (mine, other)]
    own, theirs = mine.classes or {}, other.classes or {}
    shared = [level for level in (*digests[0], *own) if level in digests[1] or level in theirs]
    if not shared and not all(with_ids):
        raise ValueError(
            "neither ids nor classes show that the reports have the same queries, which a paired test needs; evaluate both "
            "with ids, or with the same labels."
        )
    different = [level for level in digests[0] if digests[1].get(level, digests[0][level]) != digests[0][level]]
    different += [level for level in own if level in theirs and not same_classes(own[level], theirs[level])]
    if different:
        queries = "other labels" if all(with_ids) else "other queries, or the same in another order"
        raise ValueError(
            f"the reports have {queries}: their classes differ at {in_words(dict.fromkeys(different))}. A paired test needs "
            f"the same ones, so evaluate both on one set of queries in one order."
        )


def _check_same_levels(mine: Report, other: Report, keys: Sequence[str]) -> None:
    """Refuse metrics that are about the finest level, or about all, if these are not the same levels in both reports."""
    without = [key for key in keys if parse_metric(key).level in (None, *LEVEL_MEANS)]
    if without and mine.levels and other.levels and mine.levels != other.levels:
        raise ValueError(
            f"the reports are on {in_words(mine.levels)} and on {in_words(other.levels)}, so that {without[0]} is not the same "
            f"in both; evaluate both at the same levels, or name metrics with a level, such as AP/{mine.levels[-1]}."
        )
