"""How a manifest's images are read for a model: transform, batches, workers, and what is done about broken ones."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch.utils.data import DataLoader

from suprank.data import transforms
from suprank.data.datasets import Batch, ImageDataset, collated
from suprank.data.workers import cores, ignore_signals, loader_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import numpy as np
    from numpy.typing import NDArray
    from torchvision.transforms.v2 import Compose

    from suprank.data.manifest import Manifest
    from suprank.models.embedder import Embedder

_log = logging.getLogger(__name__)


class ImageSettings(NamedTuple):
    """How a test image becomes pixels: the side of its central crop, and the resizing before it (see `EmbedderConfig`)."""

    size: int
    resize: int
    squash: bool = False
    interpolation: str = "bilinear"
    fast_jpeg: bool = False

    def transform(self) -> Compose:
        """The transform, which stops at bytes."""
        return transforms.eval_transform(
            self.size, resize=self.resize or None, squash=self.squash, interpolation=self.interpolation, mean=None
        )


@dataclass(frozen=True)
class ImageLoaderSettings:
    """Images in row order, decoded by worker processes and transformed, `batch_size` at a time.

    `normalize` is applied to whole batches on the model's device: with a transform that stops at bytes, workers do less.
    `at_least` is the short side that images are decoded to at least (see `ImageDataset`). `workers` are processes (default: one
    a core, 16 at most); 0 decodes in this one. `on_broken` is "raise", or "skip", which leaves broken images out and logs them.
    `settings` describe the transform for whoever compares two evaluations; None where the transform is the caller's own.
    """

    transform: Callable[[Any], torch.Tensor]
    normalize: Callable[[torch.Tensor], torch.Tensor] | None = None
    at_least: int | None = None
    batch_size: int = 64
    workers: int | None = None
    on_broken: str = "raise"
    settings: ImageSettings | None = None

    @classmethod
    def for_model(
        cls,
        embedder: Embedder,
        *,
        size: int | None = None,
        resize: int | None = None,
        squash: bool | None = None,
        fast_jpeg: bool | None = None,
        **further: Any,
    ) -> Self:
        """Read images as the model was evaluated: as its `input` says, except for what is given here.

        `size` is the side of the central crop, `resize` the short side before it (0: the image as it is; by default in the
        model's proportion to `size`), `squash` resizes both sides and loses the aspect ratio. `fast_jpeg` decodes large JPEGs
        at a fraction of their size, which is several times faster and changes pixels by a few gray levels. The rest are fields
        of this class.
        """
        said = embedder.input
        if size is None and said.size[0] != said.size[1]:
            raise ValueError(
                f"the model takes images of {said.size[0]} × {said.size[1]} pixels; crops are square, so give a size."
            )
        side = said.size[0] if size is None else size
        known = said.interpolation in transforms.INTERPOLATIONS
        images = ImageSettings(
            size=side,
            resize=round(side * said.resize / min(said.size)) if resize is None else resize,
            squash=said.squash if squash is None else squash,
            interpolation=said.interpolation if known else "bicubic",  # PIL's Lanczos has no like among tensors
            fast_jpeg=said.fast_jpeg if fast_jpeg is None else fast_jpeg,
        )
        transform = images.transform()
        normalize = transforms.Normalize(said.mean, said.std)
        at_least = transforms.at_least(transform) if images.fast_jpeg else None
        return cls(transform, normalize, at_least, settings=images, **further)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be 1 or more.")

    def before(self, forward: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        """What takes a batch as `batches` gives it and calls `forward` on it normalized."""
        normalize = self.normalize
        return forward if normalize is None else lambda images: forward(normalize(images))

    def dataset(self, manifest: Manifest) -> ImageDataset:
        """The images of a manifest, transformed one by one."""
        return ImageDataset(manifest, self.transform, on_broken=self.on_broken, at_least=self.at_least)

    def batches(self, images: Manifest | ImageDataset, rows: NDArray[np.int64], *, pinned: bool) -> Generator[Batch]:
        """The images of these rows in their order, the last batch with what is left; in pinned memory on the way to a GPU.

        Who reads a manifest more than once may give its `dataset`, or a `InMemoryImages` of that. Workers end with the iterator:
        close it where it may not be exhausted.
        """
        dataset = images if isinstance(images, ImageDataset) else self.dataset(images)
        chunks = [rows[start : start + self.batch_size].tolist() for start in range(0, len(rows), self.batch_size)]
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=chunks,
            num_workers=min(cores() if self.workers is None else self.workers, len(chunks)),
            collate_fn=collated,
            pin_memory=pinned,
            worker_init_fn=ignore_signals,
            generator=torch.Generator(),  # else it would draw from the process's own random numbers
        )
        with closing(loader_batches(loader)) as batches:
            for batch in batches:
                for broken in batch.broken:
                    _log.warning("skipped %s: %s", broken.path, broken.reason)
                yield batch
