"""The results of an experiment's runs: read from their folders, averaged over seeds, and every run as CSV."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from suprank.experiments.grid import RECIPE, Combination, Setting, canonical_value, sort_values
from suprank.experiments.tables import Row, Statistic, Table
from suprank.files.spreadsheets import csv_text
from suprank.training.run_folder import RESULT, RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

METRICS = ("R@1", "mAP@R", "AP", "H-AP", "ASI", "NDCG")


class Outcome(NamedTuple):
    """The result of a finished run: metrics after the last epoch, as shares of 1, by test set; and of each test set the
    `label_digests`."""

    epoch: int
    step: int
    seconds: float
    metrics: dict[str, dict[str, float | None]]
    labels: dict[str, dict[str, str]] | None = None


Outcomes = dict[Combination, Outcome | None]
"""The outcome of every run of an experiment; None for a run that is not finished."""


def read_outcome(folder: Path) -> Outcome | None:
    """The outcome of the run in a folder; None if it is not finished."""
    result = RunFolder(folder).result
    if result is None:
        return None
    try:
        metrics = {test: dict(values) for test, values in result["metrics"].items()}
        return Outcome(result["epoch"], result["step"], result["seconds"], metrics, result.get("labels"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{folder / RESULT} is not the result of a run ({error!r}); remove it, and the run is resumed."
        ) from error


def metric_names(metrics: Iterable[str]) -> list[str]:
    """Names of metrics, checked and spelled as reports spell them; each once."""
    from suprank.evaluation.metric_names import parse_metric

    return list(dict.fromkeys(str(parse_metric(metric)) for metric in metrics))


def result_table(outcomes: Outcomes, metrics: Sequence[str] = ()) -> Table:
    """Means over seeds of the chosen metrics; if none is chosen, of those of `METRICS` that were measured, or else of all.

    Rows are in the order in which the recipes were given, then by the values of the axes.
    """
    names = column_names(outcomes)
    available = list(dict.fromkeys(metric for _, metric in names))
    missing = [metric for metric in metrics if available and metric not in available]
    if missing:
        raise ValueError(f"no run measured {', '.join(missing)}; choose from {', '.join(available)}.")
    chosen = list(metrics) or [metric for metric in METRICS if metric in available] or available
    tests = dict.fromkeys(test for test, _ in names)
    columns = [(test, metric) for test in tests for metric in chosen if (test, metric) in names]
    rows = []
    _check_same_labels(outcomes)
    for setting in _sort_settings(list(dict.fromkeys(run.setting for run in outcomes))):
        own = {run: outcome for run, outcome in outcomes.items() if run.setting == setting}
        planned = list(own.values())
        finished = [outcome for outcome in planned if outcome is not None]
        shares = {column: [share for one in finished if (share := _share(one, *column)) is not None] for column in columns}
        cells = {names[column]: Statistic.from_shares(shares[column]) for column in columns}
        seconds = statistics.fmean(outcome.seconds for outcome in finished) if finished else None
        rows.append(Row(setting, len(finished), len(planned), cells, seconds))
    axes = tuple(key for key, _ in rows[0].setting) if rows else ()
    return Table(axes, tuple(names[column] for column in columns), tuple(rows))


def relative_table(outcomes: Outcomes, base: str, metrics: Sequence[str] = ()) -> Table:
    """The increase of each run over the run with the same seed and with `base`, "key=value", in its place: value/base − 1.

    The paper's fig:relative_increase is that of batch.size=... loss.weight=0,0.1 relative to loss.weight=0.
    """
    key, _, value = base.partition("=")
    axes = dict(next(iter(outcomes)).setting) if outcomes else {}
    base_runs = {run for run in outcomes if key in axes and canonical_value(run[key]) == canonical_value(value)}
    if not base_runs:
        values = dict.fromkeys(run[key] for run in outcomes) if key in axes else axes
        raise ValueError(f"relative_to={base} is no value of an axis; choose from {', '.join(values) or 'no axis'}.")
    bases = {run.without(key): outcomes[run] for run in base_runs}
    others = {run: _increase(one, bases.get(run.without(key))) for run, one in outcomes.items() if run not in base_runs}
    return replace(result_table(others, metrics), base=base)


def runs_csv(outcomes: Outcomes, *, raw: bool = False, folders: Mapping[Combination, Path] | None = None) -> str:
    """CSV with a row for each run: its values, whether it is finished, and all its metrics, as shares of 1.

    `folders` are those of the runs, if they are not named as the runs are. Text that a spreadsheet would run as a formula gets
    an apostrophe in front of it, unless `raw`.
    """
    names = column_names(outcomes)
    axes = [key for key, _ in next(iter(outcomes)).values] if outcomes else []
    rows: list[list[object]] = []
    for run, one in outcomes.items():
        values = [value for _, value in run.values]
        progress = ["yes", one.epoch, one.step, one.seconds] if one else ["no", None, None, None]
        name = folders[run].name if folders else run.name
        rows.append([name, *values, *progress, *(_share(one, *column) if one else None for column in names)])
    return csv_text(["folder", *axes, "finished", "epoch", "step", "seconds", *names.values()], rows, raw=raw)


def column_names(outcomes: Outcomes) -> dict[tuple[str, str], str]:
    """The test sets and metrics of the runs, with the name of their column: the metric's alone if there is one test set."""
    finished = [outcome.metrics for outcome in outcomes.values() if outcome is not None]
    pairs = dict.fromkeys((test, metric) for metrics in finished for test, shares in metrics.items() for metric in shares)
    several = len({test for test, _ in pairs}) > 1
    return {(test, metric): f"{test}: {metric}" if several else metric for test, metric in pairs}


def _check_same_labels(outcomes: Outcomes) -> None:
    """Refuse to put runs into one table whose test images or labels differ, unless they are those of an axis."""
    first: dict[tuple[Setting, str], tuple[str, dict[str, str]]] = {}
    for run, outcome in outcomes.items():
        data = tuple((key, value) for key, value in run.values if key.startswith("data."))
        for test, digests in ((outcome and outcome.labels) or {}).items():
            name, known = first.setdefault((data, test), (run.name, digests))
            if different := [level for level in digests if known.get(level, digests[level]) != digests[level]]:
                raise ValueError(
                    f"{name} and {run.name} have different images or labels of {test!r} (see {', '.join(different)}) "
                    f"and their metrics do not mean the same; remove the run whose data are outdated, and train it again."
                )


def _share(outcome: Outcome, test: str, metric: str) -> float | None:
    return outcome.metrics.get(test, {}).get(metric)


def _increase(outcome: Outcome | None, base: Outcome | None) -> Outcome | None:
    """The outcome with increases in place of its metrics; None where the base is 0 or was not measured."""
    if outcome is None or base is None:
        return None
    metrics: dict[str, dict[str, float | None]] = {}
    for test, shares in outcome.metrics.items():
        metrics[test] = {
            metric: share / before - 1 if share is not None and (before := _share(base, test, metric)) else None
            for metric, share in shares.items()
        }
    return outcome._replace(metrics=metrics)


def _sort_settings(settings: list[Setting]) -> list[Setting]:
    """By the first axis, then the second: numbers by size, recipes and other values in the order in which they came."""
    columns = [list(dict.fromkeys(column)) for column in zip(*settings, strict=True)]
    orders = [
        [value for _, value in column] if column[0][0] == RECIPE else sort_values(value for _, value in column)
        for column in columns
    ]
    return sorted(settings, key=lambda setting: [order.index(value) for order, (_, value) in zip(orders, setting, strict=True)])
