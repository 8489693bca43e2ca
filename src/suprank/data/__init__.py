"""Labelled image collections: the manifest, images read through it, batches drawn from it, and importers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from suprank.extras import explain_missing_extra

with explain_missing_extra(__name__):
    from suprank.data.manifest import Manifest
    from suprank.data.splits import holdout_classes
    from suprank.data.tree import LabelTree

if TYPE_CHECKING:
    from suprank.data.archives import UnreadableArchiveError
    from suprank.data.check import Checked, checked
    from suprank.data.datasets import Batch, Broken, ImageDataset, Item, collated
    from suprank.data.held import HeldImages
    from suprank.data.images import BrokenImageError
    from suprank.data.samplers import HierarchicalSampler, MPerClassSampler
    from suprank.data.sheet import contact_sheet
    from suprank.data.transforms import PRESETS, Normalise, at_least, test_transform, train_transform

__all__ = [
    "PRESETS",
    "Batch",
    "Broken",
    "BrokenImageError",
    "Checked",
    "HeldImages",
    "HierarchicalSampler",
    "ImageDataset",
    "Item",
    "LabelTree",
    "MPerClassSampler",
    "Manifest",
    "Normalise",
    "UnreadableArchiveError",
    "at_least",
    "checked",
    "collated",
    "contact_sheet",
    "holdout_classes",
    "test_transform",
    "train_transform",
]

# These take a second or more to import, for torch and torchvision; a manifest does not.
_WHERE = {
    "archives": ["UnreadableArchiveError"],
    "check": ["Checked", "checked"],
    "datasets": ["Batch", "Broken", "ImageDataset", "Item", "collated"],
    "held": ["HeldImages"],
    "images": ["BrokenImageError"],
    "samplers": ["HierarchicalSampler", "MPerClassSampler"],
    "sheet": ["contact_sheet"],
    "transforms": ["PRESETS", "Normalise", "at_least", "test_transform", "train_transform"],
}


def __getattr__(name: str) -> Any:
    for module, names in _WHERE.items():
        if name in names:
            with explain_missing_extra(__name__):
                return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
