"""`suprank evaluate` by the ground truth of a benchmark instead of by labels: revisited Oxford and Paris, and GLDv2."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from suprank.evaluation import Report


def revisited_report(
    folder: Path,
    ground_truth: Path,
    ks: tuple[int, ...],
    device: str | None,
    budget: int | None,
    per_query: bool,
    bootstrap: int,
    quiet: bool,
) -> Report:
    """AP and P@k under the three protocols of the revisited datasets."""
    from suprank import evaluation
    from suprank.workflows.evaluation import read_revisited

    truth = evaluation.read_ground_truth(ground_truth)
    queries, gallery = read_revisited(folder, truth)
    with terminal.progress("evaluating", quiet) as progress:
        return evaluation.revisited(
            queries,
            gallery,
            truth,
            ks=ks,
            device=device,
            memory_budget=budget,
            progress=progress,
            per_query=per_query,
            bootstrap=bootstrap,
        )


def landmark_report(
    predictions: Path, solution: Path, usage: str | None, ks: Sequence[int], per_query: bool, bootstrap: int
) -> Report:
    """mAP@k of GLDv2 of a prediction file, with its number of queries without a prediction in the settings."""
    from suprank import evaluation
    from suprank.evaluation.embedding_files import check_file

    if len(ks) != 1:
        raise typer.BadParameter(f"--solution takes one k, not {len(ks)}; give --k 100, or leave it out.", param_hint="--k")
    for file in (predictions, solution):
        check_file(file, str(file))
    score = evaluation.landmark_map_from_files(predictions, solution, usage=usage, k=ks[0])
    report = score.report()
    if bootstrap:
        report = report.with_intervals(bootstrap)
    return report if per_query else replace(report, per_query=None, query_ids=None)
