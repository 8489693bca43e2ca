"""What the samplers share: epochs, the parts of several processes, and resuming in the middle of an epoch."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from suprank.data.class_pools import Integers


class GlobalBatches(Sampler[list[int]], ABC):
    """Batches of rows for `DataLoader(batch_sampler=...)`; a subclass says which batches make a pass through the data.

    They depend on the labels, the settings, the seed and the epoch alone (and on numpy, whose random streams may change with
    its version).

    **Epochs.** Each iteration is the next epoch, also after one that was abandoned; `set_epoch` chooses another. An epoch is
    `len(self)` consecutive batches of the endless sequence of passes: one pass, unless `batches` says otherwise.

    **Processes.** `batch_size` is that of all processes together: process `rank` of `world_size` gets its part of the global
    batch, in whole groups of a class. (Lightning Fabric wants `setup_dataloaders(..., use_distributed_sampler=False)`.)

    **Resuming.** `state_dict(consumed)` is a few numbers. A sampler of the same labels and settings that loads them yields
    exactly the batches that were left, on any number of processes. The workers of a loader fetch ahead, so only the training
    loop knows how many batches of this epoch it has consumed, and should say so. Unless it does, those handed to the loader
    count, which is right for `num_workers=0` only.
    """

    def __init__(
        self,
        labels: Integers,
        *,
        batch_size: int,
        images_per_class: int,
        batches: int | None,
        seed: int,
        rank: int,
        world_size: int,
        further_settings: Mapping[str, int | None],
    ) -> None:
        _check_parts(batch_size, images_per_class, rank, world_size)
        for name, value, least in [("seed", seed, 0), ("batches", batches, 1)]:
            if value is not None and value < least:
                raise ValueError(f"{name}={value} must be {least} or more.")
        self.batch_size, self.images_per_class, self.batches, self.seed = batch_size, images_per_class, batches, seed
        self.rank, self.world_size = rank, world_size
        self.groups_per_batch = batch_size // images_per_class
        self._settings = {
            "sampler": type(self).__name__,
            "labels": hashlib.blake2b(np.ascontiguousarray(labels).tobytes(), digest_size=8).hexdigest(),
            "batch_size": batch_size,
            "images_per_class": images_per_class,
            "batches": batches,
            "seed": seed,
            **further_settings,
        }
        self._epoch, self._position, self._begun = 0, 0, False

    @property
    @abstractmethod
    def pass_length(self) -> int:
        """Batches of one pass through the data."""

    @abstractmethod
    def batches_of_pass(self, number: int) -> Iterable[Integers]:
        """The global batches of a pass, the same whenever asked: `[batch_size]` rows each, the groups of a class together."""

    def random(self, number: int) -> np.random.Generator:
        """The random numbers of a pass."""
        return np.random.default_rng([self.seed, number])

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration; before the first, and after `set_epoch` or `load_state_dict`, of the next one."""
        return self._epoch

    def set_epoch(self, epoch: int, *, consumed: int = 0) -> None:
        """Make the next iteration that of `epoch` (from 0), without the first `consumed` batches."""
        self._epoch, self._position = self._place(epoch, consumed)
        self._begun = False

    def __len__(self) -> int:
        """Batches of a whole epoch: every epoch has as many. An iteration that resumes an epoch yields those left of it."""
        return self.pass_length if self.batches is None else self.batches

    def __iter__(self) -> Iterator[list[int]]:
        # This runs when the first batch is asked for. A loader may well make an iterator and drop it: that counts for nothing.
        if self._begun:
            self.set_epoch(self._epoch + 1)
        self._begun = True
        share = self.batch_size // self.world_size
        mine = slice(self.rank * share, (self.rank + 1) * share)
        end = (self._epoch + 1) * len(self)
        at = end - len(self) + self._position
        while at < end:
            number, skipped = divmod(at, self.pass_length)
            for batch in islice(self.batches_of_pass(number), skipped, skipped + end - at):
                at += 1
                self._position = at - (end - len(self))
                yield batch[mine].tolist()

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Where training stands after `consumed` batches of this epoch, those before a resume included.

        None: those handed out so far. After a whole epoch it stands at the beginning of the next.
        """
        epoch, consumed = self._place(self._epoch, self._position if consumed is None else consumed)
        return {**self._settings, "epoch": epoch, "consumed": consumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue where `state` stood; a state of other labels or settings is refused."""
        ours = self._settings.items()
        differing = [f"{name} was {state.get(name)!r} and is {value!r}" for name, value in ours if state.get(name) != value]
        if differing:
            raise ValueError(f"the state is of other batches than this sampler's: {'; '.join(differing)}.")
        self.set_epoch(state["epoch"], consumed=state["consumed"])

    def _place(self, epoch: int, consumed: int) -> tuple[int, int]:
        if epoch < 0:
            raise ValueError(f"epoch={epoch} must be 0 or more.")
        if not 0 <= consumed <= len(self):
            raise ValueError(f"consumed={consumed} must be between 0 and the {len(self)} batches of an epoch.")
        finished, consumed = divmod(consumed, len(self))
        return epoch + finished, consumed


def _check_parts(batch_size: int, images_per_class: int, rank: int, world_size: int) -> None:
    for name, value in [("batch_size", batch_size), ("images_per_class", images_per_class), ("world_size", world_size)]:
        if value < 1:
            raise ValueError(f"{name}={value} must be 1 or more.")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} must be one of 0 to world_size - 1 = {world_size - 1}.")
    unit = images_per_class * world_size
    if batch_size % unit:
        below, above = batch_size // unit * unit, -(-batch_size // unit) * unit
        processes = f" × world_size={world_size} = {unit}" if world_size > 1 else ""
        raise ValueError(
            f"batch_size={batch_size} must be a multiple of images_per_class={images_per_class}{processes}, because a process "
            f"gets whole groups of a class; try {f'{below} or ' if below else ''}{above}."
        )
