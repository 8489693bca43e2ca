"""Random tables in which every item occurs a given number of times, never twice in a row; and random combinations."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from suprank.data.class_pools import Integers

    Pair: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


def balanced_table(counts: Integers, rows: int, rng: np.random.Generator) -> Integers:
    """A random table `[rows, width]` in which item i occurs `counts[i]` times, and never twice in a row.

    The counts sum to rows · width and none exceeds `rows`, so such a table exists. We build one, and then let random pairs of
    rows exchange what they do not share ("curveball" trades, which in the long run make every table equally likely). After
    log2(rows) rounds an entry can be in any row; by then, how often two items meet and how much two rows share could not be
    distinguished from the long run. We do four more. A million entries take 0.4 s.
    """
    assert counts.sum() % rows == 0
    assert counts.max() <= rows
    order = rng.permutation(len(counts))
    # Item after item, down the columns: a run of at most `rows` entries meets no row twice.
    table = np.repeat(order, counts[order]).reshape(-1, rows).T.copy()
    for _ in range(rows.bit_length() + 4 if rows > 1 else 0):
        shuffled = rng.permutation(rows)
        trade_rows(table, shuffled[: rows // 2], shuffled[rows // 2 : rows // 2 * 2], rng)
    return rng.permuted(table, axis=1)


def trade_rows(table: Integers, left: Integers, right: Integers, rng: np.random.Generator) -> None:
    """Pool the items of rows `left[i]` and `right[i]` and divide them at random between the two, in place.

    An item of both rows stays in both, so that no row gets repeats. No row may be given twice.
    """
    width = table.shape[1]
    pool = np.sort(np.concatenate([table[left], table[right]], axis=1), axis=1)
    both = pool[:, 1:] == pool[:, :-1]
    key = rng.integers(1, 2**30, size=pool.shape)
    key[:, :-1][both] = 0  # one of the two goes left,
    key[:, 1:][both] = 2**30  # the other right
    pool = np.sort(key << 32 | pool, axis=1) & (2**32 - 1)
    table[left], table[right] = pool[:, :width], pool[:, width:]


def sample_combinations(items: int, size: int, count: int, rng: np.random.Generator) -> Integers:
    """`count` random combinations of `size` out of `items`, as rows `[count, size]` in random order.

    Each of the C(items, size) combinations occurs equally often, give or take one, and so does each item.
    """
    possible = comb(items, size)
    rounds, rest = divmod(count, possible)
    few = rest <= possible // 2  # otherwise it is quicker to draw those to leave out
    drawn = _distinct_combinations(items, size, rest if few else possible - rest, rng)
    if few and not rounds:
        return drawn  # there may be too many combinations to list
    every = np.array(list(combinations(range(items), size)))
    if not few:
        left_out = set(map(tuple, drawn.tolist()))
        drawn = every[[row not in left_out for row in map(tuple, every.tolist())]]
    return rng.permutation(np.concatenate([np.tile(every, (rounds, 1)), drawn]))


def _distinct_combinations(items: int, size: int, count: int, rng: np.random.Generator) -> Integers:
    """`count` different combinations, at most half of all, with every item equally often, give or take one."""
    if not count:
        return np.empty((0, size), dtype=np.int64)
    times, remainder = divmod(count * size, items)
    counts = np.full(items, times)
    counts[rng.permutation(items)[:remainder]] += 1
    rows = list(map(tuple, np.sort(balanced_table(counts, count, rng), axis=1).tolist()))
    _make_distinct(rows, rng)
    return np.array(rows)


def _make_distinct(rows: list[tuple[int, ...]], rng: np.random.Generator) -> None:
    """Trade every row that equals another one with a random row, unless that makes more equal rows, until all are distinct."""
    times = Counter(rows)
    while len(times) < len(rows):
        for i in range(len(rows)):
            if times[rows[i]] == 1:
                continue
            j = int(rng.integers(len(rows)))
            old, new = (rows[i], rows[j]), _trade_pair(rows[i], rows[j], rng)
            if i != j and _replace_rows(times, old, new):
                rows[i], rows[j] = new


def _replace_rows(times: Counter[tuple[int, ...]], old: Pair, new: Pair) -> bool:
    """Count the new rows instead of the old ones, unless that leaves fewer different rows. Return whether it was done."""
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


def _trade_pair(one: tuple[int, ...], other: tuple[int, ...], rng: np.random.Generator) -> Pair:
    """`trade_rows` for two sorted rows."""
    table = np.array([one, other])
    trade_rows(table, np.array([0]), np.array([1]), rng)
    table.sort(axis=1)
    left, right = table.tolist()
    return tuple(left), tuple(right)
