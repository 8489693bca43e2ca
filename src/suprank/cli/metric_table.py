"""The table of metrics that `suprank evaluate` and `suprank train` print."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.table import Table

    from suprank.evaluation import Report


def print_and_save(
    report: Report,
    *,
    name: str,
    keys: Sequence[str] | None = None,
    out: Path | None = None,
    csv: Path | None = None,
    latex: bool = False,
    quiet: bool = False,
) -> None:
    """Save the report, then print it: a closed pipe must not lose the numbers. It is printed even if saving fails.

    The files have every metric; the table and the row of LaTeX, which is called `name`, have those of `keys`.
    """
    try:
        if out is not None:
            report.save(out)
        if csv is not None:
            report.to_csv(csv)
    finally:
        if not quiet:
            print_report(report, keys)
        if latex:
            # By default without the metrics of single levels: a row of eighty numbers fits no page.
            columns = list(report) if keys is None else [key for key in keys if "/" not in key]
            terminal.echo(f"{report.latex_header(columns)}\n{report.latex_row(columns, label=name)}")


def print_report(report: Report, keys: Sequence[str] | None = None, more: str = "--all") -> None:
    """Print metrics of a report as a table, and how many queries and items they are computed over.

    Below the table a line says how many of its metrics are not among `keys`, and that `more` prints them; or, if all are, which
    metrics are not repeated because they equal another one by definition. Without `keys`, every metric has its row.
    """
    from rich.console import Console

    shown = list(report) if keys is None else keys
    console, table = Console(), _table(report, shown)
    needed = terminal.full_width(console, table)
    if needed > console.width and report.intervals:
        table = _table(report, shown, interval_below=True)
        needed = terminal.full_width(console, table)
    # A table wider than the terminal, or than the 80 columns of a pipe, is printed whole rather than cut.
    console.width = max(console.width, needed)
    console.print(table)
    notes = [*_counts(report), *_columns(shown), *([] if keys is None else _others(report, keys, more))]
    terminal.echo("\n".join(notes))


def _table(report: Report, keys: Sequence[str], *, interval_below: bool = False) -> Table:
    """Metrics as rows, in percent; a column for each level, for their means, and for metrics over all levels together."""
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    from suprank.evaluation.quoted_metrics import metric_grid
    from suprank.evaluation.report_text import percent_with_interval

    columns, rows = metric_grid(report, keys)
    table = Table("%")
    for name in columns:
        table.add_column(Text(terminal.escaped(name)), justify="right")
    between = "\n" if interval_below else " "
    for name, cells in rows.items():
        texts = (percent_with_interval(report, cells[column], between) if column in cells else "" for column in columns)
        table.add_row(name, *map(escape, texts))
    return table


def _counts(report: Report) -> list[str]:
    from suprank.evaluation.report_text import counts_without_positives, interval_lines, protocol_lines

    lines = [f"{report.n_queries:,} queries, {report.n_items:,} items", *protocol_lines(report)]
    if without := counts_without_positives(report):
        lines.append(f"queries without positives, left out: {', '.join(without)}")
    return [*lines, *(textwrap.fill(line, 80, break_on_hyphens=False) for line in interval_lines(report))]


def _columns(keys: Sequence[str]) -> list[str]:
    """A line on the column of the means over levels, which is easily taken for the metrics over all levels together."""
    from suprank.evaluation.metric_names import OVERALL, parse_metric

    metrics = [parse_metric(key) for key in keys]
    if not any(metric.level == OVERALL for metric in metrics):
        return []
    together = any(metric.hierarchical and not metric.level for metric in metrics)
    return [f"overall: mean over the levels{'; all levels: computed on the whole label tree' if together else ''}"]


def _others(report: Report, keys: Sequence[str], more: str) -> list[str]:
    """A line on the metrics that are not shown; if all are, on those that equal another one."""
    from suprank.evaluation.quoted_metrics import distinct_keys, equal_names, metric_name

    hidden = {metric_name(key) for key in distinct_keys(report)} - {metric_name(key) for key in keys}
    if hidden:
        return [f"{len(hidden)} more {'metric' if len(hidden) == 1 else 'metrics'}: {more}"]
    groups: dict[str, list[str]] = {}
    for name, equal in equal_names(report).items():
        groups.setdefault(equal, [equal]).append(name)
    equal_ones = "; ".join(" = ".join(names) for names in groups.values())
    return [f"equal by definition, shown once: {equal_ones}"] if groups else []
