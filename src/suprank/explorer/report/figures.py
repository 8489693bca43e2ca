"""The figures of the report: numbers in, SVG out. Legends are the page's, where they can be read aloud and wrap."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from suprank.explorer.report.drawing import RUN_LINES, as_svg, drawn, ink, level_ink, run_ink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

_LONGEST = 18  # letters of a level's name under a bar
_DASHES = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))  # of the page's .dash-0 to .dash-3


class Series(NamedTuple):
    """Values over something, of one run."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]


def over_epochs(name: str, title: str, label: str, runs: Sequence[Series], *, percent: bool) -> Markup:
    """How something went while training: a line for each run, with its points where they are few."""
    with drawn(height=2.9) as (figure, (axes,)):
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
    """A bar for each group and run, in percent, with its value above and its interval where there is one."""
    width = 0.8 / len(runs)
    with drawn(height=2.9) as (figure, (axes,)):
        for number, (values, ends) in enumerate(zip(runs, intervals, strict=True)):
            places = np.arange(len(groups)) + (number - (len(runs) - 1) / 2) * width
            drawn_bars = axes.bar(
                places, values, width * 0.9, color=run_ink(number), hatch="//" if number else None, edgecolor=ink("var(--page)")
            )
            tops = np.asarray(values, float)
            if ends is not None:
                low, high = np.asarray(ends, float).T
                axes.errorbar(
                    places, values, np.abs([tops - low, high - tops]), fmt="none", ecolor=ink("currentColor"), elinewidth=1
                )
                tops = np.fmax(tops, high)
            for bar, top, value in zip(drawn_bars, tops, values, strict=True):
                if np.isfinite(value):
                    where = (bar.get_x() + bar.get_width() / 2, top)
                    axes.annotate(f"{100 * value:.1f}", where, (0, 3), textcoords="offset points", ha="center", fontsize=8)
        axes.set_xticks(range(len(groups)), [_cut(group) for group in groups])
        axes.tick_params(axis="x", length=0)
        axes.set(title=title)
        axes.set_ylim(0, min(1.0, 1.15 * max(axes.get_ylim()[1], 0.01)) if axes.get_ylim()[1] < 0.87 else 1.08)
        _in_percent(axes, "y")
        axes.grid(visible=False, axis="x")
        return as_svg(figure, name, title)


def curves(name: str, title: str, labels: tuple[str, str], runs: Sequence[Series]) -> Markup:
    """One fraction against another, both from 0 to 1: a line for each run."""
    with drawn(height=3.4) as (figure, (axes,)):
        for number, run in enumerate(runs):
            axes.plot(run.x, run.y, color=run_ink(number), linestyle=RUN_LINES[number])
        axes.set(xlabel=labels[0], ylabel=labels[1], title=title, xlim=(0, 1), ylim=(0, 1.02))
        _in_percent(axes, "x")
        _in_percent(axes, "y")
        return as_svg(figure, name, title)


def distributions(name: str, title: str, edges: NDArray[np.float64], shares: Mapping[int, NDArray[np.float64]]) -> Markup:
    """How scores spread: for each common level, from 0 on, the share of its pairs in each bin. Lines differ in dashes too."""
    width, middles = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    with drawn(height=3.2) as (figure, (axes,)):
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
    """One fraction against another by the length of the list, k, which is written at 1, 10, 100, ...: a line for each run."""
    with drawn(height=3.4) as (figure, (axes,)):
        for number, (_, run) in enumerate(runs):
            axes.plot(run.x, run.y, color=run_ink(number), linestyle=RUN_LINES[number], marker="o", ms=2)
        ks, run = runs[0]
        for k in (1, 10, 100, 1000):  # of the first run; the other's points stand near them
            if k <= ks[-1]:
                place = int(np.abs(np.log(ks / k)).argmin())
                where = (run.x[place], run.y[place])
                axes.annotate(f"k = {ks[place]:,}", where, (0, -11), textcoords="offset points", ha="center", fontsize=7.5)
        axes.set(xlabel=labels[0], ylabel=labels[1], title=title, xlim=(0, None), ylim=(0, 1.02))
        axes.margins(x=0.12)
        _in_percent(axes, "x")
        _in_percent(axes, "y")
        return as_svg(figure, name, title)


def gaps(name: str, title: str, runs: Sequence[Series]) -> Markup:
    """The decomposability gap by batch size, on a logarithmic axis: a line for each run; signed."""
    with drawn(height=2.9) as (figure, (axes,)):
        for number, run in enumerate(runs):
            axes.plot(run.x, run.y, color=run_ink(number), linestyle=RUN_LINES[number], marker="o", ms=3.5)
        axes.axhline(0, color=ink("currentColor"), linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(runs[0].x, [f"{size:,.0f}" for size in runs[0].x])
        axes.minorticks_off()
        axes.set(xlabel="images in a batch", ylabel="gap", title=title)
        _in_percent(axes, "y")
        return as_svg(figure, name, title)


def step(
    name: str, title: str, label: str, number: int, x: NDArray[np.float64], y: NDArray[np.float64], *, jumps: Sequence[float]
) -> Markup:
    """A smooth step by the gap of two scores, with the exact one behind it. Its jumps are upright, and not sloped."""
    with drawn(height=2.9) as (figure, (axes,)):
        axes.plot([x[0], 0, 0, x[-1]], [0, 0, 1, 1], color=ink("var(--quiet)"), linewidth=1.2)
        axes.plot(x, y, color=run_ink(number), linestyle=RUN_LINES[number])
        for jump in jumps:
            axes.axvline(jump, color=ink("var(--quiet)"), linewidth=0.6, linestyle=(0, (2, 2)))
        axes.set(xlabel="t = s_j − s_k", ylabel=label, title=title)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_ylim(bottom=-0.05)
        return as_svg(figure, name, title)


def slope(name: str, title: str, number: int, x: NDArray[np.float64], y: NDArray[np.float64]) -> Markup:
    """The derivative of a smooth step."""
    with drawn(height=2.9) as (figure, (axes,)):
        axes.plot(x, y, color=run_ink(number), linestyle=RUN_LINES[number])
        axes.set(xlabel="t = s_j − s_k", ylabel="derivative", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_ylim(bottom=0)
        return as_svg(figure, name, title)


def _in_percent(axes: Axes, axis: str) -> None:
    getattr(axes, f"{axis}axis").set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}".replace("-", "−")))
    setter = getattr(axes, f"set_{axis}label")
    label = getattr(axes, f"get_{axis}label")()
    setter(f"{label}, %" if label else "%")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
