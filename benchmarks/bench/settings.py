"""Settings of a benchmark: the device, the number of runs, and the limits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from suprank.system.platforms import memory_bytes


@dataclass(frozen=True)
class BenchmarkSettings:
    """How to measure. A case that takes more than `seconds` is skipped at larger sizes."""

    device: torch.device
    repeats: int = 20  # runs for the median, fewer once they took `seconds` together
    seconds: float = 10.0
    max_bytes: int | None = None  # memory limit of a case, inputs included; None: 60% of the machine's, or all of the GPU's
    threads: int | None = None  # of a case's process, on a CPU; None: what its libraries choose

    @property
    def limit_bytes(self) -> int:
        """The memory limit of a case, in bytes."""
        if self.max_bytes is not None:
            return self.max_bytes
        if self.device.type == "cuda":
            return torch.cuda.get_device_properties(self.device).total_memory
        memory = memory_bytes()
        if memory is None:
            raise ValueError("the memory of this system is unknown; set the limit of a case with --max-memory.")
        return int(0.6 * memory)

    def prepare(self) -> None:
        """Make the GPU the current one, because events are recorded there, and limit torch's memory on it."""
        if self.device.type == "cuda":
            card = self.device.index or 0
            torch.cuda.set_device(card)
            total = torch.cuda.get_device_properties(card).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit_bytes / total), card)
