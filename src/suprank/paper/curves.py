"""Curves: the step functions, the choice of δ, and the bounds on the decomposability gap over the number of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from suprank.evaluation.gap import gap_bound, refined_gap_bound
from suprank.ranking import Sigmoid, SupStep, heaviside

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from suprank.ranking import Step

PURPLE, GREEN, BLUE, ORANGE, RED = "#7E57C2", "#009E73", "#0072B2", "#E69F00", "#C62828"
INK, GRAY, PALE = "#1c2126", "#6b7580", "#d5dade"
_REACH = 0.065  # differences of scores that the steps are drawn over, to both sides: H⁻ has doubled there
EPSILON = 0.01  # sec:choice_of_delta
BATCH, PER_CLASS = 256, 4
BATCH_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SHARES = (0.75, 0.9, 0.99, 1.0)
"""Shares of the pairs that satisfy their constraint of eq:labs; counts of images are rounded."""


class Drawing(NamedTuple):
    """A figure, the numbers that it shows by name, and a sentence for readers who cannot see it."""

    figure: Figure
    numbers: dict[str, float]
    alt: str


def smooth_rank() -> Drawing:
    """fig:smooth_rank: the three steps side by side."""
    figure = Figure((9.6, 3.3), layout="constrained")
    numbers: dict[str, float] = {}
    for place, (axes, draw) in enumerate(zip(figure.subplots(1, 3, sharey=True), (_h_plus, _h_minus, _sigmoid), strict=True)):
        numbers |= draw(axes)
        if place:
            axes.set_ylabel("")
    alt = (
        "Three step functions of the difference of two scores: Heaviside's, which is flat, H⁻, which bounds it from above and "
        "keeps rising for wrongly ranked pairs, and the sigmoid, which becomes flat for them."
    )
    return Drawing(figure, numbers, alt)


def h_plus() -> Drawing:
    """fig:h_plus: H⁺, Heaviside's step."""
    figure, axes = _panel()
    return Drawing(
        figure, _h_plus(axes), "Heaviside's step function of the difference of two scores: 0 below 0, and 1 from 0 on."
    )


def h_minus() -> Drawing:
    """fig:h_minus: H⁻, the smooth upper bound."""
    figure, axes = _panel()
    numbers = _h_minus(axes)
    alt = "H⁻ lies above Heaviside's step: a sigmoid below 0, half a step higher up to δ, and beyond δ a line of slope ρ."
    return Drawing(figure, numbers, alt)


def sigmoid() -> Drawing:
    """fig:sigmoid: the sigmoid of Smooth-AP."""
    figure, axes = _panel()
    numbers = _sigmoid(axes)
    return Drawing(figure, numbers, "The sigmoid lies below Heaviside's step for positive differences, and is flat beyond δ.")


def choice_of_delta() -> Drawing:
    """fig:choice_of_delta: the gradient of σ(t/τ), and the δ from which on it is below ε; the scale of t/τ, as in the text."""
    step, used = SupStep.saturating(SupStep.tau, EPSILON), SupStep()
    curve = Sigmoid(step.tau)

    def gradient(t: NDArray[np.float64]) -> NDArray[np.float64]:
        return (step.tau * curve.derivative(torch.from_numpy(t))).numpy()

    figure = Figure((8.6, 3.5), layout="constrained")
    whole, zoomed = figure.subplots(1, 2)
    for axes, (low, high) in ((whole, (-0.1, 0.1)), (zoomed, (0.0, 0.08))):
        t = np.linspace(low, high, 801)
        axes.plot(t, gradient(t), color=BLUE, linewidth=2)
        axes.axhline(EPSILON, color=RED, linewidth=1.2, linestyle=(0, (4, 2)))
        axes.axvspan(step.delta, high, color=PALE, alpha=0.5, linewidth=0)
        axes.axvline(step.delta, color=INK, linewidth=1.2)
        axes.axvline(used.delta, color=PURPLE, linewidth=1.2, linestyle=(0, (1, 1.5)))
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("difference of the scores of a negative pair")
        _style(axes)
    whole.set_ylabel(f"τ · gradient of the sigmoid, τ = {step.tau:g}")
    whole.set_ylim(0, 0.27)
    whole.annotate(f"ε = {EPSILON:g}", (-0.095, EPSILON), (0, 4), textcoords="offset points", color=RED, fontsize=9)
    zoomed.set_yscale("log")
    zoomed.set_ylim(2e-4, 0.5)
    zoomed.annotate(f"ε = {EPSILON:g}", (0.002, EPSILON), (0, 4), textcoords="offset points", color=RED, fontsize=9)
    at = {"textcoords": "offset points", "fontsize": 9, "va": "center"}
    zoomed.annotate(f"δ = τ·ln((1 − ε)/ε) = {step.delta:.3f}", (step.delta, 6e-4), (-8, 0), ha="right", color=INK, **at)
    zoomed.annotate(f"δ = {used.delta:g}, as used", (used.delta, 0.2), (8, 0), ha="left", color=PURPLE, **at)
    numbers = {"δ = τ·ln((1 − ε)/ε)": step.delta, "δ of SupStep": used.delta}
    for name, value in list(numbers.items()):
        numbers[f"τ · gradient at {name}"] = float(gradient(np.array([value]))[0])
    alt = (
        f"The gradient of the sigmoid against the difference of two scores, on a linear and a logarithmic scale: it is below "
        f"{EPSILON:g} from {step.delta:.3f} on, which is rounded to δ = {used.delta:g}."
    )
    return Drawing(figure, numbers, alt)


def bounds() -> Drawing:
    """tab:compa_bounds: eq:upperBound and eq:upperBoundRefined over the number of batches K, as a chart and a table.

    Every batch has 256 images, 4 of them positives. Of those, and of the negatives, a share satisfies its constraint.
    """
    positives, negatives = PER_CLASS, BATCH - PER_CLASS
    lines = {"without L_DG": [float(gap_bound(_repeat(positives, k), _repeat(negatives, k))) for k in BATCH_COUNTS]}
    satisfied = [("–", "–")]
    for share in SHARES:
        good, bad = round(share * positives), negatives - round(share * negatives)
        counts = (positives, negatives, good, bad)
        satisfied.append((str(good), str(bad)))
        lines[f"with L_DG, {share:.0%} satisfied"] = [
            float(refined_gap_bound(*(_repeat(count, k) for count in counts))) for k in BATCH_COUNTS
        ]
    figure = Figure((8.6, 5.6))
    chart, table = figure.add_axes((0.08, 0.44, 0.62, 0.53)), figure.add_axes((0.03, 0.06, 0.94, 0.27))
    looks = zip((INK, PURPLE, BLUE, ORANGE, GREEN), "osD^v", strict=True)
    for (name, values), (color, marker) in zip(lines.items(), looks, strict=True):
        chart.plot(
            BATCH_COUNTS,
            values,
            color=color,
            marker=marker,
            markersize=5,
            linewidth=1.8,
            label=_with_symbol(name),
            clip_on=False,
        )
    chart.set_xscale("log", base=2)
    chart.set_xticks(BATCH_COUNTS, [str(k) for k in BATCH_COUNTS])
    chart.xaxis.set_minor_locator(NullLocator())
    chart.set_xlim(BATCH_COUNTS[0], BATCH_COUNTS[-1])
    chart.set_ylim(0, 1)
    chart.set_xlabel(f"number of batches K, of {BATCH} images with {PER_CLASS} positives")
    chart.set_ylabel("upper bound on DG")
    _style(chart)
    chart.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    _draw_table(table, lines, satisfied)
    note = "Each batch is ranked perfectly. G⁺ positives and all but E⁻ negatives satisfy their constraint, in whole images."
    figure.text(0.5, 0.025, note, fontsize=8, color=GRAY, ha="center", va="center")
    numbers = {
        f"{name}, K = {k}": value for name, values in lines.items() for k, value in zip(BATCH_COUNTS, values, strict=True)
    }
    last = BATCH_COUNTS[-1]
    alt = (
        f"Upper bounds on the decomposability gap over the number of batches: at {last} batches {lines['without L_DG'][-1]:.2f}"
        " without the decomposability loss, and with it less, the more of its constraints are satisfied; 0 if all are."
    )
    return Drawing(figure, numbers, alt)


def _repeat(count: int, batches: int) -> NDArray[np.int64]:
    """The same count in every batch."""
    return np.full(batches, count)


def _draw_table(axes: Axes, lines: dict[str, list[float]], satisfied: list[tuple[str, str]]) -> None:
    """A row for each bound: positives and negatives on their side of the threshold in each batch, then the bound for each K."""
    axes.set_axis_off()
    texts = [
        [_with_symbol(name), *counts, *(f"{value:.3f}" for value in values)]
        for counts, (name, values) in zip(satisfied, lines.items(), strict=True)
    ]
    columns = ["bound", f"G⁺ of {PER_CLASS}", f"E⁻ of {BATCH - PER_CLASS}", "K = 1", *map(str, BATCH_COUNTS[1:])]
    widths = [0.24, 0.1, 0.12] + [0.54 / len(BATCH_COUNTS)] * len(BATCH_COUNTS)
    table = axes.table(texts, colLabels=columns, colWidths=widths, bbox=Bbox.unit(), cellLoc="center", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(8.5)
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor(PALE)
        cell.set_text_props(weight="bold" if row == 0 else "normal", ha="left" if column == 0 else "center")


def _with_symbol(name: str) -> str:
    return name.replace("L_DG", r"$\mathcal{L}_{\mathrm{DG}}$").replace("%", " %")


def _panel() -> tuple[Figure, Axes]:
    figure = Figure((3.8, 3.3), layout="constrained")
    return figure, figure.subplots()


def _h_plus(axes: Axes) -> dict[str, float]:
    _draw_step(axes, heaviside, "H⁺ = H", GREEN)
    return _slope(axes, heaviside, "H⁺")


def _h_minus(axes: Axes) -> dict[str, float]:
    step = SupStep()
    _draw_step(axes, step, "H⁻", BLUE)
    _mark_delta(axes, step.delta)
    return {"H⁻(0)": float(step(torch.zeros(1))), "H⁻(δ)": step.height} | _slope(axes, step, "H⁻")


def _sigmoid(axes: Axes) -> dict[str, float]:
    step = Sigmoid(SupStep.tau)
    _draw_step(axes, step, "σ(t/τ)", ORANGE)
    _mark_delta(axes, SupStep.delta)
    return {"σ(0)": float(step(torch.zeros(1)))} | _slope(axes, step, "σ")


def _draw_step(axes: Axes, step: Step, name: str, color: str) -> None:
    """Plot the step in two pieces, below 0 and from 0 on, with Heaviside's step behind it."""
    below = torch.linspace(-_REACH, 0, 201, dtype=torch.float64)[:-1]
    above = torch.linspace(0, _REACH, 201, dtype=torch.float64)
    if step is not heaviside:
        for t in (below, above):
            axes.plot(t, heaviside(t), color=GRAY, linewidth=1.4, linestyle=(0, (4, 2)), label="H" if t is above else None)
    jumps = float(step(above[:1]) - step(below[-1:])) > 0.1
    for t in (below, above):
        axes.plot(t, step(t), color=color, linewidth=2.2, label=name if t is above else None)
    if jumps:
        axes.plot(0, float(step(above[:1])), "o", color=color, markersize=5)
        axes.plot(
            0, float(step(-1e-9 * torch.ones(1, dtype=torch.float64))), "o", color=color, markersize=5, markerfacecolor="white"
        )
    axes.set_xlim(-_REACH, _REACH)
    axes.set_ylim(-0.15, 3.1)
    axes.set_xlabel(r"$t = s_j - s_k$")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 4, 5, 10]))
    axes.set_ylabel("step")
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    _style(axes)


def _mark_delta(axes: Axes, delta: float) -> None:
    axes.axvline(delta, color=INK, linewidth=1, linestyle=(0, (1, 1.5)))
    axes.annotate(f"δ = {delta:g}", (delta, 0.08), (-4, 0), textcoords="offset points", ha="right", fontsize=9)


def _slope(axes: Axes, step: Step, name: str) -> dict[str, float]:
    """Write the gradient for the pairs that are ranked most wrongly."""
    slope = float(step.derivative(torch.tensor([_REACH], dtype=torch.float64)))
    axes.set_title(f"{name}: gradient {slope:.3g} at t = {_REACH:g}", fontsize=9.5)
    return {f"gradient of {name} at {_REACH:g}": slope}


def _style(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


CURVES: dict[str, Callable[[], Drawing]] = {
    "fig:smooth_rank": smooth_rank,
    "fig:h_plus": h_plus,
    "fig:h_minus": h_minus,
    "fig:sigmoid": sigmoid,
    "tab:compa_bounds": bounds,
    "fig:choice_of_delta": choice_of_delta,
}
"""Label → the function that draws it, in the paper's order."""
