"""All images of a dataset as uint8 on one device, from which whole batches of random crops are made at once.

A GPU that trains on small images waits for the CPU, which crops them one by one. Here the CPU only draws the boxes, a batch at
a time, and the device crops and resizes. Resizing is bilinear and antialiased, as in `train_transform`, whose pixels are within
one gray level of these: along each side it is a product with a matrix of triangular weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.data.in_memory import InMemoryImages

_ATTEMPTS = 10  # boxes that are drawn for an image before its center is cropped, as in torchvision
BOX_NUMBERS = 2 * _ATTEMPTS + 2
"""Random numbers for a box: a size and an aspect ratio for each attempt, and a place."""

_PIXELS_AT_ONCE = 2**23  # of the crops before they are resized: 300 MB with their float32 values and indices


class DeviceImages:
    """The pixels of `images` on `device`; `shapes` are their heights and widths `[images, 2]`."""

    def __init__(self, images: InMemoryImages, device: torch.device | str) -> None:
        self.shapes = images.shapes
        if torch.device(device).type == "cuda":
            _check_fits(images.nbytes, torch.device(device))
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


def _check_fits(size: int, device: torch.device) -> None:
    free, _ = torch.cuda.mem_get_info(device)
    if size > free // 2:
        raise ValueError(
            f"the decoded images take {size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of {device} are free, of which half "
            f"is for training; set data.crop_on_device=false to crop on the CPU, or images.resize to keep smaller images."
        )
