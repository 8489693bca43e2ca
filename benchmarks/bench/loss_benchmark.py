"""The benchmark of the losses: every loss at growing sizes, forward + backward, and the tables of the results."""

from __future__ import annotations

import gc
import json
import statistics
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch

from bench.benchmark_run import BenchmarkRun, markdown_table
from bench.loss_cases import LOSS_CASES, LossCase
from bench.loss_workload import COARSE_IN_BATCH, COARSE_IN_MEMORY, DIM, IMAGES_PER_CLASS, LossInputs, LossWorkload
from bench.measurement import LossMeasurement
from bench.runner import run_plan
from bench.timing import child_task, meter_for, result_or_note, run_in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from bench.settings import BenchmarkSettings

CPU_BATCHES = (256, 512, 1024)
CUDA_BATCHES = (256, 512, 1024, 2048, 4096, 8192, 16384)
_START_SECONDS = 60  # a fresh process imports torch before it measures
_PATIENCE = 10  # a run may take this many times the time limit before its process is stopped
_GROUPS = {
    "ours": "suprank",
    "baseline": "suprank's baselines",
    "peer": "pytorch-metric-learning",
    "plain torch": "plain torch",
}


def plan_losses(
    batches: Sequence[int], *, memory: int = 0, queries: int = 256, names: Iterable[str] = LOSS_CASES
) -> list[tuple[LossCase, LossWorkload]]:
    """Each case at each size, smallest first; with a `memory`, also the cases that can rank against one."""
    cases = [LOSS_CASES[name] for name in names]
    sizes = [LossWorkload(batch) for batch in sorted(batches)]
    plan = [(case, size) for case in cases for size in sizes]
    if memory:
        plan += [(case, LossWorkload(queries, memory)) for case in cases if case.takes_memory]
    return plan


def measure_losses(
    plan: Iterable[tuple[LossCase, LossWorkload]],
    settings: BenchmarkSettings,
    *,
    on_start: Callable[[LossCase, LossWorkload], None] = lambda case, workload: None,
) -> Iterator[LossMeasurement]:
    """One measurement for each pair of the plan, in order; a case that was too slow or too large is skipped at larger sizes.

    On a CPU every measurement has a process of its own. `on_start` is called before each measurement.
    """
    settings.prepare()

    def measure(case: LossCase, workload: LossWorkload) -> LossMeasurement:
        return _measure(case, workload, settings)

    return run_plan(plan, measure, empty_measurement, seconds=settings.seconds, on_start=on_start)


def _measure(case: LossCase, workload: LossWorkload, settings: BenchmarkSettings) -> LossMeasurement:
    repeats, seconds = settings.repeats, settings.seconds
    if settings.device.type == "cuda":
        return measure_here(case, workload, device=settings.device, repeats=repeats, seconds=seconds)
    return measure_in_child(case, workload, repeats=repeats, seconds=seconds, max_bytes=settings.limit_bytes)


def empty_measurement(case: LossCase, workload: LossWorkload, note: str = "") -> LossMeasurement:
    """A measurement without a result."""
    return LossMeasurement(case.name, case.kind, workload.queries, workload.items, workload.memory, note=note)


def measure_here(
    case: LossCase, workload: LossWorkload, *, device: torch.device, repeats: int, seconds: float
) -> LossMeasurement:
    """Measure in this process. Running out of memory, a missing package or a failing loss gives a note, not an exception."""
    result = result_or_note(lambda: _time_loss(case, workload, device, repeats, seconds), device)
    return empty_measurement(case, workload, result) if isinstance(result, str) else result


def _time_loss(case: LossCase, workload: LossWorkload, device: torch.device, repeats: int, seconds: float) -> LossMeasurement:
    _build_step(case, workload.miniature, workload.miniature.inputs(device))()  # loads libraries, starts threads
    inputs, meter = workload.inputs(device), meter_for(device)
    meter.start()
    step = _build_step(case, workload, inputs)
    step()  # compiles, and picks algorithms for this size: not timed, however long it takes
    if device.type == "cuda" and not case.graphed:
        meter.start()  # forget the memory of autotuning; on a CPU, memory freed after that run would hide later peaks
    times: list[float] = []
    while not times or (len(times) < repeats and sum(times) <= seconds):
        took, value = meter.timed(step)
        times.append(took)
    return replace(
        empty_measurement(case, workload),
        seconds=statistics.median(times),
        runs=len(times),
        fastest=min(times),
        extra_bytes=meter.extra_bytes(),
        loss=value.item(),
    )


def _build_step(case: LossCase, workload: LossWorkload, inputs: LossInputs) -> Callable[[], Tensor]:
    """A function that runs one forward and backward pass and leaves no gradients behind."""
    loss: Any = case.loss(workload).to(inputs.embeddings.device)
    labels = inputs.labels if case.takes_tree else inputs.labels[:, 0]
    references = {} if inputs.ref_emb is None else {"ref_emb": inputs.ref_emb, "ref_labels": inputs.ref_labels}
    if case.graphed:
        gc.collect()  # an older graph that is freed while this one is recorded would break it
        sample = inputs.embeddings.detach().clone().requires_grad_()
        loss = torch.cuda.make_graphed_callables(loss, (sample, labels))

    def step() -> Tensor:
        value: Tensor = loss(inputs.embeddings, labels, **references)
        torch.autograd.backward(value)
        inputs.embeddings.grad = None
        loss.zero_grad()
        return value.detach()

    return step


def measure_in_child(
    case: LossCase, workload: LossWorkload, *, repeats: int, seconds: float, max_bytes: int
) -> LossMeasurement:
    """Measure on the CPU in a fresh process that may take `max_bytes` more memory than torch itself.

    Its peak memory is then that of the loss, and running out of memory ends only that process. The limit works on Linux only.
    """
    task = {"case": case.name, "workload": asdict(workload), "repeats": repeats, "seconds": seconds, "max_bytes": max_bytes}
    result = run_in_child(__name__, task, limit=_START_SECONDS + 2 * _PATIENCE * seconds)  # an untimed and a timed run
    return empty_measurement(case, workload, result) if isinstance(result, str) else LossMeasurement(**result)


def child() -> None:
    """Measure one loss in this process, which `measure_in_child` started."""
    task = child_task()
    result = measure_here(
        LOSS_CASES[task["case"]],
        LossWorkload(**task["workload"]),
        device=torch.device("cpu"),
        repeats=task["repeats"],
        seconds=task["seconds"],
    )
    print(json.dumps(asdict(result)))


class LossBenchmarkRun(BenchmarkRun[LossMeasurement]):
    """A run of `python benchmarks/measure.py losses`."""

    bench = "losses"
    measurement_type = LossMeasurement
    packages = ("suprank", "triton", "pytorch-metric-learning")

    def markdown(self) -> str:
        """Tables of time and memory, losses as rows and batch sizes as columns; a table of its own for a memory."""
        within = [one for one in self.measurements if not one.memory]
        against = [one for one in self.measurements if one.memory]
        parts = [
            *self.heading("Time and memory of the losses"),
            f"Forward + backward from float32 embeddings (dimension {DIM}, {IMAGES_PER_CLASS} images a class, three levels), "
            f"random and the same for every loss. Measured: {self.method}. Medians after a warm-up{self._load_text()}. "
            f"PML is pytorch-metric-learning; plain torch is our definition, which writes every pair of items.",
        ]
        if within:
            columns = sorted({one.items for one in within})
            rows = {one.case: {other.items: other for other in within if other.case == one.case} for one in within}
            head = ["loss", *(f"batch {batch}" for batch in columns)]
            for title, text in (("Time", _time_cell), ("Peak extra memory", _memory_cell)):
                cells = [[case, *(text(row[at]) if at in row else "" for at in columns)] for case, row in rows.items()]
                parts += [f"## {title}, {COARSE_IN_BATCH} coarse classes", markdown_table(head, self._grouped(cells))]
        if against:
            cells = [[f.case, f"{f.queries} × {f.items}", _time_cell(f), _memory_cell(f)] for f in against]
            title = f"## Queries against a memory, {COARSE_IN_MEMORY} coarse classes"
            parts += [title, markdown_table(["loss", "queries × items", "time", "peak extra memory"], self._grouped(cells))]
        return "\n\n".join(parts) + "\n"

    def _load_text(self) -> str:
        """How far medians are from the fastest runs, which shows how busy the machine was."""
        ratios = [one.seconds / one.fastest for one in self.measurements if one.seconds and one.fastest]
        return f"; half of them are over {statistics.median(ratios):.2f} times the fastest run" if ratios else ""

    def _grouped(self, rows: Iterable[list[str]]) -> list[list[str]]:
        """The rows under a row with the name of their group; the similarity product and a single group have none.

        The first cell is the loss. A known loss has its current kind, because the first baselines were saved as ours.
        """
        kinds = {one.case: LOSS_CASES[one.case].kind if one.case in LOSS_CASES else one.kind for one in self.measurements}
        groups: dict[str, list[list[str]]] = {kind: [] for kind in ("floor", *_GROUPS)}
        for row in rows:
            groups.setdefault(kinds[row[0]], []).append(row)
        floor = groups.pop("floor")
        groups = {kind: group for kind, group in groups.items() if group}
        lines = list(floor)
        for kind, group in groups.items():
            lines += [[f"**{_GROUPS.get(kind, kind)}**", *[""] * (len(group[0]) - 1)]] if len(groups) > 1 else []
            lines += group
        return lines


def _time_cell(one: LossMeasurement) -> str:
    return f"{one.time_text} (one run)" if one.runs == 1 else one.time_text


def _memory_cell(one: LossMeasurement) -> str:
    return one.memory_text
