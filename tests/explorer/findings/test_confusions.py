"""Metrics by class, confused pairs of classes, and images at the border, on lists that are written down by hand."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from suprank import open_data
from suprank.evaluation import evaluate
from suprank.explorer.findings.confusions import (
    ClassMetrics,
    ConfusedPair,
    class_metrics,
    confused_queries,
    count_confusions,
    first_item_levels,
    measure_border,
    nearest_items,
    weakest_classes,
    with_positives,
)
from suprank.explorer.images import best_items, unit_embeddings
from tests.explorer import runs
from tests.explorer.runs import of_arrays


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return runs.hand_made_lists(tmp_path_factory.mktemp("lists"))[:2]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    manifest = runs.collection(tmp_path_factory.mktemp("drawn"), groups=3, classes=3, images=6)
    return of_arrays("x", runs.vectors(manifest, noise=2.5), manifest)


def test_the_first_items_of_the_hand_made_lists_are_counted_by_class(folders):
    own = open_data(folders[0])  # the first items are rows 0, 2, 6 and 4: classes 0, 1, 3 and 2
    nearest = nearest_items(own)
    assert nearest.items.tolist() == [0, 2, 6, 4]
    fine, coarse = count_confusions(own, nearest), count_confusions(own, nearest, 1)
    assert fine.pairs() == [ConfusedPair(2, 3, 1, 1)]
    assert fine.matrix(np.array([2, 3])).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert fine.matrix(np.array([3])).tolist() == [[0, 1]]
    assert coarse.pairs() == []
    assert coarse.queries.tolist() == [2, 2]
    assert confused_queries(own, nearest, 2, 3).tolist() == [2]
    assert confused_queries(own, nearest, 0, 1).tolist() == []
    assert (fine.mistaken_for(2), fine.mistaken_for(0)) == ([(3, 1)], [])


def test_the_metrics_of_a_class_are_the_means_over_its_queries(drawn):
    report = evaluate(drawn, per_query=True)
    for level, name in enumerate(drawn.levels):
        found = class_metrics(drawn, report, level)
        labels = drawn.queries.labels[:, level]
        for label in np.unique(labels):
            assert found.ap[label] == pytest.approx(report.per_query[f"AP/{name}"][labels == label].mean())
            assert found.r1[label] == pytest.approx(report.per_query[f"R@1/{name}"][labels == label].mean())
        assert found.queries.sum() == found.images.sum() == len(labels)
    with pytest.raises(ValueError, match="per_query=True"):
        class_metrics(
            drawn,
            evaluate(
                drawn,
            ),
        )


def test_the_first_items_by_level_agree_with_recall(folders, drawn):
    own, baseline = (evaluate(open_data(folder), per_query=True) for folder in folders)
    assert first_item_levels(own).tolist() == [0, 2, 2], "rows 0, 2, 6 and 4: two right classes, two of the right group"
    assert first_item_levels(baseline).tolist() == [1, 1, 2], "rows 0, 2, 0 and 4"
    report = evaluate(drawn, per_query=True)
    counts = first_item_levels(report)
    assert [counts[-1] / 54, counts[1:].sum() / 54] == [report["R@1/class"], report["R@1/group"]]
    without = evaluate(drawn, per_query=True, ks=(2, 3))
    assert first_item_levels(without).tolist() == counts.tolist(), "also if R@1 was not asked for"
    assert class_metrics(drawn, without).r1.tolist() == class_metrics(drawn, report).r1.tolist()


def test_the_weakest_classes_have_the_lowest_ap_and_enough_queries():
    ap = np.array([0.5, 0.1, np.nan, 0.1, 0.3, 0.1])
    metrics = ClassMetrics(ap, ap, np.array([4, 2, 0, 3, 1, 2]), np.zeros(6, int))
    assert weakest_classes(metrics, 9).tolist() == [3, 1, 5, 0]
    assert weakest_classes(metrics, 2).tolist() == [3, 1]
    assert weakest_classes(metrics, 9, min_queries=0).tolist() == [3, 1, 5, 4, 0], "a class without queries has no AP"


def test_a_class_without_a_positive_has_no_metrics(tmp_path):
    single = runs.collection(tmp_path, groups=1, classes=3, images=2).take(np.arange(5))
    data = of_arrays("x", runs.vectors(single), single)
    found = class_metrics(data, evaluate(data, per_query=True))
    assert found.queries.tolist() == [2, 2, 0]
    assert found.images.tolist() == [2, 2, 1]
    assert np.isnan(found.ap[2])
    assert np.isnan(found.r1[2])
    nearest = nearest_items(data)
    assert nearest.queries.tolist() == [0, 1, 2, 3, 4]
    report = evaluate(data, per_query=True)
    assert with_positives(data, report, nearest).queries.tolist() == [0, 1, 2, 3]
    assert with_positives(data, report, nearest, 1).queries.tolist() == [0, 1, 2, 3, 4], "its group has others"


def test_confusions_are_those_of_scikit_learn_and_agree_with_recall(drawn):
    nearest = nearest_items(drawn)
    for level, name in enumerate(drawn.levels):
        found = count_confusions(drawn, nearest, level)
        labels = np.arange(len(drawn.names[name]))
        theirs = confusion_matrix(drawn.queries.labels[:, level], drawn.items.labels[nearest.items, level], labels=labels)
        matrix = found.matrix(labels)
        assert np.array_equal(matrix[:, :-1], theirs)
        assert not matrix[:, -1].any()
        assert np.array_equal(matrix.sum(1), found.queries)
        assert np.trace(matrix) / matrix.sum() == pytest.approx(evaluate(drawn, metrics=[f"R@1/{name}"])[f"R@1/{name}"])
        assert sum(pair.mistakes for pair in found.pairs()) == theirs.sum() - np.trace(theirs)
        mistakes = [pair.mistakes for pair in found.pairs(4)]
        assert mistakes == sorted(mistakes, reverse=True)
        for pair in found.pairs():
            assert len(confused_queries(drawn, nearest, pair.one, pair.other, level)) == pair.one_as_other


def test_in_a_tie_the_item_that_shares_fewer_levels_is_first_as_in_recall(tmp_path):
    manifest = runs.collection(tmp_path, groups=2, classes=2, images=2)  # rows 0 and 1 are one class, 0 to 3 one group
    vectors = np.eye(4, dtype=np.float32)[[0, 0, 0, 1, 0, 2, 3, 3]]  # rows 0, 1, 2 and 4 are copies
    data = of_arrays("x", vectors, manifest)
    nearest, report = nearest_items(data), evaluate(data, per_query=True)
    assert nearest.items[[0, 1, 2, 4]].tolist() == [4, 4, 4, 0]
    for level, name in enumerate(data.levels):
        right = data.items.labels[nearest.items, level] == data.queries.labels[:, level]
        assert right.tolist() == (report.per_query[f"R@1/{name}"] == 1).tolist()


def test_a_sample_of_the_queries_is_the_same_for_the_same_seed(drawn, monkeypatch):
    monkeypatch.setattr("suprank.explorer.findings.curves.MIN_QUERIES", 5)
    few = nearest_items(drawn, pairs=1)
    assert few.sampled
    assert len(few.queries) == 5
    assert np.array_equal(few.queries, nearest_items(drawn, pairs=1).queries)
    assert np.array_equal(few.items, nearest_items(drawn).items[few.queries])
    calls = []
    some = nearest_items(drawn, queries=np.array([7, 3]), progress=lambda done, total: calls.append((done, total)))
    assert np.array_equal(some.items, nearest_items(drawn).items[[7, 3]])
    assert calls[-1] == (2, 2)


def test_queries_without_a_label_and_distractors_are_no_confusions(tmp_path):
    manifest = runs.collection(tmp_path, groups=2, classes=1, images=3, splits=("query", "gallery", "gallery"))
    rows = runs.vectors(manifest)
    data = open_data(runs.embeddings(tmp_path / "e", manifest, rows))
    data.items.labels[:2] = -1
    data.queries.labels[1] = -1
    nearest = nearest_items(data)
    found = count_confusions(data, nearest)
    assert nearest.queries.tolist() == [0]
    assert found.pairs() == []
    assert found.mistaken_for(0) == [(-1, 1)]
    assert found.matrix(np.array([0])).sum() == 1


def test_the_border_compares_the_best_item_of_the_class_with_the_best_of_the_others(drawn):
    queries = np.flatnonzero(drawn.queries.labels[:, 0] == 4)
    found = measure_border(drawn, queries)
    units = unit_embeddings(drawn.items, slice(None)).astype(np.float64)
    for at, query in enumerate(queries):
        scores = units @ units[query]
        scores[query] = -np.inf
        same = drawn.items.labels[:, 0] == 4
        best, other = np.where(same, scores, -np.inf).argmax(), np.where(same, -np.inf, scores).argmax()
        assert (found.own_items[at], found.other_items[at]) == (best, other)
        assert found.margin[at] == pytest.approx(scores[best] - scores[other], abs=1e-6)
    items, _ = best_items(drawn, queries, 1)
    right = drawn.items.labels[items[:, 0], 0] == 4
    assert np.array_equal(found.margin > 0, right)


def test_the_only_image_of_a_class_has_no_item_on_its_side(tmp_path):
    few = runs.collection(tmp_path, groups=1, classes=2, images=1)
    data = of_arrays("x", runs.vectors(few), few)
    found = measure_border(data, np.array([0]))
    assert (found.own_items.tolist(), found.other_items.tolist()) == ([-1], [1])
    assert found.margin.tolist() == [-np.inf]
