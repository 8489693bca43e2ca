"""Rows with the same content: in several splits, within one split, or under different labels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.data.columns import SPLITS
from suprank.data.manifest import Manifest

if TYPE_CHECKING:
    from numpy.typing import NDArray

EVALUATION = ("test", "query", "gallery")

DuplicateGroup: TypeAlias = "tuple[tuple[str, str], ...]"
"""Rows with the same content, as (split, path), in the order of the manifest."""


@dataclass(frozen=True)
class Duplicates:
    """Groups of rows with the same content.

    across          contents in several splits
    within          split → number of its images beyond the first of each content
    contradictions  contents with different finest labels
    """

    across: tuple[DuplicateGroup, ...]
    within: dict[str, int]
    contradictions: tuple[DuplicateGroup, ...]

    @property
    def leaks(self) -> tuple[DuplicateGroup, ...]:
        """Groups in train and in test, query or gallery: a model would be evaluated on images it was trained on."""
        return tuple(group for group in self.across if _leaks({split for split, _ in group}))


def _leaks(splits: set[str]) -> bool:
    return "train" in splits and not splits.isdisjoint(EVALUATION)


def find_duplicates(manifest: Manifest, content: NDArray[np.int64]) -> Duplicates:
    """Group the rows with equal numbers in `content`."""
    split = split_codes(manifest)
    contents, splits = _pairs(content, split, len(SPLITS))
    distinct, rows = np.bincount(splits, minlength=len(SPLITS)), np.bincount(split, minlength=len(SPLITS))
    within = {name: int(rows[code] - distinct[code]) for code, name in enumerate(SPLITS) if rows[code] > distinct[code]}
    contradictions: tuple[DuplicateGroup, ...] = ()
    if manifest.levels:
        label = manifest.labels[:, 0]
        if label.ndim == 2:  # a number for each set of labels, −1 for the empty one
            _, codes = np.unique(label, axis=0, return_inverse=True)
            label = np.where((label >= 0).any(1), codes.reshape(-1), -1)
        labeled, _ = _pairs(content[label >= 0], label[label >= 0], int(label.max()) + 1)
        contradictions = _groups(manifest, content, _repeated_numbers(labeled))
    return Duplicates(_groups(manifest, content, _repeated_numbers(contents)), within, contradictions)


def repeated_images(images: Manifest, training: Manifest, about: str) -> list[str]:
    """Sentences on images to evaluate on that are listed twice, or are trained on: by path and box, without opening files."""
    keys, trained = _image_keys(images), set(_image_keys(training))
    found = {
        "listed twice, so that each finds its copy": [key for key, count in Counter(keys).items() if count > 1],
        "trained on, so that metrics say little about new images": [key for key in dict.fromkeys(keys) if key in trained],
    }
    return [
        f"{about}: {len(some):,} of {len(set(keys)):,} images to evaluate on are {what} ({some[0]}); see suprank data check."
        for what, some in found.items()
        if some
    ]


def _image_keys(images: Manifest) -> list[str]:
    boxes = images.table["box"].to_pylist() if "box" in images.table.column_names else [None] * len(images)
    root, paths = images.root.resolve(), images.paths.to_pylist()
    return [f"{root}/{path}" + (f" {box}" if box else "") for path, box in zip(paths, boxes, strict=True)]


def digest_codes(digests: NDArray[np.uint64]) -> NDArray[np.int64]:
    """A number for each digest `[files, 2]`; equal digests have equal numbers."""
    first = np.ascontiguousarray(digests[:, 0])
    order = np.argsort(first)
    if (
        first[order[1:]] == first[order[:-1]]
    ).any():  # only then the second number matters, and sorting takes ten times as long
        order = np.lexsort((digests[:, 1], first))
    ordered = digests[order]
    changed = (ordered[1:] != ordered[:-1]).any(1)
    numbers = np.zeros(len(digests), np.int64)
    numbers[order[1:]] = np.cumsum(changed)
    return numbers


def split_codes(manifest: Manifest) -> NDArray[np.int64]:
    """The split of each row, as its index in `SPLITS`."""
    return np.asarray(pc.index_in(manifest.table["split"], value_set=pa.array(SPLITS)), np.int64)


def _pairs(first: NDArray[np.int64], second: NDArray[np.int64], width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct pairs of (first, second), sorted; `second` is less than `width`."""
    pairs = np.sort(first * width + second)  # np.unique hashes, which takes ten times as long for a million different ones
    pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])[: len(pairs)]]
    return pairs // width, pairs % width


def _repeated_numbers(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers that occur more than once in a sorted array."""
    return np.unique(numbers[1:][numbers[1:] == numbers[:-1]])


def _groups(manifest: Manifest, content: NDArray[np.int64], wanted: NDArray[np.int64]) -> tuple[DuplicateGroup, ...]:
    """The rows of each wanted content, in the order of their first rows."""
    rows = np.flatnonzero(np.isin(content, wanted))
    some = manifest.table.select(["split", "path"]).take(pa.array(rows))
    groups: dict[int, list[tuple[str, str]]] = {}
    for number, split, path in zip(content[rows].tolist(), some["split"].to_pylist(), some["path"].to_pylist(), strict=True):
        groups.setdefault(number, []).append((split, path))
    return tuple(map(tuple, groups.values()))
