"""Rows grouped by class, and pools that draw from each class in random order without repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

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


class ShuffledPool:
    """Draws items in rounds: every item is drawn once, in random order, before any is drawn again.

    One draw contains an item twice only if it is larger than the pool; then it contains every item equally often, give or take
    one.
    """

    def __init__(self, items: Sequence[Any] | Integers, rng: np.random.Generator) -> None:
        self._items = np.asarray(items)
        self._rng = rng
        self._remaining: list[Any] = []  # of this round

    def draw(self, count: int) -> list[Any]:
        """The next `count` items; whole rounds within a large draw leave the remaining ones as they are."""
        rounds, rest = divmod(count, len(self._items))
        drawn = self._items.tolist() * rounds
        if rest > len(self._remaining):
            self._begin_round()
        drawn += self._remaining[:rest]
        del self._remaining[:rest]
        return drawn

    def _begin_round(self) -> None:
        """Append a round, with the items that remain from the last one at its end, or a draw could contain them twice."""
        remaining = set(self._remaining)
        fresh = self._rng.permutation(self._items).tolist()
        self._remaining += [item for item in fresh if item not in remaining] + [item for item in fresh if item in remaining]


class ClassPools:
    """A `ShuffledPool` of the rows of each class, created when first used: an epoch may need few of many classes."""

    def __init__(self, rows: RowsByClass, rng: np.random.Generator) -> None:
        self._rows, self._rng = rows, rng
        self._pools: dict[int, ShuffledPool] = {}

    def draw(self, index: int, count: int) -> list[int]:
        """The next `count` rows of class `index`."""
        if index not in self._pools:
            self._pools[index] = ShuffledPool(self._rows.class_rows(index), self._rng)
        return self._pools[index].draw(count)


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
