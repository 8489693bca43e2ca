"""The colors of the report and the web page, in one place: how near an item is to the query, and the classes of a map.

Both themes have their own shades, of at least 3:1 against the page behind them (WCAG 1.4.11). A color never stands alone: the
level is written under each item, and classes on a map differ in shape too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Shade(NamedTuple):
    """A color on the light page, and the one in its place on the dark page."""

    light: str
    dark: str


PAGE = Shade("#ffffff", "#14171a")
TEXT = Shade("#1c2126", "#e4e7ea")

SAME = Shade("#2e7d32", "#66bb6a")  # the finest class
NEAR, FAR = Shade("#a87b00", "#ffd24d"), Shade("#d4500c", "#ff9052")  # shares a level: the second finest, and the coarsest
OTHER = Shade("#c62828", "#ef5350")  # shares nothing
UNKNOWN = Shade("#6b7580", "#98a2ad")  # no label to judge by

RUNS = (Shade("#1f6fb2", "#6cb2ee"), Shade("#b0407a", "#ee8fc0"))
"""The run that is looked at, and the one it is set beside."""

CLASSES = (
    *(Shade("#1f77b4", "#6cb2ee"), Shade("#c85a00", "#ffa45c"), Shade("#2a8a2a", "#72cf72"), Shade("#c62828", "#f47c7c")),
    *(Shade("#7e57c2", "#b79cec"), Shade("#8c564b", "#cf9a8d"), Shade("#c2419b", "#f09ad6"), Shade("#5f6b76", "#aab4bd")),
    *(Shade("#857a00", "#d9d152"), Shade("#0b8494", "#4fd3e3")),
)
SHAPES = ("circle", "square", "triangle", "diamond")
"""Classes of a map take the colors in turn, and the next shape when they are used up."""


def level_colors(levels: int) -> tuple[Shade, ...]:
    """The shade for each common level, 0 (shares nothing, red) to `levels` (the finest class, green), `levels` + 1 of them.

    Between the two, orange goes from deep at the coarsest level to yellowish at the finest.

    Example:
        >>> [shade.light for shade in level_colors(3)]
        ['#c62828', '#d4500c', '#a87b00', '#2e7d32']
    """
    between = levels - 1
    ways = [place / max(between - 1, 1) for place in range(between)]
    return (OTHER, *(Shade(*(_mixed(*ends, way) for ends in zip(FAR, NEAR, strict=True))) for way in ways), SAME)


def level_names(levels: Sequence[str]) -> tuple[str, ...]:
    """What an item at each common level is to the query, in words; `levels` from the finest, the names from 0 on.

    Example:
        >>> level_names(["species", "genus"])
        ('other', 'same genus', 'same species')
    """
    return ("other", *(f"same {level}" for level in reversed(levels)))


def level_style(levels: int) -> str:
    """CSS: `--level-0`, ... by theme, and the classes `.level-0`, ... that set `--level` for what stands in them.

    Items without labels to judge by are `.level-none`.
    """
    shades = {**{str(level): shade for level, shade in enumerate(level_colors(levels))}, "none": UNKNOWN}
    light, dark = ("".join(f"--level-{level}:{shade[theme]};" for level, shade in shades.items()) for theme in range(len(PAGE)))
    classes = "".join(f".level-{level}{{--level:var(--level-{level})}}" for level in shades)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{classes}\n"


def contrast(one: str, other: str) -> float:
    """How well two colors stand apart, 1 to 21, as WCAG 2 defines it.

    Example:
        >>> contrast("#000000", "#ffffff"), contrast("#777777", "#777777")
        (21.0, 1.0)
    """
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    parts = [value / 255 for value in _channels(color)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(color: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return red, green, blue


def _mixed(one: str, other: str, way: float) -> str:
    """The color `way` from one to the other, 0 to 1."""
    mixed = (round(a + (b - a) * way) for a, b in zip(_channels(one), _channels(other), strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)
