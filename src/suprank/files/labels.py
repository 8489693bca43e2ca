"""Labels of a table: one spelling, sets, gaps, and a tree. They are cleaned where files become data, and nowhere else.

A blank between two labels of a row, as in a species that has a family but no genus, is a gap. A placeholder takes its place,
one for each class below it: a species without a genus becomes the only species of its placeholder, and two of them, even of
one family, stay as far apart as their family says.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import unicodedata
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Where = Callable[[int], str]

UNLABELED = -1
"""The code of a blank cell: the row has no class at this level. In a gallery it is a distractor."""

ADVICE = "fill it in, or let fill_gaps (of `suprank data import csv` and of label files) put a placeholder there"
_NO_PLACEHOLDERS = "fill it in: with several labels for an image there are no placeholders"
_WHOLE = re.compile(r"-?[0-9]+(\.0+)?")  # pandas and spreadsheets write a whole number beside a blank cell as 1.0
_ROWS = 2**18  # of labels that are looked at together
_SHOWN = 3  # labels that a sentence names


class LabelSpellingWarning(UserWarning):
    """Two spellings of a label are treated as one class."""


@dataclass(frozen=True)
class LabelColumn:
    """The labels of rows at one level: indices into `names`, −1 for none.

    Where rows may have several labels, `lengths` says how many each has; `codes` are then those of all rows, one row after the
    other.
    """

    codes: NDArray[np.int64]
    names: Sequence[str]
    lengths: NDArray[np.int64] | None = None

    @classmethod
    def from_values(cls, values: Any) -> LabelColumn:
        """Text, whole numbers, lists of them, and None or NaN for no label; an array, a list, or a column of any data frame.

        Example:
            >>> LabelColumn.from_values(["b", None, "a"]).codes.tolist()
            [0, 1, 2]
            >>> LabelColumn.from_values([["a", "b"], []]).lengths.tolist()
            [2, 0]
        """
        array = np.asarray(values) if isinstance(values, np.ndarray) or hasattr(values, "dtype") else None
        if array is not None and array.dtype.kind in "iu" and array.ndim == 1:
            numbers, codes = np.unique(array, return_inverse=True)
            return cls(codes.reshape(-1).astype(np.int64), [str(number) for number in numbers.tolist()])
        cells = _cells(values)
        if any(isinstance(cell, _SEVERAL) for cell in cells):
            several = [list(cell) if isinstance(cell, _SEVERAL) else [] if _is_blank(cell) else [cell] for cell in cells]
            members = cls.from_values([member for cell in several for member in cell])
            return replace(members, lengths=np.array([len(cell) for cell in several], np.int64))
        known: dict[str, int] = {}
        codes = np.fromiter((known.setdefault(_text(cell), len(known)) for cell in cells), np.int64, len(cells))
        return cls(codes, list(known))

    def __len__(self) -> int:
        return len(self.codes if self.lengths is None else self.lengths)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each code."""
        return np.repeat(np.arange(len(self)), 1 if self.lengths is None else self.lengths)

    def followed_by(self, other: LabelColumn) -> LabelColumn:
        """The rows of this column, then those of another one."""
        codes = np.concatenate([self.codes, np.where(other.codes >= 0, other.codes + len(self.names), UNLABELED)])
        lengths = None
        if self.lengths is not None or other.lengths is not None:
            ones = [np.ones(len(one), np.int64) if one.lengths is None else one.lengths for one in (self, other)]
            lengths = np.concatenate(ones)
        return LabelColumn(codes, [*self.names, *other.names], lengths)

    def split_cells(self, separator: str) -> LabelColumn:
        """Text such as `dog|person` as several labels."""
        if not separator or separator != separator.strip():
            raise ValueError(
                f"label_separator={separator!r} must be a character or more, without white space, which is removed around "
                f"labels; try '|'."
            )
        parts = [name.split(separator) if name.strip() else [] for name in self.names]
        sizes = np.array([*map(len, parts), 0], np.int64)  # the last is that of blanks
        starts, lengths = np.cumsum(sizes) - sizes, sizes[self.codes]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        members = [part for some in parts for part in some]
        return LabelColumn(np.repeat(starts[self.codes], lengths) + within, members, lengths)

    def cleaned(self, level: str, where: Where) -> LabelColumn:
        """The labels in one spelling: without white space around them, accents composed (NFC), and blank cells −1.

        In a column of whole numbers 1.0 is 1, and −1 is no label; among words "-1" is one, the name of an emoji.
        """
        stripped = [name.strip() for name in self.names]
        names = [name if name.isascii() else unicodedata.normalize("NFC", name) for name in stripped]
        if all(not name or _WHOLE.fullmatch(name) for name in names):
            names = [name.partition(".")[0] for name in names]
            names = ["" if name == str(UNLABELED) else name for name in names]
            for code in (code for code, name in enumerate(names) if name.startswith("-")):
                for row in self.rows[self.codes == code][:1].tolist():
                    raise ValueError(
                        f"{where(row)}: {level} is {names[code]}, but classes are numbered from 0, and −1 or a blank is no "
                        f"label."
                    )
        known: dict[str, int] = {}
        spelled: dict[str, str] = {}
        others: dict[str, str] = {}
        for name, text in zip(names, stripped, strict=True):
            if name and spelled.setdefault(name, text) != text:
                others.setdefault(name, text)
            if name:
                known.setdefault(name, len(known))
        if others:
            pairs = ", ".join(f"{spelled[name]!a} and {other!a}" for name, other in list(others.items())[:_SHOWN])
            more = f" ({len(others)} such labels)" if len(others) > _SHOWN else ""
            message = f"{level}: two spellings are taken for one class: {pairs}{more}; write each label in one way."
            warnings.warn(LabelSpellingWarning(message), stacklevel=3)
        codes = np.array([known.get(name, UNLABELED) for name in (*names, "")], np.int64)[self.codes]
        if self.lengths is not None:
            blank = np.array([not text for text in (*stripped, "")])[self.codes]
            for row in self.rows[blank][self.lengths[self.rows[blank]] > 1][:1].tolist():
                raise ValueError(f"{where(row)}: there is a blank among the labels of {level}; fill it in, or leave it out.")
        return LabelColumn(codes, list(known), self.lengths)

    def numbered(self, names: Sequence[str] | None = None) -> LabelColumn:
        """The same labels as indices into these names and then the others, in alphabetical order; "" is no label.

        Rows have no `lengths` if each has one label at most.
        """
        known = {name: number for number, name in enumerate(names or ())}
        if new := {name for name in self.names if name not in known} - {""}:
            occurs = np.zeros(len(self.names) + 1, bool)  # the last is for −1
            occurs[self.codes] = True
            for name in sorted({name for name, there in zip(self.names, occurs.tolist(), strict=False) if there} & new):
                known[name] = len(known)
        codes = np.array([*(known.get(name, UNLABELED) for name in self.names), UNLABELED], np.int64)[self.codes]
        if self.lengths is None:
            return LabelColumn(codes, tuple(known))
        rows, codes = self.rows[codes >= 0], codes[codes >= 0]  # −1 is padding
        lengths = np.bincount(rows, minlength=len(self)).astype(np.int64)
        if lengths.max(initial=0) > 1:
            return LabelColumn(codes, tuple(known), lengths)
        plain = np.full(len(self), UNLABELED, np.int64)
        plain[rows] = codes
        return LabelColumn(plain, tuple(known))


_SEVERAL = (list, tuple, set, frozenset, np.ndarray)


def _cells(values: Any) -> list[Any]:
    """The cells as Python objects, None for the nulls of pandas."""
    if hasattr(values, "notna"):
        values = values.astype(object).where(values.notna(), None)
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)


def _is_blank(cell: Any) -> bool:
    return cell is None or cell != cell


def _text(cell: Any) -> str:
    if isinstance(cell, str):
        return cell
    if _is_blank(cell):
        return ""
    if isinstance(cell, bool) or not (isinstance(cell, int | np.integer) or (isinstance(cell, float) and cell.is_integer())):
        raise TypeError(f"a label is {cell!r}, but labels are text or whole numbers; convert them with str.")
    return str(int(cell))


def clean_labels(
    columns: Mapping[str, LabelColumn],
    where: Where,
    *,
    separator: str | None = None,
    fill_gaps: bool = False,
    names: Mapping[str, Sequence[str]] | None = None,
    saved: bool = False,
) -> dict[str, LabelColumn]:
    """The labels of all levels, finest first, in one spelling, numbered like the given names and then in alphabetical order.

    `where(row)` begins an error, such as "labels.csv:7". `separator` is what stands between several labels in a cell;
    `fill_gaps` puts placeholders into gaps. Labels of a level that has names are clean already if they were `saved` with them.
    """
    known = names or {}
    found = {}
    for level, one in columns.items():
        column = one if separator is None else one.split_cells(separator)
        found[level] = (column if saved and level in known else column.cleaned(level, where)).numbered(known.get(level))
    if not fill_gaps:
        return found
    if several := [level for level, one in found.items() if one.lengths is not None]:
        raise ValueError(
            f"fill_gaps needs one label in a row at each level, but rows have several {several[0]}; leave it out, and fill in "
            f"the blanks."
        )
    filled = {level: one.numbered(known.get(level)) for level, one in fill_label_gaps(found).items()}
    if any(len(filled[level].names) > len(one.names) for level, one in found.items()):  # rows of one class may disagree
        check_tree(
            [stack_labels([*filled.values()], 0)],
            [*filled],
            name=lambda level, label: repr([*filled.values()][level].names[label]),
            where=where,
        )
    return filled


def stack_labels(columns: Sequence[LabelColumn], rows: int) -> NDArray[np.int64]:
    """Labels `[rows, levels]`, or sets `[rows, levels, M]`, ascending and padded with −1, if rows have several at a level."""
    if all(one.lengths is None for one in columns):
        return np.stack([one.codes for one in columns], axis=1) if columns else np.empty((rows, 0), np.int64)
    sets = []
    for one in columns:
        keys = np.unique(np.stack([one.rows, one.codes], axis=1)[one.codes >= 0], axis=0)
        sets.append((keys[:, 0], keys[:, 1], np.bincount(keys[:, 0], minlength=rows)))
    stacked = np.full((rows, len(columns), max(1, *(int(count.max(initial=0)) for _, _, count in sets))), UNLABELED, np.int64)
    for level, (row, code, count) in enumerate(sets):
        stacked[row, level, np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)] = code
    return stacked


# Gaps


def find_gaps(labeled: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The gaps among `labeled` cells `[rows, levels]`, finest first: blanks with a label both at a finer and a coarser level.

    Example:
        >>> find_gaps(np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]], bool)).tolist()  # the ends of a path are no gaps
        [[False, True, False], [False, False, False], [False, False, False]]
    """
    finer = np.logical_or.accumulate(labeled, axis=1)
    coarser = np.logical_or.accumulate(labeled[:, ::-1], axis=1)[:, ::-1]
    return ~labeled & finer & coarser


def fill_label_gaps(columns: Mapping[str, LabelColumn]) -> dict[str, LabelColumn]:
    """The columns with a placeholder in each gap. Its name has its level, the nearest label above it, and the class below it;
    and the level of that class too unless it is the next, because a genus may be called like a species.

    Example:
        >>> cells = {"species": ["lynx"], "genus": [""], "family": [""], "order": ["Carnivora"]}
        >>> columns = {level: LabelColumn.from_values(one).cleaned(level, str) for level, one in cells.items()}
        >>> [one.names[-1] for one in fill_label_gaps(columns).values()]
        ['lynx', '(no genus) Carnivora: lynx', '(no family) Carnivora: lynx (species)', 'Carnivora']
    """
    levels, given = list(columns), list(columns.values())
    labels = np.stack([one.codes for one in given], axis=1)
    gaps, numbers = find_gaps(labels >= 0), np.arange(len(levels))
    below = np.maximum.accumulate(np.where(labels >= 0, numbers, -1), axis=1)  # the nearest labeled level
    above = np.minimum.accumulate(np.where(labels >= 0, numbers, len(levels))[:, ::-1], axis=1)[:, ::-1]
    filled = dict(columns)
    for number in np.flatnonzero(gaps.any(0)).tolist():
        rows, level = np.flatnonzero(gaps[:, number]), levels[number]
        keys = np.stack([below[rows, number], labels[rows, below[rows, number]]], axis=1)
        _, first, index = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        texts: list[str] = []
        for row in rows[first].tolist():
            fine, coarse = int(below[row, number]), int(above[row, number])
            child = given[fine].names[labels[row, fine]] + ("" if fine == number - 1 else f" ({levels[fine]})")
            texts.append(f"{name_start(level)}{given[coarse].names[labels[row, coarse]]}: {child}")
            if texts.count(texts[-1]) > 1:
                raise ValueError(f"two gaps of {level} would get the placeholder {texts[-1]!r}; rename one of these labels.")
        codes = given[number].codes.copy()
        codes[rows] = len(given[number].names) + index.reshape(-1)
        filled[level] = LabelColumn(codes, [*given[number].names, *texts])
    return filled


def name_start(level: str) -> str:
    """How the names of all placeholders of a level begin, by which they are recognized."""
    return f"(no {level}) "


# The tree


def parent_pairs(child: NDArray[Any], parent: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct (child, parent) pairs of two levels, `[rows]`, sorted by child; −1 is no label.

    Of sets `[rows, M]`, the pairs in which all rows of the child have the parent too.
    """
    sets = child.ndim == 2
    if not sets:
        both = (child >= 0) & (parent >= 0)
        child, parent = child[both], parent[both]
        if len(child) and int(child.max()) <= len(child) + 1024:
            parent_of = np.full(int(child.max()) + 1, UNLABELED, np.int64)
            parent_of[child] = parent
            if (parent_of[child] == parent).all():  # one parent each, as in a tree: no need to sort the rows
                classes = np.flatnonzero(parent_of >= 0)
                return classes, parent_of[classes]
        child, parent = child[:, None], parent[:, None]
    codes, own = np.unique(child, return_inverse=True)
    above, theirs = np.unique(parent, return_inverse=True)
    own, theirs = own.reshape(child.shape), theirs.reshape(parent.shape)
    listed = (child >= 0)[:, :, None] & (parent >= 0)[:, None, :]
    keys = own[:, :, None] * len(above) + theirs[:, None, :]
    if not sets:
        pairs = np.unique(keys[listed])
        return codes[pairs // len(above)], above[pairs % len(above)]
    rows = np.arange(len(child))[:, None]
    once = np.unique((rows[:, :, None] * (len(codes) * len(above)) + keys)[listed])  # a set may name a label twice
    pairs, counts = np.unique(once % (len(codes) * len(above)), return_counts=True)
    images = np.bincount(np.unique((rows * len(codes) + own)[child >= 0]) % len(codes), minlength=len(codes))
    pairs = pairs[counts == images[pairs // len(above)]]
    return codes[pairs // len(above)], above[pairs % len(above)]


def unclear_parents(child: NDArray[Any], parent: NDArray[Any]) -> Iterator[tuple[int, list[int]]]:
    """The labels with two parents or more, and these; of sets, the labels whose rows have no parent in common, and []."""
    children, parents = parent_pairs(child, parent)
    if child.ndim == 2:
        yield from ((label, []) for label in np.setdiff1d(child[child >= 0], children).tolist())
        return
    labels, counts = np.unique(children, return_counts=True)
    yield from ((label, parents[children == label].tolist()) for label in labels[counts > 1].tolist())


def check_tree(
    parts: Sequence[NDArray[Any]],
    levels: Sequence[str],
    *,
    name: Callable[[int, int], str] = lambda level, label: str(label),
    where: Where = lambda row: f"row {row}",
) -> None:
    """Refuse a label with two parents, and one whose parent is blank, in labels `[rows, levels]` of all parts together.

    Of sets `[rows, levels, M]`, refuse a label whose rows have no label of the next level in common, which could be its parent.
    `name(level, label)` is a label in words, and `where(row)` begins an error; rows are counted through the parts.
    """
    if parts[0].ndim == 2 and _forms_tree(parts):
        return
    labels = np.concatenate(parts)
    labeled = np.asarray((labels >= 0).reshape(*labels.shape[:2], -1).any(2))
    check_parents(labeled, levels, where, several=labels.ndim == 3)
    for level, (fine, coarse) in enumerate(itertools.pairwise(levels)):
        child, parent = labels[:, level], labels[:, level + 1]
        for label, parents in unclear_parents(child, parent):
            rows = np.flatnonzero((child == label) if child.ndim == 1 else (child == label).any(1)).tolist()
            if not parents:
                raise ValueError(
                    f"{where(rows[0])}: {fine} {name(level, label)} has no parent, because its {len(rows)} rows have no "
                    f"{coarse} in common; add the parent to each of them, or leave out a level."
                )
            one, other = (int(np.flatnonzero((child == label) & (parent == above))[0]) for above in parents[:2])
            raise ValueError(
                f"{where(one)}: {fine} {name(level, label)} stands under {coarse} {name(level + 1, parents[0])}, and under "
                f"{name(level + 1, parents[1])} in {where(other)}, but labels must form a tree; name the levels finest "
                f"first, or give the two labels different names."
            )


def check_parents(labeled: NDArray[np.bool_], levels: Sequence[str], where: Where, *, several: bool = False) -> None:
    """Refuse a row that has a label at a level and none at the next; `several`: rows may have several labels."""
    for fine, coarse in zip(range(len(levels) - 1), range(1, len(levels)), strict=True):
        rows = np.flatnonzero(labeled[:, fine] & ~labeled[:, coarse])
        if not len(rows):
            continue
        more = f" (and {len(rows) - 1} other rows)" if len(rows) > 1 else ""
        if labeled[rows, coarse:].any():
            row = int(rows[labeled[rows, coarse:].any(1)][0])
            raise ValueError(
                f"{where(row)}: {levels[coarse]} is blank between two labels; {_NO_PLACEHOLDERS if several else ADVICE}.{more}"
            )
        raise ValueError(
            f"{where(int(rows[0]))}: there is a label of {levels[fine]}, but none of {levels[coarse]}, and every class has a "
            f"parent at the next level; fill it in, or leave both blank.{more}"
        )


def _forms_tree(parts: Sequence[NDArray[Any]]) -> bool:
    """Whether every label has one parent, read some rows at a time; False too for labels too large to index a table."""
    rows = [part[first : first + _ROWS] for part in parts for first in range(0, len(part), _ROWS)]
    for column in range(parts[0].shape[1] - 1):
        largest = max((int(part[:, column].max(initial=-1)) for part in parts), default=-1)
        if largest > sum(map(len, parts)) + 1024:
            return False
        parents = np.full(largest + 2, UNLABELED, np.int64)  # the last is for rows without a label, and means nothing
        for one in rows:
            parents[one[:, column]] = one[:, column + 1]
        for one in rows:
            child, parent = one[:, column], one[:, column + 1]
            if ((child >= 0) & ((parent < 0) | (parents[child] != parent))).any():
                return False
    return True


# Fingerprints


def label_digests(ids: Sequence[str] | None, levels: Mapping[str, Sequence[str | Iterable[str] | None]]) -> dict[str, str]:
    """By these, two results show that they are about the same items with the same labels.

    The SHA-256 of the (id, names) of all items at each level, sorted by id; without ids, of (position, names).

    Names are stripped and NFC-normalized, and those of a set are sorted; None is no label.
    """
    found = {}
    for level, names in levels.items():
        pairs = sorted(zip(range(len(names)) if ids is None else ids, map(_spelled, names), strict=True))
        found[level] = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
    return found


def _spelled(label: str | Iterable[str] | None) -> list[str]:
    several = [] if label is None else [label] if isinstance(label, str) else label
    return sorted(unicodedata.normalize("NFC", name.strip()) for name in several)
