"""`suprank evaluate --run RUN --qrels QRELS`: ranked lists of any search against graded judgments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from suprank.cli import terminal
from suprank.cli.metric_comparison import print_comparison, read_report
from suprank.cli.metric_table import print_and_save

if TYPE_CHECKING:
    from pathlib import Path

    from suprank.cli.evaluate_options import EvaluateOptions
    from suprank.evaluation import Report

SETTINGS = ("relevance_threshold", "missing", "no_positives")


def evaluate_run_file(
    options: EvaluateOptions, qrels: Path, threshold: int | None, missing: str | None, no_positives: str | None
) -> None:
    """Print and save the metrics of a run; then compare it with another run, or with a saved report, if asked."""
    from suprank.evaluation import evaluate_run
    from suprank.evaluation.embedding_files import check_file
    from suprank.evaluation.quoted_metrics import distinct_keys
    from suprank.evaluation.report_files import is_report
    from suprank.workflows.evaluation_pair import distinct_names

    against = options.against
    names = None if against is None else distinct_names(options.subject, against)
    for file in (options.subject, qrels, *([] if against is None else [against])):
        check_file(file, str(file))
    saved = read_report(against) if against is not None and is_report(against) else None
    arguments: dict[str, Any] = {
        "metrics": options.metrics,
        "relevance_threshold": threshold or 1,
        "missing": missing or "zero",
        "no_positives": no_positives or "zero",
    }
    if saved is not None:
        _check_settings(saved, arguments, against)
    # Both are read before anything is printed: an error in the second file should not come after the numbers of the first.
    other = saved if against is None or saved is not None else evaluate_run(against, qrels, per_query=True, **arguments)
    report = evaluate_run(
        options.subject, qrels, per_query=options.per_query or against is not None, intervals=options.intervals, **arguments
    )
    print_and_save(report, options, None if options.metrics else distinct_keys(report))
    if not options.quiet:
        _print_counts(report)
    if other is not None and names is not None:
        _print_counts(other, f"{names[1]}: ")
        named = options.metrics is not None
        print_comparison(report, other, names, chosen=named, every_metric=not named, file=options.comparison)


def _check_settings(saved: Report, arguments: dict[str, Any], against: Path | None) -> None:
    """Refuse to compare with a report whose numbers mean something else."""
    for name in SETTINGS:
        if name not in saved.settings:
            raise ValueError(f"{against} is no report of a run; save one with --run RUN --qrels QRELS --per-query --out.")
        if saved.settings[name] != arguments[name]:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{against} was computed with {option} {saved.settings[name]}; give the same, or evaluate it again."
            )


def _print_counts(report: Report, name: str = "") -> None:
    """Say which queries are not like the others, and what became of them; `name` is the run that is compared with, if it is."""
    settings = report.settings
    becomes = {"zero": "which count as 0", "skip": "left out"}
    for count, text in (
        (settings["queries_missing"], f"queries that the run does not have, {becomes[settings['missing']]}"),
        (
            settings["queries_without_positives"] if settings["no_positives"] == "zero" and not name else 0,
            "queries without a relevant item, which count as 0",
        ),
        (settings["queries_not_judged"], "queries of the run without judgments, ignored"),
    ):
        if count:
            terminal.echo(f"{name}{text}: {count:,}")
