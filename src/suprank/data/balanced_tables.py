"""Random tables that are fair: every item as often as it should be, never twice in a row; and combinations of items."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from suprank.data.class_pools import Integers

    Pair: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


def spread(counts: Integers, rows: int, rng: np.random.Generator) -> Integers:
    """A random table `[rows, width]` in which item i occurs `counts[i]` times, and never twice in a row.

    The counts sum to rows · width and none exceeds `rows`, so such a table exists. We lay one out, and then let random pairs of
    rows trade what they do not share ("curveball" trades, which in the long run make every table equally likely). After
    log2(rows) rounds an entry can be in any row; by then, how often two items meet, and how much two rows share, was no longer
    to be told from the long run. We do four more. A million entries take 0.4 s.
    """
    assert counts.sum() % rows == 0
    assert counts.max() <= rows
    order = rng.permutation(len(counts))
    # Item after item, down the columns: a run of at most `rows` entries meets no row twice.
    table = np.repeat(order, counts[order]).reshape(-1, rows).T.copy()
    for _ in range(rows.bit_length() + 4 if rows > 1 else 0):
        shuffled = rng.permutation(rows)
        trade(table, shuffled[: rows // 2], shuffled[rows // 2 : rows // 2 * 2], rng)
    return rng.permuted(table, axis=1)


def trade(table: Integers, left: Integers, right: Integers, rng: np.random.Generator) -> None:
    """Let rows `left[i]` and `right[i]` of the table pool what they hold and share it out at random, in place.

    What both hold stays in both, so a row without repeats remains one. No row may be named twice.
    """
    width = table.shape[1]
    pool = np.sort(np.concatenate([table[left], table[right]], axis=1), axis=1)
    both = pool[:, 1:] == pool[:, :-1]
    key = rng.integers(1, 2**30, size=pool.shape)
    key[:, :-1][both] = 0  # the one of the two goes left,
    key[:, 1:][both] = 2**30  # the other right
    pool = np.sort(key << 32 | pool, axis=1) & (2**32 - 1)
    table[left], table[right] = pool[:, :width], pool[:, width:]


def drawn_combinations(items: int, size: int, count: int, rng: np.random.Generator) -> Integers:
    """`count` random combinations of `size` out of `items`, as rows `[count, size]` in random order.

    Each of the C(items, size) comes equally often, give or take once, and so does each item.
    """
    possible = comb(items, size)
    rounds, rest = divmod(count, possible)
    few = rest <= possible // 2  # else it is quicker to draw what to leave out
    odd = _distinct_combinations(items, size, rest if few else possible - rest, rng)
    if few and not rounds:
        return odd  # there may be too many combinations to list
    every = np.array(list(combinations(range(items), size)))
    if not few:
        left_out = set(map(tuple, odd.tolist()))
        odd = every[[row not in left_out for row in map(tuple, every.tolist())]]
    return rng.permutation(np.concatenate([np.tile(every, (rounds, 1)), odd]))


def _distinct_combinations(items: int, size: int, count: int, rng: np.random.Generator) -> Integers:
    """`count` different combinations, at most half of those there are, with every item equally often, give or take once."""
    if not count:
        return np.empty((0, size), dtype=np.int64)
    often, odd = divmod(count * size, items)
    counts = np.full(items, often)
    counts[rng.permutation(items)[:odd]] += 1
    rows = list(map(tuple, np.sort(spread(counts, count, rng), axis=1).tolist()))
    _make_distinct(rows, rng)
    return np.array(rows)


def _make_distinct(rows: list[tuple[int, ...]], rng: np.random.Generator) -> None:
    """Let every row that another one equals trade with a random row, unless that makes more such rows; until there are none."""
    times = Counter(rows)
    while len(times) < len(rows):
        for i in range(len(rows)):
            if times[rows[i]] == 1:
                continue
            j = int(rng.integers(len(rows)))
            old, new = (rows[i], rows[j]), _traded(rows[i], rows[j], rng)
            if i != j and _replace(times, old, new):
                rows[i], rows[j] = new


def _replace(times: Counter[tuple[int, ...]], old: Pair, new: Pair) -> bool:
    """Count the new rows instead of the old ones, if that leaves as many different rows, or more; whether it did."""
    different = len(times)
    _recount(times, old, new)
    if len(times) >= different:
        return True
    _recount(times, new, old)
    return False


def _recount(times: Counter[tuple[int, ...]], less: Pair, more: Pair) -> None:
    times.subtract(less)
    times.update(more)
    for row in less:
        if not times[row]:
            del times[row]


def _traded(one: tuple[int, ...], other: tuple[int, ...], rng: np.random.Generator) -> Pair:
    """What `trade` does, for two sorted rows."""
    table = np.array([one, other])
    trade(table, np.array([0]), np.array([1]), rng)
    table.sort(axis=1)
    left, right = table.tolist()
    return tuple(left), tuple(right)
