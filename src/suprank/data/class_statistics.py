"""Statistics of a manifest's labels: classes of each level and split, their sizes, and classes of a single image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from suprank.data.columns import SPLITS
from suprank.data.duplicates import EVALUATION, split_codes
from suprank.data.manifest import Manifest

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TRAIN, _TEST, _QUERY, _GALLERY = (SPLITS.index(name) for name in ("train", "test", "query", "gallery"))


@dataclass(frozen=True)
class ClassStatistics:
    """Numbers of classes and images. Blank labels do not count; levels are finest first; without labels all is empty.

    An image with several labels counts for each of them.

    counts        level → split → number of classes
    shared        level → number of classes both in train and in test, query or gallery; empty unless there are both
    sizes         images in a class of the finest level, as "1", "2", "3-4", "5-8", ... → number of such classes
    singletons    train, test → number of finest classes with a single image there, if there are any
    unanswerable  queries whose finest class has no image in the gallery; 0 without a gallery
    two_parents   sentences that name the labels under two parents
    placeholders  level → number of classes that `fill_gaps` put in place of blanks, if there are any
    multi_label   level → number of images with more than one label there, if there are any
    """

    counts: Mapping[str, Mapping[str, int]]
    shared: Mapping[str, int]
    sizes: Mapping[str, int]
    singletons: Mapping[str, int]
    unanswerable: int
    two_parents: tuple[str, ...]
    placeholders: Mapping[str, int]
    multi_label: Mapping[str, int]


def class_statistics(manifest: Manifest) -> ClassStatistics:
    """Count the classes of a manifest."""
    if not manifest.levels:
        return ClassStatistics({}, {}, {}, {}, 0, (), {}, {})
    images = {level: _count_images(manifest, column) for column, level in enumerate(manifest.levels)}
    finest = images[manifest.levels[0]]
    singletons = {"train": int((finest[_TRAIN] == 1).sum()), "test": int((finest[_TEST] == 1).sum())}
    return ClassStatistics(
        counts={level: _count_classes(counted) for level, counted in images.items()},
        shared={level: _count_shared(counted) for level, counted in images.items()} if _has_both(manifest) else {},
        sizes=_histogram(finest.sum(0)),
        singletons={split: number for split, number in singletons.items() if number},
        unanswerable=_count_unanswerable(manifest, finest) if "gallery" in manifest.splits else 0,
        two_parents=tuple(manifest.two_parents()),
        placeholders=manifest.placeholders(),
        multi_label=_count_multi_label(manifest),
    )


def _count_images(manifest: Manifest, level: int) -> NDArray[np.int64]:
    """How many images each split has of each class of the level: [splits, classes]."""
    labels, number = manifest.labels[:, level], len(manifest.names[manifest.levels[level]])
    sets = labels.reshape(len(labels), -1)  # an image counts for each of its labels
    cells = (split_codes(manifest)[:, None] * number + sets)[sets >= 0]
    return np.bincount(cells, minlength=len(SPLITS) * number).reshape(len(SPLITS), number)


def _count_multi_label(manifest: Manifest) -> dict[str, int]:
    if not manifest.has_label_sets:
        return {}
    counts = ((manifest.labels >= 0).sum(2) > 1).sum(0)
    return {level: int(count) for level, count in zip(manifest.levels, counts, strict=True) if count}


def _count_unanswerable(manifest: Manifest, images: NDArray[np.int64]) -> int:
    """The labeled queries whose finest class, or none of whose finest classes, has an image in the gallery."""
    labels = manifest.labels[split_codes(manifest) == _QUERY][:, 0].reshape(manifest.splits.get("query", 0), -1)
    answered = np.append(images[_GALLERY] > 0, False)[labels].any(1)
    return int(((labels >= 0).any(1) & ~answered).sum())


def _count_classes(images: NDArray[np.int64]) -> dict[str, int]:
    counts = dict(zip(SPLITS, (images > 0).sum(1).tolist(), strict=True))
    return {split: number for split, number in counts.items() if number}


def _has_both(manifest: Manifest) -> bool:
    return "train" in manifest.splits and any(split in manifest.splits for split in EVALUATION)


def _count_shared(images: NDArray[np.int64]) -> int:
    evaluated = images[[SPLITS.index(split) for split in EVALUATION]].any(0)
    return int(((images[_TRAIN] > 0) & evaluated).sum())


def _histogram(images: NDArray[np.int64]) -> dict[str, int]:
    """How many classes have 1 image, 2, 3-4, 5-8, ..., from the smallest class on; empty classes do not count."""
    bins = np.ceil(np.log2(images[images > 0])).astype(np.int64)
    counts = dict(enumerate(np.bincount(bins).tolist()))
    return {_bin(place): count for place, count in counts.items() if place >= bins.min()}


def _bin(place: int) -> str:
    return str(2**place) if place < 2 else f"{2 ** (place - 1) + 1}-{2**place}"
