"""Sections with tables: the metrics by level with the significance of differences, and the entries of the recipes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.evaluation.explanations import INTERVAL, P_VALUE, explain_metric
from suprank.evaluation.metric_names import parse_metric
from suprank.evaluation.quoted_metrics import metric_name, table_keys
from suprank.evaluation.report_comparison import SIGNIFICANT
from suprank.evaluation.report_text import counts_without_positives
from suprank.evaluation.verdict import p_value, percent
from suprank.explorer.findings.query_metrics import compare_reports
from suprank.explorer.report.page import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.evaluation import Report, ReportComparison
    from suprank.evaluation.report_comparison import MetricComparison
    from suprank.evaluation.retrieval_data import RetrievalData


class Cell(NamedTuple):
    """A value, and its interval if there is one."""

    value: str
    interval: str = ""


@dataclass(frozen=True)
class MetricRow:
    """A metric at a level: one cell per run, their difference, and whether it is significant."""

    metric: str
    about: str  # the metric in a plain sentence
    level: str
    cells: tuple[Cell, ...]
    difference: str = ""
    p: str = ""
    verdict: str = ""  # better, worse or empty: a CSS class
    mark: str = ""
    mark_text: str = ""


def compare_metrics(reports: Sequence[Report]) -> ReportComparison | None:
    """The comparison of two reports over the rows of the table, which have their queries in the same order; None for one."""
    return compare_reports(reports[0], reports[1], table_keys(reports)) if len(reports) > 1 else None


def metrics_section(names: Sequence[str], reports: Sequence[Report], comparison: ReportComparison | None) -> Section:
    """The table of metrics of the runs with these names; `comparison` comes from `compare_metrics`."""
    about = "Means over the queries, in percent; higher is better. In brackets: 95 % intervals."
    notes = [INTERVAL]
    if comparison is not None:
        about += f" The difference is {names[0]} − {names[1]}; ▲ and ▼ mark p < {SIGNIFICANT}."
        notes.append(f"{P_VALUE} The test: {comparison.test()} of this table. {comparison.sentence()}")
    without = counts_without_positives(reports[0])
    omitted = (f"Queries without a positive are left out: {', '.join(without)}.",) if without else ()
    content = {"groups": metric_rows(reports, comparison), "notes": notes}
    return Section("metrics", "Metrics", "metrics.html", content, (about, *omitted))


def metric_rows(reports: Sequence[Report], comparison: ReportComparison | None = None) -> list[list[MetricRow]]:
    """The rows of the table, grouped by metric."""
    groups: dict[str, list[MetricRow]] = {}
    several = len(reports[0].levels) > 1
    for key in table_keys(reports):
        name = metric_name(key)
        metric = parse_metric(key)
        level = metric.level or ("all" if several and metric.hierarchical else reports[0].levels[0])
        cells = tuple(Cell(percent(report[key]), _interval(report, key)) for report in reports)
        columns = _comparison_columns(comparison[key]) if comparison is not None else {}
        groups.setdefault(name, []).append(MetricRow(name, explain_metric(name), level, cells, **columns))
    return list(groups.values())


def _comparison_columns(row: MetricComparison) -> dict[str, str]:
    """The difference, its p-value and, if significant, a mark."""
    columns = {"difference": percent(row.difference, sign=True), "p": p_value(row.p_holm)}
    if not row.p_holm < SIGNIFICANT:  # NaN is not significant either
        return columns
    verdict = "better" if row.difference > 0 else "worse"
    mark = "▲" if row.difference > 0 else "▼"
    return columns | {"verdict": verdict, "mark": mark, "mark_text": f"significantly {verdict}"}


def _interval(report: Report, key: str) -> str:
    low, high = (report.intervals or {}).get(key, (math.nan, math.nan))
    return "" if math.isnan(low) else f"[{percent(low)}, {percent(high)}]"


@dataclass(frozen=True)
class RecipeRow:
    """An entry of the recipes: its dotted name, its value in each run, and whether the values differ."""

    name: str
    values: tuple[str, ...]
    differs: bool


def recipe_section(sources: Sequence[RetrievalData]) -> Section | None:
    """The recipes and their differences, collapsed; None if none has one."""
    trained = [(number, data) for number, data in enumerate(sources) if data.origin.recipe is not None]
    if not trained:
        return None
    rows = recipe_rows([data.origin.recipe or {} for _, data in trained])
    without = tuple(
        f"{data.name} is the backbone before training, so it has no recipe of its own."
        if data.origin.frozen
        else f"{data.name} is a folder of embeddings, which has no recipe."
        for data in sources
        if data.origin.recipe is None
    )
    content = {
        "columns": [(number, data.name) for number, data in trained],
        "all": rows,
        "different": [row for row in rows if row.differs],
    }
    title = "Recipes" if len(trained) > 1 else "Recipe" if not without else f"Recipe of {trained[0][1].name}"
    return Section(
        "recipe", title, "recipe.html", content, without, "Recipes" if len(trained) > 1 else "Recipe", collapsed=True
    )


def recipe_rows(recipes: Sequence[Mapping[str, Any]]) -> list[RecipeRow]:
    """The entries of all recipes, in the order of the first; – for a run that lacks an entry."""
    flat = [dict(_flatten(recipe)) for recipe in recipes]
    rows = []
    for name in dict.fromkeys(name for entries in flat for name in entries):
        values = tuple(entries.get(name, "–") for entries in flat)
        rows.append(RecipeRow(name, values, len(set(values)) > 1))
    return rows


def _flatten(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    entries = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            entries += _flatten(value, f"{prefix}{key}.")
        else:
            entries.append((f"{prefix}{key}", recipe_value(value)))
    return entries


def recipe_value(value: Any) -> str:
    """A value as written in the recipe; only the last part of an absolute path, because pages are sent to other people."""
    if isinstance(value, list):
        return f"[{', '.join(recipe_value(one) for one in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return PurePath(value).name if isinstance(value, str) and PurePath(value).is_absolute() else str(value)
