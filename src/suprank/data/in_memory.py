"""A dataset whose images are decoded once and kept in memory, for collections that fit."""

from __future__ import annotations

import copy
import os
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from suprank.data.datasets import ImageDataset, ImageItem
from suprank.data.decoded_files import Decoded, decoding_key, load_or_decode
from suprank.data.images import BrokenImage, BrokenImageError
from suprank.data.workers import ignore_signals, loader_batches, start_method
from suprank.system.platforms import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from numpy.typing import NDArray

_BATCH = 32  # images that a worker decodes at a time
_SAMPLED = 64  # images from which the size of all images is estimated
_GIB = 2**30


class InMemoryImages(ImageDataset):
    """The same items as those of `dataset`, without reading or decoding anything again.

    Every image is stored as uint8, at the size it was decoded to (see `ImageDataset` on boxes and `min_short_side`). The
    dataset's transform is applied at every access. It gets a uint8 tensor `[3, height, width]`, to which it must not write; the
    transforms of `suprank.data` accept it in place of a PIL image, with the same result. Without a transform, the item holds a
    PIL image.

    `workers` processes decode (0: this process); `progress(done, total)` counts images. The workers of a loader share the
    memory, whether forked or spawned. The processes of distributed training do not, without a `folder`: each has a copy.

    `prepare` is applied once, to the PIL image before it is stored, and must return a uint8 tensor `[3, height, width]`.

    With a `folder` the decoded images are kept in a file there, which other runs on this machine map into memory instead of
    decoding again (see `suprank.data.decoded_files`).

    Images that would take more than `limit` bytes (by default half of the free memory) are refused before all are decoded. With
    `on_broken="skip"` broken images stay broken.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        *,
        workers: int = 0,
        prepare: Callable[[Image.Image], Tensor] | None = None,
        progress: Callable[[int, int], None] | None = None,
        limit: int | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        vars(self).update(vars(dataset))
        decode = partial(_decode_all, dataset, prepare, workers, progress, limit)
        decoded = decode() if folder is None else load_or_decode(Path(folder), decoding_key(dataset, prepare), decode)
        self.pixels, self.shapes, self.broken = decoded
        self._ends = np.cumsum(3 * self.shapes.prod(1))

    @classmethod
    def transformed(cls, dataset: ImageDataset, **options: Any) -> Self:
        """The same items, with a transform that is applied once, before images are stored, and not at every access.

        For a transform without random choices that returns uint8 tensors `[3, height, width]`, such as `eval_transform` with
        `mean=None`.
        """
        images = cls(dataset, prepare=dataset.transform, **options)
        images.transform = _unchanged
        return images

    @property
    def nbytes(self) -> int:
        """The size of all pixels in bytes."""
        return len(self.pixels)

    def _load(self, row: int, path: str) -> tuple[Any, Callable[[Any], Any] | None]:
        if row in self.broken:
            raise BrokenImageError(f"{path}: {self.broken[row]}")
        height, width = self.shapes[row].tolist()
        end = int(self._ends[row])
        # PIL's memory layout, and a view [3, height, width] of it, as torchvision makes of a PIL image.
        pixels = self.pixels[end - 3 * height * width : end].view(height, width, 3)
        return Image.fromarray(pixels.numpy()) if self.transform is None else pixels.permute(2, 0, 1), self.transform


def _unchanged(image: Any) -> Any:
    return image


def estimate_bytes(dataset: ImageDataset, prepare: Callable[[Image.Image], Tensor] | None = None) -> int:
    """Estimate the bytes of all images of a dataset, decoded and prepared, from a few of them."""
    rows = np.unique(np.linspace(0, len(dataset) - 1, _SAMPLED).astype(np.int64)).tolist()
    reader = _with_transform(dataset, prepare)
    reader.on_broken = "skip"  # errors are raised when all images are decoded
    sizes = [_as_array(item.image).size for item in map(reader.__getitem__, rows) if isinstance(item, ImageItem)]
    return round(sum(sizes) / len(sizes) * len(dataset)) if sizes else 0


def free_memory() -> int:
    """The memory in bytes that is still available: of the machine, and of the container if there is one."""
    available = memory_bytes("SC_AVPHYS_PAGES") or memory_bytes() or sys.maxsize  # no limit if the system does not say
    meminfo = Path("/proc/meminfo")
    for line in meminfo.read_text(encoding="utf-8").splitlines() if meminfo.is_file() else ():
        if line.startswith("MemAvailable:"):  # includes what the system only caches
            available = int(line.split()[1]) * 1024
    cgroup = Path("/sys/fs/cgroup/memory.max")
    limit = cgroup.read_text(encoding="utf-8").strip() if cgroup.is_file() else "max"
    return available if limit == "max" else min(available, int(limit))


class _Piece(NamedTuple):
    """Pixels of some images, one after the other, row by row; their (height, width), (0, 0) if broken; and the broken ones."""

    pixels: Tensor
    shapes: list[tuple[int, int]]
    broken: list[BrokenImage]


def _decode_all(
    dataset: ImageDataset,
    prepare: Callable[[Image.Image], Tensor] | None,
    workers: int,
    progress: Callable[[int, int], None] | None,
    limit: int | None,
) -> Decoded:
    limit = free_memory() // 2 if limit is None else limit
    _check_fits(estimate_bytes(dataset, prepare), limit, len(dataset))
    pieces: list[Tensor] = []
    shapes: list[tuple[int, int]] = []
    size = 0
    broken: dict[int, str] = {}
    with closing(_decode_pieces(_with_transform(dataset, prepare), workers)) as decoded_pieces:
        for piece in decoded_pieces:
            shapes += piece.shapes
            broken |= {one.index: one.reason for one in piece.broken}
            pieces.append(piece.pixels.clone())  # a tensor from a worker keeps a file open
            size += len(piece.pixels)
            _check_fits(size, limit, len(dataset))
            if progress is not None:
                progress(len(shapes), len(dataset))
    return Decoded(_concatenate(pieces), np.array(shapes, np.int64).reshape(-1, 2), broken)


def _decode_pieces(dataset: ImageDataset, workers: int) -> Generator[_Piece]:
    rows = [list(range(start, min(start + _BATCH, len(dataset)))) for start in range(0, len(dataset), _BATCH)]
    workers = min(workers, len(rows))
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=rows,
        num_workers=workers,
        multiprocessing_context=start_method(workers),
        collate_fn=_collate_pixels,
        worker_init_fn=ignore_signals,
        generator=torch.Generator(),  # otherwise it would draw from torch's global generator
    )
    return loader_batches(loader)


def _with_transform(dataset: ImageDataset, transform: Callable[[Image.Image], Tensor] | None) -> ImageDataset:
    """The dataset with this transform in place of its own."""
    other = copy.copy(dataset)
    other.transform = transform
    return other


def _as_array(image: Image.Image | Tensor) -> NDArray[np.uint8]:
    """The pixels `[height, width, 3]` of a PIL image or of a tensor `[3, height, width]`."""
    return image.permute(1, 2, 0).numpy() if isinstance(image, Tensor) else np.asarray(image)


def _collate_pixels(items: Sequence[ImageItem | BrokenImage]) -> _Piece:
    arrays: list[NDArray[np.uint8]] = [
        _as_array(item.image) if isinstance(item, ImageItem) else np.empty((0, 0, 3), np.uint8) for item in items
    ]
    pixels = np.concatenate([array.ravel() for array in arrays])
    broken = [item for item in items if isinstance(item, BrokenImage)]
    return _Piece(torch.from_numpy(pixels), [(array.shape[0], array.shape[1]) for array in arrays], broken)


def _concatenate(pieces: list[Tensor]) -> Tensor:
    """Join all pieces, and empty the list on the way, so that no more than one piece is in memory twice."""
    whole = torch.empty(sum(map(len, pieces)), dtype=torch.uint8)
    end = len(whole)
    while pieces:
        piece = pieces.pop()
        whole[end - len(piece) : end] = piece
        end -= len(piece)
    return whole


def _check_fits(size: int, limit: int, images: int) -> None:
    if size > limit:
        raise ValueError(
            f"{images:,} decoded images take {size / _GIB:.1f} GiB or more, and at most {limit / _GIB:.1f} GiB may be cached "
            f"(by default half of the free memory); set data.cache_images=false, and data.crop_on_device=false, to decode "
            f"images whenever they are needed."
        )
