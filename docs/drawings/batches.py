"""Batches of one query: the decomposability gap of a toy dataset, and the ranking in which it is largest."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from suprank.evaluation.gap import decomposability_gap, gap_bound
from suprank.paper.curves import GRAY, GREEN, INK, PALE, RED, Drawing
from suprank.ranking import average_precision, heaviside, ranks

from .canvas import arrow, box, canvas, fraction, rows, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from suprank.ranking import Ranks


class Item(NamedTuple):
    """An image of a batch: its cosine similarity with the query, and whether it is a positive."""

    score: float
    positive: bool


TOY = (
    (Item(0.95, True), Item(0.83, True), Item(0.71, False), Item(0.65, False)),
    (Item(0.59, True), Item(0.47, True), Item(0.41, False), Item(0.29, False)),
    (Item(0.77, True), Item(0.53, True), Item(0.35, False), Item(0.23, False)),
)
"""The batches of fig:dg_ap, whose source lacks the picture: each is ranked perfectly, but their scores are not calibrated."""

WORST_BATCHES, WORST_POSITIVES, WORST_NEGATIVES = 3, 2, 3


def toy_gap() -> Drawing:
    """fig:dg_ap: three batches on one axis of scores, the AP of each and of all, and the gap between them."""
    items = [item for batch in TOY for item in batch]
    cosine = torch.tensor([item.score for item in items], dtype=torch.float64)
    gap = decomposability_gap(
        torch.tensor([[1.0, 0.0]], dtype=torch.float64),
        torch.tensor([1]),
        [number for number, batch in enumerate(TOY) for _ in batch],
        gallery=torch.stack([cosine, (1 - cosine**2).sqrt()], 1),
        gallery_labels=torch.tensor([int(item.positive) for item in items]),
        progress=False,
    )
    figure, axes = canvas(8.4, 3.8)
    numbers = {}
    for number, batch in enumerate(TOY, start=1):
        y, value = 0.05 + 0.55 * number, _average_precision(batch)
        _draw_items(axes, y, f"batch {number}", [(item, number) for item in batch])
        write(axes, 7.15, y, f"AP = {value:.2f}", size=10, align="left")
        numbers[f"AP, batch {number}"] = value
    axes.plot([0.2, 8.2], [2.12, 2.12], color=PALE, linewidth=1.2)
    together = [(item, number) for number, batch in enumerate(TOY, start=1) for item in batch]
    _draw_items(axes, 2.55, "all batches", together)
    write(axes, 7.15, 2.55, f"AP = {gap.overall:.2f}", size=10, bold=True, align="left")
    arrow(axes, (6.85, 2.97), (1.35, 2.97))
    write(axes, 4.1, 3.12, "higher similarity with the query", size=8.5, color=GRAY)
    terms = " + ".join(f"{numbers[f'AP, batch {number}']:.2f}" for number in range(1, len(TOY) + 1))
    write(axes, 4.2, 3.5, f"DG = ({terms}) / {len(TOY)} − {gap.overall:.2f} = {gap.value:.2f}", size=11, bold=True)
    numbers |= {"AP of all": gap.overall, "DG": gap.value}
    alt = (
        f"Three batches that are each ranked perfectly, with AP 1, but whose scores are not calibrated: ranked together their "
        f"AP is {gap.overall:.2f}, so that the decomposability gap is {gap.value:.2f}."
    )
    return Drawing(figure, numbers, alt)


def worst_case() -> Drawing:
    """fig:worst_case_global_ap: batches that are ranked perfectly, one after the other; eq:upperBound is attained."""
    size, step, left, y = WORST_POSITIVES + WORST_NEGATIVES, 0.5, 1.3, 0.85
    batch = [Item(-place, place < WORST_POSITIVES) for place in range(size)]
    order = [Item(item.score - size * number, item.positive) for number in range(WORST_BATCHES) for item in batch]
    within, overall = _average_precision(batch), _average_precision(order)
    bound = gap_bound(np.full(WORST_BATCHES, WORST_POSITIVES), np.full(WORST_BATCHES, WORST_NEGATIVES)).item()
    figure, axes = canvas(left + 0.25 + step * len(order), 2.6)
    columns = [left + step * (place + 0.5) for place in range(len(order))]
    for place, (x, item) in enumerate(zip(columns, order, strict=True)):
        _draw_item(axes, x, y, item, place // size + 1)
    precision = [fraction(value) if value else "–" for value in _precisions(order)]
    rows(axes, 0.15, columns, y + 0.4, {"rank": [str(place) for place in range(1, len(order) + 1)], "rank⁺/rank": precision})
    for number in range(WORST_BATCHES):
        start, stop = left + step * size * number + 0.05, left + step * size * (number + 1) - 0.05
        axes.plot([start, start, stop, stop], [y - 0.33, y - 0.41, y - 0.41, y - 0.33], color=INK, linewidth=1.2)
        write(axes, (start + stop) / 2, y - 0.58, f"batch {number + 1}: AP = {within:.2f}", size=9.5)
    middle = left + step * len(order) / 2
    write(axes, middle, y + 1.05, f"AP of the whole ranking = {overall:.3f}", size=11)
    result = f"DG = {within:.3f} − {overall:.3f} = {within - overall:.3f}, upper bound = {bound:.3f}"
    write(axes, middle, y + 1.4, result, size=11, bold=True)
    numbers = {"AP of each batch": within, "AP of all": overall, "DG": within - overall, "upper bound on DG": bound}
    alt = (
        f"Three batches, each ranked perfectly, stand one after the other in the whole ranking: its AP is {overall:.3f}, the "
        f"lowest possible, and the gap of {bound:.3f} is the upper bound."
    )
    return Drawing(figure, numbers, alt)


def _average_precision(items: Sequence[Item]) -> float:
    positive = torch.tensor([[item.positive for item in items]])
    return average_precision(_ranks(items), positive).item()


def _precisions(items: Sequence[Item]) -> list[float]:
    """rank⁺/rank of each item, 0 for negatives."""
    found = _ranks(items)
    return (found.plus / found.total)[0].tolist()


def _ranks(items: Sequence[Item]) -> Ranks:
    scores = torch.tensor([[item.score for item in items]], dtype=torch.float64)
    return ranks(scores, torch.tensor([[int(item.positive) for item in items]]), minus=heaviside)


def _draw_items(axes: Axes, y: float, name: str, items: Sequence[tuple[Item, int]]) -> None:
    """A row of images, placed by their scores, the highest on the left."""
    write(axes, 0.2, y, name, size=9.5, align="left", bold=len(items) > len(TOY[0]))
    axes.plot([1.35, 6.85], [y, y], color=PALE, linewidth=1.2, zorder=0)
    for item, number in items:
        _draw_item(axes, 1.6 + (0.95 - item.score) * 7.0, y, item, number)


def _draw_item(axes: Axes, x: float, y: float, item: Item, batch: int) -> None:
    box(axes, x, y, (0.38, 0.42), GREEN if item.positive else RED, fill=0.22)
    write(axes, x, y - 0.06, "+" if item.positive else "−", size=12, bold=True)
    write(axes, x, y + 0.11, str(batch), size=7)
