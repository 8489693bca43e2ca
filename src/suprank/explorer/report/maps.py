"""A map of classes as the page draws it: one mark a class, its color and shape those of its group, and a legend."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from suprank.explorer.colors import CLASSES, SHAPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

WIDTH, HEIGHT, MARGIN = 1000, 640, 24  # units of the SVG
LISTED = len(CLASSES) * len(SHAPES) - 1  # groups with a look of their own; the others share the last
REST = "all others"


@dataclass(frozen=True)
class Point:
    """A class: where it is, its look, the lines that say what it is, and the id of its image, if that is embedded."""

    x: str
    y: str
    path: str
    color: int
    group: int
    lines: tuple[str, ...]
    image: str | None


@dataclass(frozen=True)
class Entry:
    """A group in the legend."""

    name: str
    group: int
    color: int
    path: str
    count: int


@dataclass(frozen=True)
class Map:
    title: str
    about: str
    legend: tuple[Entry, ...]
    points: tuple[Point, ...]
    width: int = WIDTH
    height: int = HEIGHT


def drawn_map(
    title: str,
    about: str,
    places: NDArray[np.floating],
    groups: Sequence[str],
    lines: Sequence[tuple[str, ...]],
    images: Sequence[str | None],
) -> Map:
    """The map of classes at these places, `[classes, 2]` in any unit; groups with many classes come first, and look the same
    on every map of the same classes."""
    count = Counter(groups)
    ranked = sorted(count, key=lambda name: (-count[name], name))
    known = {name: number for number, name in enumerate(ranked[:LISTED])}
    numbers = [known.get(name, LISTED) for name in groups]
    size = float(np.clip(9 - 1.1 * np.log2(max(len(groups), 1) / 16), 3.2, 8))
    points = tuple(
        Point(f"{x:.1f}", f"{y:.1f}", _shape(number, size), number % len(CLASSES), number, words, image)
        for (x, y), number, words, image in zip(_fitted(places), numbers, lines, images, strict=True)
    )
    legend = [Entry(name, number, number % len(CLASSES), _shape(number, 5), count[name]) for name, number in known.items()]
    if len(ranked) > LISTED:
        rest = sum(count[name] for name in ranked[LISTED:])
        legend.append(Entry(REST, LISTED, LISTED % len(CLASSES), _shape(LISTED, 5), rest))
    return Map(title, about, tuple(legend) if len(legend) > 1 else (), points)


def _fitted(places: NDArray[np.floating]) -> NDArray[np.float64]:
    """The places in the drawing, with a margin; each axis fills it, since neither has a unit."""
    found = np.asarray(places, np.float64).reshape(-1, 2)
    low, high = (found.min(0), found.max(0)) if len(found) else (np.zeros(2), np.ones(2))
    spread = np.where(high > low, high - low, 1)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
    return MARGIN + np.where(high > low, (found - low) / spread, 0.5) * room


def _shape(number: int, size: float) -> str:
    """The outline of a group's mark around 0, of about the same area whatever its shape.

    Example:
        >>> _shape(0, 4), _shape(10, 4)
        ('M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z', 'M-3.5 -3.5h7.1v7.1h-7.1z')
    """
    shape = SHAPES[number // len(CLASSES) % len(SHAPES)]
    if shape == "circle":
        return f"M-{size:.3g} 0a{size:.3g} {size:.3g} 0 1 0 {2 * size:.3g} 0a{size:.3g} {size:.3g} 0 1 0 -{2 * size:.3g} 0z"
    if shape == "square":
        side = size * np.sqrt(np.pi)
        return f"M-{side / 2:.2g} -{side / 2:.2g}h{side:.2g}v{side:.2g}h-{side:.2g}z"
    if shape == "triangle":
        high, half = size * 1.3, size * 1.25
        return f"M0 -{high:.2g}L{half:.2g} {high * 0.75:.2g}H-{half:.2g}z"
    reach = size * 1.25
    return f"M0 -{reach:.2g}L{reach:.2g} 0L0 {reach:.2g}L-{reach:.2g} 0z"
