"""Exports: `datasets` shows the images and class names of a manifest, and importing them again gives the manifest."""

import json
import tarfile

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data import ImageDataset, Manifest
from suprank.data.archives import Archive
from suprank.data.columnar import BYTE_RANGE
from suprank.data.export import export_hf, export_webdataset
from suprank.data.importers.hf import import_hf
from tests.data import pictures
from tests.data.pictures import encoded, smooth


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def cells(manifest):
    """Everything but the paths: splits, label names, ids, boxes and other columns, sorted by split as exports are.

    A set of one label is that label.
    """
    table = manifest.table.drop_columns(["path"])
    rows = [
        {name: cell[0] if isinstance(cell, list) and len(cell) == 1 else cell for name, cell in row.items()}
        for row in table.to_pylist()
    ]
    order = {split: place for place, split in enumerate(manifest.splits)}
    return sorted(rows, key=lambda row: order[row["split"]])


def pixels(manifest):
    items = ImageDataset(manifest, crop_boxes=False)
    order = {split: place for place, split in enumerate(manifest.splits)}
    rows = sorted(range(len(manifest)), key=lambda row: order[manifest.table["split"][row].as_py()])
    return [np.asarray(items[row].image).tolist() for row in rows]


def imported(folder):
    return import_hf(folder).manifests[""]


def test_datasets_shows_the_images_and_class_names_of_an_export(tmp_path):
    (tmp_path / "images").mkdir()
    manifest = pictures.folder(tmp_path / "images", id=list("uvwxyz"), width=[1, 2, 3, 4, 5, 6])
    calls = []
    shards = export_hf(manifest, tmp_path / "out", shard_size=1, progress=lambda *where: calls.append(where))
    assert [shard.name for shard in shards] == [
        f"{split}-0000{n}-of-00003.parquet" for split in ("test", "train") for n in range(3)
    ]
    assert calls[-1] == (6, 6)
    loaded = datasets.load_dataset(str(tmp_path / "out"))
    assert list(loaded) == ["train", "test"]
    features = loaded["train"].features
    assert list(features) == ["image", "label_fine", "label_coarse", "id", "width"]  # finest first
    assert features["label_fine"].names == ["f0", "f1", "f2"]
    assert isinstance(features["image"], datasets.Image)
    for split in ("train", "test"):
        ours, theirs = ImageDataset(manifest.split(split)), loaded[split]
        assert all(np.array_equal(item.image, row["image"]) for item, row in zip(ours, theirs, strict=True))
        assert ours.labels[:, 0].tolist() == theirs["label_fine"][:]
        assert theirs["id"][:] == manifest.split(split).table["id"].to_pylist()
    # of the card alone, which the Hub shows without opening a file
    builder = datasets.load_dataset_builder(str(tmp_path / "out"))
    assert builder.info.features["label_fine"].names == ["f0", "f1", "f2"]
    assert builder.info.splits["train"].num_examples == 3
    direct = datasets.load_dataset("parquet", data_files=str(tmp_path / "out" / "data" / "test-*.parquet"), split="train")
    assert direct.features == features


def test_datasets_reads_exported_webdataset_shards(tmp_path):
    (tmp_path / "images").mkdir()
    manifest = pictures.folder(tmp_path / "images")
    shards = export_webdataset(manifest, tmp_path / "out", shard_size="20kB")
    assert [shard.name for shard in shards][:2] == ["test-000000.tar", "train-000000.tar"]
    with tarfile.open(tmp_path / "out" / "train-000000.tar") as archive:
        assert archive.getnames()[:3] == ["000000000.png", "000000000.cls", "000000000.json"]
        assert archive.extractfile("000000000.png").read() == (tmp_path / "images" / "a0.png").read_bytes()
        assert json.load(archive.extractfile("000000000.json")) == {"label_fine": "f0", "label_coarse": "c"}
    loaded = datasets.load_dataset(str(tmp_path / "out"))
    for split in ("train", "test"):
        ours, theirs = manifest.split(split), loaded[split]
        assert ours.labels[:, 0].tolist() == theirs["cls"][:]
        assert [np.asarray(one).tolist() for one in theirs["png"]] == pixels(ours)
    again = export_webdataset(manifest, tmp_path / "again", shard_size="20kB")
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
            columns |= {
                n: [None if b else c for b, c in zip(blank, columns[n], strict=True)] for n in ("label_fine", "label_coarse")
            }
    if draw(st.booleans()):
        columns["id"] = draw(st.lists(WORDS, min_size=count, max_size=count))
    if draw(st.booleans()):
        columns["box"] = [draw(st.sampled_from([None, [0.0, 1.0, 4.0, 8.0]])) for _ in range(count)]
    if draw(st.booleans()):
        columns["width"] = draw(st.lists(st.integers(-9, 9), min_size=count, max_size=count))
    return columns


FILES = [encoded(smooth(8, 6, seed), kind) for seed, kind in enumerate(["PNG", "JPEG", "WEBP", "GIF", "BMP", "PNG"])]


@settings(max_examples=10, deadline=None)
@given(columns=collections(), size=st.sampled_from([1, 500, "1MB"]))
def test_an_export_is_imported_as_the_same_manifest(tmp_path_factory, columns, size):
    folder = tmp_path_factory.mktemp("round")
    paths = [f"a{row}" for row in range(len(columns["split"]))]
    for name, data in zip(paths, FILES, strict=False):
        (folder / name).write_bytes(data)
    manifest = Manifest.from_columns({"path": paths} | columns, root=folder, levels=["fine", "coarse"])
    expected, images = cells(manifest), pixels(manifest)
    for export, name in ((export_hf, "hf"), (export_webdataset, "web")):
        export(manifest, folder / name, shard_size=size)
        found = imported(folder / name)
        assert found.levels == manifest.levels
        assert cells(found) == expected
        assert pixels(found) == images
        if export is export_hf:
            assert found.names == manifest.names  # so that class ids stay the same, too
            export(found, folder / "once more", shard_size=size)
            assert cells(imported(folder / "once more")) == expected


def test_exported_parquet_is_read_in_place_by_byte_ranges_in_all_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("suprank.data.export.ROW_GROUP_BYTES", 1)
    (tmp_path / "images").mkdir()
    manifest = pictures.folder(tmp_path / "images")
    (shard, *_) = export_hf(manifest, tmp_path / "out")
    assert pq.read_metadata(shard).num_row_groups > 1
    assert Archive(shard).members.columns["image"].method == BYTE_RANGE
    assert pq.read_metadata(shard).row_group(0).column(0).compression == "UNCOMPRESSED"


@pytest.mark.parametrize("export", [export_hf, export_webdataset])
def test_a_folder_in_use_a_missing_image_and_a_wrong_size_are_refused_and_leave_nothing(tmp_path, export):
    (tmp_path / "images").mkdir()
    manifest = pictures.folder(tmp_path / "images")
    (tmp_path / "out").mkdir()
    export(manifest, tmp_path / "out")  # an empty folder is fine
    with pytest.raises(FileExistsError, match="out exists and is not an empty folder; name a new one"):
        export(manifest, tmp_path / "out")
    with pytest.raises(ValueError, match="shard size 'much' must be a number of bytes such as 500MB"):
        export(manifest, tmp_path / "new", shard_size="much")
    with pytest.raises(ValueError, match="is the folder you are in, .* name a new folder"):
        export(manifest, ".")
    (tmp_path / "images" / "a5.png").unlink()
    with pytest.raises(FileNotFoundError, match="a5.png is not under"):
        export(manifest, tmp_path / "new")
    nested = manifest.with_columns(other=[{"a": 1}] * 6)
    with pytest.raises(ValueError, match="column 'other' holds struct.* which is not exported; leave it out"):
        export(nested, tmp_path / "new")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["images", "out"]


def test_an_export_without_labels_and_one_of_a_file_that_is_no_image(tmp_path):
    (tmp_path / "images").mkdir()
    pictures.folder(tmp_path / "images")
    bare = Manifest.from_columns({"path": ["a0.png"], "split": ["query"]}, root=tmp_path / "images", levels=())
    categories = pa.array(["night"]).dictionary_encode()  # as pandas writes a column of categories
    export_hf(bare.with_columns(light=categories), tmp_path / "categories")
    assert datasets.load_dataset(str(tmp_path / "categories"))["query"]["light"][:] == ["night"]
    export_hf(bare, tmp_path / "hf")
    assert list(datasets.load_dataset(str(tmp_path / "hf"))["query"].features) == ["image"]
    assert import_hf(tmp_path / "hf", levels=()).manifests[""].splits == {"query": 1}
    (tmp_path / "images" / "a0.png").write_text("not an image")
    with pytest.raises(ValueError, match="a0.png: is not an image"):
        export_webdataset(bare, tmp_path / "web")
