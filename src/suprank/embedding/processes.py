"""The processes of a torchrun, or this one alone."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = timedelta(days=7)  # for the slowest process: parts may take hours


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is; `local_rank` counts those of one machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    def barrier(self) -> None:
        """Wait for all the others."""
        if self.world_size > 1:
            distributed.barrier()

    def gathered(self, value: Any) -> list[Any]:
        """The value of every process, by rank, in all of them."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        distributed.all_gather_object(values, value)
        return values

    def device(self, name: str | None) -> torch.device:
        """The device asked for; by default a GPU, or the CPU. GPUs without a number go round the processes of a machine."""
        count = torch.cuda.device_count()
        if count and name in (None, "cuda"):
            return torch.device("cuda", self.local_rank % count)
        return torch.device(name or "cpu")


@contextmanager
def launched() -> Iterator[Processes]:
    """The processes that torchrun started, joined for the time being; or this one, where none did.

    They only wait for each other and exchange small objects, so gloo serves on any machine.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
        return
    ours = not distributed.is_initialized()
    if ours:
        distributed.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield Processes(distributed.get_rank(), distributed.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        if ours:
            distributed.destroy_process_group()
