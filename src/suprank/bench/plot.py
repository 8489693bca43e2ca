"""The curves: time and peak memory against size, log-log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from suprank.bench.evaluation import FLOOR, TARGET
from suprank.bench.measurement import duration, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from suprank.bench.evaluation import EvaluationRun
    from suprank.bench.measurement import Evaluated
    from suprank.bench.report import Run

# Okabe and Ito's colours, which colour-blind readers can tell apart: one for each measure; markers tell losses apart.
_LOOKS = {
    "similarity product": ("#999999", "."),
    "SupAP": ("#0072B2", "o"),
    "SmoothAP": ("#0072B2", "s"),
    "roadmap": ("#0072B2", "^"),
    "SupRecall": ("#CC79A7", "o"),
    "SmoothRecall": ("#CC79A7", "s"),
    "rod_recall": ("#CC79A7", "^"),
    "PairCalibration": ("#F0E442", "o"),
    "ProxySoftmax": ("#F0E442", "s"),
    "SupHAP": ("#D55E00", "o"),
    "SmoothHAP": ("#D55E00", "s"),
    "happier": ("#D55E00", "^"),
    "SupNDCG": ("#009E73", "o"),
    "SmoothNDCG": ("#009E73", "s"),
    "rod_ndcg": ("#009E73", "^"),
    "SupAP, CUDA graph": ("#0072B2", "*"),
    "SupHAP, CUDA graph": ("#D55E00", "*"),
    "PML SmoothAPLoss": ("#000000", "s"),
    "PML FastAPLoss": ("#000000", "D"),
    "plain torch SupAP": ("#0072B2", "x"),
    "plain torch SupHAP": ("#D55E00", "x"),
}
_LINES = {"ours": "-", "floor": "-", "peer": "--", "plain torch": ":"}


_EVALUATORS = {
    "similarity product alone": ("#999999", "."),
    "faiss": ("#000000", "o"),
    "suprank": ("#0072B2", "o"),
    "suprank, top-k metrics only": ("#56B4E9", "^"),
    "pytorch-metric-learning": ("#D55E00", "s"),
    "torchmetrics": ("#E69F00", "D"),
}


def draw(run: Run, path: Path) -> None:
    """Writes the figure. Batches are drawn; a run against a memory alone is drawn over its items."""
    drawn = [found for found in run.measurements if not found.memory] or list(run.measurements)
    figure = Figure(figsize=(12, 5), layout="constrained")
    time, memory = figure.subplots(1, 2)
    for case in dict.fromkeys(found.case for found in drawn):
        points = [found for found in drawn if found.case == case and found.seconds is not None]
        if points:
            color, marker = _LOOKS.get(case, ("#56B4E9", "v"))
            look = {"color": color, "marker": marker, "linestyle": _LINES[points[0].kind], "label": case}
            sizes = [found.items for found in points]
            time.plot(sizes, [found.seconds for found in points], **look)
            memory.plot(sizes, [max(found.extra_bytes or 0, 2**16) for found in points], **look)
    across = "items in memory" if drawn and drawn[0].memory else "batch size"
    sizes = sorted({found.items for found in drawn})
    time.set_yscale("log")
    memory.set_yscale("log", base=4)
    _label(time, "Time, forward + backward", across, sizes, duration)
    _label(memory, "Peak extra memory", across, sizes, size)
    figure.legend(*time.get_legend_handles_labels(), loc="outside right center", frameon=False, handlelength=3)
    figure.suptitle(f"{run.hardware}\nsolid: suprank; dashed: pytorch-metric-learning; dotted: plain torch", fontsize=10)
    figure.savefig(path, dpi=150)


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
    figure.savefig(path, dpi=150)


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
