"""Labeled image collections: the manifest, images read through it, batches drawn from it, and importers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from suprank.system.extras import explain_missing_extra

with explain_missing_extra(__name__):
    from suprank.data.manifest import Manifest
    from suprank.data.splits import holdout_classes
    from suprank.data.tree import LabelTree

if TYPE_CHECKING:
    from suprank.data.archives import UnreadableArchiveError
    from suprank.data.check import Checked, checked
    from suprank.data.contact_sheet import contact_sheet
    from suprank.data.datasets import Batch, Broken, ImageDataset, Item, collated
    from suprank.data.images import BrokenImageError
    from suprank.data.in_memory import InMemoryImages
    from suprank.data.samplers import BalancedBatchSampler, HierarchicalBatchSampler
    from suprank.data.transforms import PRESETS, Normalize, at_least, eval_transform, train_transform

__all__ = [
    "PRESETS",
    "BalancedBatchSampler",
    "Batch",
    "Broken",
    "BrokenImageError",
    "Checked",
    "HierarchicalBatchSampler",
    "ImageDataset",
    "InMemoryImages",
    "Item",
    "LabelTree",
    "Manifest",
    "Normalize",
    "UnreadableArchiveError",
    "at_least",
    "checked",
    "collated",
    "contact_sheet",
    "eval_transform",
    "holdout_classes",
    "train_transform",
]

# These take a second or more to import, for torch and torchvision; a manifest does not.
_WHERE = {
    "archives": ["UnreadableArchiveError"],
    "check": ["Checked", "checked"],
    "datasets": ["Batch", "Broken", "ImageDataset", "Item", "collated"],
    "in_memory": ["InMemoryImages"],
    "images": ["BrokenImageError"],
    "samplers": ["HierarchicalBatchSampler", "BalancedBatchSampler"],
    "contact_sheet": ["contact_sheet"],
    "transforms": ["PRESETS", "Normalize", "at_least", "eval_transform", "train_transform"],
}


def __getattr__(name: str) -> Any:
    for module, names in _WHERE.items():
        if name in names:
            with explain_missing_extra(__name__):
                return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
