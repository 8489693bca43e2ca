"""The paper's datasets are found as manifests or as raw folders, and imported without touching the user's folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from suprank.data import Manifest
from suprank.models import Embedder
from suprank.models.config import EmbedderConfig
from suprank.paper import datasets
from suprank.paper.datasets import DATASETS, MissingDataError, create_start, find, find_all, prepare
from suprank.training.presets import header
from suprank.training.recipe import read_recipe
from suprank.training.recipe_files import recipe_text
from tests.data import miniatures, miniatures_landmarks

TINY_START = EmbedderConfig(backbone="test_resnet", pooling="gem", normalization="l2", dim=2, freeze_batchnorm=True)


def inat(root: Path) -> Path:
    miniatures.inat(root)
    miniatures.inat_names(root)
    return root


def landmarks(root: Path) -> Path:
    miniatures_landmarks.gldv2(root)
    miniatures_landmarks.hierarchical(root)
    for number in (*range(1, 5), *range(11, 14), 21, 23):
        name = miniatures_landmarks.image_id(number)
        folder = {0: "train", 1: "index", 2: "test"}[number // 10]
        miniatures.picture(root / folder / name[0] / name[1] / name[2] / f"{name}.jpg", number)
    return root


RAW = {
    "sop": ("Stanford_Online_Products", miniatures.sop),
    "cub": ("CUB_200_2011", miniatures.cub),
    "inat-base": ("inaturalist2018", inat),
    "inat-full": ("inaturalist2018", inat),
    "dyml-vehicle": ("dyml_vehicle", miniatures.dyml),
    "dyml-animal": ("dyml_animal", miniatures.dyml),
    "dyml-product": ("dyml_product", miniatures.dyml_product),
    "hgldv2": ("google-landmark", landmarks),
}


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def tiny_start(monkeypatch):
    """The start model of H-GLDv2 as a network of 0.4 million random weights, and a PCA of two directions of small images."""

    def tiny(manifest, folder, *, note):
        torch.manual_seed(0)
        return create_start(manifest, folder, TINY_START, image_size=32, pretrained=False, note=note)

    monkeypatch.setattr(datasets, "create_start", tiny)


@pytest.fixture(scope="module")
def every_dataset(tmp_path_factory) -> Path:
    """A folder with all raw datasets in small."""
    data = tmp_path_factory.mktemp("data")
    for folder, write in RAW.values():
        if not (data / folder).exists():
            write(data / folder)
    return data


def contents(folder: Path) -> dict[Path, int]:
    """Everything in a folder, with the time it was changed."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_every_preset_of_the_paper_has_its_dataset():
    assert list(DATASETS) == list(RAW)
    for preset, dataset in DATASETS.items():
        assert dataset.preset == preset
        tests = read_recipe(f"{preset}/happier").data.tests if preset != "cub" else {}
        assert dataset.tests == tuple(tests)
        assert dataset.import_command in header(recipe_text(f"{preset}/base"))


@pytest.mark.parametrize("preset", DATASETS)
def test_a_raw_folder_is_found_and_imported_once(preset, every_dataset, tmp_path, notes, tiny_start):
    before = contents(every_dataset)
    found = find(preset, every_dataset, tmp_path)
    assert found.raw == every_dataset / RAW[preset][0]
    assert "to be imported" in found.description
    assert contents(tmp_path) == {}  # finding changes nothing

    prepared = prepare(preset, every_dataset, tmp_path, note=notes.append)
    assert contents(every_dataset) == before
    assert any("train: " in sentence for sentence in notes)

    # The recipes of the preset accept the overrides, and then name existing files only.
    config = read_recipe(f"{preset}/roadmap", prepared.overrides)
    files = [config.data.manifest, *config.data.tests.values()]
    assert len(files) == 1 + len(DATASETS[preset].tests)
    assert all(Path(file).is_absolute() and Path(file).parent == tmp_path / "data" for file in files)
    assert "train" in Manifest.read(config.data.manifest).splits
    for file in config.data.tests.values():
        assert set(Manifest.read(file).splits) == {"query", "gallery"}

    written = contents(tmp_path)
    again = prepare(preset, every_dataset, tmp_path, note=notes.append)
    assert again.overrides == prepared.overrides
    assert again.description.startswith(f"manifest {tmp_path / 'data' / preset}.parquet")
    assert contents(tmp_path) == written


def test_the_folder_of_data_may_be_the_dataset_itself(tmp_path):
    sop = miniatures.sop(tmp_path / "downloads")
    assert find("sop", sop, tmp_path / "out").raw == sop
    assert find("cub", sop, tmp_path / "out").is_missing
    # Vehicle and Animal have the same files: the name of the folder decides.
    vehicle = miniatures.dyml(tmp_path / "DyML-Vehicle")
    assert find("dyml-vehicle", vehicle, tmp_path / "out").raw == vehicle
    assert find("dyml-animal", vehicle, tmp_path / "out").is_missing


def test_a_linked_folder_goes_by_the_name_of_the_link(tmp_path):
    miniatures.sop(tmp_path / "disk" / "products")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sop").symlink_to(tmp_path / "disk" / "products")
    assert find("sop", tmp_path / "data", tmp_path / "out").raw == tmp_path / "data" / "sop"


def test_a_manifest_of_the_user_takes_precedence(tmp_path, notes):
    data, out = tmp_path / "data", tmp_path / "out"
    raw = miniatures.sop(data / "Stanford_Online_Products")
    prepare("sop", data, out, note=notes.append)
    own = datasets.BENCHMARKS["sop"](raw).manifests[""]
    own.save(data / "sop.parquet")
    notes.clear()
    prepared = prepare("sop", data, out, note=notes.append)
    assert prepared.overrides == (f"data.manifest={data / 'sop.parquet'}",)
    assert notes == []


def test_a_dataset_that_was_imported_before_needs_no_folder_of_data(tmp_path, notes):
    data, out = tmp_path / "data", tmp_path / "out"
    miniatures.cub(data / "CUB_200_2011")
    first = prepare("cub", data, out, note=notes.append)
    assert prepare("cub", None, out, note=notes.append).overrides == first.overrides


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="root may write to read-only folders")
def test_a_read_only_folder_of_data_is_enough(tmp_path, notes):
    data = tmp_path / "data"
    miniatures.sop(data / "Stanford_Online_Products")
    for folder in (data / "Stanford_Online_Products", data):
        folder.chmod(0o555)
    try:
        prepared = prepare("sop", data, tmp_path / "out", note=notes.append)
    finally:
        for folder in (data, data / "Stanford_Online_Products"):
            folder.chmod(0o755)
    assert prepared.overrides == (f"data.manifest={tmp_path / 'out' / 'data' / 'sop.parquet'}",)


def test_an_interrupted_import_leaves_no_manifest(tmp_path, notes, monkeypatch):
    data, out = tmp_path / "data", tmp_path / "out"
    miniatures.dyml(data / "dyml_vehicle")
    save, saved = Manifest.save, []

    def interrupted(self, path):
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(path)
        save(self, path)

    monkeypatch.setattr(Manifest, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare("dyml-vehicle", data, out, note=notes.append)
    assert find("dyml-vehicle", data, out).raw == data / "dyml_vehicle"
    monkeypatch.undo()
    prepare("dyml-vehicle", data, out, note=notes.append)
    assert find("dyml-vehicle", data, out).manifests


def test_all_missing_datasets_are_listed_at_once_with_their_commands(tmp_path):
    miniatures.sop(tmp_path / "Stanford_Online_Products")
    with pytest.raises(MissingDataError) as error:
        find_all(["sop", "cub", "inat-full", "cub"], tmp_path, tmp_path / "out")
    lines = str(error.value).splitlines()
    assert [line.split()[0] for line in lines] == ["cub", "inat-full"]
    assert "suprank data import cub CUB_200_2011 --out cub.parquet" in lines[0]
    assert "Caltech" in lines[0]
    assert "suprank data import inat-full inaturalist2018 --out inat-full.parquet" in lines[1]


def test_what_is_missing_is_said_precisely(tmp_path):
    assert "no folder of data was named" in find("sop", None, tmp_path).description
    assert f"{tmp_path / 'nowhere'} does not exist" in find("sop", tmp_path / "nowhere", tmp_path).description
    (tmp_path / "CUB_200_2011" / "CUB_200_2011").mkdir(parents=True)  # unpacked one folder too deep
    assert "CUB_200_2011 is not the folder of the dataset: it has no images.txt" in find("cub", tmp_path, tmp_path).description
    miniatures.inat(tmp_path / "inat2018")  # without names of the ranks
    assert not find("inat-base", tmp_path, tmp_path).is_missing
    assert "it has no categories.json or train2018.json" in find("inat-full", tmp_path, tmp_path).description
    (tmp_path / "dyml-animal.parquet").touch()
    (tmp_path / "dyml-animal-fine.parquet").touch()
    sentence = find("dyml-animal", tmp_path, tmp_path).description
    assert "but not dyml-animal-middle.parquet, dyml-animal-coarse.parquet" in sentence


def test_the_start_model_is_a_pca_of_the_train_images(tmp_path, notes):
    raw = landmarks(tmp_path / "google-landmark")
    manifest = tmp_path / "hgldv2.parquet"
    datasets.BENCHMARKS["hgldv2"](raw).manifests[""].save(manifest)
    torch.manual_seed(0)
    folder = create_start(manifest, tmp_path / "start", TINY_START, image_size=32, pretrained=False, note=notes.append)
    start = Embedder.load(folder)
    assert start.config.image_size == (32, 32)
    assert start.config.squash
    assert start.projection.weight.shape == (2, start.features_dim)
    torch.testing.assert_close(start.projection.weight @ start.projection.weight.T, torch.eye(2), atol=1e-5, rtol=0)
    assert "a PCA of 4 train images" in notes[0]
    assert notes[-1] == "4 of 4 images of the PCA"


def test_a_start_model_of_the_user_is_taken(every_dataset, tmp_path, notes, tiny_start):
    prepare("hgldv2", every_dataset, tmp_path / "out", note=notes.append)
    own = tmp_path / "own"
    own.mkdir()
    (tmp_path / "out" / "data" / "hgldv2-start").rename(own / "hgldv2-start")
    (tmp_path / "out" / "data" / "hgldv2.parquet").rename(own / "hgldv2.parquet")
    prepared = prepare("hgldv2", own, tmp_path / "out", note=notes.append)
    assert f"model.start={own / 'hgldv2-start'}" in prepared.overrides
    assert not (tmp_path / "out" / "data" / "hgldv2-start").exists()


def test_the_start_model_is_the_one_of_the_preset():
    """The command in the header of the preset and the model that is created here agree."""
    command = header(recipe_text("hgldv2/base"))
    for option in (datasets.START.backbone, f"--pooling {datasets.START.pooling}", "--freeze-batchnorm", "--squash"):
        assert option in command
    assert f"--dim {datasets.START.dim}" in command
    assert f"--image-size {datasets.START_IMAGE_SIZE} --resize {datasets.START_IMAGE_SIZE}" in command
    assert f"--normalization {datasets.START.normalization}" in command
