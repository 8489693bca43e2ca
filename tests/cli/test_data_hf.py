"""suprank data import hf and data export: from a manifest to shards and back, and training on shards without unpacking them."""

import json

import datasets
import numpy as np
import pytest

from suprank.data import ImageDataset, Manifest
from suprank.training.loop import train
from tests.cli.collection import done, photographs, refused
from tests.training.runs import pictures, recipe


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, with 36 pictures of 9 classes in 3 groups in photos/, and their manifest."""
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "photos")
    done("data", "import", "folder", "photos", "--holdout-classes", 0.5, "--shared", "group", "--out", "photos.parquet")
    return tmp_path


@pytest.mark.parametrize("form", ["hf", "webdataset"])
def test_an_export_is_checked_and_imported_by_the_commands_that_the_help_shows(form):
    shown = done("data", "export", form, "photos.parquet", "--out", "shards", "--shard-size", "40kB")
    assert shown.stdout.startswith("shards: 36 images in ")
    assert int(shown.stdout.split()[4]) > 2
    assert "exporting" in shown.stderr
    output = done("data", "import", "hf", "shards", "--out", "again.parquet").stdout
    assert output.splitlines()[-1] == "again.parquet: 36 images"
    before, after = Manifest.read("photos.parquet"), Manifest.read("again.parquet")
    assert (after.levels, after.splits, after.names) == (before.levels, before.splits, before.names)
    assert done("data", "check", "again.parquet").stdout.startswith("36 images in 36 files: ")
    assert "is not an empty folder" in refused("data", "export", form, "photos.parquet", "--out", "shards")
    only = done("data", "export", form, "photos.parquet", "--split", "test", "--out", "some", "-q")
    assert (only.stdout, only.stderr) == (f"some: {before.splits['test']} images in 1 shards\n", "")


def test_a_folder_of_datasets_is_imported_with_what_was_chosen_and_how_to_change_it(folder):
    datasets.disable_progress_bars()
    images = [{"bytes": path.read_bytes(), "path": None} for path in sorted(folder.glob("photos/*/*/*.png"))[:8]]
    features = datasets.Features(
        {"image": datasets.Image(), "kind": datasets.ClassLabel(names=["b", "a"]), "price": datasets.Value("float32")}
    )
    cells = {"image": images, "kind": [0, 1] * 4, "price": [0.5] * 8}
    datasets.Dataset.from_dict(cells, features=features).save_to_disk(folder / "saved")
    shown = done("data", "import", "hf", "saved", "--out", "m.parquet")
    assert shown.stdout.splitlines() == [
        "levels, finest first: kind (choose with --level)",
        "train: 8 images, 2 kind",
        "m.parquet: 8 images",
    ]
    assert "import again with --holdout-classes 0.5." in shown.stderr
    assert Manifest.read("m.parquet").names == {"kind": ("b", "a")}
    shown = done(
        "data", "import", "hf", "saved", "--split", "train=query", "--holdout-classes", 0.5, "--out", "m.parquet", "-q"
    )
    assert "test: 4 images, 1 kind" in shown.stdout
    assert shown.stderr == ""
    command = ("data", "import", "hf", "saved", "--out", "m.parquet")
    assert "column 'price' holds float, which is no label" in refused(*command, "--level", "price")
    assert "did you mean 'kind'?" in refused(*command, "--level", "kin")
    assert "saved is a local folder, which has no revisions" in refused(*command, "--revision", "v1")
    assert "saved has no split 'dev'; it has train" in refused(*command, "--split", "dev")
    assert "m.txt must end in .parquet or .csv" in refused("data", "import", "hf", "saved", "--out", "m.txt")
    assert "does not exist; give a folder" in refused("data", "import", "hf", "not/there/at-all", "--out", "m.parquet")


def test_training_on_shards_in_forked_workers_gives_the_numbers_of_training_on_files(folder):
    manifest = pictures(folder / "pictures")
    done("data", "export", "webdataset", manifest, "--out", "shards", "--shard-size", "1kB", "-q")
    assert len(list((folder / "shards").iterdir())) > 64  # more than a process keeps open
    done("data", "import", "hf", "shards", "--out", "shards.parquet", "-q")
    losses = {}
    for name, data in (("files", {"manifest": str(manifest)}), ("shards", {"manifest": "shards.parquet", "workers": 2})):
        train(recipe(data["manifest"], data=data, run={"epochs": 1}), folder / "runs" / name)
        lines = [json.loads(line) for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        losses[name] = [line["loss"] for line in lines if "loss" in line]
    assert len(losses["files"]) == 3
    assert losses["shards"] == losses["files"]
    ours, theirs = (
        ImageDataset(Manifest.read("shards.parquet").split("test")),
        ImageDataset(Manifest.read(manifest).split("test")),
    )
    assert all(np.array_equal(one.image, other.image) for one, other in zip(ours, theirs, strict=True))
