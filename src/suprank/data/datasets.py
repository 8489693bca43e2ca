"""A manifest's images for torch's DataLoader: decoded, cropped, transformed, and their labels beside them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from suprank.data.files import Files
from suprank.data.images import BrokenImageError, decoded
from suprank.data.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

ON_BROKEN = ("raise", "skip")


class Item(NamedTuple):
    """One image. `labels` are its ids, finest first, of shape [levels]; `index` is its row in the manifest."""

    image: Any
    labels: Tensor
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody misses


class Broken(NamedTuple):
    """An image that could not be read, in place of an `Item`: the row, the path, and why."""

    index: int  # type: ignore[assignment]
    path: str
    reason: str


class Batch(NamedTuple):
    """What `collated` makes of items: images stacked, labels [images, levels], rows [images], and the broken ones aside."""

    images: Any
    labels: Tensor
    indices: Tensor
    broken: tuple[Broken, ...]


class ImageDataset(Dataset[Item | Broken]):
    """The images of a manifest; `dataset[row]` is an `Item`.

    `transform` takes the PIL image in RGB and returns anything; without one the item holds the PIL image. `at_least` is how
    many pixels the short side must have for it, so that large JPEGs are decoded at a fraction of their size (see `decoded`);
    leave it None for a transform that crops before it resizes, unless the crop's share is reckoned in.

    Rows with a `box` are cropped to it first, unless `crop_boxes=False`. Boxes are in pixels of the full image as it is
    seen, upright, so those rows are decoded in full. A box that sticks out is cut at the border; one with more than half of
    its area outside was made for an image of another size, and the image counts as broken.

    An image that is missing, damaged or no image raises an error that names it; with `on_broken="skip"` a `Broken` stands
    in its place, which `collated` puts aside. Errors of the transform are always raised, with a note that names the image.

    Archives are listed when the dataset is made, so that workers need not, whether forked or spawned: the lists are
    compact, and travel along. An archive that cannot be listed raises here, even with `on_broken="skip"`.
    """

    def __init__(
        self,
        manifest: Manifest,
        transform: Callable[[Image.Image], Any] | None = None,
        *,
        on_broken: str = "raise",
        at_least: int | tuple[int, int] | None = None,
        crop_boxes: bool = True,
    ) -> None:
        if on_broken not in ON_BROKEN:
            raise ValueError(f"on_broken={on_broken!r} must be 'raise' or 'skip'.")
        self.manifest, self.transform = manifest, transform
        self.on_broken, self.at_least, self.crop_boxes = on_broken, at_least, crop_boxes
        self.files = Files(manifest.root)
        self.files.index(manifest.paths)

    @property
    def labels(self) -> NDArray[np.int64]:
        """Ids of all images `[images, levels]`, finest first; −1 where there is none."""
        return self.manifest.labels

    @property
    def paths(self) -> pa.ChunkedArray:
        return self.manifest.paths

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> Item | Broken:
        row = self._row(index)
        path = self.paths[row].as_py()
        try:
            image: Any = self._picture(row, path)
        except (ValueError, FileNotFoundError, PermissionError) as error:  # of archives and images: ValueErrors
            if self.on_broken == "skip":
                return Broken(row, path, str(error).removeprefix(f"{path}: "))
            error.add_note(f"Image {row} under {self.files.root}; on_broken='skip' leaves such images out and counts them.")
            raise
        if self.transform is not None:
            try:
                image = self.transform(image)
            except Exception as error:
                error.add_note(f"While transforming image {row}, {path}.")
                raise
        return Item(image, torch.from_numpy(self.labels[row].copy()), row)

    def _row(self, index: int) -> int:
        row = operator.index(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"there is no image {row}; the manifest has {len(self):,}.")
        return row % len(self)

    def _picture(self, row: int, path: str) -> Image.Image:
        box = self.manifest.table["box"][row].as_py() if self.crop_boxes and "box" in self.manifest.table.column_names else None
        data = self.files.read(path)
        if box is None:
            return decoded(data, path, at_least=self.at_least)
        return _cropped(decoded(data, path), box, path)


def _cropped(picture: Image.Image, box: Sequence[float], path: str) -> Image.Image:
    left, top, right, bottom = (round(edge) for edge in box)
    inside = max(left, 0), max(top, 0), min(right, picture.width), min(bottom, picture.height)
    width, height = inside[2] - inside[0], inside[3] - inside[1]
    if width < 1 or height < 1 or 2 * width * height < (right - left) * (bottom - top):
        raise BrokenImageError(
            f"{path}: the box {', '.join(f'{edge:g}' for edge in box)} lies outside of the image, which has {picture.width} × "
            f"{picture.height} pixels; was it made smaller? Give boxes for its size, or use crop_boxes=False."
        )
    return picture.crop(inside)


def collated(items: Sequence[Item | Broken]) -> Batch:
    """A batch of the items that are whole, in their order; for `DataLoader(dataset, collate_fn=collated)`.

    Images are stacked as torch's `default_collate` does; PIL images stay a list. Where nothing is whole, `images` and `indices`
    are empty tensors of shape [0] and `labels` is one of shape [0, 0]: look at `len(batch.indices)` before using a batch that
    may have lost all.
    """
    whole = [item for item in items if isinstance(item, Item)]
    broken = tuple(item for item in items if isinstance(item, Broken))
    if not whole:
        return Batch(torch.empty(0), torch.empty((0, 0), dtype=torch.int64), torch.empty(0, dtype=torch.int64), broken)
    images = [item.image for item in whole]
    _check_shapes(images)
    return Batch(
        images if isinstance(images[0], Image.Image) else default_collate(images),
        torch.stack([item.labels for item in whole]),
        torch.tensor([item.index for item in whole]),
        broken,
    )


def _check_shapes(images: list[Any]) -> None:
    shapes = {tuple(image.shape) for image in images if isinstance(image, Tensor)}
    if len(shapes) > 1:
        one, other, *_ = sorted(shapes)
        raise ValueError(
            f"images of one batch have shapes {list(one)} and {list(other)}; let the transform crop or resize to one size."
        )
