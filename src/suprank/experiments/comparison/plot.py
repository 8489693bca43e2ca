"""The figure of a comparison: a panel for each metric, a row for each recipe, with the spread over seeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from suprank.experiments.sweep import RECIPE
from suprank.experiments.sweep.plot import COLORS, save

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from suprank.experiments.sweep import Table

FEW = 8  # recipes, whose panels are low enough to stand in two rows
ONE, BEST = COLORS[:2]


def draw(table: Table, files: Sequence[Path]) -> bool:
    """Writes the figure to every file, in the format that its name ends in; False where there is nothing to draw.

    Recipes are in the order of the table, from above; points are means, whiskers a standard deviation to each side, and the
    best of each metric has a color of its own.
    """
    if not any(row.statistics[column] for row in table.rows for column in table.columns):
        return False
    count, names = len(table.columns), [dict(row.setting)[RECIPE] for row in table.rows]
    wide = min(count, 3 if len(names) <= FEW else 6)
    rows = math.ceil(count / wide)
    label = 0.085 * max(map(len, names))
    size = (0.3 + label + 2.1 * wide, 0.3 + rows * (0.75 + 0.24 * len(names)))
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.05, hspace=0.06))
    panels = figure.subplots(rows, wide, squeeze=False, sharey=True)
    for place, axes in enumerate(panels.flat):
        if place < count:
            _panel(axes, table, table.columns[place])
        else:  # what the last row lacks
            axes.set_visible(False)
    panels[0, 0].set_yticks(range(len(names)), names)
    panels[0, 0].set_ylim(len(names) - 0.5, -0.5)
    save(figure, table, files)
    return True


def _panel(axes: Axes, table: Table, column: str) -> None:
    for place, row in enumerate(table.rows):
        found = row.statistics[column]
        if found is not None:
            color = BEST if table.is_best(row, column) else ONE
            axes.errorbar(found.mean, place, xerr=found.deviation, color=color, marker="o", markersize=5, capsize=3)
    axes.set_xlabel(f"{column}, %")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
