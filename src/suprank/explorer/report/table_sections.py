"""Sections with tables: the metrics by level with the significance of differences, and the entries of the recipes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.evaluation.metric_names import parse_metric
from suprank.evaluation.quoted_metrics import metric_name, table_keys
from suprank.explorer.findings.query_metrics import compare_reports
from suprank.explorer.report.page import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.evaluation import Report, ReportComparison
    from suprank.evaluation.report_comparison import MetricComparison
    from suprank.explorer.findings.collect import RunFindings

SIGNIFICANT = 0.05  # a difference is marked if its Holm-corrected p is below this


class Cell(NamedTuple):
    """A value, and its interval if there is one."""

    value: str
    interval: str = ""


@dataclass(frozen=True)
class MetricRow:
    """A metric at a level: one cell per run, their difference, and whether it is significant."""

    metric: str
    level: str
    cells: tuple[Cell, ...]
    difference: str = ""
    p: str = ""
    verdict: str = ""  # better, worse or empty: a CSS class
    mark: str = ""
    mark_text: str = ""


def metrics_section(runs: Sequence[RunFindings], reports: Sequence[Report]) -> Section:
    """The table of metrics. `reports` have their queries in the same order."""
    about = "Means over the queries in percent, with 95 % bootstrap intervals over the queries in brackets."
    keys = table_keys(reports)
    comparison = None
    if len(runs) > 1:
        comparison = compare_reports(reports[0], reports[1], keys)
        about += (
            f" The difference is {runs[0].name} − {runs[1].name}. The p-value comes from a paired randomization test over "
            f"queries, Holm-corrected for the {len(keys)} rows of this table; ▲ and ▼ mark p < {SIGNIFICANT}."
        )
    without = [f"{count:,} at {level}" for level, count in reports[0].without_positives.items() if count]
    omitted = (f"Queries without a positive are left out: {', '.join(without)}.",) if without else ()
    return Section("metrics", "Metrics", "metrics.html", metric_rows(reports, comparison), (about, *omitted))


def metric_rows(reports: Sequence[Report], comparison: ReportComparison | None = None) -> list[list[MetricRow]]:
    """The rows of the table, grouped by metric."""
    groups: dict[str, list[MetricRow]] = {}
    several = len(reports[0].levels) > 1
    for key in table_keys(reports):
        name = metric_name(key)
        level = parse_metric(key).level or ("all" if several else "")
        cells = tuple(Cell(_percent(report[key]), _interval(report, key)) for report in reports)
        columns = _comparison_columns(comparison[key]) if comparison is not None else {}
        groups.setdefault(name, []).append(MetricRow(name, level, cells, **columns))
    return list(groups.values())


def _comparison_columns(row: MetricComparison) -> dict[str, str]:
    """The difference, its p-value and, if significant, a mark."""
    columns = {"difference": _percent(row.difference, sign=True), "p": _p_value(row.p_holm)}
    if not row.p_holm < SIGNIFICANT:  # NaN is not significant either
        return columns
    verdict = "better" if row.difference > 0 else "worse"
    mark = "▲" if row.difference > 0 else "▼"
    return columns | {"verdict": verdict, "mark": mark, "mark_text": f"significantly {verdict}"}


def _percent(value: float, *, sign: bool = False) -> str:
    if math.isnan(value):
        return "–"
    return f"{100 * value:{'+' if sign else ''}.1f}".replace("-", "−")


def _interval(report: Report, key: str) -> str:
    low, high = (report.intervals or {}).get(key, (math.nan, math.nan))
    return "" if math.isnan(low) else f"[{_percent(low)}, {_percent(high)}]"


def _p_value(value: float) -> str:
    """A p-value in two or three decimals; a dash for NaN.

    Example:
        >>> _p_value(0.00012), _p_value(0.0449), _p_value(0.731), _p_value(math.nan)
        ('< 0.001', '0.045', '0.73', '–')
    """
    if math.isnan(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


@dataclass(frozen=True)
class RecipeRow:
    """An entry of the recipes: its dotted name, its value in each run, and whether the values differ."""

    name: str
    values: tuple[str, ...]
    differs: bool


def recipe_section(runs: Sequence[RunFindings]) -> Section | None:
    """The recipes and their differences; None if no run has a recipe."""
    if all(run.source.recipe is None for run in runs):
        return None
    rows = recipe_rows([run.source.recipe for run in runs])
    content = {"all": rows, "different": [row for row in rows if row.differs]}
    return Section("recipe", "Recipe" if len(runs) == 1 else "Recipes", "recipe.html", content)


def recipe_rows(recipes: Sequence[Mapping[str, Any] | None]) -> list[RecipeRow]:
    """The entries of all recipes, in the order of the first; – for a run that lacks an entry."""
    flat = [dict(_flatten(recipe or {})) for recipe in recipes]
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
