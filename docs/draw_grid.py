"""Draw how a grid replaces the pairs: `python docs/draw_grid.py` writes docs/pictures/ranks-grid.png (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.polynomial.chebyshev import chebpts1

from suprank.ranking import Sigmoid, Step, SupStep, definition, gridded, heaviside
from suprank.ranking.gpu.step_table import TERMS, bins_per_score

FILE = Path(__file__).parent / "pictures" / "ranks-grid.png"
TAU, ITEMS, LIST = 0.01, 16, 2000


def main() -> None:
    """Left, the step and its nodes; in the middle, the sum for a few items; right, the error of the ranks of a long list."""
    figure = Figure(figsize=(14, 3.6), layout="constrained")
    first, left, right = figure.subplots(1, 3)
    draw_step(first, SupStep(TAU))
    draw = np.random.default_rng(1)
    items = np.sort(draw.uniform(0.01, 0.15, ITEMS))
    scores = np.linspace(0, 0.16, 800)
    total = (1 / (1 + np.exp(-(items[None] - scores[:, None]) / TAU))).sum(1)
    for edge in np.arange(0, 0.16, 4 * TAU):
        left.axvspan(edge, edge + 2 * TAU, color="0.93", lw=0)
    left.step(scores, (items[None] >= scores[:, None]).sum(1), color="0.6", lw=1, label="exact")
    left.plot(scores, total, color="C0", label="Σ σ((s_j − s)/τ)")
    left.plot(items, np.zeros(ITEMS), "|", color="black", ms=9, label="items s_j")
    left.set(xlabel="score s; bins of width 2τ", ylabel="items above s", title="In each bin, the sum is a short polynomial")
    left.legend(frameon=False)

    generator = torch.Generator().manual_seed(0)
    cosines = 2 * torch.rand(1, LIST, generator=generator) - 1
    level = torch.randint(0, 2, cosines.shape, generator=generator, dtype=torch.int8)
    steps: dict[str, tuple[Step, Step]] = {
        "sigmoids": (Sigmoid(TAU), Sigmoid(TAU)),
        "SupRank's steps": (heaviside, SupStep(TAU)),
    }
    for name, (plus, minus) in steps.items():
        truth = definition(cosines.double(), level, plus=plus, minus=minus).total
        found = gridded(cosines, level, plus=plus, minus=minus).total
        positive = level > 0
        error = ((found - truth).abs() / truth)[positive]
        right.semilogy(cosines[positive], error.clamp_min(1e-9), ".", ms=3, label=name)
    right.set(xlabel="score s of a positive", ylabel="relative error of its rank", ylim=(5e-10, 2e-6))
    right.set_xticks([-1, -0.5, 0, 0.5, 1])
    right.set_title(f"Error in float32, {LIST:,} items")
    right.legend(markerscale=4, loc="upper left", ncols=2, frameon=False)
    figure.savefig(FILE, dpi=110)


def draw_step(axes: Axes, step: SupStep) -> None:
    """H⁻ over the bins of a GPU, as a positive in the middle of its bin sees them, and the nodes of its polynomials."""
    width, bins = 1 / bins_per_score(step), range(-4, 6)
    cut = round(step.delta / width)
    for number in bins:
        shade = "0.8" if number == cut else "0.93" if number % 2 else "white"
        axes.axvspan((number - 0.5) * width, (number + 0.5) * width, color=shade, lw=0)
    gap = torch.linspace((bins[0] - 0.5) * width, (bins[-1] + 0.5) * width, 1001)
    axes.plot(gap, step(gap), color="0.6", lw=1, label="H⁻")
    axes.plot(gap, step(gap) - step.jump * (gap >= 0), color="C0", label="H⁻ without its jump")
    nodes = torch.tensor([number * width + node * width / 2 for number in bins if number != cut for node in chebpts1(TERMS)])
    axes.plot(nodes, step(nodes) - step.jump * (nodes >= 0), ".", color="C0", ms=5, label=f"{TERMS} nodes a bin")
    axes.annotate("cut by δ", (step.delta, 0.3), ha="center")
    axes.set(xlabel="gap t = s_j − s_k; bins that divide δ", ylabel="H⁻(t)", title="Between two bins, the step is a polynomial")
    axes.set_xticks([-step.delta, 0, step.delta])
    axes.legend(frameon=False, loc="upper left")


if __name__ == "__main__":
    main()
