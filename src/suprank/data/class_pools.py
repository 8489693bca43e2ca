"""Rows by class, and how they are dealt: in random order, and each in its turn."""

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
    """Rows grouped by their class, the classes in the order of their ids: `sizes[i]` of class i, from `starts[i]` on."""

    rows: Integers
    starts: Integers
    sizes: Integers

    @classmethod
    def of(cls, ids: Integers) -> RowsByClass:
        rows = np.argsort(ids, kind="stable")
        starts = np.flatnonzero(np.diff(ids[rows], prepend=ids[rows[0]] - 1))
        return cls(rows, starts, np.diff(starts, append=len(ids)))

    def of_class(self, which: int) -> Integers:
        return self.rows[self.starts[which] : self.starts[which] + self.sizes[which]]

    def __len__(self) -> int:
        return len(self.sizes)


class Deck:
    """Cards dealt in rounds: every card comes once, in random order, before any comes again.

    A hand holds a card twice only when it is larger than the deck; then it holds every card equally often, give or take one.
    """

    def __init__(self, cards: Sequence[Any] | Integers, rng: np.random.Generator) -> None:
        self._cards = np.asarray(cards)
        self._rng = rng
        self._pile: list[Any] = []  # what is left of this round

    def dealt(self, count: int) -> list[Any]:
        """The next `count` cards; whole rounds of a large hand leave the pile as it is."""
        rounds, rest = divmod(count, len(self._cards))
        hand = self._cards.tolist() * rounds
        if rest > len(self._pile):
            self._begin_round()
        hand += self._pile[:rest]
        del self._pile[:rest]
        return hand

    def _begin_round(self) -> None:
        """Lay a round under the pile, those that the pile holds at its end, or a hand could hold them twice."""
        held = set(self._pile)
        fresh = self._rng.permutation(self._cards).tolist()
        self._pile += [card for card in fresh if card not in held] + [card for card in fresh if card in held]


class Decks:
    """A deck of the rows of each class, made when first dealt from: an epoch may need few of many."""

    def __init__(self, rows: RowsByClass, rng: np.random.Generator) -> None:
        self._rows, self._rng = rows, rng
        self._decks: dict[int, Deck] = {}

    def dealt(self, which: int, count: int) -> list[int]:
        """The next `count` rows of a class."""
        if which not in self._decks:
            self._decks[which] = Deck(self._rows.of_class(which), self._rng)
        return self._decks[which].dealt(count)


def equal_parts(sizes: Integers, total: int) -> Integers:
    """How many of `total` each column gives, in every row of `sizes [rows, columns]`: equal parts, as far as the sizes go.

    Who has less than its part gives all, and the others more; if all together have less than `total`, they give all they have
    as often as it fits, and then equal parts of the rest. Sums to `total` in every row.
    """
    rows, columns = sizes.shape
    given = sizes * (total // sizes.sum(axis=1, keepdims=True))
    left = total - given.sum(axis=1)
    order = np.argsort(sizes, axis=1, kind="stable")
    for place in range(columns):  # the smallest first: what it lacks is shared among those after it
        who = (np.arange(rows), order[:, place])
        part = np.minimum(sizes[who], left // (columns - place))
        given[who] += part
        left -= part
    return given


def occurrence(items: Integers) -> Integers:
    """How often each entry occurred before it: [7, 5, 7, 7] → [0, 0, 1, 2]."""
    by_item = RowsByClass.of(items)
    count = np.empty_like(items)
    count[by_item.rows] = np.arange(len(items)) - np.repeat(by_item.starts, by_item.sizes)
    return count
