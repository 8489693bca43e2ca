"""Rows grouped by class, and pools that draw from each class in random order without repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class RowsByClass:
    """Rows sorted by class, in the order of the class ids: `sizes[i]` rows of class i, from `starts[i]` on."""

    rows: Integers
    starts: Integers
    sizes: Integers

    @classmethod
    def from_labels(cls, labels: Integers) -> RowsByClass:
        rows = np.argsort(labels, kind="stable")
        starts = np.flatnonzero(np.diff(labels[rows], prepend=labels[rows[0]] - 1))
        return cls(rows, starts, np.diff(starts, append=len(labels)))

    @classmethod
    def from_sets(cls, sets: Integers) -> RowsByClass:
        """Rows by class where a row has several, `[rows, M]` with −1 for padding: it is among the rows of each."""
        sets = np.sort(sets, axis=1)
        first = np.diff(sets, axis=1, prepend=-1) > 0  # of equal labels of a row
        rows, _ = np.nonzero(first)
        by_class = cls.from_labels(sets[first])
        return cls(rows[by_class.rows], by_class.starts, by_class.sizes)

    def class_rows(self, index: int) -> Integers:
        return self.rows[self.starts[index] : self.starts[index] + self.sizes[index]]

    def __len__(self) -> int:
        return len(self.sizes)


class ClassPools:
    """Draws rows of classes in rounds: every row of a class is drawn once, in random order, before any is drawn again.

    One draw contains a row twice only if it is larger than the class; then it contains every row equally often, give or take
    one.
    """

    def __init__(self, by_class: RowsByClass, rng: np.random.Generator) -> None:
        self._by_class, self._rng = by_class, rng
        # Class → what its round has left, the next row last: a coarse class may have 100,000 fine ones, and a list is cheap to
        # shorten at its end only. Entries are made when needed, because an epoch may draw from few of many classes.
        self._remaining: dict[int, list[int]] = {}

    def draw(self, index: int, count: int) -> list[int]:
        """The next `count` rows of class `index`; whole rounds within a large draw leave the remaining ones as they are."""
        rounds, rest = divmod(count, self._by_class.sizes.item(index))
        remaining = self._remaining.get(index, [])
        if rest > len(remaining):
            remaining = self._remaining[index] = self._next_round(index, remaining)
        left = len(remaining) - rest
        drawn = remaining[left:]
        del remaining[left:]
        drawn.reverse()
        return self._by_class.class_rows(index).tolist() * rounds + drawn if rounds else drawn

    def _next_round(self, index: int, remaining: list[int]) -> list[int]:
        """The remaining rows and another round, in which they are drawn last, or a draw could contain them twice."""
        fresh = self._rng.permutation(self._by_class.class_rows(index))[::-1].tolist()
        if not remaining:
            return fresh
        last = set(remaining)
        return [row for row in fresh if row in last] + [row for row in fresh if row not in last] + remaining


def equal_shares(sizes: Integers, total: int) -> Integers:
    """Divide `total` among the columns of `sizes [rows, columns]`, in every row: equal shares, as far as the sizes go.

    A column with less than its share gives all it has, and the others give more. If all together have less than `total`, they
    give everything as many times as it fits, and then equal shares of the rest. Every row sums to `total`.
    """
    rows, columns = sizes.shape
    shares = sizes * (total // sizes.sum(axis=1, keepdims=True))
    left = total - shares.sum(axis=1)
    order = np.argsort(sizes, axis=1, kind="stable")
    for place in range(columns):  # the smallest first: what it lacks is divided among those after it
        column = (np.arange(rows), order[:, place])
        share = np.minimum(sizes[column], left // (columns - place))
        shares[column] += share
        left -= share
    return shares


def previous_occurrences(items: Integers) -> Integers:
    """How often each entry occurred before it: [7, 5, 7, 7] → [0, 0, 1, 2]."""
    by_item = RowsByClass.from_labels(items)
    count = np.empty_like(items)
    count[by_item.rows] = np.arange(len(items)) - np.repeat(by_item.starts, by_item.sizes)
    return count
