"""Random tables: what is promised holds exactly, and the rest is left to chance."""

from collections import Counter
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.data.balanced_tables import balanced_table, sample_combinations, trade_rows


@st.composite
def feasible(draw):
    """Rows, and counts of items up to that many, whose sum fills them."""
    rows, width = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    items = width + draw(st.integers(0, 10))
    counts = np.zeros(items, dtype=np.int64)
    for _ in range(rows * width):
        free = np.flatnonzero(counts < rows)
        counts[free[draw(st.integers(0, len(free) - 1))]] += 1
    return rows, counts


@given(feasible(), st.integers(0, 2**32))
def test_every_item_comes_as_often_as_asked_and_never_twice_in_a_row(case, seed):
    rows, counts = case
    table = balanced_table(counts, rows, np.random.default_rng(seed))
    assert table.shape == (rows, counts.sum() // rows)
    assert np.bincount(table.ravel(), minlength=len(counts)).tolist() == counts.tolist()
    assert all(len(set(row)) == len(row) for row in table.tolist())


def test_every_table_is_equally_likely():
    # Item 0 is in all three rows, and items 1, 2 and 3 come once: in one of 3! orders.
    rng = np.random.default_rng(0)
    seen = Counter(tuple(balanced_table(np.array([3, 1, 1, 1]), 3, rng).max(axis=1).tolist()) for _ in range(600))
    assert len(seen) == 6
    assert all(abs(times - 100) < 40 for times in seen.values())  # more than four standard deviations


def test_two_items_meet_as_often_as_chance_has_it():
    # 64 items, 16 times each, in 128 rows of 8. A pair meets in 128 · 8·7 / (64·63) = 1.78 rows; with the variance of chance.
    rng = np.random.default_rng(0)
    met = np.zeros((64, 64))
    for row in balanced_table(np.full(64, 16), 128, rng).tolist():
        met[np.ix_(row, row)] += 1
    pairs = met[np.triu_indices(64, 1)]
    assert pairs.mean() == pytest.approx(128 * 56 / (64 * 63))
    assert pairs.var() == pytest.approx(1.6, abs=0.25)  # laid out in runs, without trades, it is 25


def test_rows_that_trade_keep_what_both_hold():
    table = np.array([[1, 2, 3], [3, 4, 1], [7, 8, 9]])
    trade_rows(table, np.array([0]), np.array([1]), np.random.default_rng(0))
    assert {1, 3} < set(table[0].tolist())
    assert {1, 3} < set(table[1].tolist())
    assert sorted(table[:2].ravel().tolist()) == [1, 1, 2, 3, 3, 4]
    assert table[2].tolist() == [7, 8, 9]


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 100), st.integers(0, 2**32))
def test_combinations_and_items_come_equally_often(items, size, count, seed):
    size = min(size, items)
    drawn = sample_combinations(items, size, count, np.random.default_rng(seed))
    assert drawn.shape == (count, size)
    times = np.unique(np.sort(drawn, axis=1), axis=0, return_counts=True)[1]
    assert times.max() <= -(-count // comb(items, size))
    assert len(times) == min(count, comb(items, size))
    occurs = np.bincount(drawn.ravel(), minlength=items)
    assert occurs.max() - occurs.min() <= 1


def test_a_few_of_very_many_combinations_are_drawn_without_listing_them():
    drawn = sample_combinations(3438, 32, 500, np.random.default_rng(0))
    assert drawn.shape == (500, 32)
    assert len(np.unique(drawn, axis=0)) == 500
