"""Maps of the classes of a trained model (fig:tsne_baseline, fig:tsne_happier)."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from suprank.explorer.colors import CLASSES, UNKNOWN
from suprank.explorer.findings.class_means import class_map as place_classes
from suprank.paper.model_figures import ModelFigure, choose_coarse_level, open_run, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.explorer.findings.class_means import ClassMap
    from suprank.paper.model_figures import Run

LEGEND_ENTRIES = 15
"""Groups with a color of their own, and a last entry for all others if there are more."""

_MANY = 3000  # marks beyond which a vector graphic would be slow to open


def class_map(run: Run, *, level: str | None = None, title: str = "", seed: int = 0) -> ModelFigure:
    """t-SNE of the mean embedding of every fine class, colored by a coarse level (fig:tsne_baseline, fig:tsne_happier).

    `level` is by default the coarsest; the map has a single color if there is no coarse level. The facts say how well the
    coarse classes cluster: the share of classes whose nearest class mean has the same coarse label, and what chance would give.
    """
    data = open_run(run)
    levels = data.levels
    if len(levels) > 1 or level is not None:
        coarse_level = choose_coarse_level(levels, level, data.name)
        levels = (levels[0], coarse_level)
    classes = place_classes(data.at_levels(levels), max_classes=0, seed=seed)
    if classes is None:
        raise ValueError(f"{data.name} has fewer than two labeled classes, so there is nothing to map; give another run.")
    groups: list[str] = []
    if len(levels) > 1:
        names = data.names[levels[1]]
        groups = [names[label] if label >= 0 else "no label" for label in classes.coarse.tolist()]
    number = len(classes.positions)
    facts: dict[str, float | str] = {"classes": number, "images": int(classes.images.sum()), "method": classes.method}
    note = f"{number:,} classes"
    if groups:
        facts |= {"coarse_level": levels[-1], "coarse_classes": len(set(groups))}
    if not math.isnan(classes.same_coarse):
        facts |= {"nearest_same_coarse": classes.same_coarse, "nearest_same_coarse_by_chance": classes.same_coarse_by_chance}
        note += (
            f"; for {100 * classes.same_coarse:.1f} % of them the nearest class has the same {levels[-1]} "
            f"(by chance {100 * classes.same_coarse_by_chance:.1f} %)"
        )
    figure = _draw_map(classes, groups, title, f"{levels[-1]} (classes)", note, seed)
    colored = f", colored by {levels[-1]}" if groups else ""
    alt = f"{classes.method} map of the mean embeddings of all classes by {title or data.name}{colored}: {note}."
    return ModelFigure(figure, facts, alt)


def _draw_map(classes: ClassMap, groups: Sequence[str], title: str, legend_title: str, note: str, seed: int) -> Figure:
    count = Counter(groups)
    ranked = sorted(count, key=lambda name: (-count[name], name))
    shown = ranked if len(ranked) <= LEGEND_ENTRIES else ranked[: LEGEND_ENTRIES - 1]
    # The strong colors as circles, then their pale counterparts as squares.
    looks = [(shade.light, "o") for shade in CLASSES] + [(shade.dark, "s") for shade in CLASSES]
    look_of = dict(zip(shown, looks, strict=False))
    rest = (UNKNOWN.light, "x")
    marks = [look_of.get(name, rest) for name in groups] or [looks[0]] * len(classes.positions)
    figure = Figure(figsize=(7.2 if groups else 5.2, 5.2), layout="constrained")
    axes = figure.add_subplot()
    size = float(np.clip(6000 / len(marks), 3, 40))
    # Shuffled, so that no group hides the others.
    order = np.random.default_rng(seed).permutation(len(marks))
    for shape in dict.fromkeys(shape for _, shape in (*looks, rest)):
        rows = [row for row in order.tolist() if marks[row][1] == shape]
        if rows:
            colors = [marks[row][0] for row in rows]
            line = 0.8 if shape == "x" else 0
            x, y = classes.positions[rows].T
            axes.scatter(x, y, size, colors, marker=shape, linewidths=line, rasterized=len(marks) > _MANY)
    axes.set(xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="datalim")
    axes.spines[:].set_color("#cccccc")
    if title:
        axes.set_title(title, parse_math=False)
    figure.supxlabel(note, fontsize=8, color="#555555", parse_math=False)
    entries = [(look_of[name], f"{shorten(name)} ({count[name]:,})") for name in shown]
    if len(shown) < len(ranked):
        others = sum(count[name] for name in ranked[len(shown) :])
        entries.append((rest, f"{len(ranked) - len(shown):,} others ({others:,})"))
    if entries:
        handles = [
            Line2D([], [], color=color, marker=shape, linestyle="none", markersize=6, label=text)
            for (color, shape), text in entries
        ]
        legend = figure.legend(
            handles=handles, title=legend_title, loc="outside right center", frameon=False, fontsize=8, title_fontsize=8
        )
        for text in (legend.get_title(), *legend.get_texts()):
            text.set_parse_math(False)
    return figure
