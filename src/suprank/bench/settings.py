"""How to measure: the device, the limits, and what the machine has."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from suprank.system.platforms import memory_bytes


@dataclass(frozen=True)
class Settings:
    """How to measure. A case whose run takes more than `seconds` is not tried at larger sizes."""

    device: torch.device
    repeats: int = 20  # runs a median is over, fewer once they took `seconds` together
    seconds: float = 10.0
    max_bytes: int | None = None  # what a case may take, inputs included; None: 60% of the machine, or the whole card
    threads: int | None = None  # of a case's own process, on a CPU; None: what its libraries choose

    @property
    def limit_bytes(self) -> int:
        if self.max_bytes is not None:
            return self.max_bytes
        if self.device.type == "cuda":
            return torch.cuda.get_device_properties(self.device).total_memory
        memory = memory_bytes()
        if memory is None:
            raise ValueError("this system does not say how much memory it has; say what a case may take, with --max-memory.")
        return int(0.6 * memory)

    def prepare(self) -> None:
        """Makes a GPU the current one, because events are recorded there, and bounds what torch may take of it."""
        if self.device.type == "cuda":
            card = self.device.index or 0
            torch.cuda.set_device(card)
            total = torch.cuda.get_device_properties(card).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit_bytes / total), card)
