"""Labeled image collections: manifests, datasets, batch samplers, transforms and importers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from suprank.system.extras import explain_missing_extra

if TYPE_CHECKING:
    from suprank.data.cached_images import InMemoryImages
    from suprank.data.check import ManifestReport, check_manifest
    from suprank.data.contact_sheets import contact_sheet
    from suprank.data.datasets import ImageBatch, ImageDataset, ImageItem, collate
    from suprank.data.export import export_manifest
    from suprank.data.images import BrokenImage, BrokenImageError
    from suprank.data.manifest import Manifest
    from suprank.data.members import UnreadableArchiveError
    from suprank.data.samplers import BalancedBatchSampler, HierarchicalBatchSampler
    from suprank.data.splits import class_folds, holdout_classes
    from suprank.data.transforms import PRESETS, Normalize, eval_transform, min_short_side, train_transform
    from suprank.data.tree import LabelTree

__all__ = [
    "PRESETS",
    "BalancedBatchSampler",
    "BrokenImage",
    "BrokenImageError",
    "HierarchicalBatchSampler",
    "ImageBatch",
    "ImageDataset",
    "ImageItem",
    "InMemoryImages",
    "LabelTree",
    "Manifest",
    "ManifestReport",
    "Normalize",
    "UnreadableArchiveError",
    "check_manifest",
    "class_folds",
    "collate",
    "contact_sheet",
    "eval_transform",
    "export_manifest",
    "holdout_classes",
    "min_short_side",
    "train_transform",
]

# Imported when first used: torch and torchvision take a second or more, and a manifest needs neither; samplers need torch and
# numpy alone, and no extra.
_LAZY = {
    "manifest": ["Manifest"],
    "splits": ["class_folds", "holdout_classes"],
    "tree": ["LabelTree"],
    "members": ["UnreadableArchiveError"],
    "check": ["ManifestReport", "check_manifest"],
    "datasets": ["ImageBatch", "ImageDataset", "ImageItem", "collate"],
    "export": ["export_manifest"],
    "cached_images": ["InMemoryImages"],
    "images": ["BrokenImage", "BrokenImageError"],
    "samplers": ["HierarchicalBatchSampler", "BalancedBatchSampler"],
    "contact_sheets": ["contact_sheet"],
    "transforms": ["PRESETS", "Normalize", "min_short_side", "eval_transform", "train_transform"],
}


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            with explain_missing_extra(__name__):
                return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
