"""The framework in one picture: a batch, the network, its embeddings, and the two losses that train it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from matplotlib.patches import Arc, Circle, Polygon, Rectangle

from suprank.losses import PairCalibration, happier
from suprank.paper.curves import BLUE, GRAY, GREEN, INK, PALE, PURPLE, RED, Drawing

from .canvas import LEVELS, QUERY, arrow, box, canvas, tile, tint, write
from .rankings import DEPTH, QUERY_CLASS, class_labels, shared_levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

BATCH = (("Lada #2", 20), ("Lada #1", 34), ("Lada #2", 48), ("Fiat #1", 63), ("Volvo #1", 79))
"""The images of the batch: their class, and the angle of their embedding to the query's in degrees, ascending."""

_MIDDLE = 2.1  # y of the axis of the picture


class EmbeddedImage(NamedTuple):
    """An image of the batch: its class, the angle to the query in radians, their cosine, and the levels that they share."""

    name: str
    angle: float
    score: float
    level: int


def framework() -> Drawing:
    """fig:figure_introduction: images → network → embeddings → rank loss within the batch, calibration across batches → SGD."""
    names = [name for name, _ in BATCH]
    angles = [math.radians(angle) for _, angle in BATCH]
    images = [
        EmbeddedImage(name, angle, math.cos(angle), level)
        for name, angle, level in zip(names, angles, shared_levels(names).tolist(), strict=True)
    ]
    embeddings = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in angles])
    calibration = PairCalibration()
    loss = happier(decomposability=calibration)
    total = loss(
        torch.tensor([[1.0, 0.0]]), class_labels([QUERY_CLASS]), ref_emb=embeddings, ref_labels=class_labels(names)
    ).item()
    rank, gap = (loss.log[part].item() for part in ("SupHAP", "PairCalibration"))

    figure, axes = canvas(13.4, 4.7)
    _draw_batch(axes, images)
    _draw_network(axes)
    _draw_embeddings(axes, images)
    _draw_rank_loss(axes, images, rank)
    _draw_calibration(axes, images, calibration, gap)
    _draw_total(axes, loss.decomposability_weight, total)
    numbers = {
        "L_Sup, of H-AP": rank,
        "L_DG": gap,
        "λ": loss.decomposability_weight,
        "L": total,
        "α": calibration.positive_floor,
        "β": calibration.negative_ceiling,
    }
    alt = (
        "A batch of images goes through the network to embeddings; a rank loss orders them within the batch, a decomposability "
        "loss puts the scores of all batches on one scale, and SGD on the weighted sum of both updates the network."
    )
    return Drawing(figure, numbers, alt)


def _draw_batch(axes: Axes, images: Sequence[EmbeddedImage]) -> None:
    write(axes, 1.06, _MIDDLE - 1.45, "batch of images", size=10, bold=True)
    tile(axes, 0.62, _MIDDLE - 0.78, QUERY_CLASS, QUERY, corner="query", scale=0.82)
    for place, image in enumerate(images, start=1):
        x, y = 0.62 + 0.88 * (place % 2), _MIDDLE + 0.78 * (place // 2 - 1)
        tile(axes, x, y, image.name, LEVELS[image.level], truck=image.level == 0, scale=0.82)
    arrow(axes, (2.03, _MIDDLE), (2.5, _MIDDLE))


def _draw_network(axes: Axes) -> None:
    corners = [(2.58, _MIDDLE - 0.8), (3.5, _MIDDLE - 0.4), (3.5, _MIDDLE + 0.4), (2.58, _MIDDLE + 0.8)]
    axes.add_patch(Polygon(corners, facecolor=tint(GRAY), edgecolor=GRAY, linewidth=1.6, joinstyle="round"))
    write(axes, 3.04, _MIDDLE - 0.12, "network", size=10, bold=True)
    _write_formula(axes, 3.04, _MIDDLE + 0.14, r"$f_\theta$", size=12)
    arrow(axes, (3.58, _MIDDLE), (4.05, _MIDDLE))


def _draw_embeddings(axes: Axes, images: Sequence[EmbeddedImage]) -> None:
    """The quarter of the unit circle from the query, at the top, to what is orthogonal to it."""
    x, y, radius = 4.45, _MIDDLE + 0.8, 1.5
    write(axes, 5.25, _MIDDLE - 1.45, "embeddings", size=10, bold=True)
    axes.add_patch(Arc((x, y), 2 * radius, 2 * radius, theta1=270, theta2=360, color=PALE, linewidth=1.4))
    for name, angle, color in (("query", 0.0, QUERY), *((image.name, image.angle, LEVELS[image.level]) for image in images)):
        at = (x + radius * math.sin(angle), y - radius * math.cos(angle))
        axes.plot([x, at[0]], [y, at[1]], color=color, linewidth=1.2, alpha=0.6)
        axes.add_patch(Circle(at, 0.08, facecolor=color, edgecolor="white", zorder=3))
        if angle:
            write(axes, at[0] + 0.12, at[1] - 0.03, name, size=8, align="left")
        else:
            write(axes, at[0], at[1] - 0.2, name, size=8, bold=True)
    arrow(axes, (6.62, _MIDDLE - 0.3), (7.02, _MIDDLE - 0.6))
    arrow(axes, (6.62, _MIDDLE + 0.3), (7.02, _MIDDLE + 0.6))


def _draw_rank_loss(axes: Axes, images: Sequence[EmbeddedImage], value: float) -> None:
    """The ranking within the batch, with an arrow where a less relevant image stands above a more relevant one."""
    x, y = 9.05, _MIDDLE - 1.02
    box(axes, x, y, (3.9, 1.92), BLUE, fill=0.05)
    write(axes, x, y - 0.76, "rank loss: the order within the batch", size=10, bold=True)
    places = [x + 0.74 * (place - (len(images) - 1) / 2) for place in range(len(images))]
    for place, image in zip(places, images, strict=True):
        tile(axes, place, y + 0.06, image.name, LEVELS[image.level], truck=image.level == 0, scale=0.7)
    for k, image in enumerate(images):
        above = [j for j in range(k) if images[j].level < image.level]
        if above:
            arrow(axes, (places[k], y - 0.27), (places[above[0]] - 0.33, y - 0.27), color=INK, bend="arc3,rad=0.35")
    _write_formula(axes, x, y + 0.68, rf"$\mathcal{{L}}_{{\mathrm{{Sup}}}} = {value:.2f}$")


def _draw_calibration(axes: Axes, images: Sequence[EmbeddedImage], calibration: PairCalibration, value: float) -> None:
    """The scores and the thresholds of eq:labs: positives above, negatives below, arrows to missed thresholds."""
    x, y = 9.05, _MIDDLE + 1.02
    box(axes, x, y, (3.9, 1.92), GREEN, fill=0.05)
    write(axes, x, y - 0.76, "decomposability loss: one scale for all batches", size=10, bold=True)
    left, width, y = x - 1.75, 3.5, y - 0.05
    places = [left + width * image.score for image in images]
    floor, ceiling = calibration.positive_floor, calibration.negative_ceiling
    for low, high, color in ((floor, 1.0, GREEN), (0.0, ceiling, RED)):
        axes.add_patch(
            Rectangle((left + width * low, y - 0.46), width * (high - low), 0.92, facecolor=tint(color, 0.22), zorder=1)
        )
    axes.plot([left, left + width], [y, y], color=INK, linewidth=1.2, zorder=2)
    for place, image in zip(places, images, strict=True):
        positive = image.level == DEPTH
        side = -1 if positive else 1
        axes.add_patch(Circle((place, y), 0.07, facecolor=LEVELS[image.level], edgecolor="white", zorder=3))
        write(axes, place, y + 0.33 * side, image.name, size=7.5)
        threshold = floor if positive else ceiling
        if (image.score < threshold) == positive:
            arrow(axes, (place, y + 0.16 * side), (left + width * threshold, y + 0.16 * side), color=INK)
    write(axes, left + width * ceiling, y + 0.58, f"β = {ceiling:g}", size=8.5)
    write(axes, left + width * floor, y + 0.58, f"α = {floor:g}", size=8.5)
    _write_formula(axes, x, y + 0.78, rf"$\mathcal{{L}}_{{\mathrm{{DG}}}} = {value:.2f}$")


def _draw_total(axes: Axes, weight: float, value: float) -> None:
    x = 12.35
    arrow(axes, (11.08, _MIDDLE - 0.7), (11.48, _MIDDLE - 0.4))
    arrow(axes, (11.08, _MIDDLE + 0.7), (11.48, _MIDDLE + 0.4))
    box(axes, x, _MIDDLE, (1.66, 1.1), PURPLE, fill=0.08)
    write(axes, x, _MIDDLE - 0.34, "total loss", size=10, bold=True)
    _write_formula(axes, x, _MIDDLE - 0.03, r"$(1-\lambda)\,\mathcal{L}_{\mathrm{Sup}} + \lambda\,\mathcal{L}_{\mathrm{DG}}$")
    write(axes, x, _MIDDLE + 0.31, f"= {value:.2f} with λ = {weight:g}", size=9)
    below = _MIDDLE + 2.3
    axes.plot([x, x, 3.04], [_MIDDLE + 0.58, below, below], color=GRAY, linewidth=1.4)
    arrow(axes, (3.04, below), (3.04, _MIDDLE + 0.7))
    write(axes, 5.0, below - 0.16, "SGD updates the weights θ", size=9.5, color=GRAY)


def _write_formula(axes: Axes, x: float, y: float, formula: str, *, size: float = 10) -> None:
    axes.text(x, y, formula, fontsize=size, color=INK, ha="center", va="center", zorder=6)
