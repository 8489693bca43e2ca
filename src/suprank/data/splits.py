"""Random class-disjoint splits: some classes for training, the others for testing, with their parents shared."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from suprank.data.manifest import Manifest


def holdout_classes(
    manifest: Manifest, fraction: float = 0.5, *, seed: int = 0, level: str | None = None, shared: str | None = None
) -> Manifest:
    """Return the manifest with a new split column: `fraction` of the classes of `level` (default: the finest) become `test`.

    All images of a class become `train` or all become `test`, whatever their split was; `distractor` rows stay as they are, and
    classes that only they have do not count. The number of test classes differs by less than one from `fraction` times the
    number of classes.

    Groups are shared: every class of a coarser level with at least two classes of `level` has some on either side, and about
    `fraction` of them in test. If groups are too small for the fraction, the error says what is possible; `shared` then names
    the finest level whose groups must be shared, and `shared=level` shares none.

    The choice depends only on the seed and the names of the classes: not on the order of the rows, the machine, or the versions
    of libraries.

    Example:
        >>> pets = Manifest.from_columns({"path": ["1.jpg", "2.jpg", "3.jpg", "4.jpg"], "split": ["train"] * 4,
        ...                     "label_breed": ["pug", "collie", "manx", "persian"],
        ...                     "label_animal": ["dog", "dog", "cat", "cat"]}, root=".")
        >>> holdout_classes(pets).table["split"].to_pylist()
        ['train', 'test', 'test', 'train']
    """
    column, groups = _columns(manifest, level, shared)
    manifest.require_single_labels(
        "a split by classes", "an image of two classes could be in train for one and in test for the other; split by a column"
    )
    if not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction} must lie between 0 and 1, because train and test both need classes; try 0.5.")
    splits = manifest.table["split"].combine_chunks()
    moved = ~np.asarray(pc.equal(splits, "distractor"))
    classes = np.count_nonzero(np.bincount(manifest.labels[moved, column]))
    if classes < 2:
        raise ValueError(
            f"there are {classes} classes of {manifest.levels[column]!r} outside distractors, and a split needs two; label "
            f"more classes, or choose a finer level."
        )
    tree = _tree(manifest, moved, column, groups)
    count = _count(tree, fraction)
    if count is None:
        raise ValueError(_possible_fractions(manifest, moved, column, groups, fraction))
    test_classes = np.zeros(len(manifest.names[manifest.levels[column]]) + 1, bool)  # the last is that of rows without a label
    names = [manifest.names[manifest.levels[group]] for group in (*groups, column)]
    test_classes[_choose(tree, count, names, seed)] = True
    tested = test_classes[manifest.labels[:, column]]
    _check_disjoint(manifest, moved & tested, moved & ~tested, column)
    new = pc.if_else(pa.array(tested), "test", "train")
    return manifest.with_columns(split=pc.if_else(pa.array(moved), new, splits))


def class_folds(manifest: Manifest, folds: int, *, seed: int = 0, level: str | None = None) -> NDArray[np.int64]:
    """The fold of every row, 0 to folds − 1, such that all images of a class of `level` (default: the finest) are in one fold.

    Numbers of classes differ by one at most: over the folds, and, if the labels are a tree, over the folds of every group of a
    coarser level, so that each fold has its share of every group. Rows without a label at this level have the fold −1. As in
    `holdout_classes`, the choice depends only on the seed and the names.

    Example:
        >>> pets = Manifest.from_columns({"path": ["1.jpg", "2.jpg", "3.jpg", "4.jpg"], "split": ["train"] * 4,
        ...                     "label_breed": ["pug", "collie", "manx", "persian"],
        ...                     "label_animal": ["dog", "dog", "cat", "cat"]}, root=".")
        >>> class_folds(pets, 2).tolist()
        [1, 0, 0, 1]
    """
    column, groups = _columns(manifest, level, None)
    manifest.require_single_labels("folds of classes", "an image of two classes could be in two folds")
    labels = manifest.labels
    classes, first = np.unique(labels[:, column], return_index=True)
    first = first[classes >= 0]
    if not 2 <= folds <= len(first):
        raise ValueError(
            f"folds={folds} must be from 2 to {len(first)}, the number of classes of {manifest.levels[column]!r}; choose "
            f"another number, or a finer level."
        )
    # Sorted by group, coarsest first, the classes are dealt out like cards.
    names = [manifest.names[manifest.levels[group]] for group in (*groups, column)]
    keys = {}
    for path in labels[first][:, [*groups, column]].tolist():
        orders = [_order(seed, own[label]) if label >= 0 else b"" for own, label in zip(names, path, strict=True)]
        keys[path[-1]] = orders
    fold_of = np.full(len(names[-1]) + 1, -1)  # the last is that of rows without a label
    fold_of[sorted(keys, key=keys.__getitem__)] = np.arange(len(keys)) % folds
    return fold_of[labels[:, column]]


@dataclass(frozen=True)
class _Groups:
    """The groups of one level, side by side: those under one group of the next coarser level are neighbors."""

    parent: NDArray[np.int64]
    """The index of the group above."""
    label: NDArray[np.int64]
    classes: NDArray[np.int64]
    """The number of its classes."""
    fewest: NDArray[np.int64]
    most: NDArray[np.int64]
    """The fewest and the most of them that can be for testing; all numbers in between are possible."""


@dataclass(frozen=True)
class _SplitTree:
    """The classes to split, and the groups they are in."""

    classes: NDArray[np.int64]
    group: NDArray[np.int64]
    """The group of each class, among those of the finest level that is shared."""
    levels: list[_Groups]
    """Coarsest first. The first level is one group of all classes."""

    @property
    def root(self) -> tuple[int, int, int]:
        """The number of classes, and the fewest and the most of them that can be for testing."""
        top = self.levels[0]
        return top.classes.item(), top.fewest.item(), top.most.item()


def _columns(manifest: Manifest, level: str | None, shared: str | None) -> tuple[int, list[int]]:
    """The label column of the classes, and those of the groups to share, coarsest first."""
    if not manifest.levels:
        raise ValueError("this manifest has no labels, and so no classes to split; add columns label_<level>.")
    for name, given in (("level", level), ("shared", shared)):
        if given is not None and given not in manifest.levels:
            raise ValueError(f"{name}={given!r} is not a level of this manifest; choose from {', '.join(manifest.levels)}.")
    column = 0 if level is None else manifest.levels.index(level)
    finest = column + 1 if shared is None else manifest.levels.index(shared)
    if finest < column:
        raise ValueError(
            f"shared={shared!r} is finer than {manifest.levels[column]!r}, whose classes stay whole; choose from "
            f"{', '.join(manifest.levels[column:])}."
        )
    return column, [] if finest == column else list(range(finest, len(manifest.levels)))[::-1]


def _check_disjoint(manifest: Manifest, test: NDArray[np.bool_], train: NDArray[np.bool_], column: int) -> None:
    """Raise if a class below the split level is on both sides, which needs two parents at that level."""
    for finer in range(column):
        both = np.intersect1d(manifest.labels[test, finer], manifest.labels[train, finer])
        if len(both):
            level = manifest.levels[finer]
            raise ValueError(
                f"{level} {manifest.names[level][both[0]]!r} stands under two {manifest.levels[column]}, one for train and one "
                f"for test; rename it under one of them, or split the level {level!r}."
            )


def _tree(manifest: Manifest, rows: NDArray[np.bool_], column: int, groups: Sequence[int]) -> _SplitTree:
    labels = manifest.labels[rows]
    first = np.full(len(manifest.names[manifest.levels[column]]), -1)
    first[labels[::-1, column]] = np.arange(len(labels))[::-1]  # the row in which a class is met first
    classes = np.flatnonzero(first >= 0)
    of = (np.cumsum(first >= 0) - 1)[labels[:, column]]
    above = labels[first[classes]][:, list(groups)]
    wrong = np.argwhere(above[of] != labels[:, list(groups)])
    for row, index in wrong[:1]:
        group = groups[index]
        names = manifest.names[manifest.levels[group]]
        raise ValueError(
            f"{manifest.levels[column]} {manifest.names[manifest.levels[column]][labels[row, column]]!r} stands under "
            f"{manifest.levels[group]} {names[above[of[row], index]]!r} and {names[labels[row, group]]!r}, and not in "
            f"one group; rename one, or share coarser levels only."
        )
    return _build(classes, above)


def _build(classes: NDArray[np.int64], above: NDArray[np.int64]) -> _SplitTree:
    """Build the tree over these classes; `above[i]` are the groups of class i, coarsest first."""
    group = np.zeros(len(classes), np.int64)
    found = [(np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([len(classes)]))]
    for own in above.T:
        width = own.max() + 1
        pairs, group, sizes = np.unique(group * width + own, return_inverse=True, return_counts=True)
        found.append((pairs // width, pairs % width, sizes))
    levels: list[_Groups] = []
    fewest, most = np.zeros(len(classes)), np.ones(len(classes))  # of each class, then of each group that is finer
    finer = group
    for parent, label, sizes in reversed(found):
        both = sizes >= 2  # then either side gets a class
        fewest = np.maximum(both, np.bincount(finer, fewest)).astype(np.int64)
        most = np.minimum(sizes - both, np.bincount(finer, most)).astype(np.int64)
        levels.insert(0, _Groups(parent, label, sizes, fewest, most))
        finer = parent
    return _SplitTree(classes, group, levels)


def _order(seed: int, name: str) -> bytes:
    """A random key from the seed and the name: of classes or groups with equal claims the one with the smallest is first."""
    return hashlib.blake2b(f"{seed} {name}".encode(errors="surrogateescape"), digest_size=16).digest()


def _count(tree: _SplitTree, fraction: float) -> int | None:
    """The number of test classes nearest to the fraction that the groups allow, if it differs by less than one."""
    classes, fewest, most = tree.root
    wanted = fraction * classes
    allowed = [count for count in {math.floor(wanted), math.ceil(wanted)} if fewest <= count <= most]
    return min(allowed, key=lambda count: (abs(count - wanted), -count), default=None)


def _possible_fractions(
    manifest: Manifest, rows: NDArray[np.bool_], column: int, groups: Sequence[int], fraction: float
) -> str:
    """Explain why this fraction is impossible, and which ones are possible for every choice of groups to share."""
    level = manifest.levels[column]
    choices = []
    for finest in (*sorted(groups), column):
        shared = [group for group in groups if group >= finest > column]
        classes, fewest, most = _tree(manifest, rows, column, shared).root
        note = ", which shares no groups" if finest == column else ""
        limits = f"{fewest / classes:.6g} to {most / classes:.6g}"
        choices.append(f"{limits} (shared={manifest.levels[finest]!r}{note})")
    return (
        f"fraction={fraction} of {classes:,} {level} is {fraction * classes:.6g}, but then some group with two "
        f"{level} or more would be on one side only. Possible fractions: {'; '.join(choices)}."
    )


def _choose(tree: _SplitTree, count: int, names: Sequence[Sequence[str]], seed: int) -> NDArray[np.int64]:
    """The ids of `count` classes, distributed over the groups of every level in proportion.

    `names` are those of the groups, coarsest level first, and of the classes.
    """
    counts = np.array([count])
    for above, groups, own in zip(tree.levels, tree.levels[1:], names, strict=False):
        counts = _shares(counts, above, groups, own, seed)
    keys = np.frombuffer(b"".join(_order(seed, names[-1][label]) for label in tree.classes.tolist()), ">u8").reshape(-1, 2)
    order = np.lexsort((keys[:, 1], keys[:, 0], tree.group))
    sizes = tree.levels[-1].classes
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of each class within its group
    return tree.classes[order[place < np.repeat(counts, sizes)]]


def _shares(counts: NDArray[np.int64], above: _Groups, groups: _Groups, names: Sequence[str], seed: int) -> NDArray[np.int64]:
    """The number of test classes of each group: the counts of the groups above, divided among their groups in proportion.

    Shares are rounded down, within the limits of the groups; the rest is given one by one where most is due.
    """
    due = counts[groups.parent] * groups.classes / above.classes[groups.parent]
    shares = np.clip(np.floor(due).astype(np.int64), groups.fewest, groups.most)
    missing = counts - np.bincount(groups.parent, shares).astype(np.int64)
    starts = np.searchsorted(groups.parent, np.arange(len(counts) + 1))
    for parent in np.flatnonzero(missing).tolist():
        own = slice(starts[parent], starts[parent + 1])
        step = 1 if missing[parent] > 0 else -1
        limits = (groups.most if step > 0 else groups.fewest)[own].tolist()
        keys = [_order(seed, names[label]) for label in groups.label[own].tolist()]
        shares[own] = _divide(shares[own].tolist(), due[own].tolist(), limits, keys, step, abs(missing[parent].item()))
    return shares


def _divide(
    shares: list[int], due: Sequence[float], limits: Sequence[int], keys: Sequence[bytes], step: int, times: int
) -> list[int]:
    """Change a share by `step` so many times: each time where most is due, and of equal claims that of the smallest key."""

    def claim(index: int) -> tuple[float, bytes]:
        return step * (shares[index] - due[index]), keys[index]

    waiting = [(claim(index), index) for index in range(len(shares)) if shares[index] != limits[index]]
    heapq.heapify(waiting)
    for _ in range(times):
        _, index = heapq.heappop(waiting)
        shares[index] += step
        if shares[index] != limits[index]:
            heapq.heappush(waiting, (claim(index), index))
    return shares
