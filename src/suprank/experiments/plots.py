"""The figures of experiments: a panel for each metric, with the spread over seeds."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from suprank.experiments.grid import as_number, sort_values
from suprank.files.atomic import atomic_writer
from suprank.training.search_space import Choices, FloatRange

if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from suprank.experiments.search_result import SearchResult
    from suprank.experiments.tables import Statistic, Table
    from suprank.experiments.trials import Trial
    from suprank.training.search_space import SearchRange

LETTERS = {
    "loss.weight": "λ",
    "loss.rho": "ρ",
    "loss.decay": "α",
    "loss.tau": "τ",
    "loss.delta": "δ",
    "loss.temperature": "η",
    "loss.rank_tau": "τ*",
    "loss.positive_floor": "α of L_DG",
    "loss.negative_ceiling": "β of L_DG",
    "loss.name": "loss",
    "batch.size": "batch size",
    "memory.size": "memory size",
    "optimizer.lr": "learning rate",
    "proxies.lr": "learning rate of the proxies",
    "batch.images_per_class": "images per class",
    "model.backbone": "backbone",
}
"""The names of entries in figures, mostly the paper's letters; other entries go by their own name."""

SOURCE = "source"
"""An axis whose values say where numbers come from; they are shown without its name."""

DOUBLING = ("batch.size", "memory.size")  # entries that are varied in powers of two
# Okabe and Ito's colors, as in benchmarks/bench/benchmark_plots.py, without the yellow, which is faint as a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PANELS_IN_ROW = 3
LEGEND_COLUMNS = 4
SEARCH_PANELS = 6
FEW_RECIPES = 8  # whose panels are low enough for two rows
COLOR, BEST_COLOR = COLORS[:2]

Series = dict[str, list["Statistic | None"]]


def draw_sweep(table: Table) -> list[Axes]:
    """Draw a sweep, and return its panels, one for each metric; none if there is nothing to draw.

    The horizontal axis is the first axis of numbers that has several values, else the first axis with several values; the
    combinations of the other axes are the lines. Numbers are joined by lines, other values are points side by side. A relative
    table is drawn as bars, as in the paper's fig:relative_increase. The scale is logarithmic if the numbers span two decades,
    and for entries that are varied in powers of two.
    """
    place = _horizontal_axis(table)
    if place is None or not any(row.statistics[column] for row in table.rows for column in table.columns):
        return []
    across = table.axes[place]
    values = sort_values(row.setting[place][1] for row in table.rows)
    lines = len(_lines(table, place, values, table.columns[0]))
    figure, panels = _panels(len(table.columns), lines)
    for axes, column in zip(panels, table.columns, strict=True):
        series = _lines(table, place, values, column)
        if table.base or None in [as_number(value) for value in values]:
            _draw_categories(axes, values, series, bars=bool(table.base))
        else:
            _draw_numbers(axes, across, values, series)
        axes.set_xlabel(LETTERS.get(across, across))
        axes.set_ylabel(f"{column}, increase in %" if table.base else f"{column}, %")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    if lines > 1:
        _draw_legend(figure)
    _write_note(figure, table)
    return panels


def _panels(count: int, lines: int, *, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels in rows of three, with room above them for a legend of so many lines."""
    rows, wide = math.ceil(count / PANELS_IN_ROW), min(count, PANELS_IN_ROW)
    legend = 0.0 if lines < 2 else 0.35 * math.ceil(lines / LEGEND_COLUMNS)
    size = (0.4 + 3.6 * wide, 0.5 + legend + 2.9 * rows)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.06))
    panels = list(figure.subplots(rows, wide, squeeze=False, sharey=sharey).flat)
    for place, axes in enumerate(panels):
        axes.set_visible(place < count)  # the last row may have empty ones
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    return figure, panels[:count]


def _draw_legend(figure: Figure) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = min(len(labels), LEGEND_COLUMNS)
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)


def draw_comparison(table: Table) -> list[Axes]:
    """Draw a comparison, and return its panels, one for each metric; none if there is nothing to draw.

    Recipes are rows, in the order of the table; points are means, whiskers one standard deviation to each side, and the best
    of each metric has its own color.
    """
    if not any(row.statistics[column] for row in table.rows for column in table.columns):
        return []
    count, names = len(table.columns), [row.label for row in table.rows]
    wide = min(count, 3 if len(names) <= FEW_RECIPES else 6)
    rows = math.ceil(count / wide)
    label = 0.085 * max(map(len, names))
    size = (0.3 + label + 2.1 * wide, 0.3 + rows * (0.75 + 0.24 * len(names)))
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.05, hspace=0.06))
    panels = list(figure.subplots(rows, wide, squeeze=False, sharey=True).flat)
    for place, axes in enumerate(panels):
        if place < count:
            _draw_panel(axes, table, table.columns[place])
        else:  # an empty panel of the last row
            axes.set_visible(False)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    _write_note(figure, table)
    return panels[:count]


def _draw_panel(axes: Axes, table: Table, column: str) -> None:
    for place, row in enumerate(table.rows):
        cell = row.statistics[column]
        if cell is not None:
            color = BEST_COLOR if table.is_best(row, column) else COLOR
            axes.errorbar(cell.mean, place, xerr=cell.deviation, color=color, marker="o", markersize=5, capsize=3)
    axes.set_xlabel(f"{column}, %")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_search(search: SearchResult) -> list[Axes]:
    """Draw a search, and return its panels; none if there is nothing to draw.

    The first panel has the best value so far after each trial, for each recipe; the others the value of every trial over one
    of the settings, for those that most recipes have. Trials that failed are crosses at the bottom of the first panel.
    """
    trials = {label: own for label, own in search.trials.items() if own}
    if not trials:
        return []
    counts = Counter(key for label in trials for key in search.settings.spaces[label])
    keys = [key for key, _ in counts.most_common(SEARCH_PANELS - 1)]
    ranges = {key: [space[key] for space in search.settings.spaces.values() if key in space] for key in counts}
    texts = {key for key, several in ranges.items() if any(isinstance(end, str) for one in several for end in one.ends)}
    figure, panels = _panels(1 + len(keys), len(trials), sharey=True)
    for index, (label, own) in enumerate(trials.items()):
        best = search.best(label)
        own, best = [_with_text(one, texts) for one in own], best and _with_text(best, texts)
        _draw_trials(panels, keys, label, own, best, index)
    panels[0].set_xlabel("trial")
    panels[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes, key in zip(panels[1:], keys, strict=True):
        axes.set_xlabel(LETTERS.get(key, key.removeprefix("loss.").removeprefix("arguments.")))
        if key not in texts:  # for which matplotlib has ticks
            _scale_to_ranges(axes, ranges[key])
    for place, axes in enumerate(panels):
        axes.grid(alpha=0.3)
        if place % PANELS_IN_ROW == 0:
            axes.set_ylabel(f"{search.settings.metric} of validation classes, %")
    _draw_legend(figure)
    figure.supxlabel("line: best so far; ring: the chosen setting; ×: a trial that failed", fontsize=8, color="#555555")
    return panels


def _scale_to_ranges(axes: Axes, ranges: Sequence[SearchRange]) -> None:
    """Show all that is searched, of which few trials cover little; choices have a tick each."""
    numbers = [float(end) for one in ranges if isinstance(one, FloatRange) and one.log for end in one.ends]
    if numbers:
        axes.set_xscale("log")
        ratio = max(numbers) / min(numbers)
        axes.set_xlim(min(numbers) / ratio**0.04, max(numbers) * ratio**0.04)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if ratio < 30 else (1, 3) if ratio < 1000 else (1,)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    elif all(isinstance(one, Choices) for one in ranges):
        values = dict.fromkeys(value for one in ranges for value in one.ends)
        axes.set_xticks([float(value) for value in values], [str(value) for value in values])


def _with_text(trial: Trial, keys: Container[str]) -> Trial:
    """The trial with the values of these keys as text: an axis has numbers or text."""
    return trial._replace(params={key: str(value) if key in keys else value for key, value in trial.params.items()})


def _draw_trials(
    panels: Sequence[Axes], keys: Sequence[str], label: str, trials: Sequence[Trial], best: Trial | None, index: int
) -> None:
    """The trials of one recipe in every panel of a search."""
    color = COLORS[index % len(COLORS)]
    look: dict[str, Any] = {
        "color": color,
        "marker": MARKERS[(index + index // len(COLORS)) % len(MARKERS)],  # another one for each time that colors repeat
        "linestyle": "none",
        "markersize": 4,
        "alpha": 0.8,
    }
    ring = {**look, "markersize": 11, "alpha": 1.0, "markerfacecolor": "none", "marker": "o"}
    valid = [trial for trial in trials if not trial.failure]
    numbers, values = [trial.number for trial in valid], [100 * trial.value for trial in valid]
    panels[0].step(numbers, list(itertools.accumulate(values, max)), where="post", color=color)
    panels[0].plot(numbers, values, **look)
    panels[0].plot([], [], **{**look, "linestyle": "-"}, label=label)  # colors repeat, with another marker
    failed = [trial.number for trial in trials if trial.failure]
    panels[0].plot(failed, [0.02] * len(failed), **{**look, "marker": "x"}, transform=panels[0].get_xaxis_transform())
    for axes, key in zip(panels[1:], keys, strict=False):
        points = [(trial.params[key], 100 * trial.value) for trial in valid if key in trial.params]
        if points:
            axes.plot([x for x, _ in points], [y for _, y in points], **look)
        if best is not None and key in best.params:
            axes.plot([best.params[key]], [100 * best.value], **ring)


def _write_note(figure: Figure, table: Table) -> None:
    """Say below the figure what its points are."""
    if note := _note(table):
        figure.supxlabel(note, fontsize=8, color="#555555")


def save_panels(panels: Sequence[Axes], files: Sequence[Path]) -> bool:
    """Write the figure of these panels to every file; False, and no file, if there are none."""
    for axes in panels[:1]:
        figure = axes.get_figure()
        assert isinstance(figure, Figure)
        save_figure(figure, files)
    return bool(panels)


def save_figure(figure: Figure, files: Sequence[Path], alt: str = "") -> None:
    """Write the figure to every file, in the format of its suffix; the same figure gives the same files.

    `alt` is a description for people who do not see it; it is saved in the files' metadata.
    """
    for file in files:
        # No date, and ids that do not change.
        metadata: dict[str, str | None] = {"Description": alt} if alt else {}
        if file.suffix == ".svg":
            metadata["Date"] = None
        with (
            rc_context({"svg.hashsalt": "suprank", "svg.fonttype": "none"}),
            atomic_writer(file) as opened,
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "Glyph .* missing")  # labels may be in any script
            figure.savefig(opened, format=file.suffix[1:], dpi=200, metadata=metadata)


def _varying(table: Table) -> list[int]:
    """The indices of the axes that have several values."""
    return [place for place in range(len(table.axes)) if len({row.setting[place][1] for row in table.rows}) > 1]


def _horizontal_axis(table: Table) -> int | None:
    """The index of the axis that is the horizontal one; None if no axis has several values."""
    varying = _varying(table)
    numeric = [place for place in varying if None not in [as_number(row.setting[place][1]) for row in table.rows]]
    # In a relative table the axis of the base has lost a value: another one says more.
    base = table.base.partition("=")[0]
    first = [place for place in numeric if table.axes[place] != base]
    return next(iter([*first, *numeric, *varying]), None)


def _lines(table: Table, place: int, values: Sequence[str], column: str) -> Series:
    """A statistic, or None, for each value: of every line, by its label."""
    varying = [other for other in _varying(table) if other != place]
    series: Series = {}
    for row in table.rows:
        named = [(LETTERS.get(key, key), value) for key, value in (row.setting[other] for other in varying)]
        label = ", ".join(value if name in (SOURCE, "loss") else f"{name} = {value}" for name, value in named)
        line = series.setdefault(label, [None] * len(values))
        line[values.index(row.setting[place][1])] = row.statistics[column]
    return series


def _points(xs: Sequence[float], line: Sequence[Statistic | None]) -> tuple[list[float], list[float], list[float]]:
    """Places, means and deviations (0 for a single seed) of the statistics that are not None."""
    points = [(x, cell) for x, cell in zip(xs, line, strict=True) if cell is not None]
    return [x for x, _ in points], [cell.mean for _, cell in points], [cell.deviation or 0.0 for _, cell in points]


def _draw_numbers(axes: Axes, across: str, values: Sequence[str], series: Series) -> None:
    """Lines over a scale, with a band of one standard deviation to each side."""
    xs = [float(value) for value in values]
    _scale(axes, across, xs)
    ticks = _tick_values(axes, xs)
    axes.set_xticks(ticks, [values[xs.index(x)] for x in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    for index, (label, line) in enumerate(series.items()):
        at, means, spread = _points(xs, line)
        color = COLORS[index % len(COLORS)]
        axes.plot(at, means, color=color, marker=MARKERS[index % len(MARKERS)], markersize=5, linewidth=1.6, label=label)
        if any(spread):
            low = [mean - one for mean, one in zip(means, spread, strict=True)]
            high = [mean + one for mean, one in zip(means, spread, strict=True)]
            axes.fill_between(at, low, high, color=color, alpha=0.18, linewidth=0)
    axes.grid(alpha=0.3)


def _scale(axes: Axes, across: str, xs: Sequence[float]) -> None:
    positive = [x for x in xs if x > 0]
    far = len(positive) > 1 and max(positive) / min(positive) >= 100
    if across in DOUBLING and len(positive) == len(xs):
        axes.set_xscale("log", base=2)
    elif far and len(positive) == len(xs):
        axes.set_xscale("log")
    elif far and min(xs) == 0:  # zero beside the first decade
        axes.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
    # The margin is set now, so that `_tick_values` sees the axis as it will be.
    low, high = axes.transScale.transform([(min(xs), 1), (max(xs), 1)])[:, 0]
    margin = 0.05 * (high - low)
    axes.set_xlim(*axes.transScale.inverted().transform([(low - margin, 1), (high + margin, 1)])[:, 0])


def _tick_values(axes: Axes, xs: Sequence[float], closest: float = 0.07) -> list[float]:
    """The values that get a tick: labels closer than `closest`, as a share of the width, would overlap. The first and the last
    value have precedence, then, on a logarithmic scale, decades."""
    low, high = (float(edge) for edge in axes.transScale.transform([(edge, 1) for edge in axes.get_xlim()])[:, 0])
    places = {x: (float(axes.transScale.transform((x, 1))[0]) - low) / (high - low) for x in xs}
    decades = [x for x in xs if x > 0 and math.log10(x).is_integer()] if "log" in axes.get_xscale() else []
    chosen: list[float] = []
    for x in dict.fromkeys((xs[0], xs[-1], *decades, *xs)):
        if all(abs(places[x] - places[other]) >= closest for other in chosen):
            chosen.append(x)
    return sorted(chosen)


def _draw_categories(axes: Axes, values: Sequence[str], series: Series, *, bars: bool) -> None:
    """Groups of points, or of bars from 0, with the standard deviation as a whisker."""
    width = 0.75 / len(series)
    for index, (label, line) in enumerate(series.items()):
        at, means, spread = _points([x + (index - (len(series) - 1) / 2) * width for x in range(len(line))], line)
        color = COLORS[index % len(COLORS)]
        errors = spread if any(spread) else None
        if bars:
            look = {"ecolor": "#333333", "capsize": 3, "elinewidth": 1.2}
            axes.bar(at, means, 0.92 * width, yerr=errors, color=color, label=label, error_kw=look)
        else:
            marker = MARKERS[index % len(MARKERS)]
            axes.errorbar(
                at, means, yerr=errors, color=color, marker=marker, linestyle="none", label=label, capsize=3, elinewidth=1.2
            )
    tilted = sum(map(len, values)) > 30
    axes.set_xticks(range(len(values)), values, rotation=30 * tilted, horizontalalignment="right" if tilted else "center")
    axes.set_xlim(-0.6, len(values) - 0.4)
    if bars:
        axes.axhline(0, color="#333333", linewidth=0.8)
    axes.grid(axis="y", alpha=0.3)


def _note(table: Table) -> str:
    """What the points and the spread are, below the figure."""
    counts = sorted({cell.seeds for row in table.rows for cell in row.statistics.values() if cell is not None})
    key, _, value = table.base.partition("=")
    base = f"relative to {LETTERS.get(key, key)} = {value}" if table.base else ""
    if counts[-1] < 2:
        return base
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return ", ".join(filter(None, (f"mean ± standard deviation over {seeds} seeds", base)))
