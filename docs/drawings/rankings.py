"""The "Lada #2" example: its label tree, H-rank, and AP beside H-AP of two rankings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from suprank.data import LabelTree
from suprank.paper.curves import GRAY, INK, Drawing
from suprank.ranking import at_least, average_precision, common_level, heaviside, hierarchical_average_precision, ranks

from .canvas import LEVELS, QUERY, TILE, arrow, box, canvas, fraction, rows, tile, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from torch import Tensor

TREE = LabelTree(
    ("model", "make", "type"),
    (
        ("Lada #1", "Lada #2", "Lada #3", "Fiat #1", "Fiat #2", "Volvo #1", "Volvo #2"),
        ("Lada", "Fiat", "Volvo"),
        ("Cars", "Trucks"),
    ),
    (np.array([0, 0, 0, 1, 1, 2, 2]), np.array([0, 0, 1])),
    (np.array([2, 3, 2, 2, 2, 2, 2]), np.array([7, 4, 4]), np.array([11, 4])),
)
ROOT, QUERY_CLASS, DEPTH = "Vehicles", "Lada #2", len(TREE.levels)

LESS_SEVERE = ("Lada #1", "Lada #2", "Volvo #1", "Fiat #1", "Lada #2")
MORE_SEVERE = ("Fiat #1", "Lada #2", "Volvo #1", "Lada #1", "Lada #2")
"""The rankings of fig:sup_dif_ap_hap, found by a search, as the paper's source lacks the picture: of all rankings of up to five
images, by level, these are the only two orders of the same images with its AP (0.45 for both) and H-AP (0.78 and 0.67).
`tests/paper/test_drawings.py` repeats the search."""

_SETS = ("Ω⁻", "Ω⁽¹⁾", "Ω⁽²⁾", "Ω⁽³⁾")


class ToyRanking(NamedTuple):
    """Images in the order of a ranking, by class, with what the example's relevances (1, 2/3, 1/3, 0) make of them."""

    names: Sequence[str]
    level: list[int]
    relevance: list[float]
    h_rank: list[float]  # 0 for negatives
    precision: list[float]  # rank⁺/rank at the finest level, 0 for images of other classes
    average_precision: float
    hierarchical: float  # H-AP

    @classmethod
    def from_names(cls, names: Sequence[str]) -> ToyRanking:
        level = shared_levels(names)[None]
        relevance = level.double() / DEPTH
        scores = torch.arange(len(names), 0, -1, dtype=torch.float64)[None]
        graded = ranks(scores, level, relevance, minus=heaviside)
        fine = ranks(scores, at_least(level, DEPTH), minus=heaviside)
        assert graded.hierarchical is not None
        return cls(
            names,
            level[0].tolist(),
            relevance[0].tolist(),
            graded.hierarchical[0].tolist(),
            (fine.plus / fine.total)[0].tolist(),
            average_precision(fine, level >= DEPTH).item(),
            hierarchical_average_precision(graded, relevance).item(),
        )


def class_labels(names: Sequence[str]) -> Tensor:
    """The label columns of classes, finest first."""
    columns = [torch.tensor([TREE.names[0].index(name) for name in names])]
    for parents in TREE.parents:
        columns.append(torch.from_numpy(parents)[columns[-1]])
    return torch.stack(columns, 1)


def shared_levels(names: Sequence[str]) -> Tensor:
    """How many levels of the tree each class shares with the query's class."""
    return common_level(class_labels([QUERY_CLASS]), class_labels(names))[0]


def label_tree() -> Drawing:
    """fig:hierarchical_tree: the tree of the example, with the images under it colored by what they share with the query."""
    step, node = 1.14, (1.02, 0.36)
    figure, axes = canvas(0.7 + step * len(TREE.names[0]), 5.85)
    level = shared_levels(TREE.names[0]).tolist()
    places = [np.arange(len(TREE.names[0])) * step + 0.35 + step / 2]
    reached = [np.array(level)]  # by the closest image under a node
    for depth, parents in enumerate(TREE.parents, start=1):
        places.append(np.array([places[-1][parents == one].mean() for one in range(len(TREE.names[depth]))]))
        closest = [min(reached[-1][parents == one].max(), DEPTH - depth) for one in range(len(TREE.names[depth]))]
        reached.append(np.array(closest))
    heights = [2.9, 2.05, 1.2]
    root = (float(places[-1].mean()), 0.35)
    for depth in range(DEPTH):
        for one, name in enumerate(TREE.names[depth]):
            x, y = places[depth][one], heights[depth]
            above = root if depth == DEPTH - 1 else (places[depth + 1][TREE.parents[depth][one]], heights[depth + 1])
            axes.plot([x, x, above[0], above[0]], [y, y - 0.425, y - 0.425, above[1]], color=GRAY, linewidth=1.2, zorder=0)
            box(axes, x, y, node, LEVELS[reached[depth][one]])
            write(axes, x, y, name, bold=depth > 0)
    box(axes, *root, node, GRAY)
    write(axes, *root, ROOT, bold=True)
    sizes = [0] * len(LEVELS)
    for one, name in enumerate(TREE.names[0]):
        x, count = places[0][one], int(TREE.images[0][one])
        axes.plot([x, x], [heights[0], heights[0] + 0.5], color=GRAY, linewidth=1.2, zorder=0)
        for image in range(count):
            is_query = name == QUERY_CLASS and image == 0
            color = QUERY if is_query else LEVELS[level[one]]
            corner = "query" if is_query else ""
            tile(axes, x, 3.55 + 0.68 * image, name, color, truck=level[one] == 0, corner=corner, scale=0.74)
            sizes[level[one]] += not is_query
        below = 3.55 + 0.68 * count - 0.18
        write(axes, x, below, _SETS[level[one]], size=11)
        write(axes, x, below + 0.2, f"rel {fraction(level[one] / DEPTH)}", size=8.5, color=GRAY)
    numbers = {f"images in {_SETS[one]}": float(sizes[one]) for one in reversed(range(len(LEVELS)))}
    alt = (
        f"A label tree of vehicles: the images of the query's class {QUERY_CLASS} are green, other Ladas blue, other cars "
        "orange and trucks, which are negatives, red."
    )
    return Drawing(figure, numbers, alt)


def two_h_ranks() -> Drawing:
    """fig:figure_hrank: H-rank⁺ of image 2 below a Lada, and below another car."""
    images = {1: "Lada #1", 2: "Lada #2", 3: "Fiat #1", 4: "Volvo #1"}
    orders = {"top": (1, 2, 3, 4), "bottom": (3, 2, 1, 4)}
    figure, axes = canvas(7.3, 3.75)
    numbers = {}
    for (row, order), y in zip(orders.items(), (0.6, 2.45), strict=True):
        ranking = ToyRanking.from_names([images[number] for number in order])
        columns = _draw_ranking(axes, y, ranking, order)
        first, second = order[:2]
        one, own = map(fraction, ranking.relevance[:2])
        value = ranking.h_rank[1]
        numbers[f"H-rank⁺(2), {row} row"] = value
        rows(axes, 0.15, columns, y + 0.64, {"rel(k)": [fraction(relevance) for relevance in ranking.relevance]})
        sums = f"H-rank⁺(2) = rel({second}) + min(rel({second}), rel({first})) = {own} + {one} ="
        write(axes, 5.35, y + 0.95, sums, size=9.5, align="right")
        write(axes, 5.42, y + 0.95, fraction(value), size=12, bold=True, align="left")
    top, bottom = map(fraction, numbers.values())
    alt = (
        f"Two rankings for a {QUERY_CLASS} query: H-rank of image 2 is {top} below another Lada and {bottom} below a car of "
        "another make, so that the first inversion counts as less severe."
    )
    return Drawing(figure, numbers, alt)


def h_rank_of_each() -> Drawing:
    """fig:supp_hrank_figure: H-rank⁺ of each result, as the sum that it is."""
    ranking = ToyRanking.from_names(MORE_SEVERE)
    order = range(1, len(ranking.names) + 1)
    figure, axes = canvas(8.6, 2.0)
    columns = _draw_ranking(axes, 0.6, ranking, order)
    sums = [
        " + ".join(fraction(min(ranking.relevance[k], ranking.relevance[j])) for j in (k, *range(k)) if ranking.level[j])
        if ranking.level[k]
        else "negative"
        for k in range(len(ranking.names))
    ]
    values = {
        "rel(k)": [fraction(relevance) for relevance in ranking.relevance],
        "Σ min(rel)": sums,
        "H-rank⁺(k)": [fraction(value) if level else "–" for value, level in zip(ranking.h_rank, ranking.level, strict=True)],
    }
    rows(axes, 0.15, columns, 1.3, values)
    numbers = {f"H-rank⁺({k})": value for k, value, level in zip(order, ranking.h_rank, ranking.level, strict=True) if level}
    listed = ", ".join(f"{fraction(value)}" for value in numbers.values())
    alt = f"A ranking for a {QUERY_CLASS} query with H-rank of each positive, from the top: {listed}; the truck is a negative."
    return Drawing(figure, numbers, alt)


def ap_and_hap() -> Drawing:
    """fig:sup_dif_ap_hap: two rankings with the same AP, and a higher H-AP where the first error is less severe."""
    figure, axes = canvas(10.0, 4.2)
    numbers = {}
    for row, names, first, y in (
        ("top", LESS_SEVERE, "another Lada", 0.6),
        ("bottom", MORE_SEVERE, "a car, but no Lada", 2.75),
    ):
        ranking = ToyRanking.from_names(names)
        columns = _draw_ranking(axes, y, ranking, None)
        at = range(1, len(names) + 1)
        values = {
            "rel(k)": [fraction(relevance) for relevance in ranking.relevance],
            "rank⁺/rank": [fraction(value) if value else "–" for value in ranking.precision],
            "H-rank⁺/rank": [
                f"{fraction(h_rank)} / {k}" if h_rank else "–" for h_rank, k in zip(ranking.h_rank, at, strict=True)
            ],
        }
        rows(axes, 0.15, columns, y + 0.7, values)
        write(axes, 8.55, y, f"The error at rank 1\nis {first}.", color=GRAY, align="left")
        for name, value, dy in (("AP", ranking.average_precision, 0.92), ("H-AP", ranking.hierarchical, 1.14)):
            numbers[f"{name}, {row} row"] = value
            write(axes, 8.55, y + dy, f"{name} = {value:.2f}", size=11, bold=name != "AP", align="left")
    alt = (
        f"Two rankings of the same five images for a {QUERY_CLASS} query: AP is {numbers['AP, top row']:.2f} for both, "
        f"and H-AP {numbers['H-AP, top row']:.2f} where a Lada is first, {numbers['H-AP, bottom row']:.2f} where a Fiat is."
    )
    return Drawing(figure, numbers, alt)


def _draw_ranking(axes: Axes, y: float, ranking: ToyRanking, numbers: Sequence[int] | None) -> list[float]:
    """Draw the query, an arrow and the ranking in a row, numbered if numbers are given; return the places of the images."""
    left, step = 0.2 + TILE[0] / 2, TILE[0] + 0.28
    tile(axes, left, y, QUERY_CLASS, QUERY, corner="query")
    columns = [left + 0.5 + step * place for place in range(1, len(ranking.names) + 1)]
    arrow(axes, (left + TILE[0] / 2 + 0.08, y), (columns[0] - TILE[0] / 2 - 0.08, y), color=INK)
    for place, (x, name, level) in enumerate(zip(columns, ranking.names, ranking.level, strict=True)):
        tile(axes, x, y, name, LEVELS[level], truck=level == 0, corner=str(numbers[place]) if numbers else "")
    return columns
