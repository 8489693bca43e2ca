"""Metrics with intervals, by level and node, and two sources on the same queries, in whatever order."""

import numpy as np
import pytest

from suprank.explorer import Source
from suprank.explorer.findings import by_level, compared, in_order_of, metrics, same_queries
from tests.explorer import runs


@pytest.fixture
def pictures(tmp_path):
    return runs.collection(tmp_path / "data")


def test_every_metric_has_an_interval_around_it_and_values_per_query(pictures):
    report = metrics(Source.of("x", runs.vectors(pictures, noise=2.0), pictures), bootstrap=200)
    low, high = report.intervals["H-AP"]
    assert low <= report["H-AP"] <= high
    assert report.per_query["AP/group"].shape == (24,)
    levels = by_level(report)
    assert [one.level for one in levels] == ["class", "group"]
    assert [one.value for one in levels] == [report["AP/class"], report["AP/group"]]
    assert levels[0].low <= levels[0].value <= levels[0].high
    assert levels[0].queries == 24


def test_levels_count_the_queries_that_have_positives(tmp_path):
    single = runs.collection(tmp_path, groups=2, classes=2, images=1)
    found = by_level(metrics(Source.of("x", runs.vectors(single), single), bootstrap=0))
    assert [one.queries for one in found] == [0, 4]
    assert np.isnan(found[0].value)
    assert np.isnan(found[1].low), "there are no intervals"


def test_one_level_is_a_level_too(pictures):
    flat = type(pictures).of(pictures.table.drop(["label_group"]), root=pictures.root, levels=["class"])
    report = metrics(Source.of("x", runs.vectors(flat), flat), bootstrap=0)
    assert [(one.level, one.value) for one in by_level(report)] == [("class", report["AP"])]


def test_queries_are_matched_by_path_whatever_their_order(pictures):
    order = np.random.default_rng(0).permutation(24)
    vectors = runs.vectors(pictures, noise=2.0)
    one, other = Source.of("a", vectors, pictures), Source.of("b", vectors[order], pictures.take(order))
    same = same_queries(one, other)
    assert order[same].tolist() == list(range(24))
    mine, theirs = metrics(one, bootstrap=0), metrics(other, bootstrap=0)
    comparison = compared(mine, in_order_of(theirs, same))
    assert all(row.difference == pytest.approx(0) for row in comparison.rows)
    better = metrics(Source.of("c", runs.vectors(pictures, noise=0.3), pictures), bootstrap=0)
    row = next(row for row in compared(better, mine).rows if row.metric == "H-AP")
    assert row.difference == pytest.approx(better["H-AP"] - mine["H-AP"])
    assert row.p_value < 0.05


def test_paths_that_stand_there_twice_are_matched_in_their_order(pictures):
    twice = pictures.take(np.r_[0:24, 3])
    source = Source.of("a", runs.vectors(twice), twice)
    assert same_queries(source, source).tolist() == list(range(25))


def test_other_queries_and_other_galleries_are_refused(tmp_path, pictures):
    some = pictures.take(np.arange(20))
    whole, part = (Source.of(name, runs.vectors(rows), rows) for name, rows in (("whole", pictures), ("part", some)))
    with pytest.raises(ValueError, match="'pictures/2-1-0.png' is in whole only"):
        same_queries(whole, part)
    with pytest.raises(ValueError, match="24 are in whole"):
        same_queries(part, whole)
    split = runs.collection(tmp_path / "q", splits=("query", "gallery", "gallery"))
    long = Source.read(runs.embeddings(tmp_path / "long", split))
    kept = np.r_[0:18, 18]  # 7 queries and 12 items
    short = Source.read(runs.embeddings(tmp_path / "short", split.take(kept)))
    same = Source.read(runs.embeddings(tmp_path / "same", split.take(np.r_[0:18, 18, 19:24])))
    assert len(same_queries(long, same)) == 8
    with pytest.raises(ValueError, match="different queries"):
        same_queries(long, short)
    fewer = Source.read(runs.embeddings(tmp_path / "fewer", split.take(np.r_[0:23])))
    with pytest.raises(ValueError, match="ranks 16 items and fewer 15"):
        same_queries(long, fewer)
