"""The curves: time and peak memory against size, log-log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from suprank.bench.evaluation import FLOOR, TARGET
from suprank.bench.measurement import duration, size
from suprank.files.atomic import writing_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from suprank.bench.evaluation import EvaluationRun
    from suprank.bench.measurement import Evaluated
    from suprank.bench.report import Run

# Okabe and Ito's colors, which color-blind readers can tell apart. One look in a panel belongs to one loss.
_BLUE, _SKY, _GREEN, _ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
_RED, _PINK, _BLACK, _GRAY = "#D55E00", "#CC79A7", "#000000", "#999999"
_FLOOR = {"similarity product": (_GRAY, ".")}
_SUPAP = {"SupAP": (_BLUE, "o")}
_PEERS = {"PML FastAPLoss": (_BLACK, "D"), "PML TripletMarginLoss, semi-hard": (_BLACK, "v")}
_PANELS = {
    "Flat losses": {
        **_FLOOR,
        **_SUPAP,
        "SmoothAP": (_BLUE, "s"),
        "roadmap": (_BLUE, "^"),
        "SupRecall": (_PINK, "o"),
        "SmoothRecall": (_PINK, "s"),
        "rod_recall": (_PINK, "^"),
        "PairCalibration": (_ORANGE, "o"),
        "ProxySoftmax": (_ORANGE, "s"),
        "SupAP, CUDA graph": (_BLUE, "*"),
        "plain torch SupAP": (_BLUE, "x"),
        "PML SmoothAPLoss": (_BLACK, "s"),
        **_PEERS,
    },
    "Hierarchical losses": {
        **_FLOOR,
        **_SUPAP,
        "SupHAP": (_RED, "o"),
        "SmoothHAP": (_RED, "s"),
        "happier": (_RED, "^"),
        "SupNDCG": (_GREEN, "o"),
        "SmoothNDCG": (_GREEN, "s"),
        "rod_ndcg": (_GREEN, "^"),
        "SupHAP, CUDA graph": (_RED, "*"),
        "plain torch SupHAP": (_RED, "x"),
    },
    "Baselines on pairs and lists": {
        **_FLOOR,
        **_SUPAP,
        "FastAP": (_GREEN, "D"),
        "SoftBinAP": (_GREEN, "s"),
        "BlackBoxAP": (_RED, "P"),
        "TripletSemiHard": (_ORANGE, "v"),
        "DistanceWeightedTriplet": (_ORANGE, "^"),
        "ContrastiveXBM": (_PINK, "X"),
        "MultiSimilarity": (_SKY, "h"),
        **_PEERS,
    },
    "Baselines with proxies or over levels": {
        **_FLOOR,
        **_SUPAP,
        "ProxyNCA": (_ORANGE, "s"),
        "ProxyAnchor": (_ORANGE, "D"),
        "ArcFace": (_GREEN, "^"),
        "CosFace": (_GREEN, "v"),
        "CSL": (_PINK, "P"),
        "SumOverLevels, ProxySoftmax": (_RED, "o"),
        "SumOverLevels, ProxyNCA": (_RED, "s"),
        "SumOverLevels, TripletSemiHard": (_RED, "v"),
    },
}
_REFERENCES = {*_FLOOR, *_SUPAP, *_PEERS}
_LINES = {"ours": "-", "baseline": "-", "floor": "-", "peer": "--", "plain torch": ":"}

_EVALUATORS = {
    "similarity product alone": ("#999999", "."),
    "faiss": ("#000000", "o"),
    "suprank": ("#0072B2", "o"),
    "suprank, top-k metrics only": ("#56B4E9", "^"),
    "pytorch-metric-learning": ("#D55E00", "s"),
    "torchmetrics": ("#E69F00", "D"),
}


def draw(run: Run, path: Path) -> None:
    """Writes the figure: a row for each family of losses, with time on the left and memory on the right.

    Batches are drawn; a run against a memory alone is drawn over its items.
    """
    drawn = [found for found in run.measurements if not found.memory] or list(run.measurements)
    across = "items in memory" if drawn and drawn[0].memory else "batch size"
    sizes = sorted({found.items for found in drawn})
    rows = panels(dict.fromkeys(found.case for found in drawn if found.seconds is not None)) or {"": {}}
    figure = Figure(figsize=(13, 0.8 + 3.9 * len(rows)), layout="constrained")
    for (time, memory), (title, looks) in zip(figure.subplots(len(rows), 2, squeeze=False), rows.items(), strict=True):
        for case, (color, marker) in looks.items():
            points = [found for found in drawn if found.case == case and found.seconds is not None]
            look = {"color": color, "marker": marker, "linestyle": _LINES.get(points[0].kind, "-"), "label": case}
            at = [found.items for found in points]
            time.plot(at, [found.seconds for found in points], **look)
            once = [(found.items, found.seconds) for found in points if found.runs == 1]
            if once:
                time.plot(*zip(*once, strict=True), color=color, marker=marker, linestyle="", markerfacecolor="white")
            memory.plot(at, [max(found.extra_bytes or 0, 2**16) for found in points], **look)
        time.set_yscale("log", subs=[])
        time.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        memory.set_yscale("log", base=4)
        _label(time, f"{title}: time", across, sizes, duration)
        _label(memory, f"{title}: peak extra memory", across, sizes, size)
        if looks:
            memory.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, handlelength=3)
    keys = "forward + backward; solid: suprank; dashed: pytorch-metric-learning; dotted: plain torch; hollow: timed in one run"
    figure.suptitle(f"{run.hardware}\n{keys}", fontsize=10)
    with writing_atomically(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)


def panels(cases: Iterable[str]) -> dict[str, dict[str, tuple[str, str]]]:
    """Which of these cases stand in which panel, each with its color and marker; cases that no panel knows share the last.

    References are at home in the first panel, and in another only beside its own losses.
    """
    here = list(cases)
    found = {title: {case: look for case, look in looks.items() if case in here} for title, looks in _PANELS.items()}
    unknown = [case for case in here if not any(case in looks for looks in _PANELS.values())]
    looks = ((color, marker) for marker in "ov^sDPXh" for color in (_BLUE, _RED, _GREEN, _ORANGE, _PINK, _SKY))
    found["Other losses"] = dict(zip(unknown, looks, strict=False))
    first = next(iter(_PANELS))
    return {title: looks for title, looks in found.items() if looks and (title == first or not looks.keys() <= _REFERENCES)}


def draw_evaluation(run: EvaluationRun, path: Path) -> None:
    """Writes the figure: a row for each collection, over what grows in it, with time on the left and memory on the right."""
    rows = list(_series(run.measurements).items())
    figure = Figure(figsize=(12, 1.2 + 3.8 * max(len(rows), 1)), layout="constrained")
    panels = figure.subplots(max(len(rows), 1), 2, squeeze=False)
    handles: dict[str, Line2D] = {}
    for (time, memory), (title, (across, drawn)) in zip(panels, rows, strict=False):
        for name in dict.fromkeys(found.evaluator for found in drawn):
            points = [found for found in drawn if found.evaluator == name and found.seconds is not None]
            if not points:
                continue
            color, marker = _EVALUATORS.get(name, ("#009E73", "v"))
            look = {"color": color, "marker": marker, "linestyle": _LINES[points[0].kind]}
            sizes = [getattr(found, across) for found in points]
            times = [found.seconds or 0.0 for found in points]
            (handles[name],) = time.plot(sizes, times, **look)
            memory.plot(sizes, [max(found.extra_bytes or 0, 2**16) for found in points], **look)
            if name == FLOOR:
                target = {"color": color, "linestyle": ":", "marker": "_"}
                (handles[f"{TARGET} × {FLOOR}"],) = time.plot(sizes, [TARGET * took for took in times], **target)
        time.set_yscale("log", subs=[])
        time.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        memory.set_yscale("log", base=2)
        sizes = sorted({getattr(found, across) for found in drawn})
        _label(time, f"{title}: time", across, sizes, duration)
        _label(memory, f"{title}: peak extra memory", across, sizes, size)
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="outside right upper", frameon=False, handlelength=3)
    figure.suptitle(run.hardware, fontsize=10)
    with writing_atomically(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)


def _series(measurements: Iterable[Evaluated]) -> dict[str, tuple[str, list[Evaluated]]]:
    """What belongs into one panel, by its title, and what grows there: "items", or "queries" at one gallery."""
    found: dict[str, tuple[str, list[Evaluated]]] = {}
    together = list(measurements)
    for one in together:
        alike = [other for other in together if (other.shape, other.among) == (one.shape, one.among)]
        if one.among:
            title, across = f"{one.shape}, every item a query", "items"
        elif len({other.queries for other in alike}) == 1:
            title, across = f"{one.shape}, {one.queries:,} queries", "items"
        else:
            title, across = f"{one.shape}, {one.items:,} items", "queries"
        found.setdefault(title, (across, []))[1].append(one)
    return found


def _label(axes: Axes, title: str, across: str, sizes: list[int], text: Callable[[float], str]) -> None:
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(items) for items in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
