"""The metrics of a report that people quote, those that are equal by definition, and the rows of a comparison."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from suprank.evaluation.metric_names import LEVEL_MEANS, Metric, parse_metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.evaluation.report import Report

NUMBER = 6  # of the metrics that are quoted
SEVERAL_LEVELS = ("mAP@R", "AP", "H-AP", "NDCG", "ASI")
"""Quoted beside R@1 for labels with several levels, in the paper's tables and in those of `suprank compare`."""

ONE_LEVEL = ("mAP@R", "AP", "R-P", "NDCG", "MRR")
"""Quoted beside R@k for flat labels, as many as make six: benchmarks have three or four k."""

TOGETHER = "all levels"  # the column of metrics over the whole label tree
MOST_RECALLS = 4  # of R@k for flat labels: the paper's tables have k = 1, 2, 4, 8 or 1, 4, 16, 32
LARGEST_K = 32  # of R@k in a comparison; CUB and iNaturalist have four cut-offs up to it


def metric_name(key: str) -> str:
    """The metric without its level: `R@1` of `R@1/genus`."""
    metric = parse_metric(key)
    return str(Metric(metric.name, metric.k))


def quoted_keys(report: Report, ks: Sequence[int] | None = None) -> list[str]:
    """The keys of the six metrics that people quote, at every level; of all metrics if there are no more than six.

    With several levels these are R@1 (the first k of the report), mAP@R, AP, H-AP, NDCG and ASI; with one level R@k for the
    first four k, mAP@R, AP and R-P. If the user chose `ks`, R@k of each of them is shown. Means over levels are left out.
    """
    shown = distinct_keys(report)
    names = list(dict.fromkeys(map(metric_name, shown)))
    if len(names) <= NUMBER:
        return shown
    recalls = [name for name in names if parse_metric(name).name == "R"] if ks is None else [f"R@{k}" for k in ks]
    several = len(report.levels) > 1
    if ks is None:
        recalls = recalls[: 1 if several else MOST_RECALLS]
    wanted = [*recalls, *SEVERAL_LEVELS] if several else [*recalls, *ONE_LEVEL][: max(NUMBER, len(recalls) + 2)]
    kept = [key for key in shown if parse_metric(key).level not in LEVEL_MEANS]
    return [key for name in wanted for key in kept if metric_name(key) == name] or shown


def metric_grid(report: Report, keys: Sequence[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The columns and rows of a table of metrics: {metric: {column: key}}.

    There is a column for each level, for their means, and `TOGETHER` for metrics over all levels together.
    """
    rows: dict[str, dict[str, str]] = {}
    for key in keys:
        metric = parse_metric(key)
        own = TOGETHER if (metric.hierarchical and len(report.levels) > 1) or not report.levels else report.levels[0]
        rows.setdefault(metric_name(key), {})[metric.level or own] = key
    names = (*report.levels, *LEVEL_MEANS, TOGETHER)
    return [name for name in names if any(name in cells for cells in rows.values())], rows


def equal_names(report: Report) -> dict[str, str]:
    """Metrics of the report that equal another one by definition, with the name of that one.

    Of the first item alone, R@1, TR@1, P@1, mAP@1 and MRR@1 say the same; with one level, H-AP and wAP are AP, and the two
    gains of NDCG are one, unless `evaluate_run` met several grades.
    """
    pairs = {f"{name}@1": "R@1" for name in ("TR", "P", "mAP", "MRR")}
    if len(report.levels) == 1:
        pairs |= {"H-AP": "AP", "wAP": "AP"}
    if len(report.levels) == 1 and len(report.settings.get("grades", ())) < 2:
        pairs |= {name: name.replace("-linear", "") for name in map(metric_name, report) if name.startswith("NDCG-linear")}
    columns: dict[str, dict[str | None, float]] = {}
    for key, value in report.items():
        columns.setdefault(metric_name(key), {})[parse_metric(key).level] = value
    return {name: of for name, of in pairs.items() if name in columns and _agree(columns[name], columns.get(of, {}))}


def distinct_keys(report: Report) -> list[str]:
    """All keys of a report but those of `equal_names`."""
    repeated = equal_names(report)
    return [key for key in report if metric_name(key) not in repeated]


def table_keys(reports: Sequence[Report], ks: Sequence[int] | None = None) -> list[str]:
    """The rows by which `suprank report` compares: R@k, mAP@R, AP, H-AP, NDCG, ASI, by level from the finest, if all have them.

    Of R@k, those of `ks` are listed, or every k up to `LARGEST_K`. A metric without a level is left out if it is listed at the
    finest level; means over levels are left out, and so is H-AP with one level, where it equals AP.
    """
    first = reports[0]
    shared = [key for key in first if all(key in report for report in reports)]
    cutoffs = sorted({metric.k for key in shared if (metric := parse_metric(key)).name == "R" and metric.k is not None})
    recalls = [f"R@{k}" for k in cutoffs if (k <= LARGEST_K if ks is None else k in ks)]
    rows = []
    for name in (*recalls, *SEVERAL_LEVELS):
        if name == "H-AP" and len(first.levels) == 1:
            continue
        keys = [key for key in shared if metric_name(key) == name and parse_metric(key).level not in LEVEL_MEANS]
        if parse_metric(name).hierarchical:
            rows += [key for key in keys if parse_metric(key).hierarchical]
        else:
            rows += [key for key in keys if parse_metric(key).level is not None] or keys
    return rows


def _agree(one: dict[str | None, float], other: dict[str | None, float]) -> bool:
    """Whether two metrics have the same levels and, up to rounding, the same values there."""
    return one.keys() == other.keys() and all(
        math.isclose(one[level], other[level], abs_tol=1e-9) or (math.isnan(one[level]) and math.isnan(other[level]))
        for level in one
    )
