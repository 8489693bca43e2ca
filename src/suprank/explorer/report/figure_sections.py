"""Sections with figures: training, AP by level, curves and scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.explorer.colors import level_names
from suprank.explorer.findings.query_metrics import precision_by_level
from suprank.explorer.report import figures
from suprank.explorer.report.page import LegendEntry, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from suprank.explorer.findings.collect import RunFindings
    from suprank.explorer.findings.training_run import Curve

TRAINING_METRICS = ("H-AP", "AP", "R@1")  # metrics of the test images that are drawn over epochs


class CaptionedFigure(NamedTuple):
    """A figure and its caption."""

    svg: Markup
    caption: str = ""


@dataclass(frozen=True)
class FigureGroup:
    """Figures that share a legend."""

    figures: tuple[CaptionedFigure, ...]
    legend: tuple[LegendEntry, ...] = ()
    title: str = ""
    about: str = ""


def training_section(runs: Sequence[RunFindings]) -> Section | None:
    """Loss and metrics of the test images over epochs; None if no run has logged any."""
    histories = [run.history for run in runs]
    found: list[CaptionedFigure] = []
    wanted = [("loss", "loss of the batches", [one.loss if one else None for one in histories], False)]
    for metric in (metric for metric in TRAINING_METRICS if metric != "H-AP" or len(runs[0].data.levels) > 1):
        logged = [one.metrics.get(metric) if one else None for one in histories]
        wanted.append((metric, f"{metric} of the test images", logged, True))
    for number, (label, title, curves, percent) in enumerate(wanted):
        if any(curve is not None and len(curve.epochs) > 1 for curve in curves):  # one evaluation makes no curve
            series = [_series(curve) for curve in curves]
            found.append(CaptionedFigure(figures.over_epochs(f"training{number}", title, label, series, percent=percent)))
    if not found:
        return None
    losses = {run.data.origin.recipe.get("loss", {}).get("name", "") for run in runs if run.data.origin.recipe is not None}
    about = ["The runs minimize different losses, whose values are not comparable."] if len(losses) > 1 else []
    for run in (run for run in runs if run.history is None):
        why = "was not trained" if run.data.origin.frozen else "has no record of its training"
        about.append(f"{run.name} {why}, so it has no curves.")
    legend = tuple(entry for entry, history in zip(_run_legend(runs), histories, strict=False) if history is not None)
    return Section("training", "Training", "figures.html", [FigureGroup(tuple(found), legend)], tuple(about))


def levels_section(runs: Sequence[RunFindings]) -> Section | None:
    """AP by level as bars; None with only one level."""
    if len(runs[0].data.levels) < 2:
        return None
    found = [precision_by_level(run.report) for run in runs]
    svg = figures.bars(
        "levels",
        "AP by level, with 95 % intervals",
        [one.level for one in found[0]],
        [[one.value for one in run] for run in found],
        [[(one.low, one.high) for one in run] for run in found],
    )
    about = "At each level, an item is positive if it has the query's class at that level; coarse classes have more items."
    return Section("levels", "AP by level", "figures.html", [FigureGroup((CaptionedFigure(svg),), _run_legend(runs))], (about,))


def curves_section(runs: Sequence[RunFindings]) -> Section:
    """Precision against recall at each level, and H-P against H-R."""
    levels = runs[0].data.levels
    found = []
    for number, level in enumerate(levels):
        series = [figures.Series(run.precision.recall, run.precision.precision[level]) for run in runs]
        title = f"precision and recall, {level}" if len(levels) > 1 else "precision and recall"
        found.append(CaptionedFigure(figures.curves(f"precision{number}", title, ("recall", "precision"), series)))
    by_run = [run.hierarchical_at_k for run in runs]
    if all(one is not None for one in by_run):
        by_k = [(one.ks, figures.Series(one.recall, one.precision)) for one in by_run if one is not None]
        svg = figures.by_length("lists", "H-P@k against H-R@k", ("H-R@k", "H-P@k"), by_k)
        found.append(CaptionedFigure(svg, "Each point is one list length k; relevance takes every level into account."))
    about = (
        "Precision is interpolated (the highest at that recall or a higher one) and averaged over queries.",
        *_sample_note(runs[0].precision.queries, runs[0].precision.total_queries),
    )
    group = FigureGroup(tuple(found), _run_legend(runs))
    return Section("curves", "Precision and recall", "figures.html", [group], about, "Curves")


def scores_section(runs: Sequence[RunFindings]) -> Section | None:
    """Score distributions of positives at each level and of negatives; None for a single image, which has no pairs."""
    data = runs[0].data
    names = level_names(data.levels)
    spread = np.concatenate([np.flatnonzero(run.scores.counts.sum(0)) for run in runs])
    if not len(spread):
        return None
    low, high = spread.min(), spread.max() + 1
    found = []
    for number, run in enumerate(runs):
        shares = {level: run.scores.shares[level, low:high] for level in range(len(names))}
        svg = figures.distributions(f"scores{number}", run.name, run.scores.edges[low : high + 1], shares)
        found.append(CaptionedFigure(svg))
    legend = tuple(LegendEntry(f"line level-{level} dash-{level % 4}", name) for level, name in enumerate(names))
    about = (
        "Cosines of query and item by the finest level they share. Each curve has area 1, whatever its number of pairs.",
        *_sample_note(runs[0].scores.queries, runs[0].scores.total_queries),
    )
    return Section("scores", "Scores", "figures.html", [FigureGroup(tuple(found), legend[::-1])], about)


def _run_legend(runs: Sequence[RunFindings]) -> tuple[LegendEntry, ...]:
    return tuple(LegendEntry(f"line run-{number}", run.name) for number, run in enumerate(runs)) if len(runs) > 1 else ()


def _series(curve: Curve | None) -> figures.Series:
    if curve is None:
        return figures.Series(np.empty(0), np.empty(0))
    return figures.Series(curve.epochs, curve.values)


def _sample_note(queries: int, total: int) -> tuple[str, ...]:
    return (f"Measured on {queries:,} of {total:,} queries, drawn at random.",) if queries < total else ()
