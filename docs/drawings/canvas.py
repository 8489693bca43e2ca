"""What the drawings share: colors, a canvas in inches, tiles that stand for images, and text."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Polygon

from suprank.paper.curves import BLUE, GRAY, GREEN, INK, ORANGE, PURPLE, RED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

QUERY = PURPLE
LEVELS = (RED, ORANGE, BLUE, GREEN)
"""The color of an image by the number of levels that it shares with the query. Its name is always written on it, too."""

TILE = (1.0, 0.86)
_PAD = 0.04  # by which a rounded box grows
_CAR = ((-0.3, 0.1), (-0.3, -0.01), (-0.17, -0.03), (-0.09, -0.14), (0.1, -0.14), (0.18, -0.03), (0.3, 0.0), (0.3, 0.1))
_CAB = ((0.1, 0.1), (0.1, -0.1), (0.2, -0.1), (0.3, 0.0), (0.3, 0.1))
_LOAD = ((-0.32, 0.1), (-0.32, -0.17), (0.07, -0.17), (0.07, 0.1))


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A blank figure whose coordinates are inches from the upper left corner, y downwards."""
    figure = Figure((width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return figure, axes


def write(
    axes: Axes, x: float, y: float, text: str, *, size: float = 9, color: str = INK, bold: bool = False, align: str = "center"
) -> None:
    """Write text at a point of a canvas; `align` is the side of the text that the point is at."""
    weight = "bold" if bold else "normal"
    axes.text(x, y, text, fontsize=size, color=color, weight=weight, ha=align, va="center", parse_math=False, zorder=6)


def tint(color: str, strength: float = 0.16) -> tuple[float, ...]:
    """The color mixed with white."""
    return tuple(1 - strength * (1 - channel) for channel in to_rgb(color))


def box(axes: Axes, x: float, y: float, size: tuple[float, float], color: str, *, fill: float = 0.16) -> None:
    """A rounded box around the center (x, y)."""
    width, height = size[0] - 2 * _PAD, size[1] - 2 * _PAD
    corner, style = (x - width / 2, y - height / 2), f"round,pad={_PAD},rounding_size={1.5 * _PAD}"
    axes.add_patch(
        FancyBboxPatch(corner, width, height, boxstyle=style, facecolor=tint(color, fill), edgecolor=color, linewidth=1.6)
    )


def tile(
    axes: Axes, x: float, y: float, name: str, color: str, *, truck: bool = False, corner: str = "", scale: float = 1.0
) -> None:
    """An image: a vehicle in a box of the color, with its name below the vehicle and a word or a number in the corner."""
    width, height = TILE[0] * scale, TILE[1] * scale
    box(axes, x, y, (width, height), color)
    _draw_vehicle(axes, x, y - 0.09 * scale, color, truck=truck, scale=scale)
    write(axes, x, y + 0.27 * scale, name, size=8.5 * scale)
    write(axes, x - 0.44 * scale, y - 0.32 * scale, corner, size=8 * scale, bold=True, align="left")


def _draw_vehicle(axes: Axes, x: float, y: float, color: str, *, truck: bool, scale: float) -> None:
    for shape in (_LOAD, _CAB) if truck else (_CAR,):
        axes.add_patch(Polygon([(x + scale * dx, y + scale * dy) for dx, dy in shape], facecolor=color, zorder=3))
    for wheel in (-0.17, 0.18):
        place = (x + scale * wheel, y + 0.1 * scale)
        axes.add_patch(Circle(place, 0.065 * scale, facecolor=INK, edgecolor="white", linewidth=1.2 * scale, zorder=4))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], *, color: str = GRAY, bend: str = "arc3") -> None:
    """An arrow from point to point; `bend` is matplotlib's connection style."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=12,
            color=color,
            linewidth=1.4,
            connectionstyle=bend,
            shrinkA=0,
            shrinkB=0,
        )
    )


def rows(axes: Axes, left: float, columns: Sequence[float], y: float, values: Mapping[str, Sequence[str]]) -> None:
    """Rows of text below tiles: the name of each at `left`, its values at `columns`; the last of several is bold."""
    for index, (name, texts) in enumerate(values.items()):
        bold = 0 < index == len(values) - 1
        write(axes, left, y, name, size=8.5, color=INK if bold else GRAY, bold=bold, align="left")
        for x, text in zip(columns, texts, strict=True):
            write(axes, x, y, text, size=8.5, color=INK if bold else GRAY, bold=bold)
        y += 0.22


def fraction(value: float) -> str:
    """A number as a fraction of small whole numbers.

    Example:
        >>> fraction(5 / 3), fraction(2.0)
        ('5/3', '2')
    """
    return str(Fraction(value).limit_denominator(100))
