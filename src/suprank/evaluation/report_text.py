"""A report as text: an aligned table for a terminal, CSV, and LaTeX."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING

from suprank.evaluation.metric_names import LEVEL_MEANS, Metric, parse_metric
from suprank.files.spreadsheets import csv_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from suprank.evaluation.report import Report

UNDEFINED = "undefined"
"""The key in `Report.settings` of the reason why all metrics are NaN, if they are."""

_NAN = "--"
_JOINERS = "\u200c\u200d"  # of no width, and part of how Persian, Hindi and others are written


def table(report: Report) -> str:
    """See `Report.table`."""
    return "\n".join([*_heading(report), "", *align_columns(_table_cells(report))])


def html_table(report: Report) -> str:
    """The same table for a notebook."""
    head, *rows = _table_cells(report)
    lines = "".join(f"<p>{html.escape(_printable(line))}</p>" for line in _heading(report))
    return f"{lines}<table><thead>{_html_row(head)}</thead><tbody>{''.join(map(_html_row, rows))}</tbody></table>"


def _html_row(cells: Sequence[str]) -> str:
    first, *others = (html.escape(_printable(cell.strip())) for cell in cells)
    return f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in others)}</tr>"


def _table_cells(report: Report) -> list[tuple[str, ...]]:
    """The head and the rows: a column for the metric, and one for each level."""
    metrics = {key: parse_metric(key) for key in report}
    present = {metric.level for metric in metrics.values()}
    known = [None, *report.levels]
    columns = [level for level in known if level in present]
    columns += sorted(level for level in present.difference(known, LEVEL_MEANS) if level is not None)
    columns += [level for level in LEVEL_MEANS if level in present]
    rows: dict[str, dict[str | None, str]] = {}
    for key, metric in metrics.items():
        row = rows.setdefault(str(Metric(metric.name, metric.k)), {})
        if metric.level is not None or metric.hierarchical or f"{key}/{''.join(report.levels[:1])}" not in report.means:
            row[metric.level] = key
    columns = [level for level in columns if any(level in row for row in rows.values())]
    cells = [["%", *rows]]
    for level in columns:
        name = ("value" if len(columns) == 1 else "all levels") if level is None else level
        cells.append([name, *_value_cells(report, [row.get(level) for row in rows.values()])])
    return list(zip(*cells, strict=True))


def _heading(report: Report) -> list[str]:
    lines = [f"{pluralize(report.n_queries, 'query', 'queries')}, {pluralize(report.n_items, 'item')}", *protocol_lines(report)]
    without = [f"{number:,} ({_printable(level)})" for level, number in report.without_positives.items() if number]
    if without:
        lines.append(f"queries without positives, left out: {', '.join(without)}")
    return [*lines, *interval_lines(report)]


def interval_lines(report: Report) -> list[str]:
    """What the intervals of a report are about; nothing for a report without."""
    about = report.settings.get("intervals")
    if report.intervals is None or not isinstance(about, Mapping):
        return []
    return [f"[low, high]: {100 * about['confidence']:g}% intervals", about.get("measured", "Bootstrapped over queries.")]


def _value_cells(report: Report, keys: list[str | None]) -> list[str]:
    """A column of values and intervals, each aligned with those above and below it."""
    values = [None if key is None else percent(report.means[key]) for key in keys]
    bounds = [None if key is None else (report.intervals or {}).get(key) for key in keys]
    lows, highs = ([None if pair is None else percent(pair[end]) for pair in bounds] for end in (0, 1))
    width, low_width, high_width = (max((len(text or "") for text in column), default=0) for column in (values, lows, highs))
    interval_width = len(", []") + 1 + low_width + high_width if low_width else 0
    return [
        (value or "").rjust(width) + (f" [{low:>{low_width}}, {high:>{high_width}}]" if low else " " * interval_width)
        for value, low, high in zip(values, lows, highs, strict=True)
    ]


COLUMNS = ("metric", "level", "value", "low", "high")  # of `metric_rows`


def metric_rows(report: Report) -> list[tuple[str, str, float, float | None, float | None]]:
    """The metrics by `COLUMNS`: the level is empty for a metric without one, low and high are None without an interval."""
    bounds = report.intervals or {}
    return [
        (str(Metric(metric.name, metric.k)), metric.level or "", value, *bounds.get(str(metric), (None, None)))
        for metric, value in zip(map(parse_metric, report), report.values(), strict=True)
    ]


def csv_rows(report: Report, *, raw: bool) -> str:
    """See `Report.to_csv`."""
    return csv_text(COLUMNS, metric_rows(report), raw=raw)


def percent(value: float, decimals: int = 2, *, sign: str = "") -> str:
    """A fraction in percent, NaN as ``--``."""
    return _NAN if math.isnan(value) else f"{100 * value:{sign}.{decimals}f}"


def percent_with_interval(report: Report, key: str, between: str = " ") -> str:
    """A metric in percent, followed by its interval if the report has one: `71.20 [70.95, 71.44]`."""
    value, bounds = percent(report.means[key]), (report.intervals or {}).get(key)
    return value if bounds is None or value == _NAN else f"{value}{between}[{percent(bounds[0])}, {percent(bounds[1])}]"


def short_p_value(value: float, missing: str = _NAN) -> str:
    """A p-value in two or three decimals, for readers; `p_value_text` keeps its digits.

    Example:
        >>> short_p_value(0.00012), short_p_value(0.0449), short_p_value(0.731), short_p_value(math.nan)
        ('< 0.001', '0.045', '0.73', '--')
    """
    if math.isnan(value):
        return missing
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def p_value_text(p_value: float) -> str:
    """Four decimals, or an exponent for p-values that these would round to 0."""
    if math.isnan(p_value):
        return _NAN
    return f"{p_value:.4f}" if p_value >= 5e-5 else f"{p_value:.1e}"


def align_columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width as a terminal shows them: the first to the left, the others to the right."""
    printable = [[_printable(cell) for cell in line] for line in lines]
    widths = [max(map(_width, column)) for column in zip(*printable, strict=True)]
    aligned = []
    for line in printable:
        padding = [" " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
        aligned.append("  ".join([line[0] + padding[0], *map("".join, zip(padding[1:], line[1:], strict=True))]).rstrip())
    return aligned


def pluralize(number: int, one: str, many: str = "") -> str:
    """A number of things, as in "1 query" and "2 queries"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def protocol_lines(report: Report) -> list[str]:
    """The protocol and its conventions in one line, if the report was computed by one; and why nothing is defined, if so."""
    name, conventions, undefined = (report.settings.get(key) for key in ("protocol", "conventions", UNDEFINED))
    return [*([f"protocol {name}: {conventions}"] if name and conventions else []), *([undefined] if undefined else [])]


def counts_without_positives(report: Report) -> list[str]:
    """How many queries have no positive, as in "3 at genus", at the levels where there are any."""
    return [f"{number:,} at {level}" for level, number in report.without_positives.items() if number]


def in_words(texts: Iterable[str]) -> str:
    """The texts as in a sentence.

    Example:
        >>> in_words(["a", "b", "c"])
        'a, b and c'
    """
    *most, last = list(texts) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _printable(text: str) -> str:
    """The text with control characters, which could move a terminal's cursor, written as escapes."""
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" or char in _JOINERS else ascii(char)[1:-1]
        for char in text
    )


def _width(text: str) -> int:
    """Cells in a terminal: two for Chinese, Japanese, Korean characters and emoji, none for combining marks."""
    return sum(
        0
        if unicodedata.category(char) in ("Mn", "Me") or char in _JOINERS
        else 2
        if unicodedata.east_asian_width(char) in "WF"
        else 1
        for char in text
    )
