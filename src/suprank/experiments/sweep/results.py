"""The tables of a sweep: means over seeds, increases over a base, and every run as CSV."""

from __future__ import annotations

import csv
import io
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from suprank.experiments.sweep.values import meaning, ordered_values
from suprank.files.spreadsheets import safe_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from suprank.experiments.sweep.folder import Outcome, Outcomes
    from suprank.experiments.sweep.grid import Setting

DEFAULT_METRICS = ("R@1", "mAP@R", "H-AP")

Marked = TypeVar("Marked")


class Statistic(NamedTuple):
    """Mean and standard deviation over seeds (with n − 1; None for a single one), in percent."""

    mean: float
    deviation: float | None
    seeds: int

    @classmethod
    def of(cls, shares: Sequence[float]) -> Statistic | None:
        """Of shares of 1; None where there are none."""
        if not shares:
            return None
        percent = [100 * share for share in shares]
        return cls(statistics.fmean(percent), statistics.stdev(percent) if len(percent) > 1 else None, len(percent))

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


class Row(NamedTuple):
    """A setting, how many of its seeds are finished, of how many, its statistics by column, and the mean time that the training
    steps of a run took."""

    setting: Setting
    finished: int
    asked: int
    statistics: dict[str, Statistic | None]
    seconds: float | None


@dataclass(frozen=True)
class Table:
    """Settings × metrics. `base` is what the numbers are an increase of, such as "loss.weight=0", in a relative table."""

    axes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    base: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The heads of the columns that say which row it is; the others are numbers."""
        return self.axes or ("setting",)

    @property
    def ragged(self) -> bool:
        """Whether rows are of other numbers of seeds, or of fewer than were asked for."""
        return len({count for row in self.rows for count in (row.finished, row.asked)}) > 1

    def is_best(self, row: Row, column: str, digits: int = 2) -> bool:
        """Whether the row's mean is the best of the column, as it is printed; not so where there is nothing to choose from."""
        means = [found.mean for one in self.rows if (found := one.statistics[column]) is not None]
        own = row.statistics[column]
        return own is not None and len(means) > 1 and f"{own.mean:.{digits}f}" == f"{max(means):.{digits}f}"

    def cells(self, mark: Callable[[str], Marked], *, seconds: bool = False) -> list[list[str | Marked]]:
        """The table as text, header first; `mark` makes the best of each column stand out; `seconds` adds a column."""
        heads = [column + (", increase" if self.base else "") + ", %" for column in self.columns]
        lines: list[list[str | Marked]] = [[*self.labels, *self.ragged * ["seeds"], *heads, *seconds * ["s"]]]
        for row in self.rows:
            line: list[str | Marked] = [value for _, value in row.setting] or ["the recipe"]
            line += self.ragged * [f"{row.finished} of {row.asked}"]
            for column in self.columns:
                found = row.statistics[column]
                line.append("–" if found is None else mark(str(found)) if self.is_best(row, column) else str(found))
            line += seconds * ["–" if row.seconds is None else f"{row.seconds:.1f}"]
            lines.append(line)
        return lines

    def markdown(self, *, seconds: bool = False) -> str:
        """The table with the best of each column in bold."""
        head, *rows = self.cells(lambda text: f"**{text}**", seconds=seconds)
        rule = ["---" if place < len(self.labels) else "---:" for place in range(len(head))]
        lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in (head, rule, *rows)]
        return "\n".join(lines) + "\n"


def table(found: Outcomes, metrics: Sequence[str] = (), *, default: Sequence[str] = DEFAULT_METRICS) -> Table:
    """Means over seeds, by default of the `default` metrics as far as they were measured; of all metrics where none was."""
    names = _measured(found)
    there = list(dict.fromkeys(metric for _, metric in names))
    missing = [metric for metric in metrics if there and metric not in there]
    if missing:
        raise ValueError(f"no run measured {', '.join(missing)}; choose from {', '.join(there)}.")
    chosen = list(metrics) or [metric for metric in default if metric in there] or there
    tests = dict.fromkeys(test for test, _ in names)
    columns = [(test, metric) for test in tests for metric in chosen if (test, metric) in names]
    rows = []
    for setting in _ordered(list(dict.fromkeys(run.setting for run in found))):
        asked = [one for run, one in found.items() if run.setting == setting]
        finished = [one for one in asked if one is not None]
        shares = {column: [share for one in finished if (share := _share(one, *column)) is not None] for column in columns}
        statistics_of = {names[column]: Statistic.of(shares[column]) for column in columns}
        seconds = statistics.fmean(one.seconds for one in finished) if finished else None
        rows.append(Row(setting, len(finished), len(asked), statistics_of, seconds))
    axes = tuple(key for key, _ in rows[0].setting) if rows else ()
    return Table(axes, tuple(names[column] for column in columns), tuple(rows))


def relative_table(found: Outcomes, base: str, metrics: Sequence[str] = ()) -> Table:
    """How much better each run is than the one with the same seed and `base`, "key=value", in place of its own: value/base − 1.

    The paper's fig:relative_increase is that of batch.size=... loss.weight=0,0.1 to loss.weight=0.
    """
    key, _, value = base.partition("=")
    axes = dict(next(iter(found)).setting) if found else {}
    with_base = {run for run in found if key in axes and meaning(run[key]) == meaning(value)}
    if not with_base:
        values = dict.fromkeys(run[key] for run in found) if key in axes else axes
        raise ValueError(f"--relative-to {base} is no value of an axis; choose from {', '.join(values) or 'no axis'}.")
    bases = {run.without(key): found[run] for run in with_base}
    others = {run: _increase(one, bases.get(run.without(key))) for run, one in found.items() if run not in with_base}
    return replace(table(others, metrics), base=base)


def run_table(found: Outcomes, *, raw: bool = False) -> str:
    """CSV with a row for each run: its values, whether it is finished, and all that was measured, as shares of 1.

    Text that a spreadsheet would run as a formula has an apostrophe before it, unless `raw`.
    """
    cells = list if raw else safe_row
    names = _measured(found)
    axes = [key for key, _ in next(iter(found)).values] if found else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(cells(["folder", *axes, "finished", "epoch", "step", "seconds", *names.values()]))
    for run, one in found.items():
        values = [value for _, value in run.values]
        progress = ["yes", one.epoch, one.step, one.seconds] if one else ["no", None, None, None]
        writer.writerow(cells([run.name, *values, *progress, *(_share(one, *column) if one else None for column in names)]))
    return text.getvalue()


def _measured(found: Outcomes) -> dict[tuple[str, str], str]:
    """The test sets and metrics that the runs have, with the name of their column: the metric's, if there is one test set."""
    finished = [one.metrics for one in found.values() if one is not None]
    pairs = dict.fromkeys((test, metric) for metrics in finished for test, shares in metrics.items() for metric in shares)
    several = len({test for test, _ in pairs}) > 1
    return {(test, metric): f"{test}: {metric}" if several else metric for test, metric in pairs}


def _share(one: Outcome, test: str, metric: str) -> float | None:
    return one.metrics.get(test, {}).get(metric)


def _increase(one: Outcome | None, base: Outcome | None) -> Outcome | None:
    """The run with increases in place of its metrics; None where the base is 0 or was not measured."""
    if one is None or base is None:
        return None
    metrics: dict[str, dict[str, float | None]] = {}
    for test, shares in one.metrics.items():
        metrics[test] = {
            metric: share / before - 1 if share is not None and (before := _share(base, test, metric)) else None
            for metric, share in shares.items()
        }
    return one._replace(metrics=metrics)


def _ordered(settings: list[Setting]) -> list[Setting]:
    """By the first axis, then the second: numbers by size, other values as they came."""
    columns = [ordered_values(value for _, value in column) for column in zip(*settings, strict=True)]
    return sorted(
        settings, key=lambda setting: [order.index(value) for order, (_, value) in zip(columns, setting, strict=True)]
    )
