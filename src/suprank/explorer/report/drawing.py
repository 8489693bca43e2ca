"""matplotlib figures as SVG within a page: text stays text, colors follow the page's theme, and nothing is styled inline."""

from __future__ import annotations

import io
import re
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

_INKS = ("currentColor", "var(--quiet)", "var(--line)", "var(--run-0)", "var(--run-1)", "var(--level-none)", "var(--page)")
_LEVELS = 32  # as many as have an ink of their own
_STYLE: dict[Any, Any] = {  # its keys have a type that fills a screen
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label is text, even with dollars in it
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.5,
    "lines.linewidth": 1.6,
}
_XLINK = "{http://www.w3.org/1999/xlink}href"
_NO_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # may be in a name, and matplotlib writes it as it is
_LOCAL = re.compile(r"url\(#(.+?)\)")


def ink(name: str) -> str:
    """A color for matplotlib that `as_svg` replaces by the CSS value of this name, so that it changes with the theme."""
    return f"#0a0b{_names().index(name):02x}"


def level_ink(level: int | None) -> str:
    """The ink of a common level; of None, where there is no label to judge by."""
    return ink("var(--level-none)" if level is None else f"var(--level-{min(level, _LEVELS - 1)})")


def run_ink(run: int) -> str:
    """The ink of the first or second run."""
    return ink(f"var(--run-{run})")


RUN_LINES: Sequence[str] = ("solid", (0, (4, 1.5)))  # type: ignore[assignment]
"""Runs differ by their line, too, for those who do not see the colors apart."""


@contextmanager
def drawn(panels: int = 1, width: float = 5.2, height: float = 3.2) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with panels beside each other, in the style of the page; sizes in inches, of 72 units of the SVG each."""
    line, grid = ink("currentColor"), ink("var(--line)")
    colors: dict[Any, Any] = dict.fromkeys(
        ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), line
    )
    # A glyph that matplotlib's font lacks is no matter: the browser draws the text, and has the glyph.
    with mpl.rc_context({**_STYLE, **colors, "grid.color": grid}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure = Figure((width, height), layout="constrained")
        yield figure, list(figure.subplots(1, panels, squeeze=False)[0])


def as_svg(figure: Figure, name: str, title: str) -> Markup:
    """The figure as an <svg>: within `drawn`. `name` keeps its ids apart from those of others; `title` is what it shows."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ElementTree.fromstring(_NO_XML.sub("", file.getvalue()))
    for parent in list(root.iter()):
        for child in list(parent):
            if _tag(child) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        _plain(element, name)
    for unused in ("width", "height", "version"):
        root.attrib.pop(unused, None)
    root.attrib |= {"class": "plot", "role": "img", "aria-label": title}
    return Markup(ElementTree.tostring(root, encoding="unicode", short_empty_elements=False))


def _plain(element: ElementTree.Element, name: str) -> None:
    """Without namespaces, with ids of its own, and with attributes in place of a style: the page allows no inline style."""
    element.tag = _tag(element)
    element.tail = None if element.tag != "tspan" else element.tail
    style = element.attrib.pop("style", "")
    attributes = dict(element.attrib)
    element.attrib.clear()
    for key, value in (*attributes.items(), *_declared(style)):
        if key == "id":
            value = f"{name}-{value}"
        elif key in (_XLINK, "href"):
            key, value = "href", f"#{name}-{value.removeprefix('#')}"
        element.attrib[key.rpartition("}")[2]] = _colored(_LOCAL.sub(rf"url(#{name}-\1)", value))


def _declared(style: str) -> Iterator[tuple[str, str]]:
    for declaration in filter(None, (part.strip() for part in style.split(";"))):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key == "font":  # its size alone: the family is the page's
            found = re.search(r"([\d.]+)px", value)
            key, value = "font-size", found[1] if found else "9"
        yield key, value


def _colored(value: str) -> str:
    return re.sub(r"#0a0b([0-9a-f]{2})", lambda found: _names()[int(found[1], 16)], value)


def _names() -> list[str]:
    return [*_INKS, *(f"var(--level-{level})" for level in range(_LEVELS))]


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
