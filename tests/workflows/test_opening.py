"""`suprank.open_data`: one rule for runs, folders, parts and files."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

import suprank
from suprank.adaptation import AdaptConfig
from suprank.data import Manifest
from tests.explorer.runs import RECIPE, collection, embeddings, run, vectors


@pytest.fixture
def manifest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return collection(tmp_path, splits=("test", "train"))


def test_a_folder_is_test_images_that_rank_each_other(manifest, caplog):
    embeddings("e", manifest)
    with caplog.at_level(logging.INFO):
        data = suprank.open_data("e")
    assert repr(data) == "RetrievalData(e: 12 queries × 16 rank each other; class and group)"
    assert "train is left out: test is evaluated" in caplog.text
    assert data.queries.manifest.splits == {"test": 12}
    assert data.names["class"][data.queries.labels[0, 0]] == "Klasse 0·0 & <b>"
    assert data.queries.keys == manifest.split("test").paths.to_pylist()
    assert suprank.open_data("e", levels=["group"]).levels == ("group",)
    assert str(suprank.open_data("e/train").queries) == "Items(12 × 16)"


def test_distractors_stand_behind_the_test_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    embeddings("e", collection(tmp_path, splits=("test", "test", "distractor")))
    data = suprank.open_data("e")
    assert (len(data.queries), len(data.items)) == (16, 24)
    assert data.items.ids[:16] == data.queries.ids
    assert data.items.manifest.splits == {"test": 16, "distractor": 8}
    assert [data.self_rows(row).tolist() for row in range(16)] == [[row] for row in range(16)]


def test_a_run_has_the_settings_of_its_recipe_and_is_opened_by_its_report_too(manifest):
    recipe = RECIPE.replace("[loss]", 'levels = ["class"]\n[loss]') + "[evaluation]\nks = [1, 7]\ndecay = 2.0\n"
    manifest.save("m.parquet")
    run("r", manifest, recipe=recipe)
    data = suprank.open_data("r")
    assert (data.levels, data.defaults.ks, data.defaults.decay) == (("class",), (1, 7), 2.0)
    assert (data.name, data.origin.test, data.origin.recipe["evaluation"]["ks"]) == ("r", "test", [1, 7])
    assert suprank.open_data("r/reports/test-epoch-0002.json").origin.embeddings == data.origin.embeddings


def test_a_file_has_the_paths_of_its_manifest_where_images_are_shown(manifest):
    manifest.save("m.csv")
    np.save("x.npy", vectors(manifest))
    data = suprank.open_data("x.npy", "m.csv", shown_in="the page")
    assert (data.levels, data.queries.manifest.paths[0].as_py()) == (("class", "group"), "pictures/0-0-0.png")
    assert suprank.open_data("x.npy").levels == ()


def test_labels_beside_embeddings_in_a_parquet_file_need_no_second_name(manifest):
    rows = vectors(manifest)
    manifest.with_columns(embedding=list(rows)).save("m.parquet")
    data = suprank.open_data("m.parquet", shown_in="the page")
    assert data.levels == ("class", "group")
    assert data.queries.embeddings.rows(slice(0, 2)).tolist() == rows[:2].tolist()
    assert len(data.queries.manifest) == len(rows)


@pytest.mark.parametrize("place", ["saved", "splits", "saved/data-00000-of-00001.arrow", "hub"])
def test_a_hugging_face_dataset_with_a_column_of_embeddings_is_one_of_the_places(place, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    names, rows = ["jay", "crow", "wren", "tit", "owl"], np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    kinds = np.arange(60) % 5
    cells = {"embedding": rows.tolist(), "bird": kinds, "family": [("corvids", "others")[kind > 1] for kind in kinds.tolist()]}
    saved = datasets.Dataset.from_dict(cells | {"page": [f"page {row}" for row in range(60)]})
    saved = saved.cast_column("bird", datasets.ClassLabel(names=names))
    saved.save_to_disk("saved")
    datasets.DatasetDict({"train": saved.select(range(20, 60)), "test": saved}).save_to_disk("splits")
    Path("hub/data").mkdir(parents=True)
    saved.to_parquet("hub/data/test-00000-of-00001.parquet")
    data = suprank.open_data(place)
    assert (data.levels, data.names["bird"], data.queries.labels[:, 0].tolist()) == (("bird",), tuple(names), kinds.tolist())
    assert data.queries.embeddings[:].tolist() == rows.tolist()
    two = suprank.open_data(place, levels=["bird", "family"], id_column="page")
    assert (two.levels, len(set(two.queries.ids))) == (("bird", "family"), 60)
    values = dict(suprank.evaluate(place, progress=False))
    assert values == dict(suprank.evaluate(rows, kinds, levels=["bird"], progress=False))
    best = next(suprank.search(place, rows[7:8], k=1))
    assert (best["id"], best["score"], best["labels"]) == (7, 1.0, {"bird": names[kinds[7]]})
    with pytest.raises(ValueError, match="is a dataset, which has its own labels and gallery"):
        suprank.open_data(place, "labels.csv")
    saved.remove_columns("embedding").save_to_disk("pages")
    with pytest.raises(ValueError, match="pages has no embeddings; name a folder"):
        suprank.open_data("pages")
    with pytest.raises(ValueError, match="the report of .* shows images, and nothing says where they are"):
        suprank.report(place)
    adapted = suprank.adapt(place, "head", AdaptConfig(steps=1, batch=12), test=None if place == "splits" else place)
    assert adapted.before["mAP@R"] == pytest.approx(values["mAP@R"])
    assert adapted.rows["training"] + adapted.rows["validation"] == (40 if place == "splits" else 60)


@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        (["e"], {"levels": ["order"]}, "e has no level 'order'; choose from class, group"),
        (["e", "m.csv"], {}, "e is a folder, which has its own labels, gallery and ids"),
        (["e"], {"test": "other"}, "e is not a run, so it has one test set and one model"),
        (["pictures"], {}, "It is a folder of images: first `suprank data import folder pictures`, then `suprank embed`"),
        (["nowhere"], {}, "there is no nowhere; name a folder of `suprank train`"),
        (["nowhere.arrow"], {}, "there is no nowhere.arrow; name a folder of `suprank train`"),
        (["x.json"], {}, "x.json has numbers and no embeddings; open the folder that it is from"),
        (["sets"], {"shown_in": "the page"}, "the page of sets needs one label for an image at each level"),
        (["bare"], {"levels": ["class"]}, "bare has no level 'class'; choose from none"),
        (["e"], {"head": "e"}, "e is not the folder of a head"),
        (["unfinished"], {}, "interrupted; give its `suprank embed` again"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(manifest, arguments, options, complaint):
    embeddings("e", manifest)
    embeddings("sets", manifest.with_columns(label_class=[["a", "b"]] * len(manifest)), rows=vectors(manifest))
    bare = Manifest.from_columns({"path": ["a.png"], "split": ["test"]}, root=".", levels=())
    embeddings("bare", bare, rows=np.ones((1, 4), np.float32))
    embeddings("unfinished", manifest)
    for file in ("embeddings.npy", "items.parquet"):
        (manifest.root / "unfinished/test" / file).unlink()
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        suprank.open_data(*arguments, **options)
    assert complaint in str(error.value)


def test_explore_prints_its_address_and_returns_after_ctrl_c(manifest, monkeypatch, capsys):
    embeddings("e", manifest)
    served_at = []

    def run(self, sockets):
        served_at.extend(one.getsockname()[1] for one in sockets)
        raise KeyboardInterrupt

    monkeypatch.setattr("uvicorn.Server.run", run)
    suprank.explore("e", port=0)
    assert capsys.readouterr().out == f"http://127.0.0.1:{served_at[0]}  (press Ctrl-C to stop)\n"


def test_images_without_labels_can_be_opened_and_have_no_levels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bare = Manifest.from_columns({"path": ["a.png", "b.png"], "split": ["test", "test"]}, root=".", levels=())
    embeddings("bare", bare, rows=np.eye(2, dtype=np.float32))
    assert repr(suprank.open_data("bare")) == "RetrievalData(bare: 2 queries × 2 rank each other; no labels)"


def test_broken_images_are_left_out_and_counted(manifest, caplog):
    rows = vectors(manifest)
    embeddings("e", manifest.with_columns(broken=[row == 2 for row in range(len(manifest))]), rows=rows)
    with caplog.at_level(logging.INFO):
        data = suprank.open_data("e")
    assert (len(data.queries), len(data.queries.manifest)) == (11, 11)
    assert "test: 1 broken image is left out" in caplog.text
    assert json.dumps(data.queries.keys) == json.dumps(data.queries.manifest.paths.to_pylist())
