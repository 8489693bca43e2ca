"""Training batches in which every random choice depends on seed, epoch, batch and position in the batch, and on nothing else.

So a resumed run needs no saved generator state: it sees exactly the pixels it would have seen, with any number of workers, and
n processes together see what one process would.
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
from suprank.data.cached_images import BOX_NUMBERS, InMemoryImages, random_boxes
from suprank.data.datasets import ImageDataset, ImageItem
from suprank.data.images import BrokenImage
from suprank.data.samplers import BalancedBatchSampler, HierarchicalBatchSampler
from suprank.data.workers import default_workers, ignore_signals, loader_batches, start_method
from suprank.files.labels import check_tree
from suprank.training.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.training.config import ImagesConfig, TrainConfig

MAX_PIECE = 256
"""Most images that a worker decodes at a time. Larger batches are assembled from pieces of several workers: 16 workers that
each prefetch two batches of 4,096 images would fill 20 GB."""

_log = logging.getLogger(__name__)


class TrainBatch(NamedTuple):
    """This process's part of a batch: images (uint8) `[b, 3, height, width]`, labels `[b, levels]`, the rows `[b]` of the
    images among the training images, and how many of them replace broken ones. All are on the CPU, except for images that were
    cropped on a GPU."""

    images: Tensor
    labels: Tensor
    ids: Tensor
    replaced: int


class TrainBatches:
    """The training images of a manifest in batches; process `rank` of `world_size` gets its part of each.

        labels    [images, levels], finest first, numbered from 0 at each level over the training images;
                  [images, levels, M] if images have up to M labels at a level
        levels    their names
        classes   the number of classes at the finest level
        paths     of the images

    A broken image raises. With `data.on_broken = "skip"` it is replaced by an image of its class in the batch, or else by any
    other of the batch, cropped anew; this is counted in `TrainBatch.replaced`, and logged once for each path. A batch in which
    all images are broken raises.
    """

    def __init__(
        self,
        images: _SeededImages | _DeviceCrops,
        paths: pa.ChunkedArray,
        levels: tuple[str, ...],
        labels: NDArray[np.int64],
        sampler: BalancedBatchSampler | HierarchicalBatchSampler,
        *,
        rank: int,
        world_size: int,
        workers: int | None,
        pinned: bool,
    ) -> None:
        """Use `from_config`. The sampler is that of the whole batch."""
        self.labels, self.levels, self.paths = torch.from_numpy(labels), levels, paths
        self.classes = int(labels[:, 0].max()) + 1
        self._images, self._sampler, self._workers, self._pinned = images, sampler, workers, pinned
        share = sampler.batch_size // world_size
        piece = share if isinstance(images, _DeviceCrops) else MAX_PIECE
        starts = range(rank * share, (rank + 1) * share, piece)
        self._pieces = [slice(start, min(start + piece, (rank + 1) * share)) for start in starts]
        self._logged: set[str] = set()  # paths of the broken images that the log names already
        self._digest = _digest(self.paths, labels)

    @classmethod
    def from_config(
        cls,
        config: TrainConfig,
        manifest: Manifest,
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """The batches that the recipe describes, from the `train` split of the manifest, for a network on `device`.

        `progress(done, total)` counts the images that `data.cache_images` and `data.crop_on_device` decode here, once for all
        epochs.
        """
        if "train" not in manifest.splits:
            splits = ", ".join(manifest.splits)
            raise ValueError(f"{config.data.manifest} has no images to train on, only {splits}; mark some of them as train.")
        images = manifest.split("train")
        levels, labels, sampler = _labels_and_sampler(config, images, world_size)
        _warn_if_no_tree(labels, levels, config.data.manifest)
        crops = config.images
        transform = transforms.train_transform(
            crops.size, resize=crops.resize, scale=crops.crop_scale, ratio=crops.crop_ratio, flip=crops.flip, mean=None
        )
        min_size = transforms.min_short_side(transform) if config.data.fast_jpeg else None
        dataset = ImageDataset(
            images, transform, on_broken=config.data.on_broken, min_short_side=min_size, decoder=config.data.decoder
        )
        workers = config.data.workers
        decoding: dict[str, Any] = {
            "workers": default_workers() if workers is None else workers,
            "progress": progress,
            "folder": config.data.cache_folder,
        }
        cropped: _SeededImages | _DeviceCrops
        if config.data.crop_on_device:
            prepare = transforms.resize_transform(crops.resize) if crops.resize is not None else None
            decoded = InMemoryImages(dataset, prepare=prepare, **decoding)
            cropped = _DeviceCrops(decoded, labels[:, 0], sampler.seed, crops, device)
        else:
            dataset = InMemoryImages(dataset, **decoding) if config.data.cache_images else dataset
            cropped = _SeededImages(dataset, labels[:, 0], sampler.seed)
        return cls(
            cropped,
            images.paths,
            levels,
            labels,
            sampler,
            rank=rank,
            world_size=world_size,
            workers=workers,
            pinned=torch.device(device).type == "cuda",
        )

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._sampler)

    def batches(self, epoch: int, consumed: int, epochs: int) -> Generator[TrainBatch]:
        """The batches from `consumed` of `epoch` (both from 0) to the last one of epoch `epochs − 1`.

        Workers start once and prefetch across epochs. They end with the iterator: close it, or drop it.
        """
        if isinstance(self._images, _DeviceCrops):
            for request in self._requests(epoch, consumed, epochs):
                yield self._assemble([self._images[request]])
            return
        pieces_left = max((epochs - epoch) * len(self) - consumed, 0) * len(self._pieces)
        in_pieces = len(self._pieces) > 1
        workers = min(default_workers() if self._workers is None else self._workers, pieces_left)
        loader: DataLoader[Any] = DataLoader(
            self._images,
            batch_size=None,
            sampler=self._requests(epoch, consumed, epochs),
            num_workers=workers,
            multiprocessing_context=start_method(workers),
            collate_fn=_identity,
            pin_memory=self._pinned and not in_pieces,
            worker_init_fn=ignore_signals,
            generator=torch.Generator(),  # else it would draw from the global generator
        )
        with closing(loader_batches(loader)) as pieces:
            for first in pieces:
                yield self._assemble([first, *(next(pieces) for _ in self._pieces[1:])])

    def state_dict(self, epoch: int, consumed: int) -> dict[str, Any]:
        """A fingerprint of the images and the sampler, and the position after `consumed` batches of `epoch`."""
        finished, consumed = divmod(consumed, len(self))
        place = {"epoch": epoch + finished, "consumed": consumed}
        return {**self._sampler.state_dict(0), **place, "images": self._digest}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Refuse a state of other images, labels, seed or batches; the number of processes may differ."""
        if state.get("images") != self._digest:
            raise ValueError(
                "the training images or their labels are not those that the run began with; give it the same manifest and "
                "levels, or start a new run."
            )
        self._sampler.load_state_dict(state)

    def _requests(self, epoch: int, consumed: int, epochs: int) -> Iterator[_PieceRequest]:
        finished, consumed = divmod(consumed, len(self))
        for current in range(epoch + finished, epochs):
            first = consumed if current == epoch + finished else 0
            self._sampler.set_epoch(current, consumed=first)
            for batch, rows in enumerate(self._sampler, first):
                yield from (_PieceRequest(current, batch, np.array(rows), piece) for piece in self._pieces)

    def _assemble(self, pieces: Sequence[_Piece]) -> TrainBatch:
        for broken in (broken for piece in pieces for broken in piece.broken):
            if broken.path not in self._logged:
                self._logged.add(broken.path)
                _log.warning("replaced %s by another image of the batch: %s", broken.path, broken.reason)
        images, ids = pieces[0].images, pieces[0].ids
        if len(pieces) > 1:
            ids = torch.cat([piece.ids for piece in pieces])
            images = images.new_empty((len(ids), *images.shape[1:]), pin_memory=self._pinned)
            torch.cat([piece.images for piece in pieces], out=images)
        return TrainBatch(images, self.labels[ids], ids, sum(piece.replaced for piece in pieces))


# From the recipe


def check_batches(config: TrainConfig, images: Manifest, world_size: int = 1) -> None:
    """Refuse what training on these images would refuse: levels that they do not have, too few classes for a batch."""
    _labels_and_sampler(config, images, world_size)


def batches_per_epoch(config: TrainConfig, images: Manifest) -> int:
    """Batches of an epoch on these images."""
    return len(_labels_and_sampler(config, images, 1)[2])


def _labels_and_sampler(
    config: TrainConfig, images: Manifest, world_size: int
) -> tuple[tuple[str, ...], NDArray[np.int64], BalancedBatchSampler | HierarchicalBatchSampler]:
    levels = _chosen_levels(config, images)
    labels = _renumber(images.labels_at(levels))
    return levels, labels, _sampler(config, labels, levels, world_size)


def _chosen_levels(config: TrainConfig, images: Manifest) -> tuple[str, ...]:
    chosen, known = config.data.levels, ", ".join(images.levels)
    if not images.levels:
        raise ValueError(f"{config.data.manifest} has no labels to train with; add columns label_<level>, finest first.")
    if chosen is None:
        return images.levels
    unknown = [level for level in chosen if level not in images.levels]
    if unknown or not chosen:
        raise ValueError(f"data.levels={list(chosen)} must be one or more of the levels of {config.data.manifest}: {known}.")
    if list(chosen) != [level for level in images.levels if level in chosen]:
        raise ValueError(
            f"data.levels={list(chosen)} must come once each, finest first, as in {config.data.manifest}: {known}."
        )
    return chosen


def _warn_if_no_tree(labels: NDArray[np.int64], levels: tuple[str, ...], manifest: str) -> None:
    """Log a warning if a class has two parents, or a level is finer than the one before: losses accept both."""
    try:
        check_tree([labels], levels)
    except ValueError as error:
        _log.warning("training labels of %s: %s", manifest, error)


def _renumber(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same classes, numbered from 0 at each level; −1, no label, stays −1."""
    renumbered = np.empty_like(labels)
    for level in range(labels.shape[1]):
        # With a −1 in front, the smallest number of every column is −1, whether the column holds one or not.
        _, codes = np.unique(np.append(-1, labels[:, level]), return_inverse=True)
        renumbered[:, level] = codes[1:].reshape(labels[:, level].shape) - 1
    return renumbered


def _sampler(
    config: TrainConfig, labels: NDArray[np.int64], levels: tuple[str, ...], world_size: int
) -> BalancedBatchSampler | HierarchicalBatchSampler:
    """The sampler of the whole batch, of which each process takes its part."""
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
    if labels.ndim == 3:
        raise ValueError(
            "the hierarchical sampler needs one label for an image at each level, but images have several; use "
            "batch.sampler='m-per-class'."
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
    digest = hashlib.blake2b("\n".join(paths.to_pylist()).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(labels).tobytes())
    return digest.hexdigest()


# Pieces of batches


class _PieceRequest(NamedTuple):
    """The positions to crop in a batch. `rows` are those of the whole batch, any of which can replace a broken one."""

    epoch: int
    batch: int
    rows: NDArray[np.int64]
    positions: slice


class _Piece(NamedTuple):
    images: Tensor
    ids: Tensor
    broken: tuple[BrokenImage, ...]
    replaced: int


class _SeededImages(Dataset[_Piece]):
    """Pieces of batches, for workers; every image is transformed under its own seed.

    The global generator is left as it was.
    """

    def __init__(self, images: ImageDataset, classes: NDArray[np.int64], seed: int) -> None:
        self.images, self.classes, self.seed = images, classes, seed

    def __getitem__(self, request: _PieceRequest) -> _Piece:
        broken: dict[int, BrokenImage] = {}
        before = torch.get_rng_state()
        try:
            items = [
                self._item(request, position, broken) for position in range(request.positions.start, request.positions.stop)
            ]
        finally:
            torch.set_rng_state(before)
        ids = [item.index for item in items]
        replaced = int((request.rows[request.positions] != ids).sum())
        return _Piece(default_collate([item.image for item in items]), torch.tensor(ids), tuple(broken.values()), replaced)

    def _item(self, request: _PieceRequest, position: int, broken: dict[int, BrokenImage]) -> ImageItem:
        """The image of this position, or the first one that can replace it if it is broken; adds to `broken`."""
        # torch's generator uses 32 of these 63 bits. torch.manual_seed would seed the GPU's generators too.
        seed = derive_seed(self.seed, request.epoch, request.batch, position)
        for row in _candidates(request.rows, self.classes, position):
            if row in broken:
                continue
            torch.default_generator.manual_seed(seed)
            item = self.images[row]
            if isinstance(item, ImageItem):
                return item
            broken[row] = item
        raise _all_broken(request, broken[int(request.rows[position])])


class _DeviceCrops:
    """Pieces of batches, cropped on a device from images that are kept there. A batch's boxes are drawn under its own seed."""

    def __init__(
        self,
        images: InMemoryImages,
        classes: NDArray[np.int64],
        seed: int,
        crops: ImagesConfig,
        device: torch.device | str,
    ) -> None:
        self.classes, self.seed, self.crops = classes, seed, crops
        self.broken = {row: BrokenImage(row, images.paths[row].as_py(), reason) for row, reason in images.broken.items()}
        self.images = images.to(device)

    def __getitem__(self, request: _PieceRequest) -> _Piece:
        wanted = request.rows[request.positions]
        broken = {int(row): self.broken[int(row)] for row in wanted if int(row) in self.broken}
        rows = wanted.copy()
        for place in np.flatnonzero(np.isin(wanted, list(broken))) if broken else ():
            rows[place] = self._replacement(request, request.positions.start + int(place))
        generator = np.random.default_rng(derive_seed(self.seed, request.epoch, request.batch))
        # Those of the whole batch, of which n processes crop their parts: all images of a batch count, broken ones too.
        numbers = generator.random((len(request.rows), BOX_NUMBERS + 1))[request.positions]
        boxes = random_boxes(self.images.shapes[rows], self.crops.crop_scale, self.crops.crop_ratio, numbers[:, 1:])
        images = self.images.crop(rows, boxes, numbers[:, 0] < self.crops.flip, self.crops.size)
        return _Piece(images, torch.from_numpy(rows), tuple(broken.values()), len(rows) - int((rows == wanted).sum()))

    def _replacement(self, request: _PieceRequest, position: int) -> int:
        for row in _candidates(request.rows, self.classes, position):
            if row not in self.broken:
                return row
        raise _all_broken(request, self.broken[int(request.rows[position])])


def _candidates(rows: NDArray[np.int64], classes: NDArray[np.int64], position: int) -> Iterator[int]:
    """The row of the position itself; then the others in cyclic order, those of its class first."""
    yield int(rows[position])
    others = np.roll(rows, -position)[1:]
    own = classes[rows[position]]
    same_class = classes[others] == own if own.ndim == 0 else np.isin(classes[others], own[own >= 0]).any(1)
    yield from others[same_class].tolist()
    yield from others[~same_class].tolist()


def _all_broken(request: _PieceRequest, first: BrokenImage) -> ValueError:
    return ValueError(
        f"all {len(request.rows):,} images of batch {request.batch} of epoch {request.epoch} are broken, {first.path} "
        f"for one: {first.reason}; look at the folder, or check the manifest with `suprank data check`."
    )


def _identity(piece: Any) -> Any:
    return piece
