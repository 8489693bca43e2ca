import json
import signal
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suprank.hierarchy.clustering import cluster_labels
from suprank.hierarchy.embedding import embed_labels
from tests.hierarchy.labeled import PLACES, labeled, relabel

TWO_SIDES = {"church": (1, 0), "chapel": (0.8, 0.6), "lake": (-1, 0), "salt lake": (-0.8, 0.6), "pond": (-0.8, -0.6)}


def embedded(folder, vectors, weights=None):
    """A project whose labels have these vectors."""
    project = labeled(folder / "project", list(vectors), weights)
    np.savez(folder / "v.npz", labels=np.array(list(vectors)), embeddings=np.array(list(vectors.values()), np.float32))
    embed_labels(project, f"precomputed:{folder / 'v.npz'}")
    return project


def members(project, clustering):
    """Texts of labels by cluster."""
    found = {}
    query = "SELECT number, text FROM cluster_member JOIN label ON label.id = label WHERE clustering = ? ORDER BY number, text"
    with project.snapshot() as db:
        for number, text in db.execute(query, (clustering,)):
            found.setdefault(number, set()).add(text)
    return found


def lookup(project):
    """All that a clustering wrote, but the time."""
    tables = (
        "SELECT settings_json, labels, figures_json FROM clustering",
        "SELECT * FROM cluster",
        "SELECT * FROM cluster_member",
    )
    with project.snapshot() as db:
        return [[tuple(row) for row in db.execute(query)] for query in tables]


def test_two_who_cluster_at_once_make_one_clustering(tmp_path):
    project = embedded(tmp_path, TWO_SIDES)
    inner = []

    def meanwhile(done, total):
        if not inner:
            inner.append(None)
            inner[0] = cluster_labels(project, k=2)

    outer = cluster_labels(project, k=2, progress=meanwhile)
    assert (inner[0].fresh, outer.fresh, outer.id) == (True, False, inner[0].id)
    assert len(lookup(project)[0]) == 1


def test_two_sides_of_a_circle_by_hand(tmp_path):
    project = embedded(tmp_path, TWO_SIDES, weights=[10, 5, 1, 1, 1])
    outcome = cluster_labels(project, k=2)
    assert outcome.fresh
    assert members(project, outcome.id) == {1: {"church", "chapel"}, 2: {"lake", "salt lake", "pond"}}
    with project.snapshot() as db:
        clusters = db.execute("SELECT * FROM cluster ORDER BY number").fetchall()
        query = "SELECT text, nearness, margin FROM cluster_member JOIN label ON label.id = label"
        by_text = {row["text"]: row for row in db.execute(query)}
    # Centers: church and chapel at (1.8, 0.6) / 1.897; the lakes at (−2.6, 0) / 2.6.
    assert by_text["lake"]["nearness"] == pytest.approx(1)
    assert by_text["pond"]["nearness"] == pytest.approx(0.8)
    assert by_text["church"]["nearness"] == pytest.approx(1.8 / np.hypot(1.8, 0.6))
    assert by_text["church"]["margin"] == pytest.approx(1.8 / np.hypot(1.8, 0.6) + 1)
    assert clusters[1]["tightness"] == pytest.approx((1 + 0.8 + 0.8) / 3)
    assert [row["stability"] for row in clusters] == [1, 1], "every seed finds the two sides"
    assert [json.loads(row["names_json"])[0] for row in clusters] == ["church", "lake"]
    figures = outcome.statistics
    assert figures["sizes"] == {"median": 2.5, "largest": 3, "singletons": 0}
    assert figures["agreement"] == {"mean": 1, "least": 1, "most": 1, "runs": 5}
    assert (figures["labels"], figures["clusters"], figures["without_signal"]) == (5, 2, 0)


def test_the_run_is_recorded_with_all_that_decides_it(tmp_path):
    project = embedded(tmp_path, TWO_SIDES)
    outcome = cluster_labels(project, k=2, seed=3, seeds=2, weighted=True)
    step = project.steps()["cluster"]
    assert step.settings == outcome.settings
    assert {key: outcome.settings[key] for key in ("method", "k", "seed", "seeds", "weighted", "n_init")} == {
        "method": "kmeans",
        "k": 2,
        "seed": 3,
        "seeds": 2,
        "weighted": True,
        "n_init": 1,
    }
    assert set(outcome.settings["versions"]) == {"numpy", "scikit-learn", "scipy"}
    assert step.inputs == project.steps()["embed"].result["digest"]
    assert not step.stale
    assert step.result["clustering"] == outcome.id


def test_the_same_settings_do_nothing_and_others_add_a_clustering(tmp_path):
    project = embedded(tmp_path, TWO_SIDES)
    first = cluster_labels(project, k=2)
    before = lookup(project)
    again = cluster_labels(project, k=2)
    assert (again.id, again.fresh, again.statistics) == (first.id, False, first.statistics)
    assert lookup(project) == before
    other = cluster_labels(project, k=3)
    assert other.id != first.id
    assert members(project, first.id) == {1: {"lake", "salt lake", "pond"}, 2: {"church", "chapel"}}, "the first one stays"


def test_a_rerun_gives_identical_rows_whatever_the_numbers_of_labels(tmp_path):
    vectors = dict(zip(PLACES, np.random.default_rng(0).normal(size=(10, 4)), strict=True))
    projects = []
    for name, texts in (("a", PLACES), ("b", PLACES), ("c", PLACES[::-1])):
        (tmp_path / name).mkdir()
        projects.append(embedded(tmp_path / name, {text: vectors[text] for text in texts}))
    found = [cluster_labels(project, k=4) for project in projects]
    assert lookup(projects[0]) == lookup(projects[1])
    assert members(projects[0], found[0].id) == members(projects[2], found[2].id)
    assert projects[0].steps()["cluster"].result["digest"] == projects[2].steps()["cluster"].result["digest"]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**16), st.integers(1, 12), st.integers(1, 8), st.sampled_from(["kmeans", "ward"]))
def test_every_active_label_is_in_one_cluster_and_clusters_are_numbered_by_weight(tmp_path_factory, seed, many, k, method):
    rng = np.random.default_rng(seed)
    vectors = {f"label {n}": rng.integers(-1, 2, size=3) for n in range(many)}  # with zeros and equal ones
    weights = rng.integers(0, 4, size=many).tolist()
    project = embedded(tmp_path_factory.mktemp("law"), vectors, weights)
    outcome = cluster_labels(project, k=k, method=method, auto_k=True, seeds=1 if method == "kmeans" else None)
    found = members(project, outcome.id)
    assert sorted(text for texts in found.values() for text in texts) == sorted(vectors)
    assert sum(map(len, found.values())) == many
    weight = dict(zip(vectors, weights, strict=True))
    masses = [sum(weight[text] for text in found[number]) for number in range(1, outcome.statistics["clusters"] + 1)]
    assert masses == sorted(masses, reverse=True)
    zeros = {text for text, vector in vectors.items() if not np.any(vector)}
    assert found.get(outcome.statistics["clusters"] + 1, set()) == zeros


def test_labels_without_signal_have_a_last_cluster_of_their_own(tmp_path):
    project = embedded(tmp_path, {**TWO_SIDES, "?": (0, 0), "!": (0, 0)}, weights=[1, 1, 1, 1, 1, 99, 99])
    outcome = cluster_labels(project, k=2)
    assert members(project, outcome.id)[3] == {"?", "!"}
    with project.snapshot() as db:
        row = db.execute("SELECT * FROM cluster WHERE number = 3").fetchone()
        near = db.execute("SELECT nearness, margin FROM cluster_member WHERE number = 3").fetchall()
    assert (json.loads(row["names_json"]), row["tightness"], row["stability"]) == (["no text signal"], None, None)
    assert [tuple(one) for one in near] == [(0, 0), (0, 0)]
    assert (outcome.statistics["clusters"], outcome.statistics["without_signal"]) == (2, 2)


def test_nothing_but_labels_without_signal(tmp_path):
    project = embedded(tmp_path, {"?": (0, 0), "!": (0, 0)})
    outcome = cluster_labels(project)
    assert members(project, outcome.id) == {1: {"?", "!"}}
    assert outcome.statistics == {"labels": 2, "without_signal": 2, "clusters": 0}


def test_too_many_clusters_are_an_error_unless_they_may_be_lowered(tmp_path):
    project = embedded(tmp_path, {"a": (1, 0), "b": (2, 0), "c": (0, 1)})
    with pytest.raises(ValueError, match="k=3 is too many: there are 3 labels with 2 different vectors; .*auto_k"):
        cluster_labels(project, k=3)
    assert "cluster" not in project.steps()
    assert members(project, cluster_labels(project, k=9, auto_k=True).id) == {1: {"a", "b"}, 2: {"c"}}


@pytest.mark.parametrize(("labels", "k"), [(61, 7), (1000, 34)])  # √61; 1,000 / 30
def test_by_default_there_is_a_cluster_for_every_30_labels_and_more_of_a_short_list(tmp_path, labels, k):
    project = embedded(tmp_path, {f"label {number}": (1, number) for number in range(labels)})
    assert cluster_labels(project, seeds=0).settings["k"] == k


def test_weights_count_where_they_are_asked_for(tmp_path):
    angles = {"a": 0, "b": 40, "c": 76}  # by degrees; b is nearer to c, but a hundred items hold a's center, or c's
    vectors = {text: (np.cos(np.radians(angle)), np.sin(np.radians(angle))) for text, angle in angles.items()}
    project = embedded(tmp_path, vectors, weights=[100, 1, 1])
    assert members(project, cluster_labels(project, k=2, weighted=True).id) == {1: {"a"}, 2: {"b", "c"}}
    with pytest.raises(ValueError, match="Ward's method has no weights"):
        cluster_labels(project, k=2, weighted=True, method="ward")


def test_ward_draws_nothing_and_so_has_no_seeds(tmp_path):
    project = embedded(tmp_path, TWO_SIDES)
    with pytest.raises(ValueError, match="no weights and no seeds"):
        cluster_labels(project, k=2, method="ward", seed=1)
    outcome = cluster_labels(project, k=2, method="ward")
    assert members(project, outcome.id) == {1: {"lake", "salt lake", "pond"}, 2: {"church", "chapel"}}
    assert "seed" not in outcome.settings
    assert outcome.statistics["agreement"] is None
    assert not cluster_labels(project, k=2, method="ward").fresh


def test_without_an_embedding_or_with_one_of_other_labels_the_step_to_run_is_named(tmp_path):
    project = labeled(tmp_path / "p")
    with pytest.raises(
        ValueError, match="has no embedding to cluster; encode them first, as `suprank hierarchy cluster .*p` does"
    ):
        cluster_labels(project)
    embed_labels(project)
    relabel(project, [*PLACES[2:], "bridge"])
    with pytest.raises(ValueError, match=r"not those that were embedded: 1 are new \('bridge'\), 2 are gone; encode"):
        cluster_labels(project)
    relabel(project, ["Church", *PLACES[1:]])
    with pytest.raises(ValueError, match="some are spelled differently; encode them first"):
        cluster_labels(project)


def test_new_vectors_make_it_stale_and_new_weights_make_another(tmp_path):
    project = embedded(tmp_path, TWO_SIDES)
    first = cluster_labels(project, k=2)
    relabel(project, list(TWO_SIDES), weights=[9, 9, 1, 1, 1])
    second = cluster_labels(project, k=2)
    assert second.fresh
    assert members(project, second.id)[1] == members(project, first.id)[2], "the churches weigh more now"
    embed_labels(project, "tfidf")
    assert project.steps()["cluster"].stale
    third = cluster_labels(project, k=2)
    assert third.fresh
    assert not project.steps()["cluster"].stale


def test_labels_that_change_meanwhile_are_noticed(tmp_path):
    project = embedded(tmp_path, TWO_SIDES)

    def meanwhile(done, total):
        if done == total:
            relabel(project, ["bridge"])

    with pytest.raises(ValueError, match="changed while they were clustered; nothing was saved"):
        cluster_labels(project, k=2, progress=meanwhile)
    assert lookup(project) == [[], [], []]


KILLED = """
import sys, time
from suprank.hierarchy import Project
from suprank.hierarchy.clustering import cluster_labels, step

project = Project(sys.argv[1])

def stop(*_, **__):
    (project.folder / "reached").touch()
    time.sleep(60)

step.record_step = stop  # all rows are written, and the transaction is open
cluster_labels(project, k=2)
"""


def test_killed_while_clustering_there_is_no_clustering_and_the_rerun_works(forked, tmp_path):
    project = embedded(tmp_path, TWO_SIDES)
    reached = project.folder / "reached"
    child = forked.script(KILLED, project.folder)
    try:
        until = time.monotonic() + 50
        while not reached.exists() and time.monotonic() < until and child.join(0) is None:
            time.sleep(0.02)
        assert reached.exists()
    finally:
        child.send_signal(signal.SIGKILL)
        assert child.join() == -signal.SIGKILL
    assert lookup(project) == [[], [], []]
    assert "cluster" not in project.steps()
    assert project.check() == []
    assert cluster_labels(project, k=2).id == 1
