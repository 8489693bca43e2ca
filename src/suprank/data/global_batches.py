"""The base of the batch samplers: epochs, distributed processes, and resuming in the middle of an epoch."""

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


class GlobalBatchSampler(Sampler[list[int]], ABC):
    """Batches of rows for `DataLoader(batch_sampler=...)`; a subclass defines the batches of one pass through the data.

    They depend only on the labels, the settings, the seed and the epoch (and on numpy, whose random streams may change with its
    version).

    **Epochs.** Each iteration is the next epoch, also after one that was abandoned; `set_epoch` chooses another. An epoch is
    `len(self)` consecutive batches of the endless sequence of passes: one pass, unless `batches` is given.

    **Processes.** `batch_size` is that of all processes together: process `rank` of `world_size` gets its part of the global
    batch, in whole groups of a class. (With Lightning Fabric, use `setup_dataloaders(..., use_distributed_sampler=False)`.)

    **Resuming.** `state_dict(consumed)` is a few numbers. A sampler with the same labels and settings that loads them yields
    exactly the remaining batches, on any number of processes. The workers of a loader fetch ahead, so only the training loop
    knows how many batches of this epoch it has consumed, and should pass that number. Otherwise those handed to the loader
    count, which is correct only for `num_workers=0`.
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
        """The number of batches of one pass through the data."""

    @abstractmethod
    def pass_batches(self, number: int) -> Iterable[Integers]:
        """The global batches of a pass: `[batch_size]` rows each, groups of a class together. The same at every call."""

    def random(self, number: int) -> np.random.Generator:
        """The random generator of a pass."""
        return np.random.default_rng([self.seed, number])

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration, or of the next one before the first and after `set_epoch` or `load_state_dict`."""
        return self._epoch

    def set_epoch(self, epoch: int, *, consumed: int = 0) -> None:
        """Start the next iteration at `epoch` (from 0), after its first `consumed` batches."""
        self._epoch, self._position = self._normalized_position(epoch, consumed)
        self._begun = False

    def __len__(self) -> int:
        """The number of batches of every full epoch. An iteration that resumes an epoch yields only the remaining ones."""
        return self.pass_length if self.batches is None else self.batches

    def __iter__(self) -> Iterator[list[int]]:
        # This runs when the first batch is requested: an iterator that a loader creates and drops does not count.
        if self._begun:
            self.set_epoch(self._epoch + 1)
        self._begun = True
        share = self.batch_size // self.world_size
        mine = slice(self.rank * share, (self.rank + 1) * share)
        end = (self._epoch + 1) * len(self)
        at = end - len(self) + self._position
        while at < end:
            number, skipped = divmod(at, self.pass_length)
            for batch in islice(self.pass_batches(number), skipped, skipped + end - at):
                at += 1
                self._position = at - (end - len(self))
                yield batch[mine].tolist()

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The position after `consumed` batches of this epoch, including those before a resume.

        None: those handed out so far. After a whole epoch, the position is the beginning of the next one.
        """
        epoch, consumed = self._normalized_position(self._epoch, self._position if consumed is None else consumed)
        return {**self._settings, "epoch": epoch, "consumed": consumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the next iteration from `state`; a state of other labels or settings is refused."""
        settings = self._settings.items()
        changes = [f"{name} was {state.get(name)!r} and is {value!r}" for name, value in settings if state.get(name) != value]
        if changes:
            raise ValueError(f"the state was saved by a sampler with other settings: {'; '.join(changes)}.")
        self.set_epoch(state["epoch"], consumed=state["consumed"])

    def _normalized_position(self, epoch: int, consumed: int) -> tuple[int, int]:
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
