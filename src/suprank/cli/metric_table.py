"""The table of metrics that `suprank evaluate` and `suprank train` print."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from suprank.cli import terminal

if TYPE_CHECKING:
    from rich.table import Table

    from suprank.evaluation import Report


def print_report(report: Report) -> None:
    """Print the metrics of a report as a table, and how many queries and items they are computed over."""
    from rich.console import Console

    console, table = Console(), _table(report)
    # A table wider than the terminal, or than the 80 columns of a pipe, is printed whole rather than cut.
    needed = console.measure(table, options=console.options.update(width=10_000)).maximum
    console.width = max(console.width, needed)
    console.print(table)
    terminal.echo(_counts(report))


def _table(report: Report) -> Table:
    """Metrics as rows, in percent; a column for each level, for their means, and for metrics over all levels together."""
    from rich.table import Table
    from rich.text import Text

    from suprank.evaluation.metric_names import LEVEL_MEANS, Metric, parse_metric

    together = "all levels"
    rows: dict[str, dict[str, str]] = {}
    for key in report.values:
        metric = parse_metric(key)
        column = metric.level or (together if metric.hierarchical and len(report.levels) > 1 else report.levels[0])
        rows.setdefault(str(Metric(metric.name, metric.k)), {})[column] = key
    columns = [name for name in (*report.levels, *LEVEL_MEANS, together) if any(name in cells for cells in rows.values())]
    table = Table("%")
    for name in columns:
        table.add_column(Text(terminal.escaped(name)), justify="right")
    for name, cells in rows.items():
        table.add_row(name, *(_cell(report, cells[column]) if column in cells else "" for column in columns))
    return table


def _cell(report: Report, key: str) -> str:
    value, interval = report.values[key], (report.intervals or {}).get(key)
    if math.isnan(value):
        return "--"
    between = "" if interval is None else f" \\[{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]"
    return f"{100 * value:.2f}{between}"


def _counts(report: Report) -> str:
    lines = [f"{report.queries:,} queries, {report.items:,} items"]
    without = [f"{count:,} at {level}" for level, count in report.without_positives.items() if count]
    if without:
        lines.append(f"queries without positives, left out: {', '.join(without)}")
    if report.intervals:
        lines.append("[low, high]: 95% bootstrap intervals over queries")
    return "\n".join(lines)
