"""Keys of a recipe that may be "auto": the network, the image size and the batch that suit the device and the training images.

They are chosen when the recipe is read, before it is checked, so that a run saves names and numbers in place of "auto".
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.training.config import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

AUTO = "auto"
KEYS = ("model.backbone", "images.size", "images.test_resize", "batch.size", "batch.images_per_class")
"""The keys that may be "auto"."""

_IMAGES_PER_CLASS = 4  # the paper's
_UNKNOWN = np.full(1000, _IMAGES_PER_CLASS)  # the images of each class, if there is no manifest


class DeviceDefaults(NamedTuple):
    """The network, the image size in pixels, and the largest batch."""

    backbone: str
    image_size: int
    batch: int


DEFAULTS = {"cuda": DeviceDefaults("resnet50", 224, 256), "cpu": DeviceDefaults("tf_efficientnet_lite0", 112, 64)}


def resolve_auto(tables: Mapping[str, Any], saved: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The tables of a recipe, with a value in place of each "auto": that of the recipe `saved` by a run, or one chosen here.

    The network and the image size depend on the device. Test images are resized to 8/7 of the image size before they are
    cropped, as 256 is to 224. A batch has all classes, or as many as fit into the largest batch of the device with 4 images
    each, and fills it with as many images of each as the median class has, 2 or more. Without a manifest it has 4 of each.
    """
    wanted = [key for key in KEYS if _get(tables, key) == AUTO]
    resolved = {name: dict(table) if isinstance(table, dict) else table for name, table in tables.items()}
    if wanted:
        values = _choose(tables) if saved is None else {key: _get(saved, key) for key in wanted}
        for key in wanted:
            table, name = key.split(".")
            resolved[table][name] = values[key]
    return resolved


def _choose(tables: Mapping[str, Any]) -> dict[str, Any]:
    """A value for each of `KEYS`; those that the recipe sets are taken into account."""
    import torch

    uses_gpu = _get(tables, "engine.accelerator") != "cpu" and torch.cuda.is_available()
    device = DEFAULTS["cuda" if uses_gpu else "cpu"]
    size, images_per_class = (_number(tables, f"batch.{key}") for key in ("size", "images_per_class"))
    image_size = _number(tables, "images.size") or device.image_size
    if images_per_class is None or size is None:
        size, images_per_class = _batch(_images_per_class(tables), device.batch, size, images_per_class)
    return dict(zip(KEYS, (device.backbone, image_size, round(image_size * 8 / 7), size, images_per_class), strict=True))


def _batch(images: NDArray[np.int64], largest: int, size: int | None, images_per_class: int | None) -> tuple[int, int]:
    """The size of a batch and the images of each class in it, of which one may be given; `images` are those of each class."""
    classes, median = len(images), max(2, int(np.median(images)))
    usual = min(_IMAGES_PER_CLASS, median)
    if size is not None:
        fitting = [m for m in range(2, size + 1) if size % m == 0 and size // m <= classes]
        return size, min(fitting, key=lambda m: abs(m - usual), default=usual)
    if images_per_class is None:
        images_per_class = min(largest // min(classes, largest // usual), median)
    return max(1, min(classes, largest // images_per_class)) * images_per_class, images_per_class


def _images_per_class(tables: Mapping[str, Any]) -> NDArray[np.int64]:
    """The number of training images of each class of the finest level."""
    from suprank.training.manifests import open_manifest

    name, root, levels = (_get(tables, f"data.{key}") for key in ("manifest", "root", "levels"))
    if not isinstance(name, str) or not Path(name).is_file():  # training will say so
        return _UNKNOWN
    manifest = open_manifest(name, root)
    if "train" not in manifest.splits or not manifest.levels:
        return _UNKNOWN
    train = manifest.split("train")
    finest = levels[0] if levels and levels[0] in train.levels else train.levels[0]
    labels = train.labels_at((finest,))
    counts = np.unique(labels[labels >= 0], return_counts=True)[1]
    if len(counts) < 2:
        raise ValueError(
            f"{name} has training images of {len(counts)} class ({finest}), and losses need two or more; add images of others, "
            "or hold fewer classes out for testing (`suprank data import ... --holdout-classes`)."
        )
    return counts


def _number(tables: Mapping[str, Any], key: str) -> int | None:
    """The whole number at this key; None if it is "auto", or something that the check of the recipe will refuse."""
    value = _get(tables, key)
    return value if isinstance(value, int) and value > 0 else None


def _get(tables: Mapping[str, Any], key: str) -> Any:
    """The value at this key, or its default."""
    table, name = key.split(".")
    entries = tables.get(table)
    if isinstance(entries, dict) and name in entries:
        return entries[name]
    fields: Any = TrainConfig.model_fields[table].annotation
    return fields.model_fields[name].get_default()
