"""Training batches in which every random choice is a function of seed, epoch, batch and place in the batch, and nothing else.

So nothing random needs saving: a resumed run sees the very pixels it would have seen, with any number of workers, and n
processes see together what one alone would.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from suprank.data import transforms
from suprank.data.datasets import BrokenImage, ImageDataset, ImageItem
from suprank.data.in_memory import InMemoryImages
from suprank.data.samplers import BalancedBatchSampler, HierarchicalBatchSampler
from suprank.data.workers import default_workers, ignore_signals, loader_batches
from suprank.evaluation.arguments import check_tree
from suprank.training.seeds import seed_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.training.config import TrainConfig

PIECE = 256
"""Images that one worker decodes at a time, at most. Larger batches are put together from several workers' pieces: 16 workers
that each have two batches of 4,096 images in hand would fill 20 GB."""

_log = logging.getLogger(__name__)


class TrainBatch(NamedTuple):
    """This process's part of a batch: images in bytes `[b, 3, height, width]`, labels `[b, levels]`, the rows `[b]` that the
    images have among the training images, and how many of them stand in for broken ones."""

    images: Tensor
    labels: Tensor
    ids: Tensor
    replaced: int


class TrainBatches:
    """The training images of a manifest in batches, of which process `rank` of `world_size` gets its part.

        labels    [images, levels], finest first, numbered from 0 at each level over the training images
        levels    their names
        classes   how many there are at the finest level
        paths     of the images

    A broken image raises. Under `data.on_broken = "skip"` an image of its class in the batch, or else any other of the batch,
    is seen once more in its place, cropped anew; that is counted in `TrainBatch.replaced`, and logged once for each path. A batch
    without any whole image raises.
    """

    def __init__(
        self,
        images: ImageDataset,
        levels: tuple[str, ...],
        labels: NDArray[np.int64],
        sampler: BalancedBatchSampler | HierarchicalBatchSampler,
        *,
        rank: int,
        world_size: int,
        workers: int | None,
        pinned: bool,
    ) -> None:
        """For `of`. The sampler is that of the whole batch."""
        self.labels, self.levels, self.paths = torch.from_numpy(labels), levels, images.paths
        self.classes = int(labels[:, 0].max()) + 1
        self._images = _SeededImages(images, labels[:, 0], sampler.seed)
        self._sampler, self._workers, self._pinned = sampler, workers, pinned
        share = sampler.batch_size // world_size
        starts = range(rank * share, (rank + 1) * share, PIECE)
        self._pieces = [slice(start, min(start + PIECE, (rank + 1) * share)) for start in starts]
        self._told: set[str] = set()  # broken images that the log names already
        self._digest = _digest(self.paths, labels)

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        manifest: Manifest,
        *,
        rank: int = 0,
        world_size: int = 1,
        pinned: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """As the recipe says, from the `train` split of the whole manifest. `pinned` memory is on the way to a GPU.

        `progress(done, total)` counts the images that `data.hold` decodes here, once for all epochs.
        """
        if "train" not in manifest.splits:
            there = ", ".join(manifest.splits)
            raise ValueError(f"{config.data.manifest} has no images to train on, only {there}; mark some of them as train.")
        images = manifest.split("train")
        levels = _chosen_levels(config, images)
        labels = _numbered(images.labels[:, [images.levels.index(level) for level in levels]])
        _warn_of_no_tree(labels, levels, config.data.manifest)
        sampler = _sampler(config, labels, levels, world_size)
        crops = config.images
        transform = transforms.train_transform(
            crops.size, resize=crops.resize, scale=crops.crop_scale, ratio=crops.crop_ratio, flip=crops.flip, mean=None
        )
        least = transforms.min_short_side(transform) if config.data.fast_jpeg else None
        dataset = ImageDataset(images, transform, on_broken=config.data.on_broken, min_short_side=least)
        workers = config.data.workers
        if config.data.hold:
            dataset = InMemoryImages(dataset, workers=default_workers() if workers is None else workers, progress=progress)
        return cls(
            dataset,
            levels,
            labels,
            sampler,
            rank=rank,
            world_size=world_size,
            workers=workers,
            pinned=pinned,
        )

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._sampler)

    def batches(self, epoch: int, consumed: int, epochs: int) -> Generator[TrainBatch]:
        """From batch `consumed` of `epoch` (both from 0) to the last one of epoch `epochs − 1`.

        Workers start once and read ahead across epochs. They end with the iterator: close it, or drop it.
        """
        asked = max((epochs - epoch) * len(self) - consumed, 0) * len(self._pieces)
        together = len(self._pieces) > 1
        loader: DataLoader[Any] = DataLoader(
            self._images,
            batch_size=None,
            sampler=self._asked(epoch, consumed, epochs),
            num_workers=min(default_workers() if self._workers is None else self._workers, asked),
            collate_fn=_as_it_is,
            pin_memory=self._pinned and not together,
            worker_init_fn=ignore_signals,
            generator=torch.Generator(),  # else it would draw from the process's own random numbers
        )
        with closing(loader_batches(loader)) as pieces:
            for first in pieces:
                yield self._fed([first, *(next(pieces) for _ in self._pieces[1:])])

    def state(self, epoch: int, consumed: int) -> dict[str, Any]:
        """What tells these batches from others, and where training stands after `consumed` batches of `epoch`."""
        finished, consumed = divmod(consumed, len(self))
        place = {"epoch": epoch + finished, "consumed": consumed}
        return {**self._sampler.state_dict(0), **place, "images": self._digest}

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuse a state of other images, labels, seed or batches; the number of processes may be another."""
        if state.get("images") != self._digest:
            raise ValueError(
                "the training images or their labels are not those of the run that is resumed; give it the same manifest and "
                "levels, or start a new run."
            )
        self._sampler.load_state_dict(state)

    def _asked(self, epoch: int, consumed: int, epochs: int) -> Iterator[_Asked]:
        finished, consumed = divmod(consumed, len(self))
        for now in range(epoch + finished, epochs):
            first = consumed if now == epoch + finished else 0
            self._sampler.set_epoch(now, consumed=first)
            for batch, rows in enumerate(self._sampler, first):
                yield from (_Asked(now, batch, np.array(rows), piece) for piece in self._pieces)

    def _fed(self, pieces: Sequence[_Piece]) -> TrainBatch:
        for broken in (broken for piece in pieces for broken in piece.broken):
            if broken.path not in self._told:
                self._told.add(broken.path)
                _log.warning("replaced %s by another image of the batch: %s", broken.path, broken.reason)
        images, ids = pieces[0].images, pieces[0].ids
        if len(pieces) > 1:
            ids = torch.cat([piece.ids for piece in pieces])
            images = images.new_empty((len(ids), *images.shape[1:]), pin_memory=self._pinned)
            torch.cat([piece.images for piece in pieces], out=images)
        return TrainBatch(images, self.labels[ids], ids, sum(piece.replaced for piece in pieces))


# What is asked for


def _chosen_levels(config: TrainConfig, images: Manifest) -> tuple[str, ...]:
    asked, there = config.data.levels, ", ".join(images.levels)
    if not images.levels:
        raise ValueError(f"{config.data.manifest} has no labels to train with; add columns label_<level>, finest first.")
    if asked is None:
        return images.levels
    unknown = [level for level in asked if level not in images.levels]
    if unknown or not asked:
        raise ValueError(f"data.levels={list(asked)} must be one or more of the levels of {config.data.manifest}: {there}.")
    if list(asked) != [level for level in images.levels if level in asked]:
        raise ValueError(f"data.levels={list(asked)} must come once each, finest first, as in {config.data.manifest}: {there}.")
    return asked


def _warn_of_no_tree(labels: NDArray[np.int64], levels: tuple[str, ...], manifest: str) -> None:
    """Log a warning where a class has two parents, or a level is finer than the one before: losses take either as it stands."""
    try:
        check_tree(torch.from_numpy(labels), levels)
    except ValueError as error:
        _log.warning("training labels of %s: %s", manifest, error)


def _numbered(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same classes, numbered from 0 at each level; −1 stays no label."""
    # A −1 in front is the smallest of every column, so that it has the number 0 whether the column holds one or not.
    codes = [np.unique(np.concatenate([[-1], column]), return_inverse=True)[1][1:] - 1 for column in labels.T]
    return np.stack(codes, axis=1).astype(np.int64)


def _sampler(
    config: TrainConfig, labels: NDArray[np.int64], levels: tuple[str, ...], world_size: int
) -> BalancedBatchSampler | HierarchicalBatchSampler:
    """Of the whole batch, whichever part of it this process is to get."""
    batch, seed = config.batch, config.run.seed
    unit = batch.images_per_class * world_size
    if batch.size % unit:
        below, above = batch.size // unit * unit, -(-batch.size // unit) * unit
        raise ValueError(
            f"batch.size={batch.size} must be a multiple of batch.images_per_class={batch.images_per_class} × {world_size} "
            f"processes = {unit}, because each gets whole groups of a class; try {f'{below} or ' if below else ''}{above}."
        )
    if batch.sampler == "m-per-class":
        most = batch.max_images_per_class
        return BalancedBatchSampler(
            labels, batch.size, batch.images_per_class, max_images_per_class=most, batches=batch.batches, seed=seed
        )
    if len(levels) < 2 or (batch.level is not None and batch.level not in levels[1:]):
        coarse = f"choose batch.level from {', '.join(levels[1:])}" if levels[1:] else "use the m-per-class sampler"
        raise ValueError(
            f"the hierarchical sampler needs a level coarser than {levels[0]}, and batch.level="
            f"{batch.level!r} with levels {', '.join(levels)} names none; {coarse}."
        )
    return HierarchicalBatchSampler(
        labels,
        batch.size,
        batch.images_per_class,
        level=1 if batch.level is None else levels.index(batch.level),
        coarse_per_batch=batch.coarse_per_batch,
        batches_per_combination=batch.batches_per_combination,
        batches=batch.batches,
        seed=seed,
    )


def _digest(paths: pa.ChunkedArray, labels: NDArray[np.int64]) -> str:
    found = hashlib.blake2b("\n".join(paths.to_pylist()).encode(), digest_size=16)
    found.update(np.ascontiguousarray(labels).tobytes())
    return found.hexdigest()


# What workers do


class _Asked(NamedTuple):
    """Which places of which batch, all of whose rows are told, so that any of them can stand in for a broken one."""

    epoch: int
    batch: int
    rows: NDArray[np.int64]
    places: slice


class _Piece(NamedTuple):
    images: Tensor
    ids: Tensor
    broken: tuple[BrokenImage, ...]
    replaced: int


class _SeededImages(Dataset[_Piece]):
    """Pieces of batches; every image is transformed under a seed of its own. Leaves the random numbers of the process be."""

    def __init__(self, images: ImageDataset, classes: NDArray[np.int64], seed: int) -> None:
        self.images, self.classes, self.seed = images, classes, seed

    def __getitem__(self, asked: _Asked) -> _Piece:
        broken: dict[int, BrokenImage] = {}
        before = torch.get_rng_state()
        try:
            items = [self._item(asked, place, broken) for place in range(asked.places.start, asked.places.stop)]
        finally:
            torch.set_rng_state(before)
        ids = [item.index for item in items]
        replaced = int((asked.rows[asked.places] != ids).sum())
        return _Piece(default_collate([item.image for item in items]), torch.tensor(ids), tuple(broken.values()), replaced)

    def _item(self, asked: _Asked, place: int, broken: dict[int, BrokenImage]) -> ImageItem:
        """The image of this place, or the first whole one of those that can stand in for it; adds to those known broken."""
        # Of these 63 bits torch's generator looks at 32. torch.manual_seed would reach for the GPU's generators too.
        seed = seed_of(self.seed, asked.epoch, asked.batch, place)
        for row in self._candidates(asked.rows, place):
            if row in broken:
                continue
            torch.default_generator.manual_seed(seed)
            item = self.images[row]
            if isinstance(item, ImageItem):
                return item
            broken[row] = item
        first = broken[int(asked.rows[place])]
        raise ValueError(
            f"batch {asked.batch} of epoch {asked.epoch} has no whole image: all {len(asked.rows):,} are broken, {first.path} "
            f"for one: {first.reason}; look at the folder, or check the manifest with `suprank data check`."
        )

    def _candidates(self, rows: NDArray[np.int64], place: int) -> Iterator[int]:
        """The row of the place itself; then those after it and round to it again: of its class, and then the others."""
        yield int(rows[place])
        others = np.roll(rows, -place)[1:]
        alike = self.classes[others] == self.classes[rows[place]]
        yield from others[alike].tolist()
        yield from others[~alike].tolist()


def _as_it_is(piece: Any) -> Any:
    return piece
