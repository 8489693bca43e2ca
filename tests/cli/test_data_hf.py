"""suprank data import hf and data export: from a manifest to shards and back; embed, train and evaluate in place."""

import json
import subprocess
import sys

import datasets
import numpy as np
import pytest

from suprank.data import Manifest
from suprank.evaluation import Report
from suprank.training.loop import train
from tests.cli.collection import done, photographs, refused
from tests.models.tiny import embedder
from tests.training.runs import pictures, recipe


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, with 36 pictures of 9 classes in 3 groups in photos/, and their manifest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    photographs(tmp_path / "photos")
    done("data", "import", "folder", "photos", "--holdout-classes", 0.5, "--shared", "group", "--out", "photos.parquet")
    return tmp_path


@pytest.mark.parametrize("form", ["hf", "webdataset"])
def test_an_export_is_checked_and_imported_by_the_commands_that_the_help_shows(form):
    command = ("data", "export", "photos.parquet", "--format", form)
    shown = done(*command, "--out", "shards", "--shard-size", "40kB")
    assert shown.stdout.startswith("shards: 36 images in ")
    assert int(shown.stdout.split()[4]) > 2
    assert "exporting" in shown.stderr
    output = done("data", "import", "hf", "shards", "--out", "again.parquet").stdout.splitlines()
    assert output[0].startswith("The Arrow cache takes about 0." if form == "hf" else "The Arrow cache takes nothing: ")
    assert output[-1] == "again.parquet: 36 images"
    before, after = Manifest.read("photos.parquet"), Manifest.read("again.parquet")
    assert (after.levels, after.splits, after.names) == (before.levels, before.splits, before.names)
    assert done("data", "check", "again.parquet").stdout.startswith("36 images in 36 files: ")
    assert "is not an empty folder" in refused(*command, "--out", "shards")
    only = done(*command, "--split", "test", "--out", "some", "-q")
    assert (only.stdout, only.stderr) == (f"some: {before.splits['test']} images in 1 shards\n", "")
    assert "'csv' is not one of 'hf', 'webdataset'" in refused(
        "data", "export", "photos.parquet", "--format", "csv", "--out", "x"
    )


def test_a_folder_of_datasets_is_imported_with_what_was_chosen_and_how_to_change_it(folder):
    images = [{"bytes": path.read_bytes(), "path": None} for path in sorted(folder.glob("photos/*/*/*.png"))[:8]]
    features = datasets.Features(
        {"image": datasets.Image(), "kind": datasets.ClassLabel(names=["b", "a"]), "price": datasets.Value("float32")}
    )
    cells = {"image": images, "kind": [0, 1] * 4, "price": [0.5] * 8}
    datasets.Dataset.from_dict(cells, features=features).save_to_disk(folder / "saved")
    shown = done("data", "import", "hf", "saved", "--out", "m.parquet")
    assert shown.stdout.splitlines() == [
        "The Arrow cache takes nothing: images are read from saved.",
        "levels, finest first: kind (choose with levels)",
        "train: 8 images, 2 kind",
        "m.parquet: 8 images",
    ]
    assert "import again with --holdout-classes 0.5." in shown.stderr
    assert Manifest.read("m.parquet").names == {"kind": ("b", "a")}
    command = ("data", "import", "hf", "saved", "--out", "m.parquet")
    shown = done(*command, "split=train=query", "--holdout-classes", 0.5, "-q")
    assert "test: 4 images, 1 kind" in shown.stdout
    assert shown.stderr == ""
    assert "column 'price' holds float, which is no label" in refused(*command, "--level", "price")
    assert "did you mean 'kind'?" in refused(*command, "--level", "kin")
    assert "saved is a local folder, which has no revisions" in refused(*command, "revision=v1")
    assert "saved has no split 'dev'; it has train" in refused(*command, "split=dev")
    assert "m.txt must end in .parquet or .csv" in refused("data", "import", "hf", "saved", "--out", "m.txt")
    assert "does not exist; give a folder" in refused("data", "import", "hf", "not/there/at-all", "--out", "m.parquet")


def kinds_of_places(folder):
    """The photographs in each kind of place that `data import hf` takes."""
    done("data", "export", "photos.parquet", "--out", "parquet", "-q")
    done("data", "export", "photos.parquet", "--format", "webdataset", "--out", "tars", "-q")
    datasets.load_dataset(str(folder / "parquet")).save_to_disk(folder / "saved")
    for name in ("train", "test"):
        (folder / "folders").mkdir(exist_ok=True)
        rows = Manifest.read("photos.parquet").split(name)
        for path, label in zip(rows.paths.to_pylist(), rows.table["label_class"].to_pylist(), strict=True):
            target = folder / "folders" / name / label / path.replace("/", "-")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(rows.root / path)
    return ["parquet", "tars", "saved", "folders"]


def test_embeddings_from_every_kind_of_place_are_those_of_the_files_and_are_a_dataset_themselves(folder):
    embedder(dim=8).save(folder / "model")
    command = ("--size", 32, "--workers", 0, "--device", "cpu", "-q")
    done("embed", "model", "photos.parquet", "--out", "e-photos", *command)
    expected = np.sort(np.load("e-photos/test/embeddings.npy"), axis=0)
    for place in kinds_of_places(folder):
        done("data", "import", "hf", place, "--out", f"{place}.parquet", "-q")
        done("embed", "model", f"{place}.parquet", "--out", f"e-{place}", *command)
        assert np.array_equal(np.sort(np.load(f"e-{place}/test/embeddings.npy"), axis=0), expected), place
    rows = Manifest.read("saved.parquet").split("test")
    vectors = datasets.List(datasets.Value("float32"))
    cells = {"embedding": np.load("e-saved/test/embeddings.npy").tolist(), "kind": rows.table["label_class"].to_pylist()}
    features = datasets.Features({"embedding": vectors, "kind": datasets.Value("string")})
    datasets.Dataset.from_dict(cells, features=features).save_to_disk("vectors")
    done("data", "import", "hf", "vectors", "--out", "vectors.parquet", "-q")
    done("evaluate", "vectors.parquet", "--labels", "vectors.parquet", "--out", "vectors.json", "-q")
    done("evaluate", "e-saved", "--level", "class", "--out", "images.json", "-q")
    vectors, images = Report.load("vectors.json"), Report.load("images.json")
    assert vectors["R@1"] == images["R@1"] < 1
    assert [vectors[key] for key in vectors] == [images[key] for key in images]


def test_training_on_shards_in_forked_workers_gives_the_numbers_of_training_on_files(folder):
    manifest = pictures(folder / "pictures")
    losses = {}
    for name, form in (("files", None), ("tars", "webdataset"), ("arrow", "hf")):
        data = {"manifest": str(manifest)}
        if form is not None:
            done("data", "export", manifest, "--format", form, "--out", name, "--shard-size", "1kB", "-q")
            assert len(list((folder / name / "data").iterdir())) > 64  # more than a process keeps open
            done("data", "import", "hf", name, "--out", f"{name}.parquet", "-q")
            data = {"manifest": f"{name}.parquet", "workers": 2}
        train(recipe(data["manifest"], data=data, run={"epochs": 1}), folder / "runs" / name)
        lines = [json.loads(line) for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        losses[name] = [line["loss"] for line in lines if "loss" in line]
    assert len(losses["files"]) == 3
    assert losses["tars"] == losses["arrow"] == losses["files"]


def test_the_command_line_starts_without_the_library_datasets():
    code = "import sys, suprank.cli.app, suprank.data.importers; print({'datasets', 'webdataset', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
