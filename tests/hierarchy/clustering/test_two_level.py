import json
from threading import get_ident

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from suprank.hierarchy.clustering import algorithms, cluster_labels, two_level
from suprank.hierarchy.clustering.algorithms import kmeans, kmeans_runs
from suprank.hierarchy.clustering.two_level import allot, nearest_centers, two_level_kmeans
from suprank.hierarchy.embedding import embed_labels
from suprank.hierarchy.encoders import unit_rows
from tests.hierarchy.labeled import labeled


@pytest.fixture
def always(monkeypatch):
    """Every k-means is two-level, with cells that are parted again."""
    monkeypatch.setattr(algorithms, "MAX_PAIRS", 0)
    monkeypatch.setattr(two_level, "_MAX_CELL_CENTERS", 8)


def mixture(groups, each, dim=8, spread=0.05, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(groups), each)
    return unit_rows(rng.normal(size=(groups, dim))[truth] + spread * rng.normal(size=(groups * each, dim))), truth


def squares(points, clusters):
    """The sum of squared distances to the means of the clusters."""
    return sum(np.square(points[clusters == c] - points[clusters == c].mean(axis=0)).sum() for c in np.unique(clusters))


def test_the_nearest_of_three_centers_by_hand():
    points, centers = np.array([[0.0, 0], [3, 0], [0, 2]], np.float32), np.array([[0.0, 0], [4, 0], [0, 4]], np.float32)
    nearest = nearest_centers(points, centers)
    assert nearest.first.tolist() == [0, 1, 0], "of two equally near ones the first"
    assert nearest.second.tolist() == [1, 0, 2]
    assert nearest.distance.tolist() == pytest.approx([0, 1, 4])
    assert nearest.gap.tolist() == pytest.approx([16, 9 - 1, 0])


def test_of_two_halves_of_a_group_one_stays():
    centers = np.array([[0.0], [0.1], [5], [9]], np.float32)
    assert two_level._least_missed(centers, np.array([1.0, 2, 3, 4]), 2) == [0, 2]
    assert two_level._least_missed(centers, np.array([1.0, 2, 3, 4]), 3) == [0, 2, 1], "unless more have to go"


def test_a_round_is_scikit_learns(monkeypatch):
    monkeypatch.setattr(two_level, "_CHUNK", 64)  # several chunks
    monkeypatch.setattr(two_level, "_SUM_CHUNK", 100)
    points, _ = mixture(20, 15, spread=0.4)
    mass, start = np.arange(300) % 4 + 1.0, points[::15].copy()
    theirs = KMeans(20, init=start, n_init=1, max_iter=1, tol=0).fit(points, sample_weight=mass)
    centers = two_level._means(points, mass, nearest_centers(points, start).first, start)
    nearest = nearest_centers(points, centers)
    assert centers == pytest.approx(theirs.cluster_centers_, abs=1e-6)
    assert nearest.first.tolist() == theirs.labels_.tolist()
    assert (mass * nearest.distance).sum() == pytest.approx(theirs.inertia_, rel=1e-5)


def test_clear_groups_are_found_and_a_mixture_is_fitted_as_well_as_by_full_kmeans(monkeypatch):
    monkeypatch.setattr(algorithms, "MAX_PAIRS", 0)
    points, truth = mixture(200, 12, dim=16, spread=0.1)
    assert adjusted_rand_score(truth, kmeans(points, 200, 0)) > 0.98
    points, _ = mixture(200, 12, spread=0.6)
    full = KMeans(200, n_init=1, random_state=0).fit(points).inertia_
    assert squares(points, kmeans(points, 200, 0)) < 1.02 * full


def test_cores_and_threads_change_nothing(always, monkeypatch):
    points, _ = mixture(40, 20, spread=0.5)
    found = []
    for cores, threads in ((1, 1), (3, 1), (1, 2), (3, 4)):
        monkeypatch.setattr(algorithms, "usable_cores", lambda cores=cores: cores)
        with threadpool_limits(threads):
            found.append(np.stack(kmeans_runs(points, 40, [5, 6, 7])))
    assert all(np.array_equal(found[0], other) for other in found[1:])
    assert np.array_equal(found[0][1], kmeans(points, 40, 6)), "runs do not see each other"
    assert not np.array_equal(found[0][0], found[0][1])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(2, 60), st.integers(1, 60), st.integers(1, 5))
def test_no_cluster_is_empty_and_each_point_is_with_its_nearest_center(seed, many, k, spread):
    rng = np.random.default_rng(seed)
    points = np.unique(rng.integers(-spread, spread + 1, size=(many, 2)), axis=0).astype(np.float32)
    k = min(k, len(points))
    clusters, centers = two_level_kmeans(points, rng.integers(1, 4, len(points)).astype(float), k, seed)
    distances = np.square(points[:, None] - centers).sum(axis=-1)
    assert sorted(set(clusters.tolist())) == list(range(k))
    assert distances[np.arange(len(points)), clusters] == pytest.approx(distances.min(axis=1), abs=1e-4)


def test_centers_without_points_move_to_the_furthest_ones():
    points = np.array([[0.0], [1], [10], [11]], np.float32)
    centers = np.array([[0.0], [99], [99]], np.float32)
    nearest = nearest_centers(points, centers)
    assert nearest.first.tolist() == [0, 0, 0, 0]
    two_level._fill_empty(points, centers, nearest)
    assert centers[:, 0].tolist() == [0, 11, 10]
    assert nearest.first.tolist() == [0, 0, 2, 1]
    assert nearest.distance.tolist() == pytest.approx([0, 1, 0, 0])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=12), st.data())
def test_every_center_is_allotted_and_no_cell_gets_more_than_its_points(cells, data):
    shares, sizes = np.array(cells, float).T
    sizes = sizes.astype(np.int64)
    least, most = int((sizes > 0).sum()), int(sizes.sum())
    count = data.draw(st.integers(least, most))
    counts = allot(shares, sizes, count)
    assert counts.sum() == count
    assert ((counts >= np.minimum(sizes, 1)) & (counts <= sizes)).all()


def test_equal_rows_stay_together_and_k_may_be_all_there_are(always):
    points, _ = mixture(10, 3)
    rows = np.concatenate([points, points])
    for k in (29, 30, 31):
        found = kmeans(rows, k, 0)
        assert np.array_equal(found[:30], found[30:])
        assert len(set(found.tolist())) == min(k, 30)


def test_points_that_differ_by_rounding_do_not_stop_it(always):
    rows = np.ones((50, 3), np.float32) + np.arange(50, dtype=np.float32)[:, None] * np.float32(1.2e-7)
    found = kmeans(rows, 20, 0)
    assert 1 <= len(set(found.tolist())) <= 20
    assert sorted(set(found.tolist())) == list(range(found.max() + 1))


def test_an_interrupt_ends_all_runs(always):
    points, _ = mixture(20, 10)
    calls = []

    def interrupt(done, total):
        calls.append(done)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kmeans_runs(points, 20, range(30), progress=interrupt)
    assert len(calls) < 30 * two_level.STEPS / 2


def test_a_run_can_be_ended_before_its_first_step_is_over_and_within_each_round(always):
    points, _ = mixture(40, 20)
    checks, steps = [], []
    two_level_kmeans(points, np.ones(800), 40, 0, lambda: steps.append(len(checks)), lambda: checks.append(None))
    assert np.diff([0, *steps]).min() >= 1
    assert steps[0] > 10, "in each cell"


def test_scikit_learns_runs_are_in_the_thread_that_an_interrupt_reaches(monkeypatch):
    monkeypatch.setattr(algorithms, "usable_cores", lambda: 4)
    threads = []
    monkeypatch.setattr(algorithms, "_full_kmeans", lambda points, *_: threads.append(get_ident()) or np.arange(len(points)))
    kmeans_runs(mixture(3, 3)[0], 3, [0, 1, 2])
    assert threads == [get_ident()] * 3


def test_the_step_records_it_and_reports_every_round(always, tmp_path, monkeypatch):
    points, _ = mixture(6, 5)
    texts = [f"label {number}" for number in range(30)]
    project = labeled(tmp_path / "p", texts)
    np.savez(tmp_path / "v.npz", labels=np.array(texts), embeddings=points)
    embed_labels(project, f"precomputed:{tmp_path / 'v.npz'}")
    reported = []
    result = cluster_labels(project, k=6, seeds=1, progress=lambda done, total: reported.append((done, total)))
    assert result.settings["algorithm"] == "two-level"
    assert result.statistics["clusters"] == 6
    assert reported == [(done, 12) for done in range(13)]
    with project.snapshot() as db:
        assert json.loads(db.execute("SELECT settings_json FROM clustering").fetchone()[0]) == result.settings
    assert not cluster_labels(project, k=6, seeds=1).fresh
    monkeypatch.setattr(algorithms, "MAX_PAIRS", 10**9)
    assert "algorithm" not in cluster_labels(project, k=6, seeds=1).settings
