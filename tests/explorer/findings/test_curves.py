"""Curves and histograms: by hand, by scikit-learn and numpy, and at the edges."""

import numpy as np
import pytest
from sklearn.metrics import precision_recall_curve

from suprank import open_data
from suprank.evaluation import evaluate
from suprank.explorer.findings import curves
from suprank.explorer.findings.curves import (
    ScoreBlock,
    hierarchical_at_k,
    interpolated_precision,
    levels_by_rank,
    precision_recall_and_scores,
    sample_queries,
    score_blocks,
)
from suprank.explorer.images import shared_levels, unit_embeddings
from tests.explorer import runs
from tests.explorer.runs import of_arrays


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    pictures = runs.collection(tmp_path_factory.mktemp("data"), groups=4, classes=3, images=5)
    return of_arrays("x", runs.vectors(pictures, noise=2.0), pictures)


def cosines(data):
    unit = unit_embeddings(data.queries, slice(None))
    return unit @ unit_embeddings(data.items, slice(None)).T


def test_precision_is_the_best_at_that_recall_or_a_higher_one():
    # Positives at places 1, 4 and 5 of five: precision 1, 1/2, 3/5; so that of the second is 3/5 too.
    (curve,) = interpolated_precision(np.array([[True, False, False, True, True]]))
    assert curve[[0, 33, 34, 67, 100]] == pytest.approx([1, 1, 0.6, 0.6, 0.6])


def test_the_curve_is_scikit_learns_interpolated_and_averaged_over_queries(data):
    found, _ = precision_recall_and_scores(data)
    scores, (queries, levels) = cosines(data), (60, 2)
    assert (found.queries, found.total_queries) == (queries, queries)
    for place, level in enumerate(data.levels):
        expected = []
        for query in range(queries):
            others = np.arange(queries) != query
            positive = shared_levels(data.queries.labels[query], data.items.labels)[others] >= levels - place
            precision, recall, _ = precision_recall_curve(positive, scores[query, others])
            precision[-1] = 0  # scikit-learn's own point, of no items
            expected.append([precision[recall >= at - 1e-9].max() for at in found.recall])
        assert found.precision[level] == pytest.approx(np.mean(expected, axis=0))


def test_histograms_are_numpys_of_the_pairs_of_each_level(data):
    _, found = precision_recall_and_scores(data)
    scores = cosines(data)
    assert found.rows == (None, "group", "class")
    for level in range(3):
        mask = np.stack(
            [shared_levels(data.queries.labels[query], data.items.labels) == level for query in range(60)]
        ) & ~np.eye(60, dtype=bool)
        assert found.counts[level].sum() == mask.sum()
        assert found.counts[level] == pytest.approx(np.histogram(scores[mask], found.edges)[0], abs=1)  # by rounding
    assert found.shares.sum(1) == pytest.approx(1)


def test_ties_stand_as_in_evaluation_worse_first():
    scores = np.array([[0.5, 0.5, 0.7, -0.0, 0.0, -np.inf, -0.3]], np.float32)
    levels = np.array([[2, 0, 1, 1, 0, 0, 2]], np.int8)
    assert levels_by_rank(ScoreBlock(scores, levels)).tolist() == [[1, 0, 2, 0, 1, 2, 0]]


def test_a_query_without_positives_is_left_out_and_a_level_without_any_is_nan(tmp_path):
    single = runs.collection(tmp_path, groups=2, classes=3, images=1)
    found, scores = precision_recall_and_scores(of_arrays("x", runs.vectors(single), single))
    assert np.isnan(found.precision["class"]).all()
    assert (found.precision["group"] > 0).all()
    assert scores.counts.sum(1).tolist() == [18, 12, 0]
    assert not scores.shares[2].any()


def test_one_level_has_negatives_and_positives(tmp_path):
    flat = runs.collection(tmp_path)
    flat = type(flat).from_columns(flat.table.drop(["label_group"]), root=flat.root, levels=["class"])
    found, scores = precision_recall_and_scores(of_arrays("x", runs.vectors(flat), flat))
    assert list(found.precision) == ["class"]
    assert scores.rows == (None, "class")


def test_queries_against_a_gallery_count_every_pair(tmp_path):
    whole = runs.collection(tmp_path / "d", splits=("query", "gallery", "gallery"))
    data = open_data(runs.embeddings(tmp_path / "e", whole))
    found, scores = precision_recall_and_scores(data)
    assert scores.counts.sum() == 8 * 16
    assert found.precision["group"][0] >= found.precision["group"][-1]


def test_large_collections_are_sampled_the_same_way_each_time(data, monkeypatch):
    monkeypatch.setattr(curves, "PAIRS", 600)
    monkeypatch.setattr(curves, "MIN_QUERIES", 7)
    rows = sample_queries(data, seed=3)
    assert len(rows) == 10
    assert (np.diff(rows) > 0).all()
    assert rows.tolist() == sample_queries(data, seed=3).tolist()
    assert rows.tolist() != sample_queries(data, seed=4).tolist()
    found, scores = precision_recall_and_scores(data)
    assert (found.queries, found.total_queries, scores.counts.sum()) == (10, 60, 10 * 59)


def test_blocks_do_not_change_what_is_found(data, monkeypatch):
    whole, scores = precision_recall_and_scores(data)
    monkeypatch.setattr(curves, "_BLOCK", 61)  # a query at a time
    calls = []
    parts, others = precision_recall_and_scores(data, progress=lambda done, total: calls.append((done, total)))
    assert (scores.counts == others.counts).all()
    assert parts.precision["class"] == pytest.approx(whole.precision["class"])
    assert calls == [(done, 60) for done in range(1, 61)]


def test_the_query_itself_is_in_no_list_and_its_copy_is(data):
    vectors = data.queries.embeddings[:]
    vectors[7] = vectors[2]
    (block,) = score_blocks(of_arrays("x", vectors, data.queries.manifest), np.array([2]))
    assert block.scores[0, 2] == -np.inf
    assert block.scores[0, 7] == pytest.approx(1)
    assert block.levels[0, 2] == 0


def test_values_at_k_are_those_of_evaluate(data):
    found = hierarchical_at_k(data, max_k=20)
    report = evaluate(data, ks=[int(k) for k in found.ks])
    assert (found.ks[0], found.ks[-1]) == (1, 20)
    assert found.precision.tolist() == [report[f"H-P@{k}"] for k in found.ks]
    assert found.recall.tolist() == [report[f"H-R@{k}"] for k in found.ks]
    assert hierarchical_at_k(data).ks[-1] == 59, "the query is not in its own list"
    assert hierarchical_at_k(data).recall[-1] == pytest.approx(1)


def test_at_k_a_sample_of_queries_is_ranked_against_all_items(data, monkeypatch):
    monkeypatch.setattr(curves, "MIN_QUERIES", 7)
    monkeypatch.setattr(curves, "_PAIRS_BY_K", 600)
    found, rows = hierarchical_at_k(data, max_k=10, seed=2), sample_queries(data, 2, 600)
    assert len(rows) == 10
    whole = evaluate(data, metrics=["H-P@10"], per_query=True)
    assert found.precision[-1] == pytest.approx(whole.per_query["H-P@10"][rows].mean())
