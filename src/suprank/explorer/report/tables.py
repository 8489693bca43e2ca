"""Tables of the report: metrics by level with what chance may have done, and the entries of the recipes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.evaluation.names import OVERALL, Metric, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.evaluation import Comparison, Report
    from suprank.evaluation.report import Compared

SIGNIFICANT = 0.05  # Holm's p below which a difference is marked
SHOWN = ("R@1", "R@10", "mAP@R", "AP", "H-AP", "NDCG", "ASI")
"""The metrics of the table, those that a report has; at every level it has them for."""


class Cell(NamedTuple):
    """A value, and its interval where there is one."""

    value: str
    interval: str = ""


@dataclass(frozen=True)
class MetricRow:
    """A metric at a level: a cell for each run, their difference, and whether it is more than chance."""

    metric: str
    level: str
    cells: tuple[Cell, ...]
    difference: str = ""
    p: str = ""
    verdict: str = ""  # better, worse, or nothing: a class of the style
    mark: str = ""
    said: str = ""


def shown_keys(reports: Sequence[Report]) -> list[str]:
    """The keys of the table's rows: those of `SHOWN` that all reports have, in that order, and by level from the finest.

    What is there at the finest level is not shown once more without it; the means over levels are left out.
    """
    first = reports[0]
    shared = [key for key in first if all(key in report for report in reports)]
    found = []
    for name in SHOWN:
        if name == "H-AP" and len(first.levels) == 1:  # is AP
            continue
        keys = [key for key in shared if _without_level(key) == name and parse(key).level != OVERALL]
        plain = [key for key in keys if parse(key).level is not None] or keys
        found += [key for key in keys if parse(key).hierarchical] if parse(name).hierarchical else plain
    return found


def metric_rows(reports: Sequence[Report], comparison: Comparison | None = None) -> list[list[MetricRow]]:
    """The rows of the table, those of a metric together."""
    groups: dict[str, list[MetricRow]] = {}
    several = len(reports[0].levels) > 1
    for key in shown_keys(reports):
        name = _without_level(key)
        level = parse(key).level or ("all" if several else "")
        cells = tuple(Cell(_percent(report[key]), _interval(report, key)) for report in reports)
        judged = _judged(comparison[key]) if comparison is not None else {}
        groups.setdefault(name, []).append(MetricRow(name, level, cells, **judged))
    return list(groups.values())


def _without_level(key: str) -> str:
    metric = parse(key)
    return str(Metric(metric.name, metric.k))


def _judged(row: Compared) -> dict[str, str]:
    """The difference, its p and the verdict, in words and signs."""
    found = {"difference": _percent(row.difference, sign=True), "p": _p(row.p_holm)}
    if not row.p_holm < SIGNIFICANT:  # NaN is no verdict either
        return found
    up = row.difference > 0
    said = f"significantly {'better' if up else 'worse'}"
    return found | {"verdict": "better" if up else "worse", "mark": "▲" if up else "▼", "said": said}


def _percent(value: float, *, sign: bool = False) -> str:
    if math.isnan(value):
        return "–"
    return f"{100 * value:{'+' if sign else ''}.1f}".replace("-", "−")


def _interval(report: Report, key: str) -> str:
    low, high = (report.intervals or {}).get(key, (math.nan, math.nan))
    return "" if math.isnan(low) else f"[{_percent(low)}, {_percent(high)}]"


def _p(value: float) -> str:
    """
    Example:
        >>> _p(0.00012), _p(0.0449), _p(0.731), _p(math.nan)
        ('< 0.001', '0.045', '0.73', '–')
    """
    if math.isnan(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


@dataclass(frozen=True)
class RecipeRow:
    """An entry of the recipes: dotted name, its value in each run, and whether they differ."""

    name: str
    values: tuple[str, ...]
    differs: bool


def recipe_rows(recipes: Sequence[Mapping[str, Any] | None]) -> list[RecipeRow]:
    """The entries of all recipes, in the first one's order; – where a run has none."""
    flat = [dict(_entries(recipe or {})) for recipe in recipes]
    rows = []
    for name in dict.fromkeys(name for entries in flat for name in entries):
        values = tuple(entries.get(name, "–") for entries in flat)
        rows.append(RecipeRow(name, values, len(set(values)) > 1))
    return rows


def _entries(table: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    found = []
    for key, value in table.items():
        found += _entries(value, f"{above}{key}.") if isinstance(value, Mapping) else [(f"{above}{key}", plain(value))]
    return found


def plain(value: Any) -> str:
    """As in the recipe; of an absolute path its name alone, because a page travels to other machines."""
    if isinstance(value, list):
        return f"[{', '.join(plain(one) for one in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return PurePath(value).name if isinstance(value, str) and PurePath(value).is_absolute() else str(value)
