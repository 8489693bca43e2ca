"""Real photographs, drawings and weights from end to end: import, check, embed, evaluate, and the figures known for them.

The data lie beside the checkout, in ../shared/data, and are no part of it; without them these tests are skipped. Figures are
those of the README there, or, for some of the images, of a plain loop over timm's network, Pillow and numpy, in percent; ours
may differ from them by `NEAR`.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import avg_pool2d

from suprank import evaluation
from suprank.data import ImageDataset, Manifest
from suprank.evaluation import Report
from tests.cli.collection import done

SHARED = Path(__file__).parents[1] / "../shared/data"
NEAR = 0.5

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data, which is no part of the repository"),
]


def imported(pack, folder):
    """The manifest of a pack, and what the command says of it."""
    said = done("data", "import", "csv", SHARED / f"{pack}.zip", "--out", folder / f"{pack}.parquet").stdout
    return Manifest.read(folder / f"{pack}.parquet"), said.splitlines()


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    return imported("cub200_s128", tmp_path_factory.mktemp("birds"))


def test_the_birds_are_counted_and_grouped_as_the_importer_of_cub_has_them(tmp_path, birds):
    packed, said = birds
    assert said[0] == "train: 5,864 images, 100 species, 70 genus, 29 family, 13 order"
    assert said[1] == "test: 5,924 images, 100 species, 56 genus, 20 family, 6 order"
    members = [path.partition("::images/")[2] for path in packed.paths.to_pylist()]
    (tmp_path / "images.txt").write_text("".join(f"{number} {path}\n" for number, path in enumerate(members, 1)))
    report = done("data", "import", "cub", tmp_path, "--out", tmp_path / "cub.parquet").stdout.splitlines()
    assert [line.rpartition(", ")[2] for line in report[:2]] == ["as published", "as published"]
    assert report[2].startswith("11,788 of 11,788 images do not exist under")
    cub = Manifest.read(tmp_path / "cub.parquet")
    for column in ("split", "label_family", "label_order"):
        assert cub.table[column].to_pylist() == packed.table[column].to_pylist()
    species = [name.replace("_", " ") for name in packed.table["label_species"].to_pylist()]
    assert cub.table["label_species"].to_pylist() == species


def test_a_check_finds_nothing_wrong_with_the_birds(tmp_path, birds):
    birds[0].take(range(0, 11_788, 4)).save(tmp_path / "some.parquet")
    said = done("data", "check", tmp_path / "some.parquet").stdout
    assert "2,947 images in 2,947 files: 1,466 train, 1,481 test" in said
    assert "species classes: 100 train, 100 test; none of train's in evaluation" in said
    assert "formats: 2,947 WEBP RGB" in said


def test_a_frozen_backbone_retrieves_unseen_birds_as_well_as_is_known(tmp_path, birds):
    backbone, expected = "mobilenetv2_100", {"R@1": 16.71, "mAP@R": 10.77, "AP": 16.74}
    test = birds[0].split("test")
    test.take(range(0, len(test), 16)).save(tmp_path / "some.parquet")  # all would take a minute
    weights = SHARED / "weights" / f"{backbone}.in1k.safetensors"
    done("models", "create", backbone, "--weights", weights, "--out", tmp_path / "model")
    # The packed image is cropped as it is. Batches are small: in large ones half of the time goes into fresh memory.
    crop = ("--size", 112, "--resize", 0, "--batch-size", 4, "--workers", 0, "--device", "cpu")
    some = tmp_path / "some.parquet"
    done("embed", tmp_path / "model", some, "--out", tmp_path / "e", *crop)
    metrics = [argument for metric in expected for argument in ("--metric", metric)]
    done("evaluate", tmp_path / "e", "--device", "cpu", "--out", tmp_path / "r.json", *metrics)
    report = Report.load(tmp_path / "r.json")
    assert (report.n_queries, report.n_items) == (371, 371)
    assert {metric: 100 * report[metric] for metric in expected} == pytest.approx(expected, abs=NEAR)


def pixels(manifest):
    """The images, values from 0 to 1, as `[images, 3, height, width]`."""
    dataset = ImageDataset(manifest, lambda picture: torch.from_numpy(np.array(picture)))
    bytes_of = torch.stack([dataset[row].image for row in range(len(dataset))])
    return bytes_of.permute(0, 3, 1, 2).float() / 255


def nearest(vectors, test, every=1):
    """R@1 in percent at each level, of the images, or of one in `every` of them, among all of them."""
    rows = np.arange(len(test))
    some = rows[::every]
    metrics = [f"R@1/{level}" for level in test.levels]
    report = evaluation.evaluate(
        vectors[some],
        test.labels[some],
        gallery=vectors,
        gallery_labels=test.labels,
        ids=some,
        gallery_ids=rows,
        levels=test.levels,
        metrics=metrics,
        device="cpu",
        progress=False,
    )
    return [100 * report[metric] for metric in metrics]


def test_pixels_alone_retrieve_omniglot_as_well_as_is_known(tmp_path):
    manifest, said = imported("omniglot35", tmp_path)
    assert said[:2] == ["train: 19,280 images, 964 character, 30 alphabet", "test: 13,180 images, 659 character, 20 alphabet"]
    test = manifest.split("test")
    test = test.take(range(0, len(test), 2))
    gray = pixels(test)[:, 0].flatten(1)
    # As they are packed, 35 × 35, each drawing's mean taken off: the correlation of pixels.
    found = nearest(gray - gray.mean(1, keepdim=True), test, every=4)
    assert found == pytest.approx([20.0, 49.3], abs=NEAR)  # among all, as the README has it: 27.7 and 56.1


def test_pixels_alone_retrieve_emoji_as_well_as_is_known(tmp_path):
    manifest, said = imported("emoji64", tmp_path)
    assert said[0].startswith("train: 4,518 images, ")
    assert said[1].startswith("test: 4,181 images, ")
    assert [len(manifest.names[level]) for level in manifest.levels] == [1614, 96, 9]
    # Made 32 × 32, as the demo does, with values from −1 to 1; at 64 × 64 it is a point less.
    test = manifest.split("test")
    found = nearest((2 * avg_pool2d(pixels(test), 2) - 1).flatten(1), test, every=4)
    assert found == pytest.approx([49.9, 67.0, 76.7], abs=NEAR)  # of all, as the README has it: 49.5, 68.0 and 78.3
