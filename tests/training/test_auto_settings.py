"""What stands in place of "auto": a network and an image size for the device, and batches for the classes that there are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.data import Manifest
from suprank.data.samplers import BalancedBatchSampler
from suprank.training.auto_settings import DEFAULTS, KEYS, _batch
from suprank.training.recipe import read_recipe, to_toml
from suprank.training.recipe_files import RecipeError
from suprank.training.run_folder import RunFolder


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def manifest(images_per_class, file="photos.parquet", split="train"):
    """A manifest of so many images of each class; two classes are a group."""
    classes = [number for number, images in enumerate(images_per_class) for _ in range(images)]
    columns = {
        "path": [f"{row}.jpg" for row in range(len(classes))],
        "split": [split] * len(classes),
        "label_class": [f"class {one}" for one in classes],
        "label_group": [f"group {one // 2}" for one in classes],
    }
    Manifest.from_columns(columns, root=".").save(file)
    return file


def photos(*overrides, **settings):
    return read_recipe("photos/roadmap", ["data.manifest=photos.parquet", *overrides], **settings)


def chosen(config):
    return (
        config.model.backbone,
        config.images.size,
        config.images.test_resize,
        config.batch.size,
        config.batch.images_per_class,
    )


@pytest.mark.parametrize(
    ("images_per_class", "on_cpu", "on_gpu"),
    [
        ([100] * 200, (64, 4), (256, 4)),  # the paper's four of each class, as many classes as fit
        ([100] * 5, (60, 12), (255, 51)),  # few classes: more images of each
        ([10] * 12, (60, 5), (120, 10)),  # all of them fit
        ([3] * 500, (63, 3), (255, 3)),  # few images of each
        ([1] * 3 + [9], (8, 2), (8, 2)),  # two of each class, though most have one
        ([30, 30], (60, 30), (60, 30)),
    ],
)
def test_a_batch_has_the_classes_and_images_that_there_are(images_per_class, on_cpu, on_gpu, monkeypatch):
    manifest(images_per_class)
    assert chosen(photos()) == ("tf_efficientnet_lite0", 112, 128, *on_cpu)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert chosen(photos()) == ("resnet50", 224, 256, *on_gpu)
    assert chosen(photos("engine.accelerator=cpu")) == ("tf_efficientnet_lite0", 112, 128, *on_cpu)


def test_every_key_can_be_set_and_the_others_follow():
    manifest([10] * 12)
    assert chosen(photos("images.size=64", "model.backbone=resnet18")) == ("resnet18", 64, 73, 60, 5)
    assert chosen(photos("images.test_resize=0"))[2] == 0
    assert chosen(photos("batch.size=32"))[3:] == (32, 4)
    assert chosen(photos("batch.images_per_class=10"))[3:] == (60, 10)
    assert chosen(photos("batch.size=20", "batch.images_per_class=2"))[3:] == (20, 2)
    assert chosen(photos('data.levels=["group"]'))[3:] == (60, 10), "6 groups of 20 images"


@given(st.lists(st.integers(1, 60), min_size=2, max_size=90), st.sampled_from([64, 256]))
def test_the_sampler_accepts_every_choice(images_per_class, largest):
    images = np.array(images_per_class)
    size, images_per_class = _batch(images, largest, None, None)
    assert 4 <= size <= largest
    batch = next(iter(BalancedBatchSampler(np.repeat(np.arange(len(images)), images), size, images_per_class)))
    assert len(batch) == size


def test_a_resumed_run_keeps_its_values_on_another_machine(monkeypatch, tmp_path):
    manifest([10] * 12)
    first = photos()
    saved = tmp_path / "recipe.toml"
    saved.write_text(to_toml(first), encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text("{}\n")  # the run has begun
    assert read_recipe(saved) == first
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert photos() != first
    assert photos(saved=RunFolder(tmp_path).saved_recipe) == first
    assert photos("images.size=64", saved=RunFolder(tmp_path).saved_recipe).images.size == 64, (
        "which the run refuses, as it does any other change"
    )
    assert photos(saved=RunFolder(tmp_path / "none").saved_recipe) != first
    (tmp_path / "metrics.jsonl").unlink()
    assert photos(saved=RunFolder(tmp_path).saved_recipe) != first, "a run without a step may be another's"


def test_one_class_is_refused_and_missing_images_are_left_to_training():
    manifest([9])
    with pytest.raises(ValueError, match=r"photos.parquet has training images of 1 class \(class\).*hold fewer classes out"):
        photos()
    manifest([9, 9], split="test")
    assert chosen(photos())[3:] == (64, 4)
    assert chosen(read_recipe("photos/roadmap", ["data.manifest=none.parquet"]))[3:] == (64, 4)


def test_other_keys_have_no_auto():
    manifest([10] * 12)
    assert set(KEYS) == {*("model.backbone", "images.size", "images.test_resize", "batch.size", "batch.images_per_class")}
    with pytest.raises(RecipeError, match=r"run.epochs"):
        photos("run.epochs=auto")
    with pytest.raises(RecipeError, match=r"images.size"):
        photos("images.size=large")
    assert set(DEFAULTS) == {"cpu", "cuda"}
