"""Draw how a grid replaces the pairs: `python docs/draw_grid.py` writes docs/pictures/ranks-grid.png (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from suprank.ranking import Sigmoid, Step, SupStep, definition, gridded, heaviside

FILE = Path(__file__).parent / "pictures" / "ranks-grid.png"
TAU, ITEMS, LIST = 0.01, 16, 2000


def main() -> None:
    """Left, the sum for a few items and the bins; right, the error of the ranks of a long list."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
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
    right.set_title(f"Error in float32, {LIST:,} items")
    right.legend(markerscale=4, loc="upper left", ncols=2, frameon=False)
    figure.savefig(FILE, dpi=110)


if __name__ == "__main__":
    main()
