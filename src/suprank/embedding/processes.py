"""The processes of torchrun, or a single process."""

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

TIMEOUT = timedelta(days=7)  # for the slowest process: parts may take hours


@dataclass(frozen=True)
class Processes:
    """The rank of this process and the number of processes; `local_rank` counts those of one machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    def barrier(self) -> None:
        """Wait for all other processes."""
        if self.world_size > 1:
            distributed.barrier()

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank; every process gets them."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        distributed.all_gather_object(values, value)
        return values

    def device(self, name: str | None) -> torch.device:
        """The device of this name; by default a GPU, or else the CPU.

        Without a number, the processes of a machine are distributed over its GPUs.
        """
        count = torch.cuda.device_count()
        if count and name in (None, "cuda"):
            return torch.device("cuda", self.local_rank % count)
        return torch.device(name or "cpu")


@contextmanager
def torchrun_processes() -> Iterator[Processes]:
    """The processes that torchrun started, connected while the block runs; without torchrun, this process only.

    They only wait for each other and exchange small objects, for which gloo suffices on any machine.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
        return
    initialize = not distributed.is_initialized()
    if initialize:
        distributed.init_process_group("gloo", timeout=TIMEOUT)
    try:
        yield Processes(distributed.get_rank(), distributed.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        if initialize:
            distributed.destroy_process_group()
