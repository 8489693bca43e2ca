"""The map of the classes: one mark per class, with the color and shape of its group, and a legend."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from suprank.explorer.colors import CLASSES, SHAPES
from suprank.explorer.report.page import Section, label_name, label_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.explorer.findings.collect import RunFindings
    from suprank.explorer.report.page import Thumbnails

WIDTH, HEIGHT, MARGIN = 1000, 640, 24  # units of the SVG
LISTED = len(CLASSES) * len(SHAPES) - 1  # groups with their own color and shape; the others share the last one
REST = "all others"


@dataclass(frozen=True)
class MapPoint:
    """A class on the map: its position, mark, lines of text, and the id of its image if that is embedded."""

    x: str
    y: str
    path: str
    color: int
    group: int
    lines: tuple[str, ...]
    image: str | None


@dataclass(frozen=True)
class LegendGroup:
    """A group of classes in the legend."""

    name: str
    group: int
    color: int
    path: str
    count: int


@dataclass(frozen=True)
class MapDrawing:
    """A map as the template draws it."""

    title: str
    about: str
    legend: tuple[LegendGroup, ...]
    points: tuple[MapPoint, ...]
    width: int = WIDTH
    height: int = HEIGHT


def map_section(runs: Sequence[RunFindings], thumbnails: Thumbnails) -> Section | None:
    """A map of the classes for each run; a class has the same mark on both. None if there is no map."""
    maps = [_run_map(run, thumbnails, named=len(runs) > 1) for run in runs if run.map is not None]
    first = runs[0].map
    if not maps or first is None:
        return None
    levels = runs[0].source.levels
    grouping = f", colored by {levels[-1]}" if len(levels) > 1 else ""
    method = "t-SNE keeps near classes near each other; its axes and large distances mean nothing."
    about = [
        f"The mean embedding of each {levels[0]}{grouping}. "
        f"{method if first.method == 't-SNE' else 'The axes are the two principal components.'}",
        "Point at a class or tap it to see its most typical image. With the keyboard: Tab to the map, then the arrow keys.",
    ]
    shown, total = len(first.positions), first.total_classes
    if shown < total:
        about.append(f"The map shows the {shown:,} classes with the most images, of {total:,}; --map-classes shows more.")
    else:
        about.append(f"The map shows all {total:,} classes.")
    if not np.isnan(first.same_coarse):
        shares = [f"{100 * run.map.same_coarse:.1f} % ({run.name})" for run in runs if run.map is not None]
        about.append(
            f"Share of the classes whose nearest class, by the cosine of the means, has the same {levels[-1]}: "
            f"{', '.join(shares)}; by chance {100 * first.same_coarse_by_chance:.1f} %."
        )
    if thumbnails.left_out:
        about.append(f"{thumbnails.left_out:,} classes are shown without their image, to keep the page small.")
    return Section("map", "Map of the classes", "map.html", maps, tuple(about), "Map")


def _run_map(run: RunFindings, thumbnails: Thumbnails, *, named: bool) -> MapDrawing:
    classes, source = run.map, run.source
    assert classes is not None
    several = len(source.levels) > 1
    coarse = source.names[source.levels[-1]]
    groups = [(coarse[label] if label >= 0 else "no label") if several else "" for label in classes.coarse.tolist()]
    lines, images = [], []
    for row, count in zip(classes.typical_rows.tolist(), classes.images.tolist(), strict=True):
        parents = (label_path(source, source.gallery, row, 1),) if several else ()
        lines.append((label_name(source, source.gallery, row), *parents, f"{count:,} image{'s' if count != 1 else ''}"))
        image = thumbnails.get(source.gallery, row, needed=False)
        images.append(image.id if image is not None and image.uri else None)
    about = f"Map of {len(groups):,} classes by {run.name}; the arrow keys move from class to class"
    return draw_map(run.name if named else "", about, classes.positions, groups, lines, images)


def draw_map(
    title: str,
    about: str,
    positions: NDArray[np.floating],
    groups: Sequence[str],
    lines: Sequence[tuple[str, ...]],
    images: Sequence[str | None],
) -> MapDrawing:
    """Draw classes at these positions, `[classes, 2]` in any unit. Groups with many classes come first in the legend; the same
    classes always get the same marks."""
    count = Counter(groups)
    ranked = sorted(count, key=lambda name: (-count[name], name))
    known = {name: number for number, name in enumerate(ranked[:LISTED])}
    numbers = [known.get(name, LISTED) for name in groups]
    size = float(np.clip(9 - 1.1 * np.log2(max(len(groups), 1) / 16), 3.2, 8))
    points = tuple(
        MapPoint(f"{x:.1f}", f"{y:.1f}", _shape(number, size), number % len(CLASSES), number, words, image)
        for (x, y), number, words, image in zip(_fit(positions), numbers, lines, images, strict=True)
    )
    legend = [
        LegendGroup(name, number, number % len(CLASSES), _shape(number, 5), count[name]) for name, number in known.items()
    ]
    if len(ranked) > LISTED:
        rest = sum(count[name] for name in ranked[LISTED:])
        legend.append(LegendGroup(REST, LISTED, LISTED % len(CLASSES), _shape(LISTED, 5), rest))
    return MapDrawing(title, about, tuple(legend) if len(legend) > 1 else (), points)


def _fit(positions: NDArray[np.floating]) -> NDArray[np.float64]:
    """Scale the positions to the drawing, with a margin. Each axis fills it, since neither has a unit."""
    points = np.asarray(positions, np.float64).reshape(-1, 2)
    low, high = (points.min(0), points.max(0)) if len(points) else (np.zeros(2), np.ones(2))
    spread = np.where(high > low, high - low, 1)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
    return MARGIN + np.where(high > low, (points - low) / spread, 0.5) * room


def _shape(number: int, size: float) -> str:
    """SVG path of a group's mark around the origin; all shapes have about the same area.

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
