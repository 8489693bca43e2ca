"""Queries worth looking at, and what they find."""

import numpy as np
import pytest

from suprank.evaluation import Report
from suprank.explorer import Source
from suprank.explorer.findings import at_random, galleries, metrics, most_different, worst
from tests.explorer import runs


def of(*values, measure="H-AP"):
    count = len(values)
    return Report({measure: 0.5}, count, count, ("a", "b"), {}, per_query={measure: np.array(values)})


@pytest.fixture
def pictures(tmp_path):
    return runs.collection(tmp_path / "data")


def test_a_gallery_holds_the_best_items_with_scores_and_levels(pictures):
    source = Source.of("x", runs.vectors(pictures), pictures)
    report = metrics(source, bootstrap=0)
    first, second = galleries(source, report, [9, 0], k=10)
    assert (first.query, second.query) == (9, 0)
    assert first.value == report.per_query["H-AP"][9]
    assert 9 not in first.rows
    assert len(first.rows) == 10
    assert (np.diff(first.scores) <= 0).all()
    shared = [2 * (row // 4 == 2) or int(row // 8 == 1) for row in first.rows.tolist()]
    assert first.levels.tolist() == shared
    assert galleries(source, report, []) == []


def test_a_short_collection_has_short_lists(tmp_path):
    few = runs.collection(tmp_path, groups=1, classes=1, images=3)
    source = Source.of("x", runs.vectors(few), few)
    (found,) = galleries(source, metrics(source, bootstrap=0), [1], k=10)
    assert sorted(found.rows.tolist()) == [0, 2]


def test_the_worst_come_first_and_only_queries_with_positives():
    assert worst(of(0.5, np.nan, 0.1, 0.9, 0.1), 3).tolist() == [2, 4, 0]
    assert worst(of(0.5, np.nan), 12).tolist() == [0]
    assert worst(of(0.2, 0.1, measure="AP"), 1).tolist() == [1]


def test_the_largest_differences_both_ways_and_none_where_there_is_none():
    mine, theirs = of(0.9, 0.5, 0.1, 0.5, np.nan), of(0.2, 0.4, 0.8, 0.5, 0.5)
    better, worse = most_different(mine, theirs, 5)
    assert (better.tolist(), worse.tolist()) == ([0, 1], [2])
    assert [rows.tolist() for rows in most_different(mine, mine)] == [[], []]


def test_a_random_sample_is_the_same_for_the_same_seed(pictures):
    source = Source.of("x", runs.vectors(pictures), pictures)
    assert at_random(source, 5, seed=1).tolist() == at_random(source, 5, seed=1).tolist()
    assert at_random(source, 5, seed=1).tolist() != at_random(source, 5, seed=2).tolist()
    assert sorted(at_random(source, 99)) == list(range(24))
