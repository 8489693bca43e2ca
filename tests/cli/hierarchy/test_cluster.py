"""suprank hierarchy cluster: what it prints, and how it ends."""

import re

import numpy as np
import pytest

from suprank.hierarchy.clustering import algorithms, summary
from suprank.hierarchy.embedding import embed_labels
from tests.cli.collection import done, refused
from tests.hierarchy.labeled import PLACES, labeled


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = labeled("p")
    np.savez("v.npz", labels=np.array(PLACES), embeddings=np.repeat(np.eye(3), [3, 3, 4], axis=0) + 0.1 * np.eye(10, 3))
    embed_labels(made, "precomputed:v.npz")
    return made


def test_clusters_are_made_once_and_shown_with_how_far_to_trust_them():
    first = done("hierarchy", "cluster", "p", "-k", 3)
    lines = first.stdout.splitlines()
    assert lines[0] == "clustering 1: 10 labels in 3 clusters (k-means, seed 0)"
    assert lines[1] == "labels per cluster: median 3, largest 4; 0 clusters of one label"
    assert re.fullmatch(r"tightness 0.99\d \(mean cosine to the center\), silhouette 0.9\d+ \(cosine\)", lines[2])
    assert lines[3] == (
        "another seed gives other clusters: 5 of them agree with these by an ARI of 1.00 (1.00 to 1.00; 1 is the same)"
    )
    assert "6/6" in first.stderr
    again = done("hierarchy", "cluster", "p", "-k", 3, "--quiet")
    assert again.stdout.splitlines() == [f"{lines[0]}; it existed already, nothing changed", *lines[1:]]
    assert again.stderr == ""


def test_a_sample_is_called_one(monkeypatch):
    monkeypatch.setattr(summary, "SILHOUETTE_SAMPLE", 9)
    assert "(cosine, of a sample of 9)" in done("hierarchy", "cluster", "p", "-k", 3, "--seeds", 0).stdout


def test_the_shortcut_for_many_labels_is_named(monkeypatch):
    monkeypatch.setattr(algorithms, "MAX_PAIRS", 9)
    assert (
        "10 labels in 3 clusters (mini-batch k-means, seed 0)"
        in done("hierarchy", "cluster", "p", "-k", 3, "--seeds", 0).stdout
    )


def test_ward_and_a_run_without_further_seeds_say_so():
    assert "Ward's method is deterministic" in done("hierarchy", "cluster", "p", "-k", 3, "--method", "ward").stdout
    shown = done("hierarchy", "cluster", "p", "-k", 1, "--seeds", 0).stdout
    assert "--seeds measures how different" in shown
    assert "silhouette undefined" in shown


def test_k_is_lowered_only_where_it_may_be():
    assert "k=99 is too many: there are 10 labels with 5 different vectors" in refused("hierarchy", "cluster", "p", "-k", 99)
    shown = done("hierarchy", "cluster", "p", "-k", 99, "--auto-k").stdout.splitlines()
    assert shown[0] == "clustering 1: 10 labels in 5 clusters (k-means, seed 0)"
    assert shown[1] == "k was lowered from 99: there are no more different vectors"


def test_labels_without_signal_are_told(tmp_path):
    np.savez("v.npz", labels=np.array(PLACES), embeddings=np.eye(10)[:, :8])
    shown = done("hierarchy", "cluster", "p", "-k", 2, "--encoder", "precomputed:v.npz").stdout.splitlines()[2:]
    assert shown[0] == "clustering 1: 8 labels in 2 clusters (k-means, seed 0)"
    assert shown[1] == "2 labels without text signal are in one more cluster, the last"


def test_what_cannot_be_is_refused():
    assert "Ward's method has no weights" in refused("hierarchy", "cluster", "p", "--method", "ward", "--weighted")
    assert "greater than or equal to 1" in refused("hierarchy", "cluster", "p", "-k", 0)
