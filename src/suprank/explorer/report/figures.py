"""The figures of the report, drawn by matplotlib as SVG: numbers in, markup out.

Text stays text, colors follow the theme, and nothing is styled inline. Legends belong to the page, where they wrap and can
be read by a screen reader.
"""

from __future__ import annotations

import io
import re
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray


_INKS = ("currentColor", "var(--quiet)", "var(--line)", "var(--run-0)", "var(--run-1)", "var(--level-none)", "var(--page)")
_LEVELS = 32  # levels with a color of their own
_STYLE: dict[Any, Any] = {  # matplotlib's type for the keys fills a screen
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label is text, even if it contains $
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
_NO_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # may occur in a name, and matplotlib would write it as is
_LOCAL = re.compile(r"url\(#(.+?)\)")


def ink(name: str) -> str:
    """A placeholder color for matplotlib that `as_svg` replaces by this CSS value, which follows the theme."""
    return f"#0a0b{_css_values().index(name):02x}"


def level_ink(level: int | None) -> str:
    """The color for a number of shared levels; None if that is unknown."""
    return ink("var(--level-none)" if level is None else f"var(--level-{min(level, _LEVELS - 1)})")


def run_ink(run: int) -> str:
    """The color of the first or second run."""
    return ink(f"var(--run-{run})")


RUN_LINES: Sequence[str] = ("solid", (0, (4, 1.5)))  # type: ignore[assignment]
"""Runs also differ by line style, for readers who cannot tell the colors apart."""


@contextmanager
def new_figure(height: float = 3.2) -> Iterator[tuple[Figure, Axes]]:
    """A figure in the style of the page; its height in inches, of 72 SVG units each."""
    line, grid = ink("currentColor"), ink("var(--line)")
    colors: dict[Any, Any] = dict.fromkeys(
        ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), line
    )
    # A glyph missing from matplotlib's font does not matter: the browser draws the text.
    with mpl.rc_context({**_STYLE, **colors, "grid.color": grid}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure = Figure((5.2, height), layout="constrained")
        yield figure, figure.subplots()


def as_svg(figure: Figure, name: str, title: str) -> Markup:
    """The figure as an <svg>; call it within `new_figure`. `name` makes its ids unique; `title` describes it."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ElementTree.fromstring(_NO_XML.sub("", file.getvalue()))
    for parent in list(root.iter()):
        for child in list(parent):
            if _tag(child) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        _clean(element, name)
    for unused in ("width", "height", "version"):
        root.attrib.pop(unused, None)
    root.attrib |= {"class": "plot", "role": "img", "aria-label": title}
    return Markup(ElementTree.tostring(root, encoding="unicode", short_empty_elements=False))


def _clean(element: ElementTree.Element, name: str) -> None:
    """Remove namespaces, make ids unique, and turn inline styles, which the page forbids, into attributes."""
    element.tag = _tag(element)
    element.tail = None if element.tag != "tspan" else element.tail
    style = element.attrib.pop("style", "")
    attributes = dict(element.attrib)
    element.attrib.clear()
    for key, value in (*attributes.items(), *_declarations(style)):
        if key == "id":
            value = f"{name}-{value}"
        elif key in (_XLINK, "href"):
            key, value = "href", f"#{name}-{value.removeprefix('#')}"
        element.attrib[key.rpartition("}")[2]] = _with_css_colors(_LOCAL.sub(rf"url(#{name}-\1)", value))


def _declarations(style: str) -> Iterator[tuple[str, str]]:
    for declaration in filter(None, (part.strip() for part in style.split(";"))):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key == "font":  # only its size: the page sets the family
            found = re.search(r"([\d.]+)px", value)
            key, value = "font-size", found[1] if found else "9"
        yield key, value


def _with_css_colors(value: str) -> str:
    return re.sub(r"#0a0b([0-9a-f]{2})", lambda found: _css_values()[int(found[1], 16)], value)


def _css_values() -> list[str]:
    return [*_INKS, *(f"var(--level-{level})" for level in range(_LEVELS))]


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


_MAX_NAME_LENGTH = 18  # characters of a level's name under a bar
_DASHES = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))  # as the CSS classes .dash-0 to .dash-3


class Series(NamedTuple):
    """The points of one run's line."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]


def over_epochs(name: str, title: str, label: str, runs: Sequence[Series], *, percent: bool) -> Markup:
    """A value over the epochs of training: one line per run, with markers if there are few points."""
    with new_figure(height=2.9) as (figure, axes):
        for number, run in enumerate(runs):
            few = len(run.x) <= 30
            axes.plot(run.x, run.y, color=run_ink(number), linestyle=RUN_LINES[number], marker="o" if few else None, ms=3)
        axes.set(xlabel="epoch", ylabel=label, title=title)
        last = max((run.x[-1] for run in runs if len(run.x)), default=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=last >= 3, steps=[1, 2, 5, 10]))
        if percent:
            _in_percent(axes, "y")
            axes.set_ylim(bottom=0)
        return as_svg(figure, name, f"{title} over epochs")


def bars(
    name: str,
    title: str,
    groups: Sequence[str],
    runs: Sequence[Sequence[float]],
    intervals: Sequence[Sequence[tuple[float, float]] | None],
) -> Markup:
    """One bar per group and run, in percent, with its value above and its interval if there is one."""
    width = 0.8 / len(runs)
    with new_figure(height=2.9) as (figure, axes):
        for number, (values, ends) in enumerate(zip(runs, intervals, strict=True)):
            positions = np.arange(len(groups)) + (number - (len(runs) - 1) / 2) * width
            bar_shapes = axes.bar(
                positions,
                values,
                width * 0.9,
                color=run_ink(number),
                hatch="//" if number else None,
                edgecolor=ink("var(--page)"),
            )
            tops = np.asarray(values, float)
            if ends is not None:
                low, high = np.asarray(ends, float).T
                axes.errorbar(
                    positions, values, np.abs([tops - low, high - tops]), fmt="none", ecolor=ink("currentColor"), elinewidth=1
                )
                tops = np.fmax(tops, high)
            for bar, top, value in zip(bar_shapes, tops, values, strict=True):
                if np.isfinite(value):
                    where = (bar.get_x() + bar.get_width() / 2, top)
                    axes.annotate(f"{100 * value:.1f}", where, (0, 3), textcoords="offset points", ha="center", fontsize=8)
        axes.set_xticks(range(len(groups)), [_truncate(group) for group in groups])
        axes.tick_params(axis="x", length=0)
        axes.set(title=title)
        axes.set_ylim(0, min(1.0, 1.15 * max(axes.get_ylim()[1], 0.01)) if axes.get_ylim()[1] < 0.87 else 1.08)
        _in_percent(axes, "y")
        axes.grid(visible=False, axis="x")
        return as_svg(figure, name, title)


def curves(name: str, title: str, labels: tuple[str, str], runs: Sequence[Series]) -> Markup:
    """One fraction against another, both from 0 to 1: one line per run."""
    with new_figure(height=3.4) as (figure, axes):
        for number, run in enumerate(runs):
            axes.plot(run.x, run.y, color=run_ink(number), linestyle=RUN_LINES[number])
        axes.set(xlabel=labels[0], ylabel=labels[1], title=title, xlim=(0, 1), ylim=(0, 1.02))
        _in_percent(axes, "x")
        _in_percent(axes, "y")
        return as_svg(figure, name, title)


def distributions(name: str, title: str, edges: NDArray[np.float64], shares: Mapping[int, NDArray[np.float64]]) -> Markup:
    """Score distributions: for each number of shared levels, the share of its pairs per bin. Lines also differ in dashes."""
    width, middles = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    with new_figure(height=3.2) as (figure, axes):
        for level, share in shares.items():
            if not np.nansum(share) > 0:
                continue
            density = share / np.nansum(share) / width
            axes.fill_between(middles, density, color=level_ink(level), alpha=0.13, linewidth=0)
            axes.plot(middles, density, color=level_ink(level), linestyle=_DASHES[level % len(_DASHES)], linewidth=1.5)
        axes.set(xlabel="score (cosine)", ylabel="density", title=title)
        axes.set_ylim(bottom=0)
        return as_svg(figure, name, title)


def by_length(name: str, title: str, labels: tuple[str, str], runs: Sequence[tuple[NDArray[np.int64], Series]]) -> Markup:
    """One fraction against another for each list length k, which is annotated at 1, 10, 100, ...: one line per run."""
    with new_figure(height=3.4) as (figure, axes):
        for number, (_, run) in enumerate(runs):
            axes.plot(run.x, run.y, color=run_ink(number), linestyle=RUN_LINES[number], marker="o", ms=2)
        ks, run = runs[0]
        for k in (1, 10, 100, 1000):  # only for the first run; the other's points are close to them
            if k <= ks[-1]:
                nearest = int(np.abs(np.log(ks / k)).argmin())
                where = (run.x[nearest], run.y[nearest])
                axes.annotate(f"k = {ks[nearest]:,}", where, (0, -11), textcoords="offset points", ha="center", fontsize=7.5)
        axes.set(xlabel=labels[0], ylabel=labels[1], title=title, xlim=(0, None), ylim=(0, 1.02))
        axes.margins(x=0.12)
        _in_percent(axes, "x")
        _in_percent(axes, "y")
        return as_svg(figure, name, title)


def _in_percent(axes: Axes, axis: str) -> None:
    getattr(axes, f"{axis}axis").set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}".replace("-", "−")))
    setter = getattr(axes, f"set_{axis}label")
    label = getattr(axes, f"get_{axis}label")()
    setter(f"{label}, %" if label else "%")


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_NAME_LENGTH else f"{text[: _MAX_NAME_LENGTH - 1]}…"
