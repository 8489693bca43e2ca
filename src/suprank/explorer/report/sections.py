"""The sections of numbers: what the findings of one or two runs say, as tables and figures with a few words each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.explorer.colors import level_names
from suprank.explorer.findings.metrics import by_level, compared, of_all_levels
from suprank.explorer.report import figures
from suprank.explorer.report.page import Section
from suprank.explorer.report.tables import SIGNIFICANT, metric_rows, recipe_rows, shown_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from suprank.evaluation import Report
    from suprank.explorer.findings.history import Curve
    from suprank.explorer.report.collect import Run

WATCHED = ("H-AP", "AP", "R@1")  # metrics of the test images that are drawn over epochs


class KeyEntry(NamedTuple):
    """A line of a legend: classes of the style for its mark, and the text."""

    look: str
    text: str


class Figure(NamedTuple):
    svg: Markup
    caption: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures that share a legend."""

    figures: tuple[Figure, ...]
    key: tuple[KeyEntry, ...] = ()
    title: str = ""
    about: str = ""


def metrics_section(runs: Sequence[Run], reports: Sequence[Report]) -> Section:
    """The table. `reports` have their queries in one order."""
    about = "Means over the queries, in percent, with 95 % bootstrap intervals over the queries in brackets."
    keys = shown_keys(reports)
    comparison = None
    if len(runs) > 1:
        comparison = compared(reports[0], reports[1], keys)
        about += (
            f" The difference is {runs[0].name} − {runs[1].name}; p is of a paired randomization test over queries, corrected "
            f"for the {len(keys)} rows of this table (Holm). ▲ and ▼ mark p < {SIGNIFICANT}."
        )
    without = [f"{count:,} at {level}" for level, count in reports[0].without_positives.items() if count]
    left_out = (f"Queries without a positive are left out: {', '.join(without)}.",) if without else ()
    return Section("metrics", "Metrics", "metrics.html", metric_rows(reports, comparison), (about, *left_out))


def training_section(runs: Sequence[Run]) -> Section | None:
    """Loss and metrics of the test images over epochs; None where no run has written any."""
    histories = [run.history for run in runs]
    found: list[Figure] = []
    wanted = [("loss", "loss of the batches", [one.losses.get("loss") if one else None for one in histories], False)]
    for metric in (metric for metric in WATCHED if metric != "H-AP" or len(runs[0].source.levels) > 1):
        wanted.append(
            (metric, f"{metric} of the test images", [one.metrics.get(metric) if one else None for one in histories], True)
        )
    for number, (label, title, curves, percent) in enumerate(wanted):
        if any(curve is not None and len(curve.epochs) > 1 for curve in curves):  # one evaluation, at the end, is no curve
            series = [_series(curve) for curve in curves]
            found.append(Figure(figures.over_epochs(f"training{number}", title, label, series, percent=percent)))
    if not found:
        return None
    losses = {str((run.source.recipe or {}).get("loss", {}).get("name", "")) for run in runs}
    about = ("The runs minimize different losses, whose values cannot be compared.",) if len(losses) > 1 else ()
    return Section("training", "Training", "figures.html", [Figures(tuple(found), _key(runs))], about)


def levels_section(runs: Sequence[Run]) -> Section | None:
    """Bars of AP by level; None with one level."""
    if len(runs[0].source.levels) < 2:
        return None
    found = [by_level(run.report) for run in runs]
    svg = figures.bars(
        "levels",
        "AP by level, with 95 % intervals",
        [one.level for one in found[0]],
        [[one.value for one in run] for run in found],
        [[(one.low, one.high) for one in run] for run in found],
    )
    about = "At a level, an item is positive when it shares the query's class there; coarse classes hold more items."
    return Section("levels", "AP by level", "figures.html", [Figures((Figure(svg),), _key(runs))], (about,))


def curves_section(runs: Sequence[Run]) -> Section:
    """Precision against recall at each level, and H-P against H-R."""
    levels = runs[0].source.levels
    found = []
    for number, level in enumerate(levels):
        series = [figures.Series(run.precision.recall, run.precision.precision[level]) for run in runs]
        title = f"precision and recall, {level}" if len(levels) > 1 else "precision and recall"
        found.append(Figure(figures.curves(f"precision{number}", title, ("recall", "precision"), series)))
    lists = [run.at_k for run in runs]
    if all(one is not None for one in lists):
        by_k = [(one.ks, figures.Series(one.recall, one.precision)) for one in lists if one is not None]
        svg = figures.by_length("lists", "H-P@k against H-R@k", ("H-R@k", "H-P@k"), by_k)
        found.append(Figure(svg, "Points are the lengths k of the list; relevance counts every level."))
    about = (
        "Precision is interpolated: the highest at that recall or a higher one, averaged over queries.",
        *_sampled(runs[0].precision.queries, runs[0].precision.of, "queries"),
    )
    return Section("curves", "Precision and recall", "figures.html", [Figures(tuple(found), _key(runs))], about, "Curves")


def scores_section(runs: Sequence[Run]) -> Section | None:
    """How far apart positives of each level and negatives are; None of a single image, which has no pairs."""
    source = runs[0].source
    names = level_names(source.levels)
    spread = np.concatenate([np.flatnonzero(run.scores.counts.sum(0)) for run in runs])
    if not len(spread):
        return None
    low, high = spread.min(), spread.max() + 1
    found = []
    for number, run in enumerate(runs):
        shares = {level: run.scores.shares[level, low:high] for level in range(len(names))}
        svg = figures.distributions(f"scores{number}", run.name, run.scores.edges[low : high + 1], shares)
        found.append(Figure(svg))
    key = tuple(KeyEntry(f"line level-{level} dash-{level % 4}", name) for level, name in enumerate(names))
    about = (
        "Cosines of query and item by the finest level that they share. Each curve has the area 1, however many its pairs.",
        *_sampled(runs[0].scores.queries, runs[0].scores.of, "queries"),
    )
    return Section("scores", "Scores", "figures.html", [Figures(tuple(found), key[::-1])], about)


def gap_section(runs: Sequence[Run]) -> Section:
    """The decomposability gap by batch size, of AP and of H-AP."""
    gaps = [run.gap for run in runs]
    found = []
    measures = [measure for measure in gaps[0].values if measure in ("AP", measure_of(runs[0]))]
    for number, measure in enumerate(measures):
        lines = [figures.Series(np.asarray(gap.sizes, float), np.asarray(gap.values[measure], float)) for gap in gaps]
        found.append(Figure(figures.gaps(f"gap{number}", f"gap of {measure}", lines)))
    about = (
        "How much higher a metric is when images are ranked within shuffled batches than when they are ranked among all: what "
        "a loss over batches does not see. Small is good. It is signed, and 0 where one batch holds the whole collection.",
        *_sampled(gaps[0].queries, gaps[0].of, "queries"),
    )
    return Section("gap", "Decomposability gap", "figures.html", [Figures(tuple(found), _key(runs))], about, "Gap")


def step_section(runs: Sequence[Run]) -> Section | None:
    """The step of each run's loss and its derivative."""
    groups = []
    for number, run in enumerate(runs):
        if run.step is None:
            continue
        curve = run.step.bound or run.step.sigmoid
        symbol = "H⁻(t)" if run.step.bound else "σ(t/τ)"
        value = figures.step(f"step{number}", f"the step, {symbol}", symbol, number, curve.gap, curve.value, jumps=curve.jumps)
        slope = figures.slope(f"slope{number}", f"its derivative, d{symbol}/dt", number, curve.gap, curve.derivative)
        letters = {"tau": "τ", "rho": "ρ", "delta": "δ", "jump": "jump", "value_at_delta": "value at δ"}
        numbers = ", ".join(f"{letters[name]} = {value:g}" for name, value in run.step.parameters.items() if value is not None)
        bounds = (
            ""
            if not run.step.bound
            else " It bounds the exact step."
            if run.step.bounds
            else " It does not bound the exact step."
        )
        words = f"Loss {run.step.loss}: {numbers}.{bounds}"
        key = (KeyEntry(f"line run-{number}", symbol), KeyEntry("line exact", "exact step"))
        groups.append(Figures((Figure(value), Figure(slope)), key, run.name if len(runs) > 1 else "", words))
    if not groups:
        return None
    about = (
        "What stands for one error in the rank of an item k: the exact step counts items j that score as high or higher, "
        "t = s_j − s_k ≥ 0, and gives no gradient; the loss takes a smooth step in its place, whose derivative is what pulls.",
    )
    return Section("step", "The step of the loss", "figures.html", groups, about, "Step")


def recipe_section(runs: Sequence[Run]) -> Section | None:
    """The recipes, and in what they differ."""
    if all(run.source.recipe is None for run in runs):
        return None
    rows = recipe_rows([run.source.recipe for run in runs])
    content = {"all": rows, "different": [row for row in rows if row.differs]}
    return Section("recipe", "Recipe" if len(runs) == 1 else "Recipes", "recipe.html", content)


def measure_of(run: Run) -> str:
    """What the metric by which queries are compared is called: H-AP, which with one level is AP."""
    return of_all_levels(run.report) if len(run.source.levels) > 1 else "AP"


def _key(runs: Sequence[Run]) -> tuple[KeyEntry, ...]:
    return tuple(KeyEntry(f"line run-{number}", run.name) for number, run in enumerate(runs)) if len(runs) > 1 else ()


def _series(curve: Curve | None) -> figures.Series:
    if curve is None:
        return figures.Series(np.empty(0), np.empty(0))
    return figures.Series(curve.epochs, curve.values)


def _sampled(number: int, of: int, what: str) -> tuple[str, ...]:
    return (f"From {number:,} of {of:,} {what}, drawn at random.",) if number < of else ()
