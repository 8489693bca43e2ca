"""Transforms from a decoded image (PIL, RGB) to a network's input (float32 `[3, size, size]`), with the paper's crops.

The image becomes a uint8 tensor first, and is cropped and resized as one. The same steps on the PIL image give the same result
within one gray level, and take at least twice as long (one core, train and test: 0.6 and 0.9 ms against 1.5 and 2.1 at 500 ×
375 pixels, 2.9 and 6.7 against 9 and 14 at 1600 × 1200). Resizing is bilinear and antialiased, torchvision's default, as the
authors do.

With `mean=None` a transform returns uint8, a quarter of the memory to collate and to copy to a GPU; `Normalize` then converts a
whole batch there. The result is the same, and the workers have a quarter less to do.

Transforms can be pickled, and use only torch's random numbers. The memory they take is bounded: of an image more than
`MAX_ASPECT` (32) times as long as wide, only the middle is resized. A central crop uses nothing else of it; nor do random crops
of the usual `scale` and `ratio`, which do not fit into such an image and fall back to its center.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from suprank.system import torchvision_operators

torchvision_operators.declare()  # before the first import of torchvision

from torchvision.transforms import v2  # noqa: E402
from torchvision.transforms.v2 import functional  # noqa: E402

from suprank.data.images import FRACTIONS, MAX_ASPECT  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
INTERPOLATIONS = ("bilinear", "bicubic", "nearest")


def train_transform(
    size: int = 224,
    *,
    resize: int | None = None,
    scale: tuple[float, float] = (0.16, 1.0),
    ratio: tuple[float, float] = (0.75, 1.33),
    flip: float = 0.5,
    mean: Sequence[float] | None = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> v2.Compose:
    """A random crop resized to size × size: `scale` is its share of the area, `ratio` its width / height, `flip` the
    probability of mirroring.

    With `resize` the image's short side is first resized to that length; an image more than 32 times as long as wide is cropped
    to that around its center before. The result is normalized, or with `mean=None` left as uint8.
    """
    _check_sizes(size=size, resize=resize)
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError(f"scale={scale} must be two shares of the area, the smaller first, above 0 and at most 1.")
    if not 0 < ratio[0] <= ratio[1]:
        raise ValueError(f"ratio={ratio} must be two ratios of width to height, the smaller first, above 0.")
    if not 0 <= flip <= 1:
        raise ValueError(f"flip={flip} must be a probability, 0 to 1.")
    first = [] if resize is None else [_Resize(resize)]
    crop = v2.RandomResizedCrop(size, scale=scale, ratio=ratio)
    return v2.Compose([v2.PILToTensor(), *first, crop, v2.RandomHorizontalFlip(flip), *_normalization(mean, std)])


def eval_transform(
    size: int = 224,
    *,
    resize: int | None = 256,
    squash: bool = False,
    interpolation: str = "bilinear",
    mean: Sequence[float] | None = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> v2.Compose:
    """Resize the short side to `resize`, take the central size × size pixels, and normalize.

    With `squash` the image is resized to resize × resize instead, whatever its shape: with resize = size nothing is cut off.
    With `resize=None` it is only cropped; a smaller image then gets a black border. `interpolation` is "bilinear", "bicubic" or
    "nearest": use the one that the weights were trained with. `mean=None` returns uint8.
    """
    _check_sizes(size=size, resize=resize)
    if resize is None and squash:
        raise ValueError("squash=True resizes to resize × resize, so it needs a resize; give one, such as 256.")
    if resize is not None and resize < size:
        raise ValueError(f"resize={resize} must be at least size={size}, or the crop would get a black border; try {size}.")
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"interpolation={interpolation!r} must be one of {', '.join(INTERPOLATIONS)}.")
    target = (resize, resize) if squash else resize
    first = [] if resize is None else [_Resize(target, v2.InterpolationMode(interpolation))]
    return v2.Compose([v2.PILToTensor(), *first, _CenterCrop(size), *_normalization(mean, std)])


def resize_transform(resize: int) -> v2.Compose:
    """The first step of `train_transform(resize=...)` alone: uint8, with a short side of this length."""
    _check_sizes(resize=resize)
    return v2.Compose([v2.PILToTensor(), _Resize(resize)])


def min_short_side(transform: v2.Compose) -> int | None:
    """The short side that a decoded image needs for a transform, so that JPEGs can be decoded smaller (draft mode).

    If the transform begins with a resize, it is the size it resizes to; if with a random crop, the size at which no crop is
    enlarged; otherwise None: the full image is needed. The pixels do differ: draft mode scales more sharply, by 2 to 4 of 255
    gray levels on average in two photographs. To compare with published figures, decode in full.
    """
    match _steps(transform):
        case [v2.Resize() as resize, *_] if resize.size is not None:
            return max(resize.size)
        case [v2.RandomResizedCrop() as crop, *_]:
            # The narrowest crop is sqrt(scale · ratio) of the short side wide, the flattest sqrt(scale / ratio) of it high.
            return ceil(max(crop.size) / sqrt(crop.scale[0] * min(crop.ratio[0], 1 / crop.ratio[1])))
    return None


@dataclass(frozen=True)
class DrawnCrop:
    """A transform whose random crop is drawn before the image is decoded, from the same random numbers as after it.

    Use `draw`; then decode what `needed` says, at least, and call this with the image in place of the transform.
    """

    crop: v2.RandomResizedCrop
    further_steps: Sequence[Callable[[Any], Any]]
    height: int
    width: int
    box: Mapping[str, int]

    @classmethod
    def draw(cls, transform: object, height: int, width: int) -> Self | None:
        """Draw the crop of an image of this size; None for a transform that does not begin with a random crop."""
        match _steps(transform):
            case [v2.RandomResizedCrop() as crop, *further]:
                return cls(crop, further, height, width, crop.make_params([torch.empty((height, width), device="meta")]))
        return None

    def needed(self, *, at_fraction: bool) -> tuple[int, int]:
        """(fraction, rows): the image may be decoded at 1 / fraction of its size, of which only the first rows are used.

        With `at_fraction` it is the smallest size of `FRACTIONS` at which the crop is not enlarged, otherwise the full size.
        """
        times_as_large = min(self.box["height"] / self.crop.size[0], self.box["width"] / self.crop.size[1])
        fraction = next(one for one in FRACTIONS if one == 1 or (at_fraction and one <= times_as_large))
        bottom = self.box["top"] + self.box["height"]
        return fraction, bottom if fraction == 1 else bottom // fraction + 2  # where sizes are rounded, up to two more

    def __call__(self, image: torch.Tensor) -> Any:
        """Crop the image `[3, height, width]`, which may be decoded at a fraction of its size, and finish the transform."""
        down, across = image.shape[-2] / self.height, image.shape[-1] / self.width
        top, left = round(self.box["top"] * down), round(self.box["left"] * across)
        bottom = round((self.box["top"] + self.box["height"]) * down)
        right = round((self.box["left"] + self.box["width"]) * across)
        image = self.crop.transform(image, {"top": top, "left": left, "height": bottom - top, "width": right - left})
        for step in self.further_steps:
            image = step(image)
        return image


def _steps(transform: object) -> list[Any]:
    """The steps of a transform after those that only convert the image; none if it is no `Compose`."""
    steps = transform.transforms if isinstance(transform, v2.Compose) else ()
    return list(itertools.dropwhile(lambda step: isinstance(step, v2.PILToTensor | v2.ToImage), steps))


class _Resize(v2.Resize):  # type: ignore[misc]  # torchvision has no types
    """torchvision's resize, except for images of more than `MAX_ASPECT`, which might become too large."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        height, width = inpt.shape[-2:]
        most = MAX_ASPECT * min(height, width)
        if max(height, width) > most:
            if len(self.size) == 2:  # to a square: the long side first, or the short one would grow along all of it
                smaller = [min(side, target) for side, target in zip((height, width), self.size, strict=True)]
                inpt = functional.resize(inpt, smaller, self.interpolation, antialias=self.antialias)
            else:
                # The same from either end: half a pixel of a strip becomes many when resized.
                most += (max(height, width) - most) % 2
                inpt = functional.center_crop(inpt, [min(height, most), min(width, most)])
        return super().transform(inpt, params)

    def _get_name(self) -> str:
        return "Resize"  # the name that is saved with embeddings: those of older versions stay comparable


class _CenterCrop(v2.CenterCrop):  # type: ignore[misc]
    """torchvision's center crop, except that the border is added after cropping, not to all of a long image."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        inner = [min(side, target) for side, target in zip(inpt.shape[-2:], self.size, strict=True)]
        return super().transform(functional.center_crop(inpt, inner), params)

    def _get_name(self) -> str:
        return "CenterCrop"


def _normalization(mean: Sequence[float] | None, std: Sequence[float]) -> list[v2.Transform]:
    if mean is None:
        return []
    _check_colors(mean, std)
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(mean), list(std))]


def _check_colors(mean: Sequence[float], std: Sequence[float]) -> None:
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ValueError(f"mean={mean} and std={std} must be three numbers each, one per color, with std above 0.")


def _check_sizes(**sizes: int | None) -> None:
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be a number of pixels, 1 or more.")


@dataclass(frozen=True)
class Normalize:
    """uint8 images `[..., 3, height, width]` → (images / 255 − mean) / std in float32, on their device.

    Example:
        >>> red, green, blue = torch.tensor([0, 51, 255], dtype=torch.uint8)
        >>> Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))(torch.stack([red, green, blue]).view(3, 1, 1)).flatten()
        tensor([-1.0000, -0.6000,  1.0000])
    """

    mean: Sequence[float] = IMAGENET_MEAN
    std: Sequence[float] = IMAGENET_STD

    def __post_init__(self) -> None:
        _check_colors(self.mean, self.std)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if images.dtype != torch.uint8:
            raise TypeError(f"images are {images.dtype}, but must be uint8, from a transform with mean=None.")
        mean, std = (torch.tensor(colors, device=images.device).view(3, 1, 1) for colors in (self.mean, self.std))
        return (images / 255 - mean) / std


class Transforms(NamedTuple):
    """The transforms for training and for evaluation."""

    train: v2.Compose
    test: v2.Compose


PRESETS = {
    "paper": Transforms(train_transform(), eval_transform()),
    "sop": Transforms(train_transform(resize=256), eval_transform(squash=True)),
    "cub-big": Transforms(train_transform(256), eval_transform(256, resize=288)),
    "landmarks": Transforms(train_transform(), eval_transform(resize=224, squash=True)),
    "landmarks-bench": Transforms(train_transform(), eval_transform(1024, resize=1024, squash=True)),
}
"""The paper's settings by name, with what the authors' code adds for some datasets.

The landmark presets differ only in the size of test images; no other training crops are known.
"""
