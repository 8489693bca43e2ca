"""Exports: `datasets` and `webdataset` show the images and labels of a manifest, and imported again they are it."""

import json

import datasets
import numpy as np
import pyarrow as pa
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data import ImageDataset, Manifest
from suprank.data.export import export_manifest
from suprank.data.importers.hf import import_hf
from tests.data import pictures
from tests.data.pictures import encoded, smooth

FORMATS = ("hf", "webdataset")


@pytest.fixture(autouse=True)
def manifest(tmp_path, tmp_path_factory, monkeypatch):
    """Six images with two levels of labels."""
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    (tmp_path / "images").mkdir()
    return pictures.folder(tmp_path / "images", id=list("uvwxyz"), width=[1, 2, 3, 4, 5, 6])


def in_order(manifest):
    """The rows of a manifest in the order of its splits, as exports have them."""
    order = {split: place for place, split in enumerate(manifest.splits)}
    return sorted(range(len(manifest)), key=lambda row: order[manifest.table["split"][row].as_py()])


def cells(manifest):
    """Everything but the paths. A set of one label is that label."""
    rows = manifest.take(in_order(manifest)).table.drop_columns(["path"]).to_pylist()
    return [{name: one[0] if isinstance(one, list) and len(one) == 1 else one for name, one in row.items()} for row in rows]


def pixels(manifest):
    items = ImageDataset(manifest, crop_boxes=False)
    return [np.asarray(items[row].image).tolist() for row in in_order(manifest)]


def imported(folder):
    return import_hf(folder).manifests[""]


def test_datasets_shows_the_images_and_class_names_of_an_export(tmp_path, manifest):
    calls = []
    shards = export_manifest(manifest, tmp_path / "out", shard_size=1, progress=lambda *where: calls.append(where))
    names = [f"{split}-0000{number}-of-00003.parquet" for split in ("test", "train") for number in range(3)]
    assert [shard.name for shard in shards] == names
    assert calls[-1] == (6, 6)
    loaded = datasets.load_dataset(str(tmp_path / "out"))
    features = loaded["train"].features
    assert list(features) == ["image", "label_fine", "label_coarse", "id", "width"]  # finest first
    assert features["label_fine"].names == ["f0", "f1", "f2"]
    for split in ("train", "test"):
        ours, theirs = ImageDataset(manifest.split(split)), loaded[split]
        assert all(np.array_equal(item.image, row["image"]) for item, row in zip(ours, theirs, strict=True))
        assert ours.labels[:, 0].tolist() == theirs["label_fine"][:]
        assert theirs["id"][:] == manifest.split(split).table["id"].to_pylist()


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # it leaves files open
def test_webdataset_reads_its_shards_and_so_does_datasets(tmp_path, manifest):
    shards = export_manifest(manifest, tmp_path / "out", format="webdataset", shard_size="20kB")
    assert [shard.name.split("-of-")[0] for shard in shards][:1] == ["test-00000"]
    train = [str(shard) for shard in shards if shard.name.startswith("train")]
    samples = list(webdataset.WebDataset(train, shardshuffle=False))
    rows = manifest.split("train")
    assert [sample["png"] for sample in samples] == [(rows.root / path).read_bytes() for path in rows.paths.to_pylist()]
    assert [int(sample["cls"]) for sample in samples] == rows.labels[:, 0].tolist()
    assert json.loads(samples[0]["json"]) == {"label_fine": "f0", "label_coarse": "c", "id": "u", "width": 1}
    loaded = datasets.load_dataset(str(tmp_path / "out"))
    assert [np.asarray(one).tolist() for one in loaded["test"]["png"]] == pixels(manifest.split("test"))
    again = export_manifest(manifest, tmp_path / "again", format="webdataset", shard_size="20kB")
    assert [one.read_bytes() for one in again] == [one.read_bytes() for one in shards]


WORDS = st.text(st.characters(categories=("L", "N"), include_characters=" |'\"/é"), min_size=1, max_size=6).filter(str.strip)


@st.composite
def collections(draw):
    count = draw(st.integers(1, 6))
    splits = draw(
        st.lists(st.sampled_from(["train", "test", "query", "gallery", "distractor"]), min_size=count, max_size=count)
    )
    fine = draw(st.lists(WORDS, min_size=count, max_size=count))
    columns = {"split": splits, "label_fine": fine, "label_coarse": [draw(WORDS)] * count}
    if draw(st.booleans()):
        columns["label_fine"] = [[one, *draw(st.lists(WORDS, max_size=2))] for one in fine]
    elif "distractor" in splits:
        blank = [split == "distractor" and draw(st.booleans()) for split in splits]
        if not all(blank):
            for name in ("label_fine", "label_coarse"):
                columns[name] = [None if empty else cell for empty, cell in zip(blank, columns[name], strict=True)]
    if draw(st.booleans()):
        columns["id"] = draw(st.lists(WORDS, min_size=count, max_size=count))
    if draw(st.booleans()):
        columns["box"] = [draw(st.sampled_from([None, [0.0, 1.0, 4.0, 8.0]])) for _ in range(count)]
    if draw(st.booleans()):
        columns["width"] = draw(st.lists(st.integers(-9, 9), min_size=count, max_size=count))
    return columns


FILES = [encoded(smooth(8, 6, seed), kind) for seed, kind in enumerate(["PNG", "JPEG", "WEBP", "GIF", "BMP", "PNG"])]


@settings(max_examples=25, deadline=None)
@given(columns=collections(), size=st.sampled_from(["1", "500 MB"]))
def test_an_export_is_imported_as_the_same_manifest(tmp_path_factory, columns, size):
    folder = tmp_path_factory.mktemp("round")
    paths = [f"a{row}" for row in range(len(columns["split"]))]
    for name, data in zip(paths, FILES, strict=False):
        (folder / name).write_bytes(data)
    manifest = Manifest.from_columns({"path": paths} | columns, root=folder, levels=["fine", "coarse"])
    for format in FORMATS:
        export_manifest(manifest, folder / format, format=format, shard_size=size)
        found = imported(folder / format)
        assert found.levels == manifest.levels
        assert (cells(found), pixels(found)) == (cells(manifest), pixels(manifest))
        assert format == "webdataset" or found.names == manifest.names  # so that class ids stay the same, too


@pytest.mark.parametrize("format", FORMATS)
def test_a_folder_in_use_a_missing_image_and_a_wrong_size_are_refused_and_leave_nothing(tmp_path, manifest, format):
    (tmp_path / "out").mkdir()
    export_manifest(manifest, tmp_path / "out", format=format)  # an empty folder is fine
    with pytest.raises(FileExistsError, match="out exists and is not an empty folder; name a new one"):
        export_manifest(manifest, tmp_path / "out", format=format)
    with pytest.raises(ValueError, match="shard size 'much' must be a number of bytes such as 500MB"):
        export_manifest(manifest, tmp_path / "new", format=format, shard_size="much")
    with pytest.raises(ValueError, match="is the folder you are in, .* name a new folder"):
        export_manifest(manifest, ".", format=format)
    (tmp_path / "images" / "a5.png").unlink()
    with pytest.raises(FileNotFoundError, match="a5.png is not under"):
        export_manifest(manifest, tmp_path / "new", format=format)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["images", "out"]


def test_an_export_without_labels_in_several_row_groups_and_one_of_a_file_that_is_no_image(tmp_path, manifest, monkeypatch):
    monkeypatch.setattr("suprank.data.export.ROW_GROUP_BYTES", 1)
    columns = {"path": ["a0.png", "a1.png"], "split": ["query"] * 2}
    bare = Manifest.from_columns(columns, root=tmp_path / "images", levels=())
    export_manifest(bare, tmp_path / "hf")
    assert list(datasets.load_dataset(str(tmp_path / "hf"))["query"].features) == ["image"]
    assert import_hf(tmp_path / "hf", levels=()).manifests[""].splits == {"query": 2}
    categories = bare.with_columns(light=pa.array(["night", "day"]).dictionary_encode())  # as pandas writes them
    export_manifest(categories, tmp_path / "categories")
    assert datasets.load_dataset(str(tmp_path / "categories"))["query"]["light"][:] == ["night", "day"]
    (tmp_path / "images" / "a0.png").write_text("not an image")
    with pytest.raises(ValueError, match="a0.png: is not an image"):
        export_manifest(bare, tmp_path / "web", format="webdataset")
