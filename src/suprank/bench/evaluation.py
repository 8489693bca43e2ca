"""Every evaluator over growing collections: one measurement for each, or the reason why there is none; and their report."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from functools import lru_cache
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch

from suprank.bench.evaluators import EVALUATORS, FOUND_AP, HEADLINES, TOP, Evaluator
from suprank.bench.measurement import Evaluated, duration, size
from suprank.bench.report import Record, table
from suprank.bench.retrieval import SHAPES, Retrieval
from suprank.bench.sweep import swept
from suprank.bench.timing import answer, measured_or_note, meter, task_of_child
from suprank.bench.workload import DIM
from suprank.ranking.exact import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from suprank.bench.retrieval import Embedded
    from suprank.bench.settings import Settings

SOP_ITEMS = (5_000, 20_000, 60_502)
QUICK_ITEMS = (1_000, 2_000, 5_000)
FLOOR = "faiss"  # what every other time is compared with
TARGET = 1.5  # all metrics on a CPU should take no more than this many bare searches
_TIMED = ("queries × items", "time", "× faiss", "CPU time", "× faiss, CPU", "threads", "extra memory", "peak memory")
_SET_UP_SECONDS = 180  # to start a process and draw a million embeddings on a busy machine


def plan(
    shapes: Sequence[str],
    *,
    items: Sequence[int] = (),
    queries: Sequence[int] = (),
    names: Iterable[str] = EVALUATORS,
) -> list[tuple[Evaluator, Retrieval]]:
    """Each evaluator on each collection, smallest first, so that a run cut short has compared all of them somewhere.

    Without `items` a shape is searched whole, sop also cut; without `queries` it has its own.
    """
    planned = []
    for name in shapes:
        whole = Retrieval.whole(name)
        counts = items or (SOP_ITEMS if name == "sop" else (whole.items,))
        asked: Sequence[int | None] = queries or (whole.queries,)
        sizes = [
            Retrieval(name, count, ask) for count in sorted(set(counts)) for ask in sorted(set(asked), key=lambda n: n or 0)
        ]
        planned += [(EVALUATORS[evaluator], retrieval) for retrieval in sizes for evaluator in names]
    return planned


def measurements(
    planned: Iterable[tuple[Evaluator, Retrieval]],
    settings: Settings,
    *,
    starting: Callable[[Evaluator, Retrieval], None] = lambda evaluator, retrieval: None,
) -> Iterator[Evaluated]:
    """One measurement for each planned pair, in order; an evaluator that was too slow or too large is skipped at larger sizes.

    On a CPU every measurement has a process of its own, which is stopped when one run takes more than `settings.seconds`.
    """
    settings.prepare()

    def measured(evaluator: Evaluator, retrieval: Retrieval) -> Evaluated:
        if settings.device.type == "cuda":
            return in_process(evaluator, retrieval, device=settings.device, repeats=settings.repeats, seconds=settings.seconds)
        return in_child(evaluator, retrieval, settings)

    return swept(planned, measured, blank, seconds=settings.seconds, starting=starting)


def blank(evaluator: Evaluator, retrieval: Retrieval, note: str = "") -> Evaluated:
    return Evaluated(
        evaluator.name,
        evaluator.kind,
        retrieval.shape,
        retrieval.asked,
        retrieval.items,
        retrieval.levels,
        retrieval.queries is None,
        note=note,
    )


def in_process(evaluator: Evaluator, retrieval: Retrieval, *, device: torch.device, repeats: int, seconds: float) -> Evaluated:
    """Measured here. Running out of memory, a missing package and a failing evaluator become a note, not an exception."""
    found = measured_or_note(lambda: _measured(evaluator, retrieval, device, repeats, seconds), device)
    return blank(evaluator, retrieval, found) if isinstance(found, str) else found


def _measured(evaluator: Evaluator, retrieval: Retrieval, device: torch.device, repeats: int, seconds: float) -> Evaluated:
    with patch.object(dispatch, "COMPILE_FROM", 0):  # libraries load, threads start, all kinds of kernels compile
        evaluator.run(retrieval.miniature.embedded().to(device))
    embedded, gauge = _embedded(retrieval).to(device), meter(device)
    times: list[tuple[float, float]] = []
    gauge.start()
    while not times or (len(times) < repeats and sum(took for took, _ in times) + max(times)[0] <= seconds):
        found = None  # or the last run's result would count in this one's memory
        busy = time.process_time()
        took, found = gauge.timed(lambda: evaluator.run(embedded))
        times.append((took, time.process_time() - busy))
    extra_bytes, peak_bytes = gauge.extra_bytes(), gauge.peak_bytes()
    median, cpu_seconds = sorted(times)[(len(times) - 1) // 2]
    return replace(
        blank(evaluator, retrieval),
        seconds=median,
        runs=len(times),
        fastest=min(times)[0],
        cpu_seconds=cpu_seconds,
        extra_bytes=extra_bytes,
        peak_bytes=peak_bytes,
        threads=torch.get_num_threads() if device.type == "cpu" else None,
        values=evaluator.values(embedded, found),
    )


@lru_cache(maxsize=1)  # evaluators follow each other on one collection, and a million embeddings take seconds to draw
def _embedded(retrieval: Retrieval) -> Embedded:
    return retrieval.embedded()


def in_child(evaluator: Evaluator, retrieval: Retrieval, settings: Settings) -> Evaluated:
    """Measured on the CPU in a fresh process that may take the settings' memory: its peak, and its end, are its own."""
    task = {
        "evaluator": evaluator.name,
        "retrieval": asdict(retrieval),
        "repeats": settings.repeats,
        "seconds": settings.seconds,
        "max_bytes": settings.limit_bytes,
    }
    found = answer(__name__, task, limit=settings.seconds, grace=_SET_UP_SECONDS, threads=settings.threads)
    return blank(evaluator, retrieval, found) if isinstance(found, str) else Evaluated(**found)


def child() -> None:
    """One evaluator, measured in this process."""
    task = task_of_child()
    found = in_process(
        EVALUATORS[task["evaluator"]],
        Retrieval(**task["retrieval"]),
        device=torch.device("cpu"),
        repeats=task["repeats"],
        seconds=task["seconds"],
    )
    print(json.dumps(asdict(found)))


class EvaluationRun(Record[Evaluated]):
    """A run of `suprank bench evaluation`."""

    bench = "evaluation"
    kind = Evaluated
    peers = ("suprank", "numpy", "numba", "triton", "faiss-cpu", "pytorch-metric-learning", "torchmetrics")

    def floor(self, found: Evaluated) -> Evaluated | None:
        """The bare faiss search of the same collection, if it was measured."""
        for other in self.measurements:
            same = (other.shape, other.size, other.among) == (found.shape, found.size, found.among)
            if same and other.evaluator == FLOOR and other.seconds is not None:
                return other
        return None

    def markdown(self) -> str:
        """One table a shape, one row an evaluator and size."""
        parts = [
            *self.heading("Time and memory of evaluation"),
            f"Unit float32 embeddings (dimension {DIM}) around the centers of their classes, the same for every evaluator. "
            f"Measured: {self.method}. × faiss is the time over that of faiss, then the CPU time (of all threads) over its, "
            f"which a busy machine spoils less; on a CPU suprank should stay under {TARGET}. R@1, AP and mAP are of the finest "
            f"level.",
            f"- `suprank`: every metric, at every level; `top-k metrics only`: R@1, R@10 and mAP@100.\n"
            f"- `faiss`: IndexFlatIP is filled, which copies the gallery, and searched for the {TOP} best. R@1 is read off "
            f"later, untimed.\n"
            f"- `pytorch-metric-learning`: P@1 and mAP@R of the finest level, from as many items as the largest class has.\n"
            f"- `torchmetrics`: RetrievalMAP of faiss's {TOP} best. It divides by the positives found among them "
            f"({FOUND_AP}), so it is larger than AP.\n"
            f"- `similarity product alone`: every score, computed in tiles and thrown away.",
        ]
        for name in dict.fromkeys(found.shape for found in self.measurements):
            rows = [found for found in self.measurements if found.shape == name]
            given = [metric for metric in (*HEADLINES, FOUND_AP) if any(metric in found.values for found in rows)]
            head = ["evaluator", *_TIMED, *given]
            parts += [
                f"## {name}: {SHAPES[name].like}, {rows[0].levels} levels",
                table(head, [self._row(one, given) for one in rows]),
            ]
        return "\n\n".join(parts) + "\n"

    def _row(self, found: Evaluated, given: Sequence[str]) -> list[str]:
        if found.seconds is None:
            return [found.evaluator, found.size, found.note, *[""] * (len(_TIMED) - 2 + len(given))]
        floor = self.floor(found)
        return [
            found.evaluator,
            found.size,
            duration(found.seconds),
            _ratio(found.seconds, floor.seconds if floor else None),
            duration(found.cpu_seconds or 0.0),
            _ratio(found.cpu_seconds, floor.cpu_seconds if floor else None),
            str(found.threads or ""),
            size(found.extra_bytes or 0),
            size(found.peak_bytes or 0),
            *(f"{found.values[metric]:.4f}" if metric in found.values else "" for metric in given),
        ]


def _ratio(value: float | None, floor: float | None) -> str:
    return f"{value / floor:.2f}" if value and floor else ""
