import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from suprank.hierarchy.clustering import suggested_split
from suprank.hierarchy.clustering import ward as trees
from suprank.hierarchy.clustering.ward import cut, ward


def drawn(many, dim=6, seed=0):
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
    rows = drawn(40)
    found = ward(rows, k)
    assert adjusted_rand_score(found, fcluster(linkage(rows, "ward"), k, "maxclust")) == 1
    assert adjusted_rand_score(found, AgglomerativeClustering(k).fit_predict(rows)) == 1


def test_equal_heights_still_give_k_clusters_where_a_cut_at_a_height_does_not():
    tree = linkage(np.eye(4), "ward")
    assert [len(set(cut(tree, k))) for k in (1, 2, 3, 4, 9)] == [1, 2, 3, 4, 4]


def test_one_row_is_one_cluster():
    assert ward(drawn(1), 1).tolist() == [0]


def test_too_many_labels_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(trees, "MOST_ROWS", 9)
    with pytest.raises(ValueError, match="10 labels are too many for Ward's tree, which holds all their distances .* k-means"):
        ward(drawn(10), 2)


def test_a_split_is_the_cut_of_the_groups_own_tree_the_larger_part_first():
    rows = np.array([[5.0, 0], [0, 0], [0.1, 0], [0, 0.1], [5.1, 0]], np.float32)
    assert suggested_split(rows).tolist() == [1, 0, 0, 0, 1]
    assert suggested_split(rows[:2]).tolist() == [0, 1], "equal parts by their first row"
    three = suggested_split(drawn(30), parts=3)
    assert adjusted_rand_score(three, AgglomerativeClustering(3).fit_predict(drawn(30))) == 1


def test_what_cannot_be_split_is_part_0():
    assert suggested_split(drawn(1)).tolist() == [0]
    assert suggested_split(np.ones((4, 3), np.float32)).tolist() == [0] * 4
    assert suggested_split(np.zeros((3, 2), np.float32)).tolist() == [0] * 3
    assert suggested_split(np.empty((0, 2), np.float32)).tolist() == []


def test_a_large_group_is_split_by_two_means(monkeypatch):
    monkeypatch.setattr(trees, "MOST_TO_SPLIT", 10)
    rows = np.concatenate([drawn(8) + 9, drawn(12, seed=1) - 9])
    assert suggested_split(rows).tolist() == [1] * 8 + [0] * 12
    assert suggested_split(rows).tobytes() == suggested_split(rows).tobytes()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(2, 4))
def test_equal_rows_are_never_parted(values, parts):
    found = suggested_split(np.array([[float(value**2), 1.0] for value in values], np.float32), parts)
    assert len({(value, part) for value, part in zip(values, found.tolist(), strict=True)}) == len(set(values))
    assert len(set(found.tolist())) == min(parts, len(set(values)))
    sizes = np.bincount(found)
    assert (np.diff(sizes) <= 0).all()
