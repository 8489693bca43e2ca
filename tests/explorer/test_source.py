"""What is looked at, from files: sides, labels by name, who is left out of whose list, and pictures wherever they are."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from suprank.data import Manifest
from suprank.data.images import BrokenImage
from suprank.evaluation import evaluate
from suprank.explorer import Source, embeddings_folder, shared_levels
from suprank.explorer.source import join_manifests
from tests.explorer import runs


@pytest.fixture
def pictures(tmp_path):
    return runs.collection(tmp_path / "data")


def test_a_run_is_read_with_its_recipe_curves_and_embedded_test_images(tmp_path, pictures):
    folder = runs.run(tmp_path / "happier", pictures)
    source = Source.read(folder)
    assert (source.name, source.folder, source.test) == ("happier", folder, "test")
    assert source.levels == ("class", "group")
    assert source.recipe["loss"]["name"] == "happier"
    assert [line["step"] for line in source.metrics_log if "loss" in line] == list(range(1, 11))
    assert source.against_each_other
    assert isinstance(source.queries.embeddings, np.memmap)
    assert [source.names["group"][label] for label in source.queries.labels[::8, 1]] == list(runs.GROUPS)
    assert source.parents["class"].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_folder_of_embeddings_has_neither_recipe_nor_curves(tmp_path, pictures):
    source = Source.read(runs.embeddings(tmp_path / "e", pictures))
    assert (source.recipe, source.metrics_log, source.decay) == (None, None, 1.0)
    assert len(source.queries) == 24


def test_the_recipe_says_the_levels_and_the_decay(tmp_path, pictures):
    recipe = '[data]\nmanifest = "m"\nlevels = ["group"]\n[loss]\nname = "{loss}"\n[evaluation]\ndecay = 2.0\n'
    source = Source.read(runs.run(tmp_path / "r", pictures, recipe=recipe))
    assert source.levels == ("group",)
    assert source.queries.labels.shape == (24, 1)
    assert source.decay == 2.0


def test_a_source_at_some_levels_is_one_that_was_read_so(tmp_path, pictures):
    source = Source.read(runs.run(tmp_path / "r", pictures))
    coarse = source.with_levels(["group"])
    assert source.with_levels(source.levels) is source
    assert (coarse.levels, list(coarse.names), coarse.against_each_other) == (("group",), ["group"], True)
    assert coarse.evaluate(metrics=["AP"])["AP"] == pytest.approx(source.evaluate(metrics=["AP/group"])["AP/group"])


def test_a_level_with_one_label_an_image_has_plain_labels_whatever_the_other_levels_have():
    columns = {"path": ["a", "b", "c"], "split": ["test"] * 3, "label_thing": [["x", "y"], ["x"], ["z"]]}
    manifest = Manifest.from_columns(columns | {"label_kind": ["k", "k", "l"]}, root=".")
    source = Source.from_arrays("sets", np.eye(3, dtype=np.float32), manifest)
    assert source.queries.labels.shape == (3, 2, 2)
    assert source.with_levels(["kind"]).queries.labels.tolist() == [[0], [0], [1]]
    assert source.with_levels(["thing"]).queries.labels.shape == (3, 1, 2)


def test_test_sets_of_the_recipe_are_read_from_folders_of_their_own(tmp_path, pictures):
    recipe = '[data]\nmanifest = "m"\ntests = {{ "a/b" = "other" }}\n[loss]\nname = "{loss}"\n'
    folder = runs.run(tmp_path / "r", pictures, recipe=recipe)
    with pytest.raises(FileNotFoundError, match="only test is embedded yet"):
        Source.read(folder, "a/b")
    runs.embeddings(embeddings_folder(folder, "a/b"), pictures.take(np.arange(8)))
    assert len(Source.read(folder, "a/b").queries) == 8
    assert len(Source.read(folder).queries) == 24
    with pytest.raises(ValueError, match="no test set 'fine'; choose from test, a/b"):
        Source.read(folder, "fine")
    shutil.rmtree(folder / "embeddings")
    assert Source.read(folder).test == "a/b"


def test_what_cannot_be_read_is_refused_with_a_way_out(tmp_path, pictures):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        Source.read(tmp_path / "none")
    folder = runs.run(tmp_path / "r", pictures)
    shutil.rmtree(folder / "embeddings")
    with pytest.raises(FileNotFoundError, match="nothing is embedded yet.*suprank report"):
        Source.read(folder)
    (folder / "recipe.toml").write_text("a = ")
    with pytest.raises(ValueError, match="recipe.toml is not a readable recipe"):
        Source.read(folder)
    with pytest.raises(ValueError, match="give one embedding per row"):
        Source.from_arrays("x", np.ones((3, 2), np.float32), pictures)


def test_a_torn_line_of_the_metrics_is_left_out(tmp_path, pictures):
    folder = runs.run(tmp_path / "r", pictures)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "lo')
    assert max(line["step"] for line in Source.read(folder).metrics_log) == 10


def plain_of(source, rows):
    return source.evaluate(metrics=["AP"], per_query=True).per_query["AP"][rows].mean()


def test_evaluation_is_that_of_the_embeddings(tmp_path, pictures):
    source = Source.read(runs.embeddings(tmp_path / "e", pictures))
    plain = evaluate(runs.vectors(pictures), pictures.labels, levels=["class", "group"], progress=False)
    assert source.evaluate().means == plain.means
    some = np.array([20, 3])
    assert source.evaluate(some, metrics=["AP"])["AP"] == pytest.approx(plain_of(source, some))


def test_queries_meet_a_gallery_whose_classes_are_numbered_otherwise_and_leave_themselves_out(tmp_path):
    whole = runs.collection(tmp_path / "data", splits=("query", "gallery", "gallery"))
    vectors = runs.vectors(whole)
    source = Source.read(runs.embeddings(tmp_path / "e", whole, vectors))
    assert not source.against_each_other
    assert (len(source.queries), len(source.gallery)) == (8, 16)
    report = source.evaluate(metrics=["AP", "H-AP"])
    splits = np.array(whole.table["split"].to_pylist())
    query, rest = whole.labels[splits == "query"], whole.labels[splits == "gallery"]
    assert report["H-AP"] == evaluate(vectors[splits == "query"], query, vectors[splits == "gallery"], rest)["H-AP"]
    assert source.self_rows(0).tolist() == []
    # The same image among the gallery, under its own path, is left out.
    both = whole.with_columns(split=["gallery"] * 24)
    runs.embeddings(tmp_path / "e", both, vectors)
    source = Source.read(tmp_path / "e")
    assert source.self_rows(1).tolist() == [3]
    rows, _ = source.top_k([1], 30)
    assert 3 not in rows
    assert sorted(rows[0][rows[0] >= 0]) == [row for row in range(24) if row != 3]


def test_distractors_join_the_test_images(tmp_path):
    whole = runs.collection(tmp_path / "data", splits=("test", "test", "distractor"))
    source = Source.read(runs.embeddings(tmp_path / "e", whole))
    assert (len(source.queries), len(source.gallery)) == (16, 24)
    assert source.self_rows(2).tolist() == [2]
    assert source.gallery.path(20) == source.gallery.manifest.paths[20].as_py()
    assert isinstance(source.gallery.picture(20), Image.Image)
    assert source.gallery.splits.tolist() == ["test"] * 16 + ["distractor"] * 8


def test_manifests_of_two_roots_join_under_the_folder_of_both(tmp_path):
    one, other = runs.collection(tmp_path / "a" / "one"), runs.collection(tmp_path / "b", groups=4, archive="p.zip")
    both = join_manifests([one, other])
    assert both.root == tmp_path
    assert both.paths[0].as_py() == "a/one/pictures/0-0-0.png"
    assert both.paths[24].as_py() == "b/p.zip::pictures/0-0-0.png"
    assert len(both) == 24 + 32


def test_top_k_is_the_exact_order_with_copies_but_not_the_query(tmp_path, pictures):
    vectors = runs.vectors(pictures)
    vectors[9] = vectors[4]  # a copy
    source = Source.from_arrays("x", vectors, pictures)
    rows, scores = source.top_k([4, 9], 5)
    assert (rows[0, 0], rows[1, 0]) == (9, 4)
    assert scores[:, 0] == pytest.approx(1)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit[4]
    cosines[4] = -np.inf
    assert rows[0].tolist() == np.argsort(-cosines)[:5].tolist()
    assert source.shared_levels(4, [5, 0, 8]).tolist() == [2, 1, 0]


def test_rows_of_one_id_are_one_image(pictures):
    ids = [f"i{row // 2}" for row in range(24)]
    source = Source.from_arrays("x", runs.vectors(pictures), pictures.with_columns(id=ids))
    assert source.self_rows(5).tolist() == [4, 5]
    assert not set(source.top_k([5], 24)[0][0]) & {4, 5}
    assert source.query_keys == ids


def test_broken_images_are_left_out_with_their_rows(tmp_path, pictures):
    folder = runs.embeddings(tmp_path / "e", pictures.with_columns(broken=np.arange(24) == 3))
    source = Source.read(folder)
    assert len(source.queries) == 23
    assert source.queries.path(3) == "pictures/0-1-0.png", "the fourth is left out"


def test_images_without_labels_are_searched_but_not_evaluated(tmp_path, pictures):
    bare = Manifest.from_columns({"path": pictures.paths, "split": ["test"] * 24}, root=pictures.root, levels=())
    source = Source.read(runs.embeddings(tmp_path / "e", bare, runs.vectors(pictures)))
    assert source.levels == ()
    assert source.top_k([0], 3)[0].shape == (1, 3)
    assert source.shared_levels(0, [1, 2]).tolist() == [0, 0]
    with pytest.raises(ValueError, match="no labels"):
        source.evaluate()


def test_unit_rows_have_length_one_in_float32_whatever_is_stored(pictures):
    vectors = runs.vectors(pictures, dtype=np.float16)
    vectors[2] = 0
    images = Source.from_arrays("x", vectors, pictures).gallery
    unit = np.concatenate([rows for _, rows in images.blocks(7)])
    assert unit.dtype == np.float32
    assert np.linalg.norm(np.delete(unit, 2, 0), axis=1) == pytest.approx(1)
    assert not unit[2].any()
    assert [first for first, _ in images.blocks(7)] == [0, 7, 14, 21]


def test_pictures_come_from_files_and_zips_and_say_why_they_do_not(tmp_path):
    zipped = runs.collection(tmp_path / "z", archive="p.zip")
    source = Source.from_arrays("x", runs.vectors(zipped), zipped)
    assert source.gallery.path(0) == "p.zip::pictures/0-0-0.png"
    assert source.gallery.picture(0).size == (48, 40)
    plain = runs.collection(tmp_path / "f", extension="jpg")
    source = Source.from_arrays("x", runs.vectors(plain), plain)
    assert source.gallery.picture(7, min_short_side=10).mode == "RGB"
    (tmp_path / "f" / "pictures" / "0-0-0.jpg").unlink()
    gone = source.gallery.picture(0)
    assert isinstance(gone, BrokenImage)
    assert "is not under" in gone.reason
    shutil.rmtree(tmp_path / "f")
    fresh = Source.from_arrays("x", runs.vectors(plain), plain)
    assert "not a folder" in fresh.gallery.picture(1).reason


def test_a_shared_level_needs_all_coarser_levels_shared():
    own = np.array([[5, 2, 1]])
    theirs = np.array([[5, 2, 1], [6, 2, 1], [6, 3, 1], [5, 3, 1], [5, 2, 0], [-1, 2, 1], [-1, -1, -1]])
    assert shared_levels(own, theirs).tolist() == [3, 2, 1, 1, 0, 2, 0]
    assert shared_levels(np.array([[-1, -1, -1]]), theirs).tolist() == [0] * 7


def test_the_run_of_the_tests_is_like_one_of_train(tmp_path, pictures):
    folder = runs.run(tmp_path / "r", pictures)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {"step", "epoch", "time"} <= set(lines[0])
