"""Colors of the report and the web page: how close an item is to the query, and the classes of a map.

Each theme has its own shades, with a contrast of at least 3:1 against the page (WCAG 1.4.11). Color is never the only cue: the
level is also written under each item, and classes on a map also differ in shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Shade(NamedTuple):
    """A color in the light theme and its counterpart in the dark theme."""

    light: str
    dark: str


PAGE = Shade("#ffffff", "#14171a")
TEXT = Shade("#1c2126", "#e4e7ea")

SAME = Shade("#2e7d32", "#66bb6a")  # the finest class
NEAR, FAR = Shade("#a87b00", "#ffd24d"), Shade("#d4500c", "#ff9052")  # shares a coarser level: the second finest, the coarsest
OTHER = Shade("#c62828", "#ef5350")  # shares nothing
UNKNOWN = Shade("#6b7580", "#98a2ad")  # the query or the item has no label

CLASSES = (
    *(Shade("#1f77b4", "#6cb2ee"), Shade("#c85a00", "#ffa45c"), Shade("#2a8a2a", "#72cf72"), Shade("#c62828", "#f47c7c")),
    *(Shade("#7e57c2", "#b79cec"), Shade("#8c564b", "#cf9a8d"), Shade("#c2419b", "#f09ad6"), Shade("#5f6b76", "#aab4bd")),
    *(Shade("#857a00", "#d9d152"), Shade("#0b8494", "#4fd3e3")),
)
SHAPES = ("circle", "square", "triangle", "diamond")
"""Classes of a map take the colors in turn, then start again with the next shape."""


def level_colors(levels: int) -> tuple[Shade, ...]:
    """One shade for each number of shared levels, from 0 (nothing shared, red) to `levels` (the same finest class, green).

    The shades in between are orange, deep for the coarsest level and yellowish for the finest.

    Example:
        >>> [shade.light for shade in level_colors(3)]
        ['#c62828', '#d4500c', '#a87b00', '#2e7d32']
    """
    between = levels - 1
    fractions = [step / max(between - 1, 1) for step in range(between)]
    return (OTHER, *(Shade(*(_mix(*ends, fraction) for ends in zip(FAR, NEAR, strict=True))) for fraction in fractions), SAME)


def level_names(levels: Sequence[str]) -> tuple[str, ...]:
    """How an item relates to the query, in words, for each number of shared levels; `levels` are given finest first.

    Example:
        >>> level_names(["species", "genus"])
        ('other', 'same genus', 'same species')
    """
    return ("other", *(f"same {level}" for level in reversed(levels)))


def level_style(levels: int) -> str:
    """CSS variables `--level-0`, ... for each theme, and classes `.level-0`, ... that set `--level` for what they contain.

    `.level-none` is for items whose relation to the query is unknown.
    """
    shades = {**{str(level): shade for level, shade in enumerate(level_colors(levels))}, "none": UNKNOWN}
    light, dark = ("".join(f"--level-{level}:{shade[theme]};" for level, shade in shades.items()) for theme in range(len(PAGE)))
    classes = "".join(f".level-{level}{{--level:var(--level-{level})}}" for level in shades)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{classes}\n"


def _channels(color: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return red, green, blue


def _mix(one: str, other: str, fraction: float) -> str:
    """The color at this fraction of the way from one to the other."""
    mixed = (round(a + (b - a) * fraction) for a, b in zip(_channels(one), _channels(other), strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)
