"""Loading the images of a manifest for a model: transform, batches, workers, and what to do about broken images."""

from __future__ import annotations

import copy
import logging
import warnings
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from suprank.data import transforms
from suprank.data.cached_images import InMemoryImages
from suprank.data.contents import content_digest
from suprank.data.datasets import ImageBatch, ImageDataset, collate
from suprank.data.image_files import ImageFiles
from suprank.data.jpeg import Decoder, is_installed
from suprank.data.workers import default_workers, ignore_signals, loader_batches, start_method

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from numpy.typing import NDArray
    from torchvision.transforms.v2 import Compose

    from suprank.data.manifest import Manifest
    from suprank.models.embedder import Embedder

_log = logging.getLogger(__name__)


class EvalTransformSettings(NamedTuple):
    """The evaluation transform: the side of the central crop, and the resizing before it (see `EmbedderConfig`)."""

    size: int
    resize: int
    squash: bool = False
    interpolation: str = "bilinear"
    fast_jpeg: bool = False

    def transform(self) -> Compose:
        """The transform, which gives bytes: normalizing them is left to the model's device."""
        return transforms.eval_transform(
            self.size, resize=self.resize or None, squash=self.squash, interpolation=self.interpolation, mean=None
        )


@dataclass(frozen=True)
class ImageLoaderSettings:
    """How images are loaded in row order: decoded and transformed by worker processes, `batch_size` at a time.

    `normalize` is applied to whole batches on the model's device, so that workers do less if the transform gives bytes.
    `min_short_side` is the minimum short side to which images are decoded (see `ImageDataset`). `workers` is the number of
    processes (default: one per core, at most 16); 0 decodes in this process. `on_broken` is "raise", or "skip", which
    leaves out broken images and logs them. `settings` describe the transform, to compare two evaluations; None for a transform
    of the caller's. `decoder` decodes JPEGs (see `ImageDataset`).
    """

    transform: Callable[[Any], torch.Tensor]
    normalize: Callable[[torch.Tensor], torch.Tensor] | None = None
    min_short_side: int | None = None
    batch_size: int = 64
    workers: int | None = None
    on_broken: str = "raise"
    settings: EvalTransformSettings | None = None
    decoder: Decoder = "pil"

    @classmethod
    def for_model(
        cls,
        embedder: Embedder,
        *,
        size: int | None = None,
        resize: int | None = None,
        squash: bool | None = None,
        fast_jpeg: bool | None = None,
        decoder: Decoder | None = None,
        **further: Any,
    ) -> Self:
        """Load images as in the model's own evaluation: as its `input` says, except for what is given here.

        `size` is the side of the central crop, `resize` the short side before it (0: the image as it is; by default in the
        model's proportion to `size`), `squash` resizes both sides and loses the aspect ratio. `fast_jpeg` decodes large JPEGs
        at a fraction of their size, which is several times faster and changes pixels by a few gray levels. `decoder` is "pil"
        or "turbo". If the model's own is not installed, it is "pil", with a warning: in evaluation both give the same pixels.
        `further` are fields of this class.
        """
        default = embedder.input
        if size is None and default.size[0] != default.size[1]:
            raise ValueError(
                f"the model takes images of {default.size[0]} × {default.size[1]} pixels; crops are square, so give a size."
            )
        side = default.size[0] if size is None else size
        known = default.interpolation in transforms.INTERPOLATIONS
        images = EvalTransformSettings(
            size=side,
            resize=round(side * default.resize / min(default.size)) if resize is None else resize,
            squash=default.squash if squash is None else squash,
            interpolation=default.interpolation if known else "bicubic",  # there is no Lanczos for tensors
            fast_jpeg=default.fast_jpeg if fast_jpeg is None else fast_jpeg,
        )
        transform = images.transform()
        normalize = transforms.Normalize(default.mean, default.std)
        min_short_side = transforms.min_short_side(transform) if images.fast_jpeg else None
        decoder = decoder or _decoder_here(default.decoder)
        return cls(transform, normalize, min_short_side, settings=images, decoder=decoder, **further)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be 1 or more.")

    def before(self, forward: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function that normalizes a batch of `batches` and calls `forward` on it."""
        normalize = self.normalize
        return forward if normalize is None else lambda images: forward(normalize(images))

    def dataset(self, manifest: Manifest) -> ImageDataset:
        """The images of a manifest, transformed one by one."""
        return ImageDataset(
            manifest, self.transform, on_broken=self.on_broken, min_short_side=self.min_short_side, decoder=self.decoder
        )

    def batches(
        self,
        images: Manifest | ImageDataset,
        rows: NDArray[np.int64] | Iterator[NDArray[np.int64]],
        *,
        pinned: bool,
        on_hashes: Callable[[NDArray[np.int64], NDArray[np.int64]], None] | None = None,
    ) -> Generator[ImageBatch]:
        """The images of these rows in their order; the last batch may be smaller. `pinned` memory is for copies to a GPU.

        Rows may come array by array, the next when workers are ready for it; a batch holds rows of one array only. To load a
        manifest more than once, give its `dataset`, or an `InMemoryImages` of it. The workers end with the iterator: close it
        if it may not be exhausted. `on_hashes(rows, hashes)` gets the hashes of the bytes of each batch, also of broken images:
        see `suprank.data.contents`.
        """
        dataset = images if isinstance(images, ImageDataset) else self.dataset(images)
        arrays, at_most = ([rows], len(rows)) if isinstance(rows, np.ndarray) else (rows, len(dataset))
        workers = min(default_workers() if self.workers is None else self.workers, -(-at_most // self.batch_size))
        if isinstance(dataset, InMemoryImages) and dataset.is_transformed:
            workers = 0
        loader: DataLoader[Any] = DataLoader(
            dataset if on_hashes is None else _HashedImages(dataset),
            batch_sampler=_chunks(arrays, self.batch_size),
            num_workers=workers,
            multiprocessing_context=start_method(workers),
            collate_fn=collate if on_hashes is None else tuple,
            pin_memory=pinned,
            worker_init_fn=ignore_signals,
            generator=torch.Generator(),  # otherwise it would use the process's random numbers
        )
        with closing(loader_batches(loader)) as batches:
            for loaded in batches:
                batch = loaded
                if on_hashes is not None:
                    batch, indices, digests = loaded
                    on_hashes(indices.numpy(), digests.numpy())
                for broken in batch.broken:
                    _log.warning("skipped %s: %s", broken.path, broken.reason)
                yield batch


class _HashingFiles(ImageFiles):
    """The same files; `digest` is the hash of what was read last, 0 if that failed."""

    def __init__(self, files: ImageFiles) -> None:
        vars(self).update(vars(files))

    def read(self, path: str) -> bytes:
        self.digest = np.zeros(2, np.int64)
        content = super().read(path)
        self.digest = content_digest(content)
        return content


class _HashedImages(Dataset[Any]):
    """A dataset whose batches come with their rows and the hashes of their bytes."""

    def __init__(self, images: ImageDataset) -> None:
        self.images, self.files = copy.copy(images), _HashingFiles(images.files)
        self.images.files = self.files

    def __getitems__(self, rows: list[int]) -> tuple[ImageBatch, torch.Tensor, torch.Tensor]:
        loaded = [(self.images[row], self.files.digest) for row in rows]
        digests = torch.from_numpy(np.stack([digest for _, digest in loaded]))
        return collate([item for item, _ in loaded]), torch.tensor(rows), digests


def _chunks(arrays: Iterable[NDArray[np.int64]], size: int) -> Iterator[list[int]]:
    for rows in arrays:
        for start in range(0, len(rows), size):
            yield rows[start : start + size].tolist()


def _decoder_here(saved: Decoder) -> Decoder:
    """The decoder that a model was saved with, or PIL if it is not installed, with a warning."""
    if is_installed(saved):
        return saved
    warnings.warn(
        f'the model was saved with the decoder {saved}, which is not installed here (pip install "suprank[vision]"); PIL '
        "decodes its images, to the same pixels.",
        stacklevel=1,  # always this line, so that it is shown once
    )
    return "pil"
