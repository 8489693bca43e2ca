"""Every loss over growing sizes: one measurement for each, or the reason why there is none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from suprank.bench.cases import CASES, Case
from suprank.bench.measurement import duration
from suprank.bench.timing import blank, in_child, in_process
from suprank.bench.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from suprank.bench.measurement import Measurement

CPU_BATCHES = (256, 512, 1024)
CUDA_BATCHES = (256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True)
class Settings:
    """How to measure. A case whose run takes more than `seconds` is not tried at larger sizes."""

    device: torch.device
    repeats: int = 20  # runs a median is over, fewer once they took `seconds` together
    seconds: float = 10.0
    max_bytes: int | None = None  # what a case may take, inputs included; None: 60% of the machine, or the whole card

    @property
    def limit_bytes(self) -> int:
        if self.max_bytes is not None:
            return self.max_bytes
        if self.device.type == "cuda":
            return torch.cuda.get_device_properties(self.device).total_memory
        return int(0.6 * machine_bytes())


def machine_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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
    too_much: dict[tuple[str, bool], str] = {}  # (case, whether it has a memory) → why it goes no further
    if settings.device.type == "cuda":
        card = settings.device.index or 0
        torch.cuda.set_device(card)  # events are recorded on the current device
        total = torch.cuda.get_device_properties(card).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, settings.limit_bytes / total), card)
    for case, workload in planned:
        starting(case, workload)
        series = case.name, workload.memory > 0
        if series in too_much:
            yield blank(case, workload, too_much[series])
            continue
        found = _measured(case, workload, settings)
        if found.seconds is None:
            missing = found.note.startswith("not installed")
            too_much[series] = found.note if missing else f"skipped: {found.note} at {workload.items}"
        elif found.seconds > settings.seconds:
            too_much[series] = f"skipped: took {duration(found.seconds)} at {workload.items}"
        yield found


def _measured(case: Case, workload: Workload, settings: Settings) -> Measurement:
    repeats, seconds = settings.repeats, settings.seconds
    if settings.device.type == "cuda":
        return in_process(case, workload, device=settings.device, repeats=repeats, seconds=seconds)
    return in_child(case, workload, repeats=repeats, seconds=seconds, max_bytes=settings.limit_bytes)
