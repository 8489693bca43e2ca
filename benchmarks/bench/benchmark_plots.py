"""Figures of the benchmarks: time and peak memory against size, log-log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from bench.evaluation_benchmark import FLOOR, TARGET
from bench.measurement import format_bytes, format_seconds
from suprank.files.atomic import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from bench.evaluation_benchmark import EvaluationBenchmarkRun
    from bench.loss_benchmark import LossBenchmarkRun
    from bench.measurement import EvaluationMeasurement

# Okabe and Ito's colors, which color-blind readers can tell apart. In a panel each loss has its own color and marker.
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
        "ContrastiveKoLeo": (_PINK, "P"),
        "MultiSimilarity": (_SKY, "h"),
        "SupCon": (_SKY, "o"),
        "SigLIP": (_SKY, "v"),
        "Circle": (_SKY, "^"),
        "KoLeo": (_PINK, "v"),
        "PML SupConLoss": (_BLACK, "^"),
        "PML CircleLoss": (_BLACK, "X"),
        "PML MultiSimilarityLoss": (_BLACK, "h"),
        **_PEERS,
    },
    "Baselines with proxies or over levels": {
        **_FLOOR,
        **_SUPAP,
        "CrossEntropy": (_SKY, "h"),
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


def draw_losses(run: LossBenchmarkRun, path: Path) -> None:
    """Write the figure: a row for each family of losses, with time on the left and memory on the right.

    The x axis is the batch size, or the number of items if all runs are against a memory.
    """
    drawn = [one for one in run.measurements if not one.memory] or list(run.measurements)
    across = "items in memory" if drawn and drawn[0].memory else "batch size"
    sizes = sorted({one.items for one in drawn})
    rows = panels(dict.fromkeys(one.case for one in drawn if one.seconds is not None)) or {"": {}}
    figure = Figure(figsize=(13, 0.8 + 3.9 * len(rows)), layout="constrained")
    for (time, memory), (title, looks) in zip(figure.subplots(len(rows), 2, squeeze=False), rows.items(), strict=True):
        for case, (color, marker) in looks.items():
            points = [one for one in drawn if one.case == case and one.seconds is not None]
            look = {"color": color, "marker": marker, "linestyle": _LINES.get(points[0].kind, "-"), "label": case}
            at = [one.items for one in points]
            time.plot(at, [one.seconds for one in points], **look)
            once = [(one.items, one.seconds) for one in points if one.runs == 1]
            if once:
                time.plot(*zip(*once, strict=True), color=color, marker=marker, linestyle="", markerfacecolor="white")
            memory.plot(at, [max(one.extra_bytes or 0, 2**16) for one in points], **look)
        time.set_yscale("log", subs=[])
        time.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        memory.set_yscale("log", base=4)
        _label(time, f"{title}: time", across, sizes, format_seconds)
        _label(memory, f"{title}: peak extra memory", across, sizes, format_bytes)
        if looks:
            memory.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, handlelength=3)
    keys = "forward + backward; solid: suprank; dashed: pytorch-metric-learning; dotted: plain torch; hollow: timed in one run"
    figure.suptitle(f"{run.hardware}\n{keys}", fontsize=10)
    with atomic_writer(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)


def panels(cases: Iterable[str]) -> dict[str, dict[str, tuple[str, str]]]:
    """The panel of each loss, with its color and marker; losses that belong to no panel share the last one.

    References are drawn in the first panel, and in the others only next to a loss of theirs.
    """
    here = list(cases)
    by_title = {title: {case: look for case, look in looks.items() if case in here} for title, looks in _PANELS.items()}
    unknown = [case for case in here if not any(case in looks for looks in _PANELS.values())]
    looks = ((color, marker) for marker in "ov^sDPXh" for color in (_BLUE, _RED, _GREEN, _ORANGE, _PINK, _SKY))
    by_title["Other losses"] = dict(zip(unknown, looks, strict=False))
    first = next(iter(_PANELS))
    return {title: looks for title, looks in by_title.items() if looks and (title == first or not looks.keys() <= _REFERENCES)}


def draw_evaluation(run: EvaluationBenchmarkRun, path: Path) -> None:
    """Write the figure: a row for each series of collections, with time on the left and memory on the right."""
    rows = list(_series(run.measurements).items())
    figure = Figure(figsize=(12, 1.2 + 3.8 * max(len(rows), 1)), layout="constrained")
    panels = figure.subplots(max(len(rows), 1), 2, squeeze=False)
    handles: dict[str, Line2D] = {}
    for (time, memory), (title, (across, drawn)) in zip(panels, rows, strict=False):
        for name in dict.fromkeys(one.evaluator for one in drawn):
            points = [one for one in drawn if one.evaluator == name and one.seconds is not None]
            if not points:
                continue
            color, marker = _EVALUATORS.get(name, ("#009E73", "v"))
            look = {"color": color, "marker": marker, "linestyle": _LINES[points[0].kind]}
            sizes = [getattr(one, across) for one in points]
            times = [one.seconds or 0.0 for one in points]
            (handles[name],) = time.plot(sizes, times, **look)
            memory.plot(sizes, [max(one.extra_bytes or 0, 2**16) for one in points], **look)
            if name == FLOOR:
                target = {"color": color, "linestyle": ":", "marker": "_"}
                (handles[f"{TARGET} × {FLOOR}"],) = time.plot(sizes, [TARGET * took for took in times], **target)
        time.set_yscale("log", subs=[])
        time.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        memory.set_yscale("log", base=2)
        sizes = sorted({getattr(one, across) for one in drawn})
        _label(time, f"{title}: time", across, sizes, format_seconds)
        _label(memory, f"{title}: peak extra memory", across, sizes, format_bytes)
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="outside right upper", frameon=False, handlelength=3)
    figure.suptitle(run.hardware, fontsize=10)
    with atomic_writer(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)


def _series(measurements: Iterable[EvaluationMeasurement]) -> dict[str, tuple[str, list[EvaluationMeasurement]]]:
    """The measurements of each panel, by title, and its x axis: "items", or "queries" if the gallery is fixed."""
    panels: dict[str, tuple[str, list[EvaluationMeasurement]]] = {}
    together = list(measurements)
    for one in together:
        alike = [other for other in together if (other.shape, other.among) == (one.shape, one.among)]
        if one.among:
            title, across = f"{one.shape}, every item a query", "items"
        elif len({other.queries for other in alike}) == 1:
            title, across = f"{one.shape}, {one.queries:,} queries", "items"
        else:
            title, across = f"{one.shape}, {one.items:,} items", "queries"
        panels.setdefault(title, (across, []))[1].append(one)
    return panels


def _label(axes: Axes, title: str, across: str, sizes: list[int], text: Callable[[float], str]) -> None:
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(items) for items in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
