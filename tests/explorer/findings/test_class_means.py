"""The classes on a plane."""

import numpy as np
import pytest

from suprank import open_data
from suprank.data import Manifest
from suprank.explorer.findings.class_means import class_map, same_label_neighbors
from suprank.explorer.images import unit_embeddings
from tests.explorer import runs
from tests.explorer.runs import of_arrays

pytest.importorskip("openTSNE")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    pictures = runs.collection(tmp_path_factory.mktemp("data"), groups=4, classes=5, images=3)
    return of_arrays("x", runs.vectors(pictures, dim=32, noise=0.5), pictures)


def parents(data):
    """The group of each class."""
    return np.array([data.items.labels[data.items.labels[:, 0] == label][0, 1] for label in range(len(data.names["class"]))])


def test_each_class_has_a_place_a_label_its_group_and_the_image_closest_to_its_mean(data):
    found = class_map(data)
    assert found.method == "t-SNE"
    assert found.positions.shape == (20, 2)
    assert np.isfinite(found.positions).all()
    assert found.labels.tolist() == list(range(20))
    assert found.coarse.tolist() == parents(data).tolist()
    assert found.images.tolist() == [3] * 20
    unit = unit_embeddings(data.items, slice(None))
    for place in range(20):
        rows = np.flatnonzero(data.items.labels[:, 0] == found.labels[place])
        mean = unit[rows].mean(0)
        assert found.typical_rows[place] == rows[(unit[rows] @ mean).argmax()]


def test_the_map_is_the_same_each_time(data):
    assert (class_map(data, seed=1).positions == class_map(data, seed=1).positions).all()


def test_classes_of_one_group_stand_nearer_to_each_other(tmp_path):
    pictures = runs.collection(tmp_path, groups=3, classes=8, images=2)
    near = np.random.default_rng(0).normal(size=(3, 16))[pictures.labels[:, 1]] * 5
    found = class_map(of_arrays("x", (near + runs.vectors(pictures)).astype(np.float32), pictures))
    distances = np.linalg.norm(found.positions[:, None] - found.positions, axis=-1)
    same = found.coarse[:, None] == found.coarse
    assert distances[same].mean() < distances[~same].mean()


def test_few_classes_are_placed_by_principal_components_and_one_is_no_map(tmp_path):
    few = runs.collection(tmp_path, groups=2, classes=2, images=3)
    found = class_map(of_arrays("x", runs.vectors(few), few))
    assert found.method == "PCA"
    assert found.positions.shape == (4, 2)
    two = few.take(few.labels[:, 0] < 2)
    assert class_map(of_arrays("x", runs.vectors(two), two)).positions[:, 1] == pytest.approx(0)
    one = few.take(few.labels[:, 0] == 0)
    assert class_map(of_arrays("x", runs.vectors(one), one)) is None
    bare = Manifest.from_columns({"path": few.paths, "split": ["test"] * 12}, root=few.root, levels=())
    assert class_map(of_arrays("x", runs.vectors(few), bare)) is None


def test_of_many_classes_the_largest_are_placed(data):
    kept = np.r_[0:60, 3:6, 9:12]  # classes 1 and 3 have twice as many
    items = data.items.manifest.take(kept)
    found = class_map(of_arrays("x", data.items.embeddings[:][kept], items), max_classes=2)
    assert found.labels.tolist() == [1, 3]
    assert found.images.tolist() == [6, 6]
    assert found.total_classes == 20


def test_all_classes_are_placed_on_demand(data):
    assert len(class_map(data, max_classes=0).labels) == 20
    with pytest.raises(ValueError, match="max_classes=-1 must be a number of classes, or 0 for all"):
        class_map(data, max_classes=-1)


def test_single_images_are_placed_beside_their_class_one_of_each_class_first(data):
    alone, found = class_map(data), class_map(data, images=25, seed=3)
    shift = found.positions - class_map(data, seed=3).positions
    assert shift == pytest.approx(np.tile(shift[0], (20, 1))), "they move no class against another"
    assert alone.image_rows.size == 0
    labels = data.items.labels[found.image_rows, 0]
    assert sorted(np.bincount(labels).tolist()) == [1] * 15 + [2] * 5
    distances = np.linalg.norm(found.image_positions[:, None] - found.positions, axis=-1)
    assert (distances.argmin(1) == labels).mean() > 0.9
    again = class_map(data, images=25, seed=3)
    assert (again.image_positions == found.image_positions).all()
    assert (class_map(data, images=25, seed=4).image_rows != found.image_rows).any()
    assert class_map(data, images=99).image_rows.tolist() == list(range(60)), "all that there are"
    with pytest.raises(ValueError, match="images=-1 must be a number of images, or 0 for none"):
        class_map(data, images=-1)


def test_single_images_of_few_classes_lie_on_the_axes_of_the_classes(tmp_path):
    few = runs.collection(tmp_path, groups=1, classes=3, images=2)
    angles = np.deg2rad([0, 2, 40, 44, 90, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    found = class_map(of_arrays("x", vectors, few), images=6)
    assert found.method == "PCA"
    means = found.positions[few.labels[:, 0]]
    assert found.image_positions[4:] == pytest.approx(means[4:], abs=1e-6), "both are their class's mean"
    same_class = np.linalg.norm(found.image_positions[0] - found.image_positions[1])
    assert same_class == pytest.approx(2 * np.sin(np.deg2rad(1))), "the axes keep distances: a chord of 2 degrees"


def test_neighbors_of_the_same_label_are_those_of_scikit_learn(data, monkeypatch):
    neighbors = pytest.importorskip("sklearn.neighbors")
    unit = unit_embeddings(data.items, slice(None))
    means = np.stack([unit[data.items.labels[:, 0] == label].mean(0) for label in range(20)])
    coarse = parents(data)
    search = neighbors.NearestNeighbors(n_neighbors=2, metric="cosine").fit(means)
    expected = (coarse[search.kneighbors(means, return_distance=False)[:, 1]] == coarse).mean()
    found = class_map(data)
    assert found.same_coarse == pytest.approx(expected)
    assert 0 < expected < 1, "or the test says little"
    assert found.same_coarse_by_chance == pytest.approx(4 / 19), "of the 19 other classes, 4 have the same group"
    monkeypatch.setattr("suprank.explorer.findings.class_means._ROWS", 3)
    assert class_map(data).same_coarse == pytest.approx(expected)


def test_classes_without_a_coarse_label_and_a_single_level_have_no_neighbors(data):
    means = np.eye(3)
    assert np.isnan(same_label_neighbors(means, np.array([0, -1, -1]))).all()
    assert same_label_neighbors(np.array([[1.0, 0], [0.8, 0.6], [1, 0]]), np.array([0, 0, -1])) == (1.0, 1.0)
    assert np.isnan(class_map(data.at_levels(["class"])).same_coarse)


def test_distractors_have_no_place(tmp_path):
    whole = runs.collection(tmp_path / "d", groups=3, classes=2, images=4, splits=("test", "test", "test", "distractor"))
    table = whole.table.to_pydict()
    blank = [split == "distractor" for split in table["split"]]
    for name in ("label_class", "label_group"):
        table[name] = [None if gone else label for gone, label in zip(blank, table[name], strict=True)]
    rows = runs.vectors(whole)
    data = open_data(runs.embeddings(tmp_path / "e", Manifest.from_columns(table, root=whole.root), rows))
    found = class_map(data)
    assert found.images.tolist() == [3] * 6
    assert found.typical_rows.max() < 18


def test_few_classes_more_than_dimensions_and_all_alike_still_have_places(tmp_path):
    pictures = runs.collection(tmp_path, groups=2, classes=3, images=2)
    found = class_map(of_arrays("x", np.ones((12, 4), np.float32), pictures))
    assert np.isfinite(found.positions).all()
