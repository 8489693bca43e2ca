"""Which differences of a comparison's table are more than chance: the best of each column against every other row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.experiments.results import column_names
from suprank.files.markup import markdown_table
from suprank.files.spreadsheets import csv_text
from suprank.training.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from suprank.evaluation import Report
    from suprank.evaluation.units import Units
    from suprank.experiments.grid import Combination, Setting
    from suprank.experiments.results import Outcomes
    from suprank.experiments.tables import Table


class Difference(NamedTuple):
    """The best row of a column against another: the difference with its 95 % interval, in percent points; the effect size
    (Cohen's d over queries); the p-value, and the one that Holm's correction makes of it over the whole table."""

    column: str
    best: str
    other: str
    difference: float
    low: float
    high: float
    effect_size: float
    p_value: float
    p_holm: float


@dataclass(frozen=True)
class Significance:
    """Every difference between the best of a column and the other rows, and on what they were `measured`. `only_means` are
    columns of metrics without a value for each query, such as means over levels. `missing` says why nothing was compared."""

    differences: tuple[Difference, ...] = ()
    measured: str = ""
    only_means: tuple[str, ...] = ()
    missing: str = ""

    def better(self) -> frozenset[str]:
        """The columns in which a row is better than every other by more than chance."""
        from suprank.evaluation.report_comparison import SIGNIFICANT

        unclear = {one.column for one in self.differences if not one.p_holm < SIGNIFICANT}
        return frozenset(one.column for one in self.differences) - unclear

    def sentence(self) -> str:
        """What bold means in the table, or why nothing is bold."""
        if self.missing:
            return f"No row is bold: {self.missing}."
        count = f"{len(self.differences)} comparison" + "s" * (len(self.differences) > 1)
        unknown = f" {', '.join(self.only_means)}: no bold, because single queries have no value." if self.only_means else ""
        return (
            "Bold: better than every other row by more than chance (t-test over trainings and classes, p < 0.05 after Holm's "
            f"correction for the {count} of the table). {self.measured}{unknown}"
        )

    def csv(self) -> str:
        rows = [[one if isinstance(one, str) else round(one, 6) for one in row] for row in self.differences]
        return csv_text(Difference._fields, rows)

    def markdown(self) -> str:
        """A line for each difference."""
        from suprank.evaluation.report_text import p_value_text

        head = ["column", "best", "against", "difference", "95 % interval", "d", "p", "p (Holm)"]
        lines = [head]
        for row in self.differences:
            values = [f"{row.difference:.2f}", f"{row.low:.2f} to {row.high:.2f}", _number(row.effect_size)]
            lines.append([row.column, row.best, row.other, *values, p_value_text(row.p_value), p_value_text(row.p_holm)])
        return markdown_table(lines, 3)


def compare_rows(table: Table, outcomes: Outcomes, folders: Mapping[Combination, Path]) -> Significance:
    """Compare the best row of each column of a table with every other row, over trainings and classes (`seed_difference`).

    `folders` has the run folder of each outcome. The values of each query are those that a run saves with its last report; if
    a run has none, or a row has a single training, nothing is compared, and `missing` says why. Rows of the same runs (a tuned
    recipe that was best as it was) are one row.
    """
    from suprank.evaluation.metrics import mean_over_queries
    from suprank.evaluation.statistics import holm, seed_difference
    from suprank.evaluation.units import Units

    runs: dict[Setting, list[Combination]] = {}
    for run, outcome in outcomes.items():
        if outcome is not None:
            runs.setdefault(run.setting, []).append(run)
    rows = [row for row in table.rows if row.setting in runs]
    if len(rows) < 2:
        return Significance()
    if any(len(runs[row.setting]) < 2 for row in rows):
        return Significance(
            missing="a single training says nothing about another one of the same recipe; train each with several seeds"
        )
    keys = {name: key for key, name in column_names(outcomes).items()}
    found: list[Difference] = []
    only_means: list[str] = []
    measured: list[str] = []
    try:
        reports = {
            test: [[_report(folders[run], test, outcomes[run].epoch) for run in runs[row.setting]] for row in rows]  # type: ignore[union-attr]
            for test in dict.fromkeys(keys[column][0] for column in table.columns)
        }
        for test, by_row in reports.items():
            columns = [column for column in table.columns if keys[column][0] == test]
            values = _values(by_row, [keys[column][1] for column in columns])
            units = Units.choose(by_row[0][0].classes, np.any([~np.isnan(one).all((0, 2)) for one in values], axis=0))
            measured.append(_measured(units, [report for row in by_row for report in row], test if len(reports) > 1 else ""))
            for place, column in enumerate(columns):
                means = [float(np.mean([mean_over_queries(seed[:, place]) for seed in one])) for one in values]
                if all(map(math.isnan, means)):
                    only_means.append(column)
                    continue
                best = int(np.nanargmax(means))
                same = {folders[run] for run in runs[rows[best].setting]}
                for other, row in enumerate(rows):
                    if other == best or {folders[run] for run in runs[row.setting]} == same or math.isnan(means[other]):
                        continue
                    one = seed_difference(values[best][..., place], values[other][..., place], units.of_query)
                    points = (100 * one.difference, 100 * one.low, 100 * one.high)
                    found.append(
                        Difference(column, rows[best].label, row.label, *points, one.effect_size, one.p_value, math.nan)
                    )
    except _NoValuesError as error:
        return Significance(missing=str(error))
    corrected = holm(np.array([one.p_value for one in found]))
    return Significance(
        tuple(one._replace(p_holm=float(p)) for one, p in zip(found, corrected, strict=True)),
        " ".join(measured),
        tuple(only_means),
    )


def _measured(units: Units, reports: Sequence[Report], test: str) -> str:
    """The sentence on what a test set's differences were measured on; `test` is its name if there are several."""
    from suprank.evaluation.units import TRAINING

    trainings = [report.settings.get(TRAINING, {}) for report in reports]
    sentence = units.sentence(reports[0].levels, trainings, seeds=True)
    return f"{test}: {sentence}" if test else sentence


class _NoValuesError(ValueError):
    """A run without the values of each query."""


def _report(folder: Path, test: str, epoch: int) -> Report:
    from suprank.evaluation import Report

    file = RunFolder(folder).report_file(test, epoch)
    if not file.is_file():
        raise _NoValuesError(f"{folder.name} has no report of its last epoch")
    report = Report.load(file)
    if report.per_query is None:
        raise _NoValuesError(f"{folder.name} has no values of each query")
    return report


def _values(by_row: Sequence[Sequence[Report]], metrics: Sequence[str]) -> list[np.ndarray]:
    """The values `[seeds, queries, metrics]` of each row; NaN for a metric that has none for each query."""
    first = by_row[0][0]
    for report in (report for reports in by_row for report in reports):
        ids = [one.query_ids for one in (first, report) if one.query_ids is not None]
        if report.n_queries != first.n_queries or (len(ids) == 2 and not np.array_equal(ids[0], ids[1])):
            raise _NoValuesError("the runs were evaluated on different queries")

    def columns(report: Report) -> list[np.ndarray]:
        values = report.per_query or {}
        return [values.get(metric, np.full(report.n_queries, np.nan)) for metric in metrics]

    return [np.stack([np.stack(columns(report), axis=-1) for report in reports]) for reports in by_row]


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
