"""The map of the classes: one mark per class, with the color and shape of its group.

The page holds a picture of the marks as SVG, for paper and for browsers without a script, and their positions and labels as
JSON, from which the script draws a map to pan, zoom and search.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from suprank.explorer.colors import CLASSES, SHAPES
from suprank.explorer.report.page import Section, label_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.explorer.findings.class_means import ClassMap
    from suprank.explorer.findings.collect import RunFindings
    from suprank.explorer.report.page import Thumbnails

WIDTH, HEIGHT, MARGIN = 1000, 640, 24  # units of the SVG
LISTED = len(CLASSES) * len(SHAPES) - 1  # groups with their own color and shape; the others share the last one
REST = "all others"
_STEPS = 100  # positions in JSON are integers, this many to a unit
_LEGEND_SIZE = 5
_ESCAPES = str.maketrans({one: f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"})


@dataclass(frozen=True)
class LegendGroup:
    """A group of classes in the legend."""

    name: str
    group: int
    color: int
    path: str
    count: int


class MarkPath(NamedTuple):
    """All marks of a group as one SVG path. Dots and squares are the caps of strokes of length 0, of this width."""

    group: int
    color: int
    d: str
    cap: str
    width: str


@dataclass(frozen=True)
class MapPicture:
    """The map of a run as SVG."""

    title: str
    about: str
    marks: tuple[MarkPath, ...]


@dataclass(frozen=True)
class Maps:
    """The maps of all runs as the template needs them; `data` is the JSON for the script."""

    legend: tuple[LegendGroup, ...]
    pictures: tuple[MapPicture, ...]
    images: int
    data: Markup
    width: int = WIDTH
    height: int = HEIGHT


class _RunMap(NamedTuple):
    """A run that has a map, and the positions of its classes in the drawing by name."""

    name: str
    data: RetrievalData
    map: ClassMap
    positions: dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class _Class:
    """A class on any of the maps."""

    path: str
    group: str
    count: int
    data: RetrievalData
    row: int  # of its typical image


def map_section(runs: Sequence[RunFindings], thumbnails: Thumbnails) -> Section | None:
    """A map of the classes for each run; a class has the same mark on all. None if there is no map."""
    maps = [_run_map(run.name, run.data, run.map) for run in runs if run.map is not None]
    if not maps:
        return None
    classes = _classes(maps)
    groups, legend = _groups([one.group for one in classes.values()])
    pictures = []
    for one in maps:
        marks = mark_paths(list(one.positions.values()), [groups[classes[name].group] for name in one.positions])
        about = f"Map of {len(one.positions):,} classes by {one.name}"
        pictures.append(MapPicture(one.name if len(maps) > 1 else "", about, marks))
    data = _data(classes, groups, maps)
    thumbnails.reserve(len(script_json(data)) + sum(len(mark.d) for one in pictures for mark in one.marks))
    without = _choose_images(classes, maps, data, thumbnails)
    content = Maps(legend, tuple(pictures), len(maps[0].map.image_rows), script_json(data))
    return Section("map", "Map of the classes", "map.html", content, _about(maps, without), "Map")


def _run_map(name: str, data: RetrievalData, found: ClassMap) -> _RunMap:
    names = data.names[data.levels[0]]
    return _RunMap(name, data, found, dict(zip([names[one] for one in found.labels], _fit(found.positions), strict=True)))


def _about(maps: Sequence[_RunMap], without: int) -> tuple[str, ...]:
    first, levels = maps[0].map, maps[0].data.levels
    grouping = f", colored by {levels[-1]}" if len(levels) > 1 else ""
    method = "Similar classes are close to each other; the axes and large distances mean nothing (t-SNE)."
    components = "The axes are the two principal components."
    shown, total = len(first.positions), first.total_classes
    which = f"all {total:,} classes" if shown == total else f"the {shown:,} classes with the most images, of {total:,}"
    more = "" if shown == total else " More are shown with a larger map_classes."
    about = [
        f"Each mark is the mean embedding of one {levels[0]}{grouping}. {method if first.method == 't-SNE' else components} "
        f"The map shows {which}.{more}"
    ]
    if not np.isnan(first.same_coarse):
        shares = [f"{100 * one.map.same_coarse:.1f} % ({one.name})" for one in maps]
        about.append(
            f"Share of the classes whose closest other class has the same {levels[-1]}: "
            f"{', '.join(shares)}; by chance {100 * first.same_coarse_by_chance:.1f} %."
        )
    if len(first.image_rows):
        about.append(
            f"“Show images” adds {len(first.image_rows):,} single images as hollow marks, drawn at random; each is beside the "
            f"classes whose mean embeddings are closest to its own."
        )
    if without:
        are = "class is" if without == 1 else "classes are"
        about.append(f"To keep the file small, {without:,} {are} shown without an image, those with the fewest images.")
    return tuple(about)


def _classes(maps: Sequence[_RunMap]) -> dict[str, _Class]:
    """The classes on the maps by name; what is said of a class is what the first run with it says."""
    classes: dict[str, _Class] = {}
    for _, data, found, positions in maps:
        several, coarse = len(data.levels) > 1, data.names[data.levels[-1]]
        numbers = (found.coarse, found.images, found.typical_rows)
        for name, parent, count, row in zip(positions, *(one.tolist() for one in numbers), strict=True):
            if name not in classes:
                path = label_path(data, data.items, row, 1) if several else ""
                group = (coarse[parent] if parent >= 0 else "no label") if several else ""
                classes[name] = _Class(path, group, count, data, row)
    return classes


def _groups(groups: Sequence[str]) -> tuple[dict[str, int], tuple[LegendGroup, ...]]:
    """The number of each group, which says its color and shape, and the legend; groups with many classes come first."""
    count = Counter(groups)
    ranked = sorted(count, key=lambda name: (-count[name], name))
    numbers = {name: min(number, LISTED) for number, name in enumerate(ranked)}
    legend = [
        LegendGroup(name, number, number % len(CLASSES), mark_shape(number, _LEGEND_SIZE), count[name])
        for name, number in numbers.items()
        if number < LISTED
    ]
    if len(ranked) > LISTED:
        rest = sum(count[name] for name in ranked[LISTED:])
        legend.append(LegendGroup(REST, LISTED, LISTED % len(CLASSES), mark_shape(LISTED, _LEGEND_SIZE), rest))
    return numbers, tuple(legend) if len(legend) > 1 else ()


def _choose_images(classes: dict[str, _Class], maps: Sequence[_RunMap], data: dict[str, Any], thumbnails: Thumbnails) -> int:
    """Write the numbers of the images into the data, in turns for classes, those with the most images first, and for single
    images, until the budget is spent. Return the number of classes without an image for that reason."""
    columns = [data["classes"]["image"], *(entry["images"]["image"] for entry in data["runs"])]
    columns[0].extend([None] * len(classes))
    found = list(enumerate(classes.values()))
    wanted = [[(0, place, one.data, one.row) for place, one in sorted(found, key=lambda pair: -pair[1].count)]]
    for number, one in enumerate(maps, start=1):
        columns[number].extend([None] * len(one.map.image_rows))
        wanted.append([(number, place, one.data, row) for place, row in enumerate(one.map.image_rows.tolist())])
    without = 0
    for column, place, own, row in filter(None, chain.from_iterable(zip_longest(*wanted))):
        image = thumbnails.get(own.items, row, needed=False)
        columns[column][place] = image.number if image is not None and image.uri else None
        without += column == 0 and image is None
    return without


def _data(classes: dict[str, _Class], groups: dict[str, int], maps: Sequence[_RunMap]) -> dict[str, Any]:
    """What the script draws: the classes column by column, and for each run where they are; images are added later."""
    paths = {path: number for number, path in enumerate(dict.fromkeys(one.path for one in classes.values()))}
    numbers = {name: number for number, name in enumerate(classes)}
    runs = []
    for _, data, found, positions in maps:
        labels = data.items.labels[found.image_rows, 0].tolist()
        single = {
            **_columns(list(_fit(found.image_positions, found.positions))),
            "class": [numbers[data.names[data.levels[0]][label]] for label in labels],
            "image": [],
        }
        runs.append({"classes": _columns([positions.get(name) for name in classes]), "images": single})
    return {
        "size": [WIDTH, HEIGHT, _STEPS],
        "shapes": {number: mark_shape(number, _LEGEND_SIZE) for number in sorted(set(groups.values()))},
        "paths": list(paths),
        "classes": {
            "name": list(classes),
            "path": [paths[one.path] for one in classes.values()],
            "group": [groups[one.group] for one in classes.values()],
            "count": [one.count for one in classes.values()],
            "image": [],
        },
        "runs": runs,
    }


def _columns(positions: Sequence[NDArray[np.float64] | None]) -> dict[str, list[int | None]]:
    return {
        axis: [None if one is None else round(_STEPS * float(one[place])) for one in positions]
        for place, axis in enumerate(("x", "y"))
    }


def script_json(data: Any) -> Markup:
    """JSON for a <script type="application/json">, where no text can end the element or begin another.

    Example:
        >>> script_json(["</script>"])
        Markup('["\\\\u003c/script\\\\u003e"]')
    """
    return Markup(json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES))


def mark_paths(positions: Sequence[NDArray[np.float64]], groups: Sequence[int]) -> tuple[MarkPath, ...]:
    """Marks at these positions of the drawing, a path for each group; an element for each mark would be ten times as large."""
    size = mark_size(len(groups))
    paths: dict[int, list[str]] = {group: [] for group in sorted(set(groups))}
    for (x, y), group in zip(positions, groups, strict=True):
        stroked = _shape_name(group) in _CAPS
        paths[group].append(f"M{x:.4g} {y:.4g}" + ("h0" if stroked else _relative_shape(group, size)))
    found = []
    for group, parts in paths.items():
        cap = _CAPS.get(_shape_name(group), "")
        width = {"round": 2 * size, "square": size * np.sqrt(np.pi)}.get(cap, 0)
        found.append(MarkPath(group, group % len(CLASSES), "".join(parts), cap, f"{width:.3g}"))
    return tuple(found)


def mark_size(classes: int) -> float:
    """Radius of a mark in units of the drawing: smaller if there are many."""
    return float(np.clip(9 - 1.1 * np.log2(max(classes, 1) / 16), 2, 8))


def _fit(positions: NDArray[np.floating], within: NDArray[np.floating] | None = None) -> NDArray[np.float64]:
    """Scale the positions to the drawing, with a margin; each axis fills it, since neither has a unit.

    With `within`, scale them as those are scaled; what lies farther out is moved to the edge.
    """
    points = np.asarray(positions, np.float64).reshape(-1, 2)
    frame = points if within is None else np.asarray(within, np.float64)
    low, high = (frame.min(0), frame.max(0)) if len(frame) else (np.zeros(2), np.ones(2))
    spread = np.where(high > low, high - low, 1)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
    placed = MARGIN + np.where(high > low, (points - low) / spread, 0.5) * room
    return np.clip(placed, MARGIN / 2, [WIDTH - MARGIN / 2, HEIGHT - MARGIN / 2])


_CAPS = {"circle": "round", "square": "square"}


def _shape_name(number: int) -> str:
    return SHAPES[number // len(CLASSES) % len(SHAPES)]


def mark_shape(number: int, size: float) -> str:
    """SVG path of a group's mark around the origin; all shapes have about the same area.

    Example:
        >>> mark_shape(0, 4), mark_shape(10, 4)
        ('M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z', 'M-3.5 -3.5h7.1v7.1h-7.1z')
    """
    shape = _shape_name(number)
    if shape == "circle":
        return f"M-{size:.3g} 0a{size:.3g} {size:.3g} 0 1 0 {2 * size:.3g} 0a{size:.3g} {size:.3g} 0 1 0 -{2 * size:.3g} 0z"
    if shape == "square":
        side = size * np.sqrt(np.pi)
        return f"M-{side / 2:.2g} -{side / 2:.2g}h{side:.2g}v{side:.2g}h-{side:.2g}z"
    return "M0 0" + _relative_shape(number, size)


def _relative_shape(number: int, size: float) -> str:
    """A triangle or diamond around the current point."""
    if _shape_name(number) == "triangle":
        high, half = size * 1.3, size * 1.25
        return f"m0-{high:.2g}l{half:.2g} {high * 1.75:.2g}h-{2 * half:.2g}z"
    reach = size * 1.25
    return f"m0-{reach:.2g}l{reach:.2g} {reach:.2g}l-{reach:.2g} {reach:.2g}l-{reach:.2g}-{reach:.2g}z"
