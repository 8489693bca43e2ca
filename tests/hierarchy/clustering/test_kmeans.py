import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from suprank.hierarchy.clustering.kmeans import distinct_rows, kmeans
from suprank.hierarchy.encoders import unit_rows


def around(centers, each, spread, seed=0):
    rng = np.random.default_rng(seed)
    return unit_rows(np.repeat(centers, each, axis=0) + spread * rng.normal(size=(len(centers) * each, centers.shape[1])))


def test_four_points_on_two_sides_are_two_clusters():
    rows = unit_rows(np.array([[1, 0], [-1, 0.1], [1, 0.1], [-1, 0]]))
    found = kmeans(rows, 2, seed=0)
    assert found[0] == found[2] != found[1] == found[3]
    assert sorted(set(found)) == [0, 1]


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
