"""Gaps in label paths: a blank with a label below it and a label above it, as in a species that has a family but no genus.

A placeholder takes the place of the blank, one for each class below it: a species without a genus becomes the only species of
its placeholder, and two of them, even of one family, stay as far apart as their family says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

BLANK = -1
"""The id of a blank cell."""

ADVICE = (
    "fill it in, or let --fill-gaps (of `suprank data import csv`, `data check`, `data show`, `embed` and `evaluate`; in a "
    "recipe data.fill_gaps = true) put a placeholder there"
)
"""What to do about a gap; errors end with it."""

ADVICE_FOR_SETS = "fill it in: with several labels for an image there are no placeholders"


class Placeholder(NamedTuple):
    """A class that takes the place of a blank, by the nearest labels in its row: the one below it and the one above it."""

    below_level: int
    below: int
    above_level: int
    above: int


class GapConflict(NamedTuple):
    """Two rows with the same class at `level`, whose classes at the next level differ because one of them has a gap."""

    level: int
    rows: tuple[int, int]


def find_gaps(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The gaps among label ids `[rows, levels]`, finest first: blanks with a label both at a finer and at a coarser level.

    Example:
        >>> find_gaps(np.array([[0, -1, 2], [0, 1, -1], [-1, 1, 2]])).tolist()  # the ends of a path are no gaps
        [[False, True, False], [False, False, False], [False, False, False]]
    """
    labeled = labels >= 0
    finer = np.logical_or.accumulate(labeled, axis=1)
    coarser = np.logical_or.accumulate(labeled[:, ::-1], axis=1)[:, ::-1]
    return ~labeled & finer & coarser


def fill_gaps(labels: NDArray[np.int64], sizes: Sequence[int]) -> tuple[NDArray[np.int64], list[list[Placeholder]]]:
    """Return the ids with placeholders in all gaps, and the placeholders of each level.

    `sizes` has the number of classes of each level. The ids of its placeholders follow, in the order of the list.

    Example:
        >>> labels = np.array([[0, -1, 0], [0, -1, 0], [1, -1, 0], [2, 0, 0]])  # two of three species have no genus
        >>> filled, placeholders = fill_gaps(labels, [3, 1, 1])
        >>> filled.tolist()
        [[0, 1, 0], [0, 1, 0], [1, 2, 0], [2, 0, 0]]
        >>> placeholders[1][0]
        Placeholder(below_level=0, below=0, above_level=2, above=0)
    """
    gaps = find_gaps(labels)
    placeholders: list[list[Placeholder]] = [[] for _ in sizes]
    if not gaps.any():
        return labels, placeholders
    numbers = np.arange(len(sizes))
    below = np.maximum.accumulate(np.where(labels >= 0, numbers, -1), axis=1)  # nearest labeled level
    above = np.minimum.accumulate(np.where(labels >= 0, numbers, len(sizes))[:, ::-1], axis=1)[:, ::-1]
    filled = labels.copy()
    for level in np.flatnonzero(gaps.any(0)).tolist():
        rows = np.flatnonzero(gaps[:, level])
        keys = np.stack([below[rows, level], labels[rows, below[rows, level]]], axis=1)
        _, first, index = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        filled[rows, level] = sizes[level] + index.reshape(-1)
        for row in rows[first].tolist():
            fine, coarse = int(below[row, level]), int(above[row, level])
            placeholders[level].append(Placeholder(fine, int(labels[row, fine]), coarse, int(labels[row, coarse])))
    return filled, placeholders


def find_conflict(labels: NDArray[np.int64], filled: NDArray[np.int64]) -> GapConflict | None:
    """The first two rows of one class that disagree about a gap: one is blank where the other has a label, or their labels
    above it differ. None if filling the gaps made no label with two parents."""
    gaps = labels != filled
    for level in range(labels.shape[1] - 1):
        child, parent = filled[:, level], filled[:, level + 1]
        with_gap = np.zeros(int(child.max(initial=-1)) + 2, bool)  # the last is that of blanks
        with_gap[child[gaps[:, level] | gaps[:, level + 1]]] = True
        with_gap[BLANK] = False
        rows = np.flatnonzero(with_gap[child])
        last = np.full(len(with_gap), BLANK)
        last[child[rows]] = parent[rows]
        for row in rows[last[child[rows]] != parent[rows]][:1].tolist():
            others = rows[(child[rows] == child[row]) & (parent[rows] == last[child[row]])]
            return GapConflict(level, (row, int(others[0])))
    return None


def describe_conflict(
    conflict: GapConflict, labels: NDArray[np.int64], levels: Sequence[str], name: Callable[[int, int], str]
) -> str:
    """What the two rows share and where they differ, as in "both have species 'lynx', but genus is blank and 'Lynx'; ...".

    `name(row, level)` returns a label in words.
    """
    first, above = conflict.rows[0], conflict.level + 1
    shared = int(np.flatnonzero(labels[first, :above] >= 0)[-1])
    values = " and ".join("blank" if labels[row, above] < 0 else repr(name(row, above)) for row in conflict.rows)
    return (
        f"both have {levels[shared]} {name(first, shared)!r}, but {levels[above]} is {values}; give all rows of one class the "
        f"same labels above it."
    )


def placeholder_names(
    placeholders: Sequence[Sequence[Placeholder]], names: Sequence[Sequence[str]], levels: Sequence[str]
) -> list[list[str]]:
    """The name of every placeholder: its level, the nearest label above it, and the class below it that it stands for.

    If that class is not of the next level, the name has its level too, because a genus may be called like a species.

    Example:
        >>> names, levels = [["lynx"], [], [], ["Carnivora"]], ["species", "genus", "family", "order"]
        >>> lynx = Placeholder(below_level=0, below=0, above_level=3, above=0)
        >>> placeholder_names([[], [lynx], [lynx], []], names, levels)
        [[], ['(no genus) Carnivora: lynx'], ['(no family) Carnivora: lynx (species)'], []]
    """
    texts: list[list[str]] = []
    for level, some in enumerate(placeholders):
        known: dict[str, Placeholder] = {}
        for one in some:
            child = names[one.below_level][one.below]
            child += "" if one.below_level == level - 1 else f" ({levels[one.below_level]})"
            text = f"{name_start(levels[level])}{names[one.above_level][one.above]}: {child}"
            if known.setdefault(text, one) != one:
                raise ValueError(f"two gaps of {levels[level]} would get the placeholder {text!r}; rename one of these labels.")
        texts.append(list(known))
    return texts


def name_start(level: str) -> str:
    """How the names of all placeholders of a level begin, by which they are recognized."""
    return f"(no {level}) "


def check_separator(separator: str) -> str:
    """Return the separator; one that is blank, or has white space around it, is refused.

    Example:
        >>> check_separator("|")
        '|'
    """
    if not separator or separator != separator.strip():
        raise ValueError(
            f"label_separator={separator!r} must be a character or more, without white space, which is removed around labels; "
            f"try '|'."
        )
    return separator
