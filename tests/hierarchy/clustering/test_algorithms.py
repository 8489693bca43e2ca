import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from suprank.hierarchy.clustering import algorithms, suggested_split
from suprank.hierarchy.clustering.algorithms import cluster_centers, cosines_and_margins, cut_tree, distinct_rows, kmeans, ward
from suprank.hierarchy.encoders import unit_rows


def random_rows(many, dim=6, seed=0):
    return np.random.default_rng(seed).normal(size=(many, dim)).astype(np.float32)


def test_a_line_is_cut_at_its_widest_gaps():
    rows = np.array([[0.0], [0.1], [1.0], [5.0], [5.2]], np.float32)
    first, last = np.split(ward(rows, 2), [3])
    assert [len(set(first)), len(set(last))] == [1, 1]
    assert first[0] != last[0]
    assert len(set(ward(rows, 3))) == 3
    assert ward(rows, 3)[2] not in ward(rows, 3)[[0, 1]]


@pytest.mark.parametrize("k", [1, 2, 5, 17, 40])
def test_it_is_the_partition_of_scipy_and_scikit_learn(k):
    rows = random_rows(40)
    found = ward(rows, k)
    assert adjusted_rand_score(found, fcluster(linkage(rows, "ward"), k, "maxclust")) == 1
    assert adjusted_rand_score(found, AgglomerativeClustering(k).fit_predict(rows)) == 1


def test_equal_heights_still_give_k_clusters_where_a_cut_at_a_height_does_not():
    tree = linkage(np.eye(4), "ward")
    assert [len(set(cut_tree(tree, k))) for k in (1, 2, 3, 4, 9)] == [1, 2, 3, 4, 4]


def test_one_row_is_one_cluster():
    assert ward(random_rows(1), 1).tolist() == [0]


def test_too_many_labels_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(algorithms, "MAX_WARD_ROWS", 9)
    with pytest.raises(ValueError, match="10 labels are too many for Ward's method, which .* distances .* k-means"):
        ward(random_rows(10), 2)


def test_a_split_is_the_cut_of_the_groups_own_tree_the_larger_part_first():
    rows = np.array([[5.0, 0], [0, 0], [0.1, 0], [0, 0.1], [5.1, 0]], np.float32)
    assert suggested_split(rows).tolist() == [1, 0, 0, 0, 1]
    assert suggested_split(rows[:2]).tolist() == [0, 1], "equal parts by their first row"
    three = suggested_split(random_rows(30), parts=3)
    assert adjusted_rand_score(three, AgglomerativeClustering(3).fit_predict(random_rows(30))) == 1


def test_what_cannot_be_split_is_part_0():
    assert suggested_split(random_rows(1)).tolist() == [0]
    assert suggested_split(np.ones((4, 3), np.float32)).tolist() == [0] * 4
    assert suggested_split(np.zeros((3, 2), np.float32)).tolist() == [0] * 3
    assert suggested_split(np.empty((0, 2), np.float32)).tolist() == []


def test_a_large_group_is_split_by_two_means(monkeypatch):
    monkeypatch.setattr(algorithms, "MAX_ROWS_TO_SPLIT", 10)
    rows = np.concatenate([random_rows(8) + 9, random_rows(12, seed=1) - 9])
    assert suggested_split(rows).tolist() == [1] * 8 + [0] * 12
    assert suggested_split(rows).tobytes() == suggested_split(rows).tobytes()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(2, 4))
def test_equal_rows_are_never_parted(values, parts):
    found = suggested_split(np.array([[float(value**2), 1.0] for value in values], np.float32), parts)
    assert len({(value, part) for value, part in zip(values, found.tolist(), strict=True)}) == len(set(values))
    assert len(set(found.tolist())) == min(parts, len(set(values)))
    sizes = np.bincount(found)
    assert (np.diff(sizes) <= 0).all()


def around(centers, each, spread, seed=0):
    rng = np.random.default_rng(seed)
    return unit_rows(np.repeat(centers, each, axis=0) + spread * rng.normal(size=(len(centers) * each, centers.shape[1])))


def test_it_is_scikit_learns_partition():
    rows = around(np.eye(6), 20, 0.1)
    theirs = KMeans(6, n_init=1, random_state=3).fit_predict(rows)
    assert len(np.unique(np.stack([kmeans(rows, 6, seed=3), theirs]), axis=1).T) == 6


def test_equal_rows_stay_together_and_k_is_no_more_than_the_different_ones():
    rows = unit_rows(np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 1]]))
    found = kmeans(rows, 5, seed=0)
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert sorted(set(found)) == [0, 1, 2]


def test_a_weight_pulls_the_center_and_counts_as_that_many_equal_rows():
    rows, weights = np.array([[0.0], [1.0], [1.9]], np.float32), np.array([100, 1, 1])
    found = kmeans(rows, 2, 0, weights)  # {0, 1} would have its center at 0.01, further from 1 than 1.9 is
    assert found[0] != found[1] == found[2]
    rows, weights = around(np.eye(4), 5, 0.5), np.arange(20) % 3 + 1
    repeated = kmeans(np.repeat(rows, weights, axis=0), 4, 0)
    assert repeated.tolist() == np.repeat(kmeans(rows, 4, 0, weights), weights).tolist()


@pytest.mark.parametrize("k", [1, 7])
def test_one_cluster_and_as_many_as_rows(k):
    rows = around(np.eye(7), 1, 0.1)
    assert len(set(kmeans(rows, k, seed=0))) == k


@settings(max_examples=20)
@given(st.integers(0, 3), st.integers(1, 12))
def test_the_same_seed_gives_the_same_clusters(seed, k):
    rows = around(np.eye(5), 8, 0.4)
    assert kmeans(rows, k, seed).tobytes() == kmeans(rows, k, seed).tobytes()


def test_distinct_rows_stand_in_their_first_order_and_minus_zero_is_zero():
    rows = np.array([[0, 1], [2, 0], [-0.0, 1], [2, 0], [1, 1]], np.float32)
    points, of = distinct_rows(rows)
    assert points.tolist() == [[0, 1], [2, 0], [1, 1]]
    assert of.tolist() == [0, 1, 0, 1, 2]


HALF = math.sqrt(0.5)
ROWS = np.array([[1, 0], [0, 1], [0, -1]], np.float32)


def test_centers_nearness_and_margin_by_hand():
    clusters = np.array([0, 0, 1])
    centers = cluster_centers(ROWS, clusters)
    assert centers.tolist() == [pytest.approx([HALF, HALF]), [0, -1]]
    near, margin = cosines_and_margins(ROWS, clusters, centers)
    assert near.tolist() == pytest.approx([HALF, HALF, 1])
    assert margin.tolist() == pytest.approx([HALF - 0, HALF + 1, 1 + HALF])


def test_a_weighted_center_leans_to_the_heavier():
    assert cluster_centers(ROWS[:2], np.array([0, 0]), [3, 4]).tolist() == [pytest.approx([0.6, 0.8])]


def test_rows_that_cancel_out_have_no_direction():
    clusters = np.array([0, 0])
    centers = cluster_centers(ROWS[1:], clusters)
    assert not centers.any()
    near, margin = cosines_and_margins(ROWS[1:], clusters, centers)
    assert near.tolist() == margin.tolist() == [0, 0]


def test_of_one_center_the_margin_is_the_nearness():
    near, margin = cosines_and_margins(ROWS[:2], np.zeros(2, np.int64), np.array([[0.6, 0.8]], np.float32))
    assert near.tolist() == margin.tolist() == pytest.approx([0.6, 0.8])


def test_blocks_of_rows_give_what_one_block_gives(monkeypatch):
    arguments = ROWS, np.array([0, 1, 1]), ROWS[:2]
    whole = np.stack(cosines_and_margins(*arguments))
    monkeypatch.setattr(algorithms, "_CHUNK", 2)
    assert np.stack(cosines_and_margins(*arguments)).tolist() == whole.tolist()


def test_beyond_15_million_pairs_batches_are_about_as_good_and_give_the_same_clusters_on_any_number_of_cores(monkeypatch):
    rows = around(np.eye(30), 40, 0.15)
    full = kmeans(rows, 30, seed=0)
    monkeypatch.setattr(algorithms, "MAX_PAIRS", 1)
    monkeypatch.setattr(algorithms, "BATCH", 300)
    found = kmeans(rows, 30, seed=0)
    assert sum_of_squares(rows, found) <= 1.02 * sum_of_squares(rows, full)
    with threadpool_limits(2):
        assert kmeans(rows, 30, seed=0).tobytes() == found.tobytes()
    assert kmeans(rows, 30, seed=1).tobytes() != found.tobytes()
    doubled = kmeans(np.concatenate([rows, rows]), 30, seed=0)
    assert (doubled[: len(rows)] == doubled[len(rows) :]).all()


def sum_of_squares(rows, clusters):
    groups = [rows[clusters == one] for one in np.unique(clusters)]
    return sum(np.square(group - group.mean(axis=0)).sum() for group in groups)
