"""The images and labels of a manifest as a torch dataset."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from suprank.data.image_files import ImageFiles
from suprank.data.images import BrokenImage, crop_to_box, decode_image, min_pixels
from suprank.data.jpeg import Decoder, Jpeg, check_decoder, read_jpeg
from suprank.data.manifest import Manifest
from suprank.system import torchvision_operators

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

ON_BROKEN = ("raise", "skip")


class ImageItem(NamedTuple):
    """One image with its label ids `[levels]`, finest first, or `[levels, M]` if images have several; and its row."""

    image: Any
    labels: Tensor
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody misses


class ImageBatch(NamedTuple):
    """The result of `collate`: stacked images, labels `[images, levels]` (`[images, levels, M]` if images have several), rows
    `[images]`, and the broken images."""

    images: Any
    labels: Tensor
    indices: Tensor
    broken: tuple[BrokenImage, ...]


class ImageDataset(Dataset[ImageItem | BrokenImage]):
    """The images of a manifest; `dataset[row]` is an `ImageItem`.

    `transform` takes the PIL image in RGB and returns anything; without one the item holds the PIL image. `min_short_side` is
    how many pixels the short side must have for it, so that large JPEGs are decoded at a fraction of their size (see
    `decode_image`); leave it None for a transform that crops before it resizes, unless you account for the crop.

    `decoder="turbo"` decodes JPEGs faster, to the same pixels; rows with a box, and what it cannot decode, are left to PIL. The
    transform gets such a JPEG as a uint8 tensor `[3, height, width]`, which those of `suprank.data` accept in place of a PIL
    image. If it begins with a random crop, the crop is drawn first, from the same random numbers as otherwise, and decoding
    ends with its last row; given any `min_short_side`, the fraction is the smallest at which this crop is not enlarged.

    Rows with a `box` are cropped to it first, unless `crop_boxes=False`. Boxes are in pixels of the full upright image, so
    those rows are decoded in full. A box is clipped to the image; one with more than half of its area outside was made for an
    image of another size, and the image counts as broken.

    A missing or damaged file, or one that is not an image, raises an error that names it; with `on_broken="skip"` the item is a
    `BrokenImage`, which `collate` sets aside. Errors of the transform are always raised, with a note that names the image.

    Archives are listed when the dataset is created, so that workers need not list them: the lists are compact, and are shared
    with forked workers; spawned ones read those of large archives from the cache, and are sent the others. An archive that
    cannot be listed raises here, even with `on_broken="skip"`.
    """

    def __init__(
        self,
        manifest: Manifest,
        transform: Callable[[Image.Image], Any] | None = None,
        *,
        on_broken: str = "raise",
        min_short_side: int | tuple[int, int] | None = None,
        crop_boxes: bool = True,
        decoder: Decoder = "pil",
    ) -> None:
        check_decoder(decoder)
        if on_broken not in ON_BROKEN:
            raise ValueError(f"on_broken={on_broken!r} must be 'raise' or 'skip'.")
        self.manifest, self.transform = manifest, transform
        self.on_broken, self.min_short_side, self.crop_boxes = on_broken, min_short_side, crop_boxes
        self.decoder = decoder
        self.files = ImageFiles(manifest.root)
        self.files.index(manifest.paths)

    @property
    def labels(self) -> NDArray[np.int64]:
        """Label ids of all images `[images, levels]`, finest first; −1 if there is none."""
        return self.manifest.labels

    @property
    def paths(self) -> pa.ChunkedArray:
        return self.manifest.paths

    def __len__(self) -> int:
        return len(self.manifest)

    def __reduce__(self) -> tuple[object, ...]:
        return _empty_dataset, (type(self),), vars(self)

    def __getitem__(self, index: int) -> ImageItem | BrokenImage:
        row = self._row(index)
        path = self.paths[row].as_py()
        try:
            image, transform = self._load(row, path)
        except (ValueError, FileNotFoundError, PermissionError) as error:  # errors of archives and images are ValueErrors
            if self.on_broken == "skip":
                return BrokenImage(row, path, str(error).removeprefix(f"{path}: "))
            error.add_note(f"Image {row} under {self.files.root}; on_broken='skip' leaves such images out and reports them.")
            raise
        if transform is not None:
            try:
                image = transform(image)
            except Exception as error:
                error.add_note(f"While transforming image {row}, {path}.")
                raise
        return ImageItem(image, torch.from_numpy(self.labels[row].copy()), row)

    def _row(self, index: int) -> int:
        row = operator.index(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"there is no image {row}; the manifest has {len(self):,}.")
        return row % len(self)

    def _load(self, row: int, path: str) -> tuple[Any, Callable[[Any], Any] | None]:
        """The decoded image, and what is left to do of the transform."""
        box = self.manifest.table["box"][row].as_py() if self.crop_boxes and "box" in self.manifest.table.column_names else None
        data = self.files.read(path)
        if box is not None:
            return crop_to_box(decode_image(data, path), box, path), self.transform
        jpeg = read_jpeg(data) if self.decoder == "turbo" else None
        if jpeg is not None:
            return self._load_turbo(jpeg, path)
        return decode_image(data, path, min_short_side=self.min_short_side), self.transform

    def _load_turbo(self, jpeg: Jpeg, path: str) -> tuple[Any, Callable[[Any], Any] | None]:
        from suprank.data.transforms import DrawnCrop  # here, because it needs torchvision, and pictures alone do not

        crop = DrawnCrop.draw(self.transform, jpeg.height, jpeg.width)
        short = min_pixels(self.min_short_side)
        pixels = jpeg.decode(jpeg.fraction(short)) if crop is None else jpeg.decode(*crop.needed(at_fraction=short is not None))
        if pixels is None:
            pixels = np.array(decode_image(jpeg.data, path, min_short_side=short))
        if self.transform is None:
            return Image.fromarray(pixels), None
        # A view [3, height, width], as torchvision makes of a PIL image.
        return torch.from_numpy(pixels).permute(2, 0, 1), crop or self.transform


def _empty_dataset(kind: type[ImageDataset]) -> ImageDataset:
    """A dataset for pickle to fill. In a spawned worker its transform comes next, and imports torchvision."""
    with suppress(ModuleNotFoundError):
        torchvision_operators.declare()
    return kind.__new__(kind)


def collate(items: Sequence[ImageItem | BrokenImage]) -> ImageBatch:
    """Make a batch of the items that could be read, in their order; for `DataLoader(dataset, collate_fn=collate)`.

    Images are stacked as by torch's `default_collate`; PIL images stay a list. If no image could be read, `images` and
    `indices` are empty tensors of shape [0] and `labels` is one of shape [0, 0]: check `len(batch.indices)` before using a
    batch whose images may all be broken.
    """
    good = [item for item in items if isinstance(item, ImageItem)]
    broken = tuple(item for item in items if isinstance(item, BrokenImage))
    if not good:
        return ImageBatch(torch.empty(0), torch.empty((0, 0), dtype=torch.int64), torch.empty(0, dtype=torch.int64), broken)
    images = [item.image for item in good]
    _check_shapes(images)
    return ImageBatch(
        images if isinstance(images[0], Image.Image) else default_collate(images),
        torch.stack([item.labels for item in good]),
        torch.tensor([item.index for item in good]),
        broken,
    )


def _check_shapes(images: list[Any]) -> None:
    shapes = {tuple(image.shape) for image in images if isinstance(image, Tensor)}
    if len(shapes) > 1:
        one, other, *_ = sorted(shapes)
        raise ValueError(
            f"images of one batch have shapes {list(one)} and {list(other)}; let the transform crop or resize to one size."
        )
