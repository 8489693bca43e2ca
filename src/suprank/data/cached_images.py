"""Images that are decoded once: kept in memory, in files that runs share, or on a device, where whole batches are cropped.

`InMemoryImages` is the way in: with a `folder`, other runs map what the first one decoded; `to(device)` makes `DeviceImages`.
"""

from __future__ import annotations

import copy
import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from suprank.data.datasets import ImageDataset, ImageItem
from suprank.data.image_files import SEPARATOR, archive_names, file_times
from suprank.data.images import BrokenImage, BrokenImageError
from suprank.data.workers import ignore_signals, loader_batches, start_method
from suprank.files.binary import write_npy
from suprank.files.locking import build_once
from suprank.system.platforms import memory_bytes
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from suprank.system.progress import Progress

_ATTEMPTS = 10  # boxes that are drawn for an image before its center is cropped, as in torchvision
BOX_NUMBERS = 2 * _ATTEMPTS + 2
"""Random numbers for a box: a size and an aspect ratio for each attempt, and a place."""

_PIXELS_AT_ONCE = 2**23  # of the crops before they are resized: 300 MB with their float32 values and indices
_BATCH = 32  # images that a worker decodes at a time
_SAMPLED = 64  # images from which the size of all images is estimated
_GIB = 2**30
_FORMAT = 2  # of the files in a folder

Prepare = Callable[[Image.Image], Tensor]


class InMemoryImages(ImageDataset):
    """The same items as those of `dataset`, without reading or decoding anything again.

    Every image is stored as uint8, at the size it was decoded to (see `ImageDataset` on boxes and `min_short_side`). The
    dataset's transform is applied at every access. It gets a uint8 tensor `[3, height, width]`, to which it must not write; the
    transforms of `suprank.data` accept it in place of a PIL image, with the same result. Without a transform, the item holds a
    PIL image.

    `workers` processes decode (0: this process); `progress` draws a bar, or is called with (done, total). The workers of a
    loader share the memory, whether forked or spawned. The processes of distributed training do not, without a `folder`: each
    has a copy.

    `prepare` is applied once, to the PIL image before it is stored, and must return a uint8 tensor `[3, height, width]`.

    With a `folder` the decoded images are kept in files there, which other runs on this machine map into memory instead of
    decoding again. They are found by a key of all that their pixels depend on, and stay until somebody deletes them. Processes
    that need the same images at the same time wait for the one that decodes them. A process that writes to the pixels changes
    only its own.

    Images that would take more than `limit` bytes (by default half of the free memory) are refused before all are decoded. With
    `on_broken="skip"` broken images stay broken.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        *,
        workers: int = 0,
        prepare: Prepare | None = None,
        progress: bool | Progress = True,
        limit: int | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        vars(self).update(vars(dataset))
        decode = partial(_decode_all, dataset, prepare, workers, progress_function(progress, "decoding"), limit)
        if folder is None:
            decoded = decode()
        else:
            place = Path(folder).expanduser() / decoding_key(dataset, prepare)
            way_out = "name a folder that is (data.cache_folder in a recipe)"
            decoded = _load(build_once(place, lambda unfinished: _save(decode(), unfinished), way_out))
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
    def is_transformed(self) -> bool:
        """Whether an access only copies what is stored, for which a loader needs no processes."""
        return self.transform is _unchanged

    @property
    def nbytes(self) -> int:
        """The size of all pixels in bytes."""
        return len(self.pixels)

    def to(self, device: torch.device | str) -> DeviceImages:
        """All images on a device, to crop batches there."""
        return DeviceImages(self, torch.device(device))

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


# Decoding


class _Decoded(NamedTuple):
    """All pixels of a dataset, row by row, one image after the other; heights and widths `[images, 2]`, (0, 0) for a broken
    image; and why images are broken, by their rows."""

    pixels: Tensor
    shapes: NDArray[np.int64]
    broken: dict[int, str]


def _decode_all(
    dataset: ImageDataset,
    prepare: Prepare | None,
    workers: int,
    progress: Progress,
    limit: int | None,
) -> _Decoded:
    limit = free_memory() // 2 if limit is None else limit
    _check_fits(estimate_bytes(dataset, prepare), limit, len(dataset))
    pieces: list[Tensor] = []
    shapes: list[tuple[int, int]] = []
    size = 0
    broken: dict[int, str] = {}
    with closing(_decode_pieces(_with_transform(dataset, prepare), workers)) as decoded_pieces:
        for piece in decoded_pieces:
            shapes += map(tuple, piece.shapes.tolist())
            broken |= piece.broken
            pieces.append(piece.pixels.clone())  # a tensor from a worker keeps a file open
            size += len(piece.pixels)
            _check_fits(size, limit, len(dataset))
            progress(len(shapes), len(dataset))
    pixels = torch.empty(size, dtype=torch.uint8)
    while pieces:  # from the last, so that no more than one piece is in memory twice
        last = pieces.pop()
        pixels[size - len(last) : size] = last
        size -= len(last)
    return _Decoded(pixels, np.array(shapes, np.int64).reshape(-1, 2), broken)


def _decode_pieces(dataset: ImageDataset, workers: int) -> Generator[_Decoded]:
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


def _collate_pixels(items: Sequence[ImageItem | BrokenImage]) -> _Decoded:
    arrays = [_as_array(item.image) if isinstance(item, ImageItem) else np.empty((0, 0, 3), np.uint8) for item in items]
    pixels = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    broken = {item.index: item.reason for item in items if isinstance(item, BrokenImage)}
    return _Decoded(pixels, np.array([array.shape[:2] for array in arrays]), broken)


def _as_array(image: Image.Image | Tensor) -> NDArray[np.uint8]:
    """The pixels `[height, width, 3]` of a PIL image or of a tensor `[3, height, width]`."""
    return image.permute(1, 2, 0).numpy() if isinstance(image, Tensor) else np.asarray(image)


def _with_transform(dataset: ImageDataset, transform: Prepare | None) -> ImageDataset:
    """The dataset with this transform in place of its own."""
    other = copy.copy(dataset)
    other.transform = transform
    return other


def estimate_bytes(dataset: ImageDataset, prepare: Prepare | None = None) -> int:
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


def _check_fits(size: int, limit: int, images: int) -> None:
    if size > limit:
        raise ValueError(
            f"{images:,} decoded images take {size / _GIB:.1f} GiB or more, and at most {limit / _GIB:.1f} GiB may be cached "
            f"(by default half of the free memory); set data.cache_images=false, and data.crop_on_device=false, to decode "
            f"images whenever they are needed."
        )


# In a folder


def decoding_key(dataset: ImageDataset, prepare: Callable[..., Tensor] | None) -> str:
    """A hash of all that decoded images depend on: paths, sizes and times of the files, boxes, and how they are decoded.

    `prepare` is known by its `repr`, so that it must have one that says what it does, as torchvision's transforms have.
    """
    if " at 0x" in repr(prepare):
        raise ValueError(f"{prepare!r} does not say what it does to images, so that its results cannot be found in a folder.")
    boxes = dataset.manifest.table["box"] if dataset.crop_boxes and "box" in dataset.manifest.table.column_names else None
    settings = (dataset.min_short_side, dataset.decoder, dataset.on_broken, repr(prepare))
    packages = ("pillow", "torch", "torchvision", "simplejpeg")
    versions = [version(name) for name in packages if find_spec(name.replace("pillow", "PIL"))]
    digest = hashlib.blake2b(repr((_FORMAT, versions, *settings)).encode(), digest_size=16)
    paths = dataset.paths.to_pylist()
    files = [*archive_names(dataset.paths), *(path for path in paths if SEPARATOR not in path)]
    for part in (paths, boxes.to_pylist() if boxes is not None else (), file_times(dataset.files.root, files)):
        digest.update("\n".join(map(repr, part)).encode() + b"\0")
    return digest.hexdigest()


def _save(decoded: _Decoded, folder: Path) -> None:
    write_npy(folder / "pixels.npy", decoded.pixels.numpy())
    rows, reasons = np.array(list(decoded.broken), np.int64), np.array(list(decoded.broken.values()), np.str_)
    np.savez(folder / "shapes.npz", shapes=decoded.shapes, broken=rows, reasons=reasons)


def _load(folder: Path) -> _Decoded:
    with np.load(folder / "shapes.npz") as table:
        broken = dict(zip(table["broken"].tolist(), table["reasons"].tolist(), strict=True))
        return _Decoded(torch.from_numpy(np.load(folder / "pixels.npy", mmap_mode="c")), table["shapes"], broken)


# On a device


class DeviceImages:
    """All images as uint8 on one device, from which whole batches of random crops are made at once.

    A GPU that trains on small images waits for the CPU, which crops them one by one. Here the CPU only draws the boxes, a batch
    at a time, and the device crops and resizes. Resizing is bilinear and antialiased, as in `train_transform`, whose pixels are
    within one gray level of these: along each side it is a product with a matrix of triangular weights.

    `shapes` are heights and widths `[images, 2]`. Images that would fill more than half of a GPU's free memory are refused.
    """

    def __init__(self, images: InMemoryImages, device: torch.device) -> None:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        if free is not None and images.nbytes > free // 2:
            sizes = f"{images.nbytes / _GIB:.1f} GiB, and {free / _GIB:.1f} GiB of {device} are free"
            raise ValueError(
                f"the decoded images take {sizes}, of which half is for training; set data.crop_on_device=false to crop on the "
                f"CPU, or images.resize to keep smaller images."
            )
        self.shapes = images.shapes
        self._pixels = images.pixels.view(-1, 3).to(device)
        self._starts = torch.from_numpy(np.cumsum(self.shapes.prod(1)) - self.shapes.prod(1)).to(device)
        self._widths = torch.from_numpy(self.shapes[:, 1]).to(device)

    def crop(self, rows: NDArray[np.int64], boxes: NDArray[np.int64], mirrored: NDArray[np.bool_], size: int) -> Tensor:
        """The boxes `[n, 4]` (top, left, height, width) of these images, resized to size × size, uint8 `[n, 3, size, size]`.

        Where `mirrored`, left and right are exchanged.
        """
        places = np.column_stack([rows, boxes, mirrored])
        most = max(1, _PIXELS_AT_ONCE // int(boxes[:, 2].max() * boxes[:, 3].max()))
        crops = [self._crop(torch.from_numpy(places[start : start + most]), size) for start in range(0, len(rows), most)]
        return torch.cat(crops)

    def _crop(self, places: Tensor, size: int) -> Tensor:
        height, width = places[:, 3:5].amax(0).tolist()
        rows, top, left, heights, widths, mirrored = places.to(self._pixels.device, non_blocking=True).T
        down = top[:, None] + torch.arange(height, device=top.device).minimum(heights[:, None] - 1)
        across = left[:, None] + torch.arange(width, device=top.device).minimum(widths[:, None] - 1)
        pixel = self._starts[rows, None, None] + down[:, :, None] * self._widths[rows, None, None] + across[:, None, :]
        planes = self._pixels[pixel].permute(0, 3, 1, 2).float().contiguous()
        vertical = _resize_weights(heights, height, size)
        horizontal = _resize_weights(widths, width, size)
        horizontal = torch.where(mirrored.bool()[:, None, None], horizontal.flip(1), horizontal)
        resized = vertical[:, None] @ planes @ horizontal.mT[:, None]
        return resized.round_().clamp_(0, 255).byte()


def random_boxes(
    shapes: NDArray[np.int64], scale: tuple[float, float], ratio: tuple[float, float], numbers: NDArray[np.float64]
) -> NDArray[np.int64]:
    """A random box (top, left, height, width) in each image of `shapes` `[n, 2]`, as torchvision's RandomResizedCrop draws it.

    `scale` is its share of the area, `ratio` its width / height. If ten boxes do not fit into an image, it is the largest
    central one that does. `numbers` `[n, BOX_NUMBERS]` are uniform in [0, 1).
    """
    heights, widths = shapes.T
    area = heights[:, None] * widths[:, None] * (scale[0] + (scale[1] - scale[0]) * numbers[:, :_ATTEMPTS])
    low, high = np.log(ratio)
    aspect = np.exp(low + (high - low) * numbers[:, _ATTEMPTS:-2])
    tall, wide = np.rint(np.sqrt(area / aspect)).astype(np.int64), np.rint(np.sqrt(area * aspect)).astype(np.int64)
    fits = (tall > 0) & (tall <= heights[:, None]) & (wide > 0) & (wide <= widths[:, None])
    first = fits.argmax(1)
    images = np.arange(len(shapes))
    tall, wide = tall[images, first], wide[images, first]
    top = (numbers[:, -2] * (heights - tall + 1)).astype(np.int64)
    left = (numbers[:, -1] * (widths - wide + 1)).astype(np.int64)
    fitting = np.column_stack([top, left, tall, wide])
    return np.where(fits.any(1)[:, None], fitting, _central_boxes(shapes, ratio))


def _central_boxes(shapes: NDArray[np.int64], ratio: tuple[float, float]) -> NDArray[np.int64]:
    """The largest central boxes whose width / height is within `ratio`."""
    heights, widths = shapes.T
    tall = np.where(widths < ratio[0] * heights, np.rint(widths / ratio[0]).astype(np.int64), heights)
    wide = np.where(widths > ratio[1] * heights, np.rint(heights * ratio[1]).astype(np.int64), widths)
    tall, wide = np.maximum(tall, 1), np.maximum(wide, 1)  # of an image of a few pixels
    return np.column_stack([(heights - tall) // 2, (widths - wide) // 2, tall, wide])


def _resize_weights(lengths: Tensor, longest: int, size: int) -> Tensor:
    """The share `[n, size, longest]` of each pixel of a line in each pixel of the line resized; lines have `lengths` `[n]`."""
    scale = (lengths / size)[:, None, None]
    center = (torch.arange(size, device=lengths.device)[:, None] + 0.5) * scale
    pixel = torch.arange(longest, device=lengths.device) + 0.5
    weights = (1 - (pixel - center).abs() / scale.clamp(min=1)).clamp_(min=0) * (pixel < lengths[:, None, None])
    return weights / weights.sum(-1, keepdim=True)
