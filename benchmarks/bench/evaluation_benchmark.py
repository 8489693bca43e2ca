"""The benchmark of the evaluation: every evaluator on growing collections, and the tables of the results."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from functools import lru_cache
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch

from bench.benchmark_run import BenchmarkRun, markdown_table
from bench.evaluators import EVALUATORS, FOUND_AP, HEADLINES, TOP, Evaluator
from bench.loss_workload import DIM
from bench.measurement import EvaluationMeasurement, format_bytes, format_seconds
from bench.runner import run_plan
from bench.synthetic_collections import SHAPES, SyntheticCollection
from bench.timing import child_task, meter_for, result_or_note, run_in_child
from suprank.ranking.exact import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bench.settings import BenchmarkSettings
    from bench.synthetic_collections import EmbeddedCollection

SOP_ITEMS = (5_000, 20_000, 60_502)
QUICK_ITEMS = (1_000, 2_000, 5_000)
FLOOR = "faiss"  # other times are divided by its time
TARGET = 1.5  # all metrics on a CPU should take no more than this many times a bare search
_TIMED = ("queries × items", "time", "× faiss", "CPU time", "× faiss, CPU", "threads", "extra memory", "peak memory")
_SET_UP_SECONDS = 180  # to start a process and draw a million embeddings on a busy machine


def plan_evaluation(
    shapes: Sequence[str],
    *,
    items: Sequence[int] = (),
    queries: Sequence[int] = (),
    names: Iterable[str] = EVALUATORS,
) -> list[tuple[Evaluator, SyntheticCollection]]:
    """Each evaluator on each collection, smallest first, so that an interrupted run has compared all evaluators.

    Without `items` a shape has its full size, and sop also smaller ones; without `queries` it has its own number.
    """
    plan = []
    for name in shapes:
        full = SyntheticCollection.full_size(name)
        item_counts = items or (SOP_ITEMS if name == "sop" else (full.items,))
        query_counts: Sequence[int | None] = queries or (full.queries,)
        collections = [
            SyntheticCollection(name, count, query_count)
            for count in sorted(set(item_counts))
            for query_count in sorted(set(query_counts), key=lambda n: n or 0)
        ]
        plan += [(EVALUATORS[evaluator], collection) for collection in collections for evaluator in names]
    return plan


def measure_evaluation(
    plan: Iterable[tuple[Evaluator, SyntheticCollection]],
    settings: BenchmarkSettings,
    *,
    on_start: Callable[[Evaluator, SyntheticCollection], None] = lambda evaluator, collection: None,
) -> Iterator[EvaluationMeasurement]:
    """One measurement for each pair of the plan, in order; an evaluator that was too slow or too large is then skipped.

    On a CPU every measurement has a process of its own, which is stopped if one run takes more than `settings.seconds`.
    """
    settings.prepare()

    def measure(evaluator: Evaluator, collection: SyntheticCollection) -> EvaluationMeasurement:
        if settings.device.type == "cuda":
            repeats, seconds = settings.repeats, settings.seconds
            return measure_here(evaluator, collection, device=settings.device, repeats=repeats, seconds=seconds)
        return measure_in_child(evaluator, collection, settings)

    return run_plan(plan, measure, empty_measurement, seconds=settings.seconds, on_start=on_start)


def empty_measurement(evaluator: Evaluator, collection: SyntheticCollection, note: str = "") -> EvaluationMeasurement:
    """A measurement without a result."""
    return EvaluationMeasurement(
        evaluator.name,
        evaluator.kind,
        collection.shape,
        collection.query_count,
        collection.items,
        collection.levels,
        collection.queries is None,
        note=note,
    )


def measure_here(
    evaluator: Evaluator, collection: SyntheticCollection, *, device: torch.device, repeats: int, seconds: float
) -> EvaluationMeasurement:
    """Measure in this process. Out of memory, a missing package or a failing evaluator gives a note, not an exception."""
    result = result_or_note(lambda: _time_evaluator(evaluator, collection, device, repeats, seconds), device)
    return empty_measurement(evaluator, collection, result) if isinstance(result, str) else result


def _time_evaluator(
    evaluator: Evaluator, collection: SyntheticCollection, device: torch.device, repeats: int, seconds: float
) -> EvaluationMeasurement:
    with patch.object(dispatch, "COMPILE_FROM", 0):  # loads libraries, starts threads, compiles all kernels
        evaluator.run(collection.miniature.embed().to(device))
    embedded, meter = _embed(collection).to(device), meter_for(device)
    times: list[tuple[float, float]] = []
    meter.start()
    while not times or (len(times) < repeats and sum(took for took, _ in times) + max(times)[0] <= seconds):
        result = None  # or the last run's result would count in this one's memory
        cpu_time = time.process_time()
        took, result = meter.timed(lambda: evaluator.run(embedded))
        times.append((took, time.process_time() - cpu_time))
    extra_bytes, peak_bytes = meter.extra_bytes(), meter.peak_bytes()
    median, cpu_seconds = sorted(times)[(len(times) - 1) // 2]
    return replace(
        empty_measurement(evaluator, collection),
        seconds=median,
        runs=len(times),
        fastest=min(times)[0],
        cpu_seconds=cpu_seconds,
        extra_bytes=extra_bytes,
        peak_bytes=peak_bytes,
        threads=torch.get_num_threads() if device.type == "cpu" else None,
        values=evaluator.values(embedded, result),
    )


@lru_cache(maxsize=1)  # evaluators are timed one after the other on a collection, which takes seconds to draw
def _embed(collection: SyntheticCollection) -> EmbeddedCollection:
    return collection.embed()


def measure_in_child(
    evaluator: Evaluator, collection: SyntheticCollection, settings: BenchmarkSettings
) -> EvaluationMeasurement:
    """Measure on the CPU in a fresh process with the memory limit of the settings, so that its peak memory is its own."""
    task = {
        "evaluator": evaluator.name,
        "collection": asdict(collection),
        "repeats": settings.repeats,
        "seconds": settings.seconds,
        "max_bytes": settings.limit_bytes,
    }
    result = run_in_child(__name__, task, limit=settings.seconds, grace=_SET_UP_SECONDS, threads=settings.threads)
    return empty_measurement(evaluator, collection, result) if isinstance(result, str) else EvaluationMeasurement(**result)


def child() -> None:
    """Measure one evaluator in this process, which `measure_in_child` started."""
    task = child_task()
    result = measure_here(
        EVALUATORS[task["evaluator"]],
        SyntheticCollection(**task["collection"]),
        device=torch.device("cpu"),
        repeats=task["repeats"],
        seconds=task["seconds"],
    )
    print(json.dumps(asdict(result)))


class EvaluationBenchmarkRun(BenchmarkRun[EvaluationMeasurement]):
    """A run of `python benchmarks/measure.py evaluation`."""

    bench = "evaluation"
    measurement_type = EvaluationMeasurement
    packages = ("suprank", "numpy", "numba", "triton", "faiss-cpu", "pytorch-metric-learning", "torchmetrics")

    def floor(self, result: EvaluationMeasurement) -> EvaluationMeasurement | None:
        """The bare faiss search of the same collection, if it was measured."""
        for other in self.measurements:
            same = (other.shape, other.size, other.among) == (result.shape, result.size, result.among)
            if same and other.evaluator == FLOOR and other.seconds is not None:
                return other
        return None

    def markdown(self) -> str:
        """One table for each shape, with a row for each evaluator and size."""
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
            f"- `similarity product alone`: every score, computed in tiles and discarded.",
        ]
        for name in dict.fromkeys(result.shape for result in self.measurements):
            rows = [result for result in self.measurements if result.shape == name]
            given = [metric for metric in (*HEADLINES, FOUND_AP) if any(metric in result.values for result in rows)]
            head = ["evaluator", *_TIMED, *given]
            parts += [
                f"## {name}: {SHAPES[name].dataset}, {rows[0].levels} levels",
                markdown_table(head, [self._row(one, given) for one in rows]),
            ]
        return "\n\n".join(parts) + "\n"

    def _row(self, result: EvaluationMeasurement, given: Sequence[str]) -> list[str]:
        if result.seconds is None:
            return [result.evaluator, result.size, result.note, *[""] * (len(_TIMED) - 2 + len(given))]
        floor = self.floor(result)
        return [
            result.evaluator,
            result.size,
            format_seconds(result.seconds),
            _ratio(result.seconds, floor.seconds if floor else None),
            format_seconds(result.cpu_seconds or 0.0),
            _ratio(result.cpu_seconds, floor.cpu_seconds if floor else None),
            str(result.threads or ""),
            format_bytes(result.extra_bytes or 0),
            format_bytes(result.peak_bytes or 0),
            *(f"{result.values[metric]:.4f}" if metric in result.values else "" for metric in given),
        ]


def _ratio(value: float | None, floor: float | None) -> str:
    return f"{value / floor:.2f}" if value and floor else ""
