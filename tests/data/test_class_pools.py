"""Pools that draw every row of a class before any row is drawn again."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from suprank.data.class_pools import ClassPools, RowsByClass, equal_shares, previous_occurrences


def class_pools(size, seed):
    """Of three classes of the same size; the second has the rows 1, 4, 7, ..."""
    return ClassPools(RowsByClass.from_labels(np.arange(3 * size) % 3), np.random.default_rng(seed))


@given(st.integers(1, 9), st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(0, 2**32))
def test_every_row_is_drawn_before_any_is_drawn_again(size, counts, seed):
    pools = class_pools(size, seed)
    drawn = Counter()
    for count in counts:
        draw = Counter(pools.draw(1, count))
        assert draw.total() == count
        assert max(draw.values(), default=0) <= -(-count // size)  # twice in a draw only where it must be
        drawn += draw
        times = [drawn[row] for row in range(1, 3 * size, 3)]
        assert max(times) - min(times) <= 1
        assert sum(times) == drawn.total()


def test_each_round_has_another_order():
    pools = class_pools(20, seed=0)
    assert len({tuple(pools.draw(1, 20 - 1) + pools.draw(1, 1)) for _ in range(5)}) == 5


def test_rows_are_found_by_class():
    rows = RowsByClass.from_labels(np.array([7, 5, 7, 900, 5]))
    assert [rows.class_rows(which).tolist() for which in range(len(rows))] == [[1, 4], [0, 2], [3]]
    assert sorted(ClassPools(rows, np.random.default_rng(0)).draw(1, 2)) == [0, 2]


def test_occurrences_are_counted_in_order():
    assert previous_occurrences(np.array([7, 5, 7, 7])).tolist() == [0, 0, 1, 2]


def test_parts_are_equal_as_far_as_the_sizes_go():
    sizes = np.array([[50, 40], [3, 40], [40, 3], [5, 5], [1, 2]])
    assert equal_shares(sizes, 10).tolist() == [[5, 5], [3, 7], [7, 3], [5, 5], [3, 7]]  # last: 3 rounds of (1, 2), and 1 more
    assert equal_shares(np.array([[9, 9, 9]]), 10).tolist() == [[3, 3, 4]]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 60))
def test_parts_sum_to_the_whole_and_nobody_gives_another_round_before_all_gave_one(sizes, total):
    given_ = equal_shares(np.array([sizes]), total)[0]
    assert given_.sum() == total
    rounds = total // sum(sizes)
    assert all(rounds * size <= part <= (rounds + 1) * size for part, size in zip(given_.tolist(), sizes, strict=True))
    short = [part for part, size in zip(given_.tolist(), sizes, strict=True) if part < (rounds + 1) * size]
    over = [part - rounds * size for part, size in zip(given_.tolist(), sizes, strict=True)]
    assert not short or max(over) <= min(o for o, size in zip(over, sizes, strict=True) if o < size) + 1
