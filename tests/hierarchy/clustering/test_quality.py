import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, silhouette_score

from suprank.hierarchy.clustering import quality
from suprank.hierarchy.clustering.quality import agreement, silhouette, sizes, stability
from suprank.hierarchy.encoders import unit_rows


def test_sizes_by_hand():
    assert sizes(np.array([0, 0, 0, 1, 2, 2])) == {"median": 2.0, "largest": 3, "singletons": 1}


def test_silhouette_by_hand_and_by_scikit_learn():
    # Two pairs at right angles: within 0, to the other pair 1 by the cosine, so 1 for all.
    rows = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32)
    assert silhouette(rows, np.array([0, 0, 1, 1])) == pytest.approx(1)
    rng = np.random.default_rng(0)
    rows, clusters = unit_rows(rng.normal(size=(60, 5))), rng.integers(4, size=60)
    assert silhouette(rows, clusters) == pytest.approx(silhouette_score(rows, clusters, metric="cosine"))


def test_silhouette_is_undefined_for_one_cluster_and_for_labels_alone():
    rows = np.eye(3, dtype=np.float32)
    assert silhouette(rows, np.zeros(3, np.int64)) is None
    assert silhouette(rows, np.arange(3)) is None


def test_silhouette_of_many_is_that_of_a_fixed_sample(monkeypatch):
    rng = np.random.default_rng(0)
    rows, clusters = unit_rows(rng.normal(size=(300, 5)) + 3 * np.eye(5)[np.arange(300) % 5]), np.arange(300) % 5
    whole = silhouette(rows, clusters)
    monkeypatch.setattr(quality, "SAMPLE", 200)
    sampled = silhouette(rows, clusters)
    assert sampled == silhouette(rows, clusters)
    assert sampled != whole
    assert sampled == pytest.approx(whole, abs=0.05)


def test_agreement_is_the_adjusted_rand_index_with_each_other_run():
    run, others = np.array([0, 0, 1, 1]), [np.array([1, 1, 0, 0]), np.array([0, 1, 0, 1])]
    assert agreement(run, others) == {"mean": 0.25, "least": -0.5, "most": 1.0, "runs": 2}
    assert adjusted_rand_score(run, others[1]) == -0.5
    assert agreement(run, []) is None


def test_stability_by_hand():
    run = np.array([0, 0, 0, 1, 1])
    other = np.array([5, 5, 2, 2, 2])
    # {a, b, c} overlaps {a, b} by 2/3 and {c, d, e} by 1/5; {d, e} overlaps {c, d, e} by 2/3.
    assert stability(run, [other]).tolist() == pytest.approx([2 / 3, 2 / 3])
    assert stability(run, [other, run]).tolist() == pytest.approx([5 / 6, 5 / 6])
    assert stability(run, []) is None


@given(st.lists(st.integers(0, 4), min_size=1, max_size=25), st.randoms(use_true_random=False))
def test_stability_is_the_best_overlap_of_sets(drawn, random):
    run = np.unique(drawn, return_inverse=True)[1]
    other = np.array([random.randrange(4) for _ in drawn])
    sets = lambda labels: [set(np.flatnonzero(labels == one)) for one in np.unique(labels)]  # noqa: E731
    expected = [max(len(one & two) / len(one | two) for two in sets(other)) for one in sets(run)]
    assert stability(run, [other]).tolist() == pytest.approx(expected)
