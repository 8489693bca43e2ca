"""Every loss over growing sizes: one measurement for each, or the reason why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.bench.cases import CASES, Case
from suprank.bench.sweep import swept
from suprank.bench.timing import blank, in_child, in_process
from suprank.bench.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from suprank.bench.measurement import Measurement
    from suprank.bench.settings import Settings

CPU_BATCHES = (256, 512, 1024)
CUDA_BATCHES = (256, 512, 1024, 2048, 4096, 8192, 16384)


def plan(
    batches: Sequence[int], *, memory: int = 0, queries: int = 256, names: Iterable[str] = CASES
) -> list[tuple[Case, Workload]]:
    """Each case at each size, smallest first; with a `memory`, also the cases that can rank against one."""
    cases = [CASES[name] for name in names]
    sizes = [Workload(batch) for batch in sorted(batches)]
    planned = [(case, size) for case in cases for size in sizes]
    if memory:
        planned += [(case, Workload(queries, memory)) for case in cases if case.takes_memory]
    return planned


def measurements(
    planned: Iterable[tuple[Case, Workload]],
    settings: Settings,
    *,
    starting: Callable[[Case, Workload], None] = lambda case, workload: None,
) -> Iterator[Measurement]:
    """One measurement for each planned pair, in order; a case that was too slow or too large is skipped at larger sizes.

    On a CPU every measurement has a process of its own. `starting` is told what is about to be measured.
    """
    settings.prepare()

    def measured(case: Case, workload: Workload) -> Measurement:
        return _measured(case, workload, settings)

    return swept(planned, measured, blank, seconds=settings.seconds, starting=starting)


def _measured(case: Case, workload: Workload, settings: Settings) -> Measurement:
    repeats, seconds = settings.repeats, settings.seconds
    if settings.device.type == "cuda":
        return in_process(case, workload, device=settings.device, repeats=repeats, seconds=seconds)
    return in_child(case, workload, repeats=repeats, seconds=seconds, max_bytes=settings.limit_bytes)
