"""A manifest's images decoded once and kept in memory, for sets that are small beside it."""

from __future__ import annotations

import copy
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from suprank.data.datasets import Broken, ImageDataset, Item
from suprank.data.images import BrokenImageError
from suprank.data.workers import ignore_signals, loader_batches
from suprank.system.platforms import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from numpy.typing import NDArray

_TOGETHER = 32  # images that a worker decodes at a time
_SAMPLED = 64  # images from which the size of all is estimated
_GIB = 2**30


class InMemoryImages(ImageDataset):
    """The same items as those of `dataset`, without reading or decoding anything again.

    Every image is kept in bytes, at the size it was decoded to (see `ImageDataset` on boxes and `at_least`). The dataset's
    transform is applied whenever an item is asked for; it is given the bytes `[3, height, width]`, which the transforms of
    `suprank.data` take in place of a picture, with the same result, and must not write to them. Without a transform, the item
    holds the picture.

    `workers` processes decode (0: this one); `progress(done, total)` counts images. Workers of a loader share the memory,
    whether forked or spawned. Processes that train together do not: each holds its own.

    Refused, before decoding all, where the images would take more than `limit` bytes; by default, half of the memory that is
    free. Under `on_broken="skip"` broken images are kept as such.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        *,
        workers: int = 0,
        progress: Callable[[int, int], None] | None = None,
        limit: int | None = None,
    ) -> None:
        vars(self).update(vars(dataset))
        limit = free_memory() // 2 if limit is None else limit
        _check_fits(estimated_bytes(dataset), limit, len(dataset))
        pieces: list[Tensor] = []
        shapes: list[tuple[int, int]] = []
        taken = 0
        self._broken: dict[int, str] = {}
        with closing(_decoded(dataset, workers)) as decoded:
            for piece in decoded:
                shapes += piece.shapes
                self._broken |= {broken.index: broken.reason for broken in piece.broken}
                pieces.append(piece.pixels.clone())  # what a worker sent takes an open file
                taken += len(piece.pixels)
                _check_fits(taken, limit, len(dataset))
                if progress is not None:
                    progress(len(shapes), len(dataset))
        self._shapes = np.array(shapes, np.int64).reshape(-1, 2)
        self._ends = np.cumsum(3 * self._shapes.prod(1))
        self._pixels = _joined(pieces)

    @property
    def nbytes(self) -> int:
        """What the pixels take."""
        return len(self._pixels)

    def _picture(self, row: int, path: str) -> Any:
        if row in self._broken:
            raise BrokenImageError(f"{path}: {self._broken[row]}")
        height, width = self._shapes[row].tolist()
        end = int(self._ends[row])
        # Rows of pixels, as PIL has them, and a view [3, height, width] on them, as torchvision makes of a PIL image.
        pixels = self._pixels[end - 3 * height * width : end].view(height, width, 3)
        return Image.fromarray(pixels.numpy()) if self.transform is None else pixels.permute(2, 0, 1)


def estimated_bytes(dataset: ImageDataset) -> int:
    """About what all pixels of a dataset take, from a few images all over it."""
    rows = np.unique(np.linspace(0, len(dataset) - 1, _SAMPLED).astype(np.int64)).tolist()
    reader = _bare(dataset)
    reader.on_broken = "skip"  # an error is for the pass through all of them
    sizes = [3 * item.image.width * item.image.height for item in map(reader.__getitem__, rows) if isinstance(item, Item)]
    return round(sum(sizes) / len(sizes) * len(dataset)) if sizes else 0


def free_memory() -> int:
    """Bytes that programs can still have: of the machine, and of the container where there is one."""
    found = memory_bytes("SC_AVPHYS_PAGES") or memory_bytes() or sys.maxsize  # what no system tells, nothing bounds
    told = Path("/proc/meminfo")
    for line in told.read_text().splitlines() if told.is_file() else ():
        if line.startswith("MemAvailable:"):  # counts what the system only caches
            found = int(line.split()[1]) * 1024
    most = Path("/sys/fs/cgroup/memory.max")
    text = most.read_text().strip() if most.is_file() else "max"
    return found if text == "max" else min(found, int(text))


class _Piece(NamedTuple):
    """Pixels of some images, one after the other, row by row; their (height, width), (0, 0) for broken ones; and those."""

    pixels: Tensor
    shapes: list[tuple[int, int]]
    broken: list[Broken]


def _decoded(dataset: ImageDataset, workers: int) -> Generator[_Piece]:
    rows = [list(range(start, min(start + _TOGETHER, len(dataset)))) for start in range(0, len(dataset), _TOGETHER)]
    loader: DataLoader[Any] = DataLoader(
        _bare(dataset),
        batch_sampler=rows,
        num_workers=min(workers, len(rows)),
        collate_fn=_flat,
        worker_init_fn=ignore_signals,
        generator=torch.Generator(),  # else it would draw from the process's own random numbers
    )
    return loader_batches(loader)


def _bare(dataset: ImageDataset) -> ImageDataset:
    """The dataset without its transform."""
    bare = copy.copy(dataset)
    bare.transform = None
    return bare


def _flat(items: Sequence[Item | Broken]) -> _Piece:
    arrays: list[NDArray[np.uint8]] = [
        np.asarray(item.image) if isinstance(item, Item) else np.empty((0, 0, 3), np.uint8) for item in items
    ]
    pixels = np.concatenate([array.ravel() for array in arrays])
    broken = [item for item in items if isinstance(item, Broken)]
    return _Piece(torch.from_numpy(pixels), [(array.shape[0], array.shape[1]) for array in arrays], broken)


def _joined(pieces: list[Tensor]) -> Tensor:
    """All pieces in one. Empties the list on the way, so that no more than a piece is ever held twice."""
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
            f"{images:,} decoded images take {size / _GIB:.1f} GiB or more, and at most {limit / _GIB:.1f} GiB of them are "
            f"held (by default, half of the free memory); set data.hold=false, which decodes them whenever they are needed."
        )
