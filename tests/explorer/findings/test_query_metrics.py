"""Metrics with intervals and by level, two sources on the same queries in any order, and queries worth showing."""

import numpy as np
import pytest

from suprank.evaluation import Report
from suprank.explorer.findings.query_metrics import (
    compare_reports,
    examples,
    most_different_queries,
    precision_by_level,
    random_queries,
    reorder_queries,
    worst_queries,
)
from tests.explorer import runs
from tests.explorer.runs import evaluated, of_arrays


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return runs.collection(tmp_path_factory.mktemp("data"), classes=4, images=2)


def report_of(*values, measure="H-AP"):
    count = len(values)
    return Report({measure: 0.5}, count, count, ("a", "b"), {}, per_query={measure: np.array(values)})


def test_every_metric_has_an_interval_around_it_and_values_per_query(pictures):
    report = evaluated(of_arrays("x", runs.vectors(pictures, noise=2.0), pictures))
    low, high = report.intervals["H-AP"]
    assert low <= report["H-AP"] <= high
    assert report.per_query["AP/group"].shape == (24,)
    levels = precision_by_level(report)
    assert [one.level for one in levels] == ["class", "group"]
    assert [one.value for one in levels] == [report["AP/class"], report["AP/group"]]
    assert levels[0].low <= levels[0].value <= levels[0].high


def test_a_level_without_positives_is_nan(tmp_path):
    single = runs.collection(tmp_path, groups=2, classes=2, images=1)
    found = precision_by_level(evaluated(of_arrays("x", runs.vectors(single), single)))
    assert np.isnan(found[0].value)
    assert np.isnan(found[1].low), "there are no intervals"


def test_one_level_is_a_level_too(pictures):
    flat = type(pictures).from_columns(pictures.table.drop(["label_group"]), root=pictures.root, levels=["class"])
    report = evaluated(of_arrays("x", runs.vectors(flat), flat))
    assert [(one.level, one.value) for one in precision_by_level(report)] == [("class", report["AP"])]


def test_queries_are_matched_by_path_whatever_their_order(pictures):
    order = np.random.default_rng(0).permutation(24)
    vectors = runs.vectors(pictures, noise=2.0)
    one, other = of_arrays("a", vectors, pictures), of_arrays("b", vectors[order], pictures.take(order))
    same = one.match(other)
    assert order[same].tolist() == list(range(24))
    twice = pictures.take(np.r_[0:24, 3])
    data = of_arrays("twice", runs.vectors(twice), twice)
    assert data.match(data).tolist() == list(range(25)), "paths that stand there twice are matched in their order"
    mine, theirs = evaluated(one), evaluated(other)
    comparison = compare_reports(mine, reorder_queries(theirs, same))
    assert all(row.difference == pytest.approx(0) for row in comparison.rows)
    better = evaluated(of_arrays("c", runs.vectors(pictures, noise=0.3), pictures))
    row = next(row for row in compare_reports(better, mine).rows if row.metric == "H-AP")
    assert row.difference == pytest.approx(better["H-AP"] - mine["H-AP"])
    assert row.p_value < 0.05


def test_an_example_holds_the_best_items_with_scores_and_levels(pictures):
    data = of_arrays("x", runs.vectors(pictures), pictures)
    report = evaluated(data)
    first, second = examples(data, report, [9, 0], k=10)
    assert (first.query, second.query) == (9, 0)
    assert first.value == report.per_query["H-AP"][9]
    assert 9 not in first.rows
    assert len(first.rows) == 10
    assert (np.diff(first.scores) <= 0).all()
    shared = [2 * (row // 2 == 4) or int(row // 8 == 1) for row in first.rows.tolist()]
    assert first.levels.tolist() == shared
    assert examples(data, report, []) == []


def test_a_short_collection_has_short_lists(tmp_path):
    few = runs.collection(tmp_path, groups=1, classes=1, images=3)
    data = of_arrays("x", runs.vectors(few), few)
    (found,) = examples(data, evaluated(data), [1], k=10)
    assert sorted(found.rows.tolist()) == [0, 2]


def test_the_worst_come_first_and_only_queries_with_positives():
    assert worst_queries(report_of(0.5, np.nan, 0.1, 0.9, 0.1), 3).tolist() == [2, 4, 0]
    assert worst_queries(report_of(0.5, np.nan), 12).tolist() == [0]
    assert worst_queries(report_of(0.2, 0.1, measure="AP"), 1).tolist() == [1]


def test_the_largest_differences_both_ways_and_none_where_there_is_none():
    mine, theirs = report_of(0.9, 0.5, 0.1, 0.5, np.nan), report_of(0.2, 0.4, 0.8, 0.5, 0.5)
    better, worse = most_different_queries(mine, theirs, 5)
    assert (better.tolist(), worse.tolist()) == ([0, 1], [2])
    assert [rows.tolist() for rows in most_different_queries(mine, mine)] == [[], []]


def test_a_random_sample_is_the_same_for_the_same_seed(pictures):
    data = of_arrays("x", runs.vectors(pictures), pictures)
    assert random_queries(data, 5, seed=1).tolist() == random_queries(data, 5, seed=1).tolist()
    assert random_queries(data, 5, seed=1).tolist() != random_queries(data, 5, seed=2).tolist()
    assert sorted(random_queries(data, 99)) == list(range(24))
