"""Near misses and failures in the first items of two sources, on lists that are written down by hand."""

import numpy as np
import pytest

from suprank import open_data
from suprank.evaluation import evaluate
from suprank.explorer.findings import mistakes as module
from suprank.explorer.findings.mistakes import (
    FirstItems,
    ItemCounts,
    better_mistakes,
    both_fail,
    count_first_items,
    misses_class,
)
from tests.explorer import runs
from tests.explorer.runs import of_arrays


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return runs.hand_made_lists(tmp_path_factory.mktemp("lists"))[:2]


def items(own, other):
    """Counts of first items; each query is written as (fine, coarse, negative)."""
    counts = [ItemCounts(*np.array(rows).T) for rows in (own, other)]
    return FirstItems(np.arange(len(own)), *counts, sampled=False)


def test_the_first_items_are_counted_by_what_they_share_with_the_query(sources):
    own, other = (open_data(folder) for folder in sources)
    found = count_first_items(own, other, own.match(other), k=4)
    assert found.queries.tolist() == [0, 1, 2, 3]
    assert np.stack(found.own, 1).tolist() == [[2, 2, 0], [2, 1, 1], [0, 2, 2], [0, 2, 2]]
    assert np.stack(found.other, 1).tolist() == [[1, 0, 3], [1, 0, 3], [0, 0, 4], [0, 2, 2]]
    assert not found.sampled
    assert found.own.near_miss_share() == pytest.approx(7 / 12)
    assert found.other.near_miss_share(np.array([2, 3])) == pytest.approx(2 / 8)
    assert found.swapped().own is found.other


def test_queries_in_another_order_are_counted_as_the_same(sources, tmp_path):
    own, other = (open_data(folder) for folder in sources)
    order = np.array([11, 3, 0, 9, 6, 1, 2, 4, 5, 7, 8, 10])
    rows, manifest = runs.hand_made_lists(tmp_path)[2:]
    shuffled = open_data(runs.embeddings(tmp_path / "shuffled", manifest.take(order), rows[1][order]))
    same, straight = own.match(shuffled), own.match(other)
    expected = count_first_items(own, other, straight, k=4).other
    assert np.array_equal(count_first_items(own, shuffled, same, k=4).other, expected)


def test_queries_with_nothing_to_find_are_left_out(tmp_path):
    _, _, rows, manifest = runs.hand_made_lists(tmp_path)
    kept = np.arange(10)  # without the gallery's images of the last class
    own = open_data(runs.embeddings(tmp_path / "kept", manifest.take(kept), rows[0][kept]))
    assert count_first_items(own, own, np.arange(4), k=4).queries.tolist() == [0, 1, 2]
    single = runs.collection(tmp_path / "single", groups=2, classes=2, images=1)
    data = of_arrays("x", runs.vectors(single), single)
    found = count_first_items(data, data, np.arange(4))
    assert (len(found.queries), len(found.own.fine)) == (0, 0)
    assert np.isnan(found.own.near_miss_share())
    assert both_fail(found).matches == better_mistakes(found).matches == 0


def test_lists_end_with_the_gallery(tmp_path):
    few = runs.collection(tmp_path, groups=1, classes=2, images=2)
    data = of_arrays("x", runs.vectors(few), few)
    assert np.stack(count_first_items(data, data, np.arange(4), k=10).own, 1).tolist() == [[1, 2, 0]] * 4


def test_the_report_tells_which_queries_miss_their_class(sources):
    # For the third and fourth query both models have the first item of the class at rank 7.
    for folder in sources:
        report = evaluate(open_data(folder), per_query=True)
        for k, expected in ((1, [2, 3]), (6, [2, 3]), (7, [])):
            assert np.flatnonzero(misses_class(report, k)).tolist() == expected


def test_a_large_collection_is_sampled(sources, monkeypatch):
    own = open_data(sources[0])
    monkeypatch.setattr(module, "_PAIRS", 16)
    monkeypatch.setattr("suprank.explorer.findings.curves.MIN_QUERIES", 1)
    found = count_first_items(own, own, np.arange(4), k=4)
    assert (len(found.queries), found.sampled) == (2, True)
    two = count_first_items(own, own, np.arange(4), k=4, queries=np.array([1, 3]))
    assert (two.queries.tolist(), two.sampled) == ([1, 3], False)
    three = count_first_items(own, own, np.arange(4), k=4, queries=np.array([0, 1, 3]))
    assert (len(three.queries), three.sampled) == (2, True)
    assert set(three.queries) < {0, 1, 3}


def test_better_mistakes_are_near_misses_here_and_mostly_negatives_there():
    own = [(2, 2, 0), (2, 1, 1), (1, 3, 0), (4, 0, 0), (1, 3, 0), (0, 4, 0), (1, 3, 0), (1, 3, 0)]
    other = [(1, 0, 3), (1, 0, 3), (1, 0, 3), (1, 0, 3), (4, 0, 0), (0, 0, 4), (1, 1, 2), (2, 1, 1)]
    order, matches = better_mistakes(items(own, other))
    # The third has three near misses against three negatives, the first two; the seventh has a near miss in the other list.
    assert order[:matches].tolist() == [2, 0, 6]
    # One breach each: a negative here, no mistake here, no negative there, not more negatives than near misses there.
    assert sorted(order[matches:].tolist()) == [1, 3, 4, 5, 7]
    assert order[-1] == 5, "neither list has the query's class, which are two breaches"


def test_both_fail_where_no_list_has_the_class_and_the_nearer_own_list_comes_first():
    own = [(0, 4, 0), (1, 3, 0), (0, 0, 4), (0, 2, 2), (0, 4, 0)]
    other = [(0, 4, 0), (0, 0, 4), (0, 4, 0), (0, 0, 4), (0, 0, 4)]
    order, matches = both_fail(items(own, other))
    assert order.tolist() == [4, 3, 0, 2, 1]
    assert matches == 4


def test_with_one_level_nothing_is_a_near_miss(sources):
    own, other = (open_data(folder).at_levels(["class"]) for folder in sources)
    found = count_first_items(own, other, np.arange(4), k=4)
    assert found.own.coarse.tolist() == [0] * 4
    assert better_mistakes(found).matches == 0
    assert both_fail(found).order[:2].tolist() == [2, 3]
