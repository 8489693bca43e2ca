"""suprank demo: what it trains on, that training helps, that a seed is a seed; refusals."""

import re

import numpy as np
import pytest
import torch

from suprank.cli import experiment
from suprank.data import Manifest
from tests.cli.collection import done, invoke, photographs, refused


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, with the manifest of 144 pictures of 36 classes in 6 groups, half of the classes for test."""
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "photos", groups=6, classes=6, tint=0.5)
    done("data", "import", "folder", "--root", "photos", "--holdout-classes", 0.5, "--out", "m.parquet")
    return tmp_path


def demo(*arguments):
    return done("demo", "--data", "m.parquet", *arguments)


def row(output, metric):
    """The numbers in the row of that name: of pixels, before training, after it."""
    (line,) = [line for line in output.splitlines() if re.match(rf"\W+{metric} ", line)]
    return [float(number) for number in re.findall(r"([\d.]+)%", line)]


def test_a_short_demo_says_what_it_reads_and_raises_every_metric_on_unseen_classes():
    result = demo("--steps", 40, "--batch-size", 32)
    assert "train  72 images: 18 class, 6 group" in result.stdout
    assert "test   72 images: 18 class, 6 group" in result.stdout
    assert "reading" in result.stderr
    assert "training  loss" in result.stderr
    assert "40/40" in result.stderr
    for metric in ("H-AP", "AP", "R@1"):
        _, before, after = row(result.stdout, metric)
        assert after > before + 15


def test_a_seed_gives_the_same_numbers_again_and_another_gives_others():
    first, again, other = (demo("--steps", 2, "--batch-size", 16, "--seed", seed).stdout for seed in (1, 1, 0))
    assert first == again
    assert row(first, "H-AP") != row(other, "H-AP")


def test_emoji_are_the_first_choice_where_npm_is_and_glyphs_elsewhere(monkeypatch):
    asked = []
    small = Manifest.read("m.parquet")
    monkeypatch.setattr(experiment, "collection", lambda name, progress: asked.append(name) or small)
    for there in (True, False):
        monkeypatch.setattr("suprank.data.importers.emoji.available", lambda there=there: there)
        done("demo", "--steps", 1, "--batch-size", 8)
    assert asked == ["emoji", "glyphs"]


def test_glyphs_stand_in_for_emoji_that_cannot_be_fetched_but_not_for_those_asked_for(monkeypatch):
    small = Manifest.read("m.parquet")

    def collection(name, progress):
        if name == "emoji":
            raise OSError("npm found no network.")
        return small

    monkeypatch.setattr(experiment, "collection", collection)
    monkeypatch.setattr("suprank.data.importers.emoji.available", lambda: True)
    said = done("demo", "--steps", 1, "--batch-size", 8).stdout
    assert "no emoji: npm found no network.\nTaking glyphs instead." in said
    assert "npm found no network." in refused("demo", "--data", "emoji")


def test_images_are_small_squares_and_classes_are_numbered_without_gaps():
    manifest = Manifest.read("m.parquet").split("test")
    counted = []
    found = experiment.images(manifest, lambda done, total: counted.append((done, total)))
    assert found.pixels.shape == (72, 3, experiment.SIDE, experiment.SIDE)
    assert found.labels[:, 0].unique().tolist() == list(range(found.classes)), "proxies need 0, 1, 2, ..."
    names = np.unique(manifest.labels[:, 0])
    assert (names[found.labels[:, 0]] == manifest.labels[:, 0]).all()
    assert counted[-1] == (72, 72)


def test_a_batch_holds_different_images_of_whole_classes():
    train = experiment.images(Manifest.read("m.parquet").split("train"), lambda done, total: None)
    batch = next(experiment.batches(train, 32, seed=0))
    classes, counts = batch.labels[:, 0].unique(return_counts=True)
    assert len(classes) == 32 // experiment.IMAGES_PER_CLASS
    assert counts.tolist() == [experiment.IMAGES_PER_CLASS] * len(classes)
    assert len(torch.unique(batch.pixels, dim=0)) == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch-size", "30"), "batch_size=30 must be a multiple of"),
        (("--batch-size", "4000"), "batch_size=4000"),
        (("--steps", "0"), "0 must be 1 or more"),
        (("--seed", "-1"), "-1 must be 0 or more"),
        (("--seed", str(2**63)), "below 2⁶³"),
        (("--steps", "many"), "valid integer"),
        (("--data", "gone.parquet"), "gone.parquet: the manifest is not there"),
        (("--data", "emojis"), "a manifest is a .parquet or .csv file"),
        (("--data", "train.parquet"), "there is no split 'test' here"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_rule_and_the_way_out(arguments, message):
    Manifest.read("m.parquet").split("train").save("train.parquet")
    data = () if "--data" in arguments else ("--data", "m.parquet")
    assert message in refused("demo", *data, *arguments)


def test_one_level_is_enough():
    done("data", "import", "csv", "--root", "photos", "--table", table(), "--out", "one.parquet")
    assert "H-AP" in invoke("demo", "--data", "one.parquet", "--steps", 1, "--batch-size", 8).stdout


def table():
    paths = Manifest.read("m.parquet").paths.to_pylist()
    lines = [f"{path},{'train' if path < 'group3' else 'test'},{path.split('/')[1]}\n" for path in paths]
    with open("one.csv", "w") as file:  # noqa: PTH123
        file.writelines(["path,split,label_class\n", *lines])
    return "one.csv"
