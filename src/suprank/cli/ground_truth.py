"""`suprank evaluate` by the ground truth of a benchmark instead of by labels: revisited Oxford and Paris, and GLDv2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from suprank.cli import terminal
from suprank.cli.metric_comparison import print_comparison, read_report
from suprank.cli.metric_table import print_and_save

if TYPE_CHECKING:
    from pathlib import Path

    from suprank.cli.evaluate_options import EvaluateOptions


ONLY_WITH_LABELS = (
    "--ground-truth is for a folder of `suprank embed`; --level, --metric, --weight, --decay, --against and --save-run "
    "are for labels."
)


def evaluate_revisited(options: EvaluateOptions, ground_truth: Path) -> None:
    """Print and save AP and P@k under the three protocols of the revisited datasets."""
    from suprank.evaluation import evaluate_protocol, read_ground_truth
    from suprank.workflows.evaluation import read_revisited

    for_labels = (
        options.levels,
        options.metrics,
        options.weights,
        options.against,
        options.save_run,
        options.decay is not None,
    )
    if not options.subject.is_dir() or options.is_run or any(for_labels):
        raise ValueError(ONLY_WITH_LABELS)
    truth = read_ground_truth(ground_truth)
    queries, gallery = read_revisited(options.subject, truth, head=options.head, device=options.device)
    with terminal.progress("evaluating", options.quiet) as progress:
        report = evaluate_protocol(
            "revisited",
            queries,
            gallery=gallery,
            ground_truth=truth,
            ks=options.ks,
            device=options.device,
            memory_budget=options.memory_budget,
            progress=progress,
            per_query=options.per_query,
            intervals=options.intervals,
        )
    print_and_save(report, options)


def evaluate_landmarks(options: EvaluateOptions, solution: Path, usage: str | None) -> None:
    """Print and save mAP@k of GLDv2 of a prediction file, and how many queries have no prediction."""
    from suprank import evaluation
    from suprank.evaluation.embedding_files import check_file
    from suprank.evaluation.protocols import PROTOCOLS, with_protocol

    predictions, ks = options.subject, options.ks or (100,)
    if len(ks) != 1:
        raise typer.BadParameter(f"--solution takes one k, not {len(ks)}; give --k 100, or leave it out.", param_hint="--k")
    other = None if options.against is None else read_report(options.against)
    for file in (predictions, solution):
        check_file(file, str(file))
    score = evaluation.landmark_map_from_files(predictions, solution, usage=usage, k=ks[0])
    report = with_protocol(score, PROTOCOLS["gldv2"])
    if options.intervals:
        report = report.with_intervals()
    saved = report if options.per_query or other is not None else report.without_queries()
    print_and_save(saved, options)
    if (unanswered := report.settings["unanswered"]) and not options.quiet:
        terminal.echo(f"queries without a prediction, which count as 0: {unanswered:,}")
    if other is not None and options.against is not None:
        names = predictions.name, options.against.name
        print_comparison(report, other, names, chosen=True, file=options.comparison)
