"""Decoded images in files of a folder: the first run decodes and writes them, and the others map them into memory.

A file is found again by a key of everything that its pixels depend on. Images that change, a new version of Pillow or another
transform have another key; files of old keys stay until somebody deletes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from suprank.data.image_files import SEPARATOR, archive_names
from suprank.files.atomic import atomic_writer
from suprank.files.binary import write_npy
from suprank.files.locking import lock_folder

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from suprank.data.datasets import ImageDataset

_FORMAT = 1
_WAIT_SECONDS = 24 * 3600.0  # for another run that is decoding; the system drops its lock if that run dies


class Decoded(NamedTuple):
    """All pixels of a dataset, row by row, one image after the other; heights and widths `[images, 2]`, (0, 0) for a broken
    image; and why images are broken, by their rows."""

    pixels: Tensor
    shapes: NDArray[np.int64]
    broken: dict[int, str]


def load_or_decode(folder: Path, key: str, decode: Callable[[], Decoded]) -> Decoded:
    """The decoded images of this key, from the folder if they are there; otherwise they are decoded and written first.

    Processes that need the same images at the same time wait for the one that decodes them. The pixels are mapped from the
    file, so that processes share the memory; what one of them writes there, the others do not see.
    """
    folder = folder.expanduser()
    pixels, shapes = folder / f"{key}.npy", folder / f"{key}.npz"
    files = (pixels, shapes)
    if not all(file.exists() for file in files):
        with lock_folder(folder, "decoding images into", "wait for it", name=f"{key}.lock", seconds=_WAIT_SECONDS):
            if not all(file.exists() for file in files):
                _save(decode(), *files)
    with np.load(shapes) as table:
        broken = dict(zip(table["broken"].tolist(), table["reasons"].tolist(), strict=True))
        return Decoded(torch.from_numpy(np.load(pixels, mmap_mode="c")), table["shapes"], broken)


def decoding_key(dataset: ImageDataset, prepare: Callable[..., Tensor] | None) -> str:
    """A hash of all that decoded images depend on: paths, sizes and times of the files, boxes, and how they are decoded.

    `prepare` is known by its `repr`, so that it must have one that says what it does, as torchvision's transforms have.
    """
    if " at 0x" in repr(prepare):
        raise ValueError(f"{prepare!r} does not say what it does to images, so that its results cannot be found in a folder.")
    boxes = dataset.manifest.table["box"] if dataset.crop_boxes and "box" in dataset.manifest.table.column_names else None
    settings = (dataset.min_short_side, dataset.decoder, dataset.on_broken, repr(prepare))
    versions = [
        version(name) for name in ("pillow", "torch", "torchvision", "simplejpeg") if find_spec(name.replace("pillow", "PIL"))
    ]
    digest = hashlib.blake2b(repr((_FORMAT, versions, *settings)).encode(), digest_size=16)
    paths = dataset.paths.to_pylist()
    files = [*archive_names(dataset.paths), *(path for path in paths if SEPARATOR not in path)]
    for part in (paths, boxes.to_pylist() if boxes is not None else (), file_times(dataset.files.root, files)):
        digest.update("\n".join(map(repr, part)).encode() + b"\0")
    return digest.hexdigest()


def file_times(root: Path, names: Iterable[str]) -> Iterable[tuple[str, int, int]]:
    """Path, size and time of change of every file; −1 if it does not exist."""
    for name in names:
        path = root / name
        try:
            status = path.stat()
        except OSError:
            yield str(path), -1, -1
        else:
            yield str(path), status.st_size, status.st_mtime_ns


def _save(decoded: Decoded, pixels: Path, shapes: Path) -> None:
    """Write the pixels, and then the shapes, without which the pixels do not count."""
    write_npy(pixels, decoded.pixels.numpy())
    rows, reasons = list(decoded.broken), list(decoded.broken.values())
    with atomic_writer(shapes) as file:
        np.savez(file, shapes=decoded.shapes, broken=np.array(rows, np.int64), reasons=np.array(reasons, np.str_))
