"""The comparison that `suprank evaluate --against` prints: differences, how certain they are, and what they say in words."""

from __future__ import annotations

import json
import math
import textwrap
from typing import TYPE_CHECKING

from suprank.cli import terminal
from suprank.evaluation.report_comparison import SIGNIFICANT
from suprank.evaluation.report_text import short_p_value
from suprank.evaluation.verdict import comparison_verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from suprank.evaluation import Report, ReportComparison
    from suprank.evaluation.report_comparison import MetricComparison

WIDTH = 80
_NO_BREAK = "\u00a0"  # between words that stay on one line


def read_report(path: Path) -> Report:
    """Read the report that a comparison is made with; refuse one without values per query."""
    from suprank.evaluation import Report
    from suprank.evaluation.embedding_files import check_file

    check_file(path, str(path))
    report = Report.load(path)
    if report.per_query is None:
        raise ValueError(f"{path} holds no values per query, which a comparison needs; compute it again with --per-query.")
    return report


def print_comparison(
    report: Report,
    other: Report,
    names: tuple[str, str],
    *,
    chosen: bool = False,
    every_metric: bool = False,
    ks: Sequence[int] | None = None,
    left_out: Sequence[str] = (),
    file: Path | None = None,
) -> None:
    """Print the table of differences and a sentence about it, after the models that made both sides; save it if asked.

    See `compare` for the metrics that are tested and shown.
    """
    comparison = compare(report, other, chosen=chosen, every_metric=every_metric, ks=ks)
    verdict = comparison_verdict(names, [report, other], comparison).lead
    try:
        if file is not None:
            save_comparison(comparison, names, verdict, file)
    finally:  # printed even if saving fails
        terminal.echo(f"\n{names[0]} against {names[1]}, {report.n_queries:,} queries")
        if left_out:
            terminal.echo(_wrapped(f"levels left out: {', '.join(left_out)}"))
        _print_models(report, other, names)
        terminal.echo("\n".join(["", *_table(comparison.rows, names), _legend(comparison, names), ""]))
        terminal.echo(_wrapped(f"{verdict} {comparison.sentence()}"))


def compare(
    report: Report, other: Report, *, chosen: bool = False, every_metric: bool = False, ks: Sequence[int] | None = None
) -> ReportComparison:
    """The comparison of the metrics in the table of `suprank report`; with `every_metric`, of all that both reports have, each
    once; if the user has `chosen` the metrics of the report, of these."""
    from suprank.evaluation.quoted_metrics import table_keys

    shared = [] if chosen else _shared(report, other)
    tested = shared if every_metric else [key for key in table_keys([report, other], ks) if key in shared]
    return report.compare(other, tested or shared or None)


def save_comparison(comparison: ReportComparison, names: tuple[str, str], verdict: str, file: Path) -> None:
    """Save all rows as fractions in full precision: as CSV, or as JSON with the sentences and the test."""
    from suprank.evaluation.metric_names import parse_metric
    from suprank.evaluation.quoted_metrics import metric_name
    from suprank.evaluation.report_files import write_file
    from suprank.files.spreadsheets import csv_bytes

    if file.suffix.lower() == ".json":
        content = {"names": names, "verdict": verdict, **comparison.summary()}
        write_file(file, (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
        return
    header = ("metric", "level", "own", "other", "difference", "low", "high", "p", "p_holm", "queries")
    rows = []
    for row in comparison:
        numbers = (row.mine, row.other, row.difference, row.low, row.high, row.p_value, row.p_holm, row.queries)
        rows.append([metric_name(row.metric), parse_metric(row.metric).level or "", *numbers])
    write_file(file, csv_bytes(header, rows))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False).replace(_NO_BREAK, " ")


def _shared(report: Report, other: Report) -> list[str]:
    """The keys that both reports have values per query for, each number once: without a level only if not at the finest."""
    from suprank.evaluation.quoted_metrics import distinct_keys

    finest = f"/{report.levels[0]}" if report.levels else ""
    shared = [key for key in distinct_keys(report) if key in (report.per_query or {}) and key in (other.per_query or {})]
    return [key for key in shared if not finest or f"{key}{finest}" not in shared or key == "ASI"]


def _print_models(report: Report, other: Report, names: tuple[str, str]) -> None:
    """Print the model behind each side and how it read the images, with a warning where these or the settings differ."""
    from suprank.evaluation.evaluate import PROVENANCE
    from suprank.evaluation.provenance import Provenance

    own, theirs = (Provenance.from_dict(one.settings.get(PROVENANCE) or {}) for one in (report, other))
    sides = {name: one.summary for name, one in zip(names, (own, theirs), strict=True) if one is not None}
    if len(sides) == 2 and len(set(sides.values())) == 1:
        sides = {"both": sides[names[0]]}
    for name, summary in sides.items():
        terminal.echo(_wrapped(f"{name}: {summary}"))
    if own is not None and theirs is not None and (warning := own.warning(theirs, names)):
        terminal.echo(f"warning: {warning}", err=True)
    for setting in ("decay", "weights"):
        if (mine := report.settings.get(setting)) != (others := other.settings.get(setting)):
            terminal.echo(
                f"warning: {names[0]} has {setting} {mine} and {names[1]} {others}, so that hierarchical metrics do not "
                f"compare; give the same --{setting.removesuffix('s')}.",
                err=True,
            )


def _table(rows: Sequence[MetricComparison], names: tuple[str, str]) -> list[str]:
    from suprank.evaluation.report_text import align_columns, percent

    columns = names[0], names[1].removeprefix(f"{names[0]} ")  # "before training"
    lines = [["%", *map(_short, columns), "difference", "95% interval", "p", "verdict"]]
    for row in rows:
        values = percent(row.mine), percent(row.other), percent(row.difference, sign="+z")
        interval = "--" if math.isnan(row.low) else f"[{percent(row.low, sign='+z')}, {percent(row.high, sign='+z')}]"
        lines.append([row.metric, *values, interval, short_p_value(row.p_holm), _verdict(row)])
    return align_columns(lines)


def _verdict(row: MetricComparison) -> str:
    if math.isnan(row.p_holm):
        return "same" if row.identical else "--"
    return "same" if row.identical else "unclear" if row.p_holm >= SIGNIFICANT else "better" if row.difference > 0 else "worse"


def _short(name: str) -> str:
    """The name of a column, of at most 15 characters."""
    return name if len(name) <= 15 else f"{name[:7]}…{name[-7:]}"


def _legend(comparison: ReportComparison, names: tuple[str, str]) -> str:
    text = (
        f"difference: {names[0]} − {names[1]}, its interval without correction. p: {comparison.test()}. better, worse: "
        f"p{_NO_BREAK}<{_NO_BREAK}{SIGNIFICANT}."
    )
    return _wrapped(text)
