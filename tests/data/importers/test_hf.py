"""Hugging Face datasets: our manifest of a dataset is what `datasets` itself loads from it, images pixel by pixel."""

import io
import json
import logging
import tarfile

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from huggingface_hub.utils import are_progress_bars_disabled

from suprank.data import ImageDataset, Manifest
from suprank.data.importers.hf import HF, import_hf
from tests import fake_hub
from tests.attacks import attack
from tests.data.pictures import encoded, smooth

SPECIES, FAMILY = ["wren", "crow", "jay"], ["Troglodytidae", "Corvidae"]
FINE, COARSE = [0, 1, 2, 2, 1, 0], [0, 1, 1, 1, 1, 0]
BIRDS = Features(
    {"photo": Image(), "species": ClassLabel(names=SPECIES), "family": ClassLabel(names=FAMILY), "note": Value("string")}
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """The cache of `datasets`."""
    folder = tmp_path_factory.mktemp("cache")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    return folder


def pictures(count=6, kind="PNG"):
    return [encoded(smooth(16, 12, seed), kind) for seed in range(count)]


def birds(rows=slice(None), features=BIRDS):
    cells = {
        "photo": [{"bytes": one, "path": None} for one in pictures()],
        "note": list("abcdef"),
        "species": FINE,
        "family": COARSE,
    }
    return Dataset.from_dict({name: cells[name][rows] for name in features}, features=features)


def rows(manifest, *columns):
    return [tuple(row.values()) for row in manifest.table.select(list(columns)).to_pylist()]


def assert_same_images(manifest, split):
    """`split` is what `datasets` loads, in the order of the manifest."""
    theirs = [np.asarray(picture.convert("RGB")) for picture in split]
    ours = [np.asarray(ImageDataset(manifest)[row].image) for row in range(len(manifest))]
    assert [one.tolist() for one in ours] == [one.tolist() for one in theirs]


def imported(source, **options):
    return import_hf(source, **options).manifests[""]


def announced(source, **options):
    """What is said before anything is written."""
    said = []
    import_hf(source, announce=said.append, **options)
    (sentence,) = said
    return sentence


def table(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def shard(path, samples):
    """A .tar of (name, content)."""
    with tarfile.open(path, "w") as archive:
        for name, data in samples:
            content = json.dumps(data) if name.endswith("json") else str(data)
            data = data if isinstance(data, bytes) else content.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


# Agreement with `datasets`


def test_a_saved_dataset_has_the_rows_classes_and_pixels_that_load_from_disk_gives(tmp_path, cache):
    DatasetDict(train=birds(slice(0, 4)), test=birds(slice(4, 6))).save_to_disk(tmp_path)
    result = import_hf(tmp_path)
    manifest = result.manifests[""]
    assert result.sentences[0] == "levels, finest first: species, family (choose with levels)"
    assert manifest.names == {"species": tuple(SPECIES), "family": tuple(FAMILY)}  # in their order: ids are the same
    loaded = datasets.load_from_disk(tmp_path)
    for split in ("train", "test"):
        ours, theirs = manifest.split(split), loaded[split]
        assert ours.labels.tolist() == [[row["species"], row["family"]] for row in theirs]
        assert rows(ours, "note") == [(row["note"],) for row in theirs]
        assert_same_images(ours, theirs["photo"])
    assert manifest.paths[0].as_py() == "train/data-00000-of-00001.arrow::photo/0"
    assert announced(tmp_path).startswith("The Arrow cache takes nothing")
    assert not list(cache.rglob("*.arrow"))
    with pytest.raises(ValueError, match="was written by save_to_disk and has no configuration 'small'; leave it out"):
        import_hf(tmp_path, config="small")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_parquet_files_are_the_rows_of_load_dataset_in_its_cache(tmp_path, cache, compression):
    (tmp_path / "data").mkdir()
    for name, part in (
        ("train-00000-of-00002", slice(0, 3)), ("train-00001-of-00002", slice(3, 6)), ("validation-00000-of-00001", slice(2))
    ):  # fmt: skip
        pq.write_table(birds(part).data.table, tmp_path / "data" / f"{name}.parquet", compression=compression)
    assert f"The Arrow cache takes about 0.0 MB of {'x'}".removesuffix("x") in announced(tmp_path)
    result = import_hf(tmp_path)
    manifest = result.manifests[""]
    assert "split validation is called test here" in result.sentences
    loaded = datasets.load_dataset(str(tmp_path))
    for ours, theirs in (("train", "train"), ("test", "validation")):
        assert manifest.split(ours).labels[:, 0].tolist() == loaded[theirs]["species"][:]
        assert_same_images(manifest.split(ours), loaded[theirs]["photo"])
    assert [str(manifest.root / path.split("::")[0]) for path in manifest.paths.to_pylist()[::6]] == [
        loaded[split].cache_files[0]["filename"] for split in ("train", "validation")
    ]
    assert announced(tmp_path) == f"The Arrow cache has this dataset already: {manifest.root}"
    assert manifest.root.is_relative_to(cache)


def test_folders_of_images_are_what_datasets_makes_of_them_and_stay_where_they_are(tmp_path):
    for number, data in enumerate(pictures()):
        folder = tmp_path / ("train" if number < 4 else "test") / SPECIES[FINE[number]]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(data)
    assert announced(tmp_path).startswith("The Arrow cache takes paths and labels only")
    manifest, loaded = imported(tmp_path), datasets.load_dataset(str(tmp_path))
    for split in ("train", "test"):
        assert manifest.split(split).labels[:, 0].tolist() == loaded[split]["label"][:]
        assert_same_images(manifest.split(split), loaded[split]["image"])
    assert (manifest.root, manifest.paths[0].as_py()) == (tmp_path, "train/crow/1.png")
    lines = [{"file_name": f"wren/{number}.png", "kind": "small", "hash": 2**70} for number in (0, 5)]
    for split, line in zip(("train", "test"), lines, strict=True):
        (tmp_path / split / "metadata.jsonl").write_text(json.dumps(line))
    manifest = imported(tmp_path, levels=["kind"])
    assert rows(manifest, "path", "label_kind") == [("train/wren/0.png", "small"), ("test/wren/5.png", "small")]


def test_webdataset_shards_stay_where_they_are_and_are_the_samples_that_datasets_reads(tmp_path, cache):
    for split, numbers in (("train", range(4)), ("test", range(4, 6))):
        samples = []
        for number in reversed(numbers):  # the order of the shard, not of the names
            key = f"./a.b/{number:04d}" if split == "test" else f"{number:04d}"
            about = {"bird": SPECIES[FINE[number]], "family": FAMILY[COARSE[number]], "box": {"nested": 1}}
            samples += [(f"{key}.png", pictures()[number]), (f"{key}.cls", FINE[number]), (f"{key}.json", about)]
        shard(tmp_path / f"{split}-0000.tar", samples)
    manifest = imported(tmp_path, levels=["bird", "family"])
    assert rows(manifest, "path", "split", "label_bird", "label_family", "cls")[:2] == [
        ("train-0000.tar::0003.png", "train", "jay", "Corvidae", "2"),
        ("train-0000.tar::0002.png", "train", "jay", "Corvidae", "2"),
    ]
    assert announced(tmp_path) == "The Arrow cache takes nothing: images are read from the .tar files."
    assert not list(cache.rglob("*.arrow"))
    loaded = datasets.load_dataset(str(tmp_path))
    for split in ("train", "test"):
        assert rows(manifest.split(split), "label_bird") == [(one["bird"],) for one in loaded[split]["json"]]
        assert_same_images(manifest.split(split), loaded[split]["png"])
    assert HF.read(tmp_path)[""].levels == ("cls",)  # the usual name of a label
    shard(tmp_path / "x.tar", [("1.left.png", pictures()[0]), ("1.right.png", pictures()[1]), ("1.cls", 1)])
    with pytest.raises(ValueError, match=r"several image columns \(left.png, right.png\)"):
        import_hf(tmp_path / "x.tar")
    assert imported(tmp_path / "x.tar", image="right.png").paths.to_pylist() == ["x.tar::1.right.png"]
    mixed = [{"a": 1, "b": [1]}, {"a": "x", "b": "y"}, {"a": 2**70}]
    samples = [(f"{row}.{end}", data) for row in range(3) for end, data in (("png", pictures()[0]), ("json", mixed[row]))]
    shard(tmp_path / "x.tar", samples)
    found = imported(tmp_path / "x.tar", levels=["a"])
    assert rows(found, "label_a", "b") == [("1", ["1"]), ("x", ["y"]), (str(2**70), None)]


def test_a_dataset_with_a_column_of_vectors_is_a_set_of_embeddings(tmp_path):
    vectors = np.arange(12, dtype=np.float32).reshape(6, 2)
    features = Features({"embedding": List(Value("float32")), "bird": ClassLabel(names=SPECIES), "split": Value("string")})
    cells = {"embedding": vectors.tolist(), "bird": FINE, "split": list("aaabbb")}
    Dataset.from_dict(cells, features=features).save_to_disk(tmp_path / "saved")
    result = import_hf(tmp_path / "saved")
    manifest = result.manifests[""]
    assert any("no images, but embeddings in 'embedding'" in sentence for sentence in result.sentences)
    assert not any("do not exist" in sentence for sentence in result.sentences)
    assert manifest.table["embedding"].to_pylist() == vectors.tolist()
    assert (manifest.labels[:, 0].tolist(), manifest.names["bird"]) == (FINE, tuple(SPECIES))
    read = ImageDataset(manifest).files.read
    assert [np.frombuffer(read(path), np.float32).tolist() for path in manifest.paths.to_pylist()] == vectors.tolist()


# Columns


def test_lists_of_classes_are_several_labels_and_minus_one_is_none(tmp_path):
    features = Features({"image": Image(), "tags": List(ClassLabel(names=["red", "blue"])), "id": Value("int64")})
    cells = {"image": [{"bytes": one, "path": None} for one in pictures(3)], "tags": [[0, 1], [1, -1], [0]], "id": [7, 8, 9]}
    Dataset.from_dict(cells, features=features).to_parquet(tmp_path / "x.parquet")
    manifest = imported(tmp_path / "x.parquet")
    assert manifest.labels.tolist() == [[[0, 1]], [[1, -1]], [[0, -1]]]
    assert rows(manifest, "id") == [("7",), ("8",), ("9",)]  # they differ, so they are image ids
    Dataset.from_dict(cells | {"id": [7, 7, 9]}, features=features).to_parquet(tmp_path / "y.parquet")
    result = import_hf(tmp_path / "y.parquet")
    assert "id" not in result.manifests[""].table.column_names
    assert any("name it with id" in sentence for sentence in result.sentences)
    assert rows(imported(tmp_path / "y.parquet", id="id"), "id") == [("7",), ("7",), ("9",)]


def test_columns_that_form_a_tree_become_levels_or_else_text_that_repeats(tmp_path):
    features = Features({**BIRDS, "camera": ClassLabel(names=["left", "right"])})
    cells = {name: birds().data.table[name].to_pylist() for name in BIRDS}
    Dataset.from_dict(cells | {"camera": [0, 1, 0, 1, 0, 1]}, features=features).to_parquet(tmp_path / "x.parquet")
    assert import_hf(tmp_path / "x.parquet").sentences[0] == (
        "levels, finest first: species, family; not used: camera (choose with levels)"
    )
    crossed = import_hf(tmp_path / "x.parquet", levels=["species", "camera"])
    assert any("not a tree: species 'wren' stands under camera" in sentence for sentence in crossed.sentences)
    columns = {"image": pictures(), "kind": list("abbaba"), "caption": list("uvwxyz"), "score": [0.5] * 6}
    manifest = imported(table(tmp_path / "plain.parquet", **columns))
    assert manifest.table.column_names == ["path", "split", "label_kind", "caption", "score"]
    columns = {"image": pictures(), "species": list("aabbcc"), "family": [*"xxxx", None, None]}
    above = imported(table(tmp_path / "blank.parquet", **columns))
    assert above.levels == ("species",), "a level that training images lack is none"


def test_a_card_chooses_the_files_of_a_configuration_and_names_classes_and_splits(tmp_path):
    for name, labels in (("a", [0, 0]), ("b", [1, 1])):
        (tmp_path / name).mkdir()
        table(tmp_path / name / "some.parquet", image=pictures(2), label=labels)
    (tmp_path / "README.md").write_text("""---
configs:
- {config_name: one, data_files: [{split: train, path: a/*}]}
- {config_name: two, data_files: [{split: query, path: a/*}, {split: odd, path: b/*}]}
dataset_info:
- config_name: two
  features: [{name: image, dtype: binary}, {name: label, dtype: {class_label: {names: {'0': cat, '1': dog}}}}]
- {config_name: one, features: [{name: image, dtype: binary}, {name: label, dtype: int64}]}
---
""")
    with pytest.raises(ValueError, match=r"`datasets` cannot read .*: Config name is missing.*\['one', 'two'\]"):
        import_hf(tmp_path)
    with pytest.raises(ValueError, match="BuilderConfig 'three' not found. Available: .*'one', 'two'"):
        import_hf(tmp_path, config="three")
    assert imported(tmp_path, config="one").names == {"label": ("0",)}
    result = import_hf(tmp_path, config="two")
    assert result.manifests[""].names == {"label": ("cat", "dog")}
    assert "left out split odd; to use it, name all in splits: query, odd=train" in result.sentences
    both = imported(tmp_path, config="two", splits=["odd=train", "query"])
    assert rows(both, "split", "label_label") == [("train", "dog")] * 2 + [("query", "cat")] * 2


def test_images_beside_a_parquet_file_are_files_and_those_elsewhere_are_refused(tmp_path):
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "0.png").write_bytes(pictures()[0])
    (tmp_path / "1.png").write_bytes(pictures()[1])
    stored = pa.array([{"bytes": None, "path": "0.png"}, {"bytes": pictures()[1], "path": "1.png"}])
    mixed = imported(table(folder / "x.parquet", image=stored, label=["a", "b"]))
    assert [path.rpartition("/")[2].rpartition("::")[2] for path in mixed.paths.to_pylist()] == ["0.png", "1"]
    assert len([item.image for item in ImageDataset(mixed)]) == 2
    assert imported(table(folder / "y.parquet", file=["0.png"], label=["a"]), image="file").paths.to_pylist() == ["0.png"]
    for place in ("/elsewhere/0.png", str(tmp_path / "1.png")):
        with pytest.raises(ValueError, match=f"has the path {place}, which is not under .*deep; move the images there"):
            import_hf(table(folder / "z.parquet", file=[place], label=["a"]), image="file")
    with pytest.raises(ValueError, match="leads out of the root|without '..'|may not contain"):
        import_hf(table(folder / "z.parquet", file=["../1.png"], label=["b"]), image="file")
    for options in ({}, {"image": "url"}):
        with pytest.raises(ValueError, match="'url'.* holds addresses of images.*img2dataset"):
            import_hf(table(folder / "u.parquet", url=["https://x.org/0.png"], label=["a"]), **options)


# Refusals


@pytest.mark.parametrize(
    ("columns", "options", "complaint"),
    [
        ({"label": ["a"]}, {}, "has no image column; its columns are label"),
        ({"a": [b"1"], "b": [b"2"], "label": ["x"]}, {}, r"several image columns \(a, b\); choose one with image"),
        ({"image": [b"1"], "label": ["x"]}, {"image": "imag"}, "no column 'imag'; did you mean 'image'"),
        ({"image": [b"1"], "label": [2]}, {"image": "label"}, "'label' holds int64, not images; the image columns are image"),
        ({"image": [b"1"], "score": [0.5]}, {}, "no column of class names; its columns are score.*with levels"),
        ({"image": [b"1"], "score": [0.5]}, {"levels": ["score"]}, "'score' holds double, which is no label"),
        ({"image": [b"1"], "label": ["x"]}, {"levels": ["label", "label"]}, "named twice"),
        ({"image": [b"1"], "label": ["x"]}, {"levels": ["labl"]}, "did you mean 'label'"),
        ({"image": [b"1", None], "label": ["x", "y"]}, {}, "1 of 2 rows have no image, the first is row 1"),
        ({"image": [b"1"], "label": ["x"]}, {"splits": ["dev"]}, "has no split 'dev'; it has train"),
        ({"image": [b"1"], "label": ["x"]}, {"splits": ["train=val"]}, "needs a name that a manifest has"),
        ({"image": [b"1"], "label": ["x"]}, {"revision": "v1"}, "local file, which has no revisions"),
        ({"image": [b"1"], "label": ["x"]}, {"config": "a"}, "has no configuration 'a'"),
        ({"image": [b"1"], "label": [-1]}, {}, "the images of split train have no labels; name those to use"),
        ({"image": [b"1", b"2"], "label": [-1, 3]}, {}, "row 0: label is blank"),
    ],
)
def test_what_cannot_be_imported_says_why(tmp_path, columns, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        import_hf(table(tmp_path / "x.parquet", **columns), **options)


def test_files_that_are_missing_damaged_or_of_another_kind_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist; give a folder"):
        import_hf(tmp_path / "none")
    with pytest.raises(ValueError, match="`datasets` cannot read .*: .*doesn't contain any data files"):
        import_hf(tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="x.parquet is not a readable Parquet file"):
        import_hf(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="sample '1' has no image, only txt"):
        import_hf(shard(tmp_path / "x.tar", [("1.txt", "no image")]))
    with pytest.raises(ValueError, match=r"x.tar is not a readable .* names in UTF-8"):
        import_hf(shard(tmp_path / "x.tar", [("\udcff.png", pictures()[0]), ("\udcff.cls", 1)]))


LAUGHS = "\n".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 10))
CARD = f"---\na0: &a0 [bird]\n{LAUGHS}\nconfigs:\n- config_name: *a9\n  data_files: x.parquet\n---\n"


@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_a_card_whose_aliases_multiply_is_refused(tmp_path, name):
    (tmp_path / name).write_text(CARD if name == "README.md" else CARD.strip("-\n"))
    assert f"{name} is not a readable dataset card: its YAML has aliases" in attack(lambda: import_hf(tmp_path), seconds=10)


# The Hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with the dataset org/birds, for somebody who is not logged in."""
    files = {}
    for split, part in (("train", slice(0, 4)), ("test", slice(2, 5))):
        birds(part).to_parquet(tmp_path / "x.parquet")
        files[f"data/{split}-00000-of-00001.parquet"] = (tmp_path / "x.parquet").read_bytes()
    with fake_hub.serving() as server:
        server.add("datasets/org/birds", files)
        fake_hub.point_to(server, tmp_path / "hub", monkeypatch, token=None)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", server.url)
        yield server


def go_offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def cut(handler):
    """A connection that breaks."""
    handler.close_connection = True


def test_a_dataset_of_the_hub_is_downloaded_and_converted_once(tmp_path, hub):
    size = sum(map(len, hub.repositories["datasets/org/birds"].files.values()))
    assert announced("org/birds").startswith(f"The Arrow cache takes about {size / 1e6:,.1f} MB of ")
    manifest = imported("org/birds")
    assert manifest.splits == {"train": 4, "test": 3}
    manifest.save(tmp_path / "m.parquet")
    assert_same_images(Manifest.read(tmp_path / "m.parquet").split("train"), birds(slice(0, 4))["photo"])
    hub.asked.clear()
    assert announced("org/birds").startswith("The Arrow cache has this dataset already")
    assert not hub.paths(".parquet")
    old = {"train.parquet": hub.repositories["datasets/org/birds"].files["data/test-00000-of-00001.parquet"]}
    hub.repositories["datasets/org/birds"].commit(old, branch="old", deleted=["data/train-00000-of-00001.parquet"])
    assert imported("org/birds", revision="old").splits == {"train": 3}


def test_without_a_network_the_cache_is_used_and_that_is_said(hub, monkeypatch, caplog):
    online = imported("org/birds")
    go_offline(monkeypatch)
    result = import_hf("org/birds")
    assert "the Hub cannot be reached; used the cache of `datasets`" in result.sentences[0]
    assert result.manifests[""].labels.tolist() == online.labels.tolist()
    for name, options in (("org/other", {}), ("org/birds", {"revision": "v2"})):
        with pytest.raises(ConnectionError, match=f"{name}.* Hub cannot be reached"):
            import_hf(name, **options)


def test_shards_of_the_hub_stay_in_its_cache_and_are_read_without_a_network(tmp_path, hub, cache, monkeypatch):
    files = {}
    for name, samples in {"train-0.tar": "ab", "test-0.tar": "c", "validation-0.tar": "d"}.items():
        members = [(f"{one}.{end}", data) for one in samples for end, data in (("png", pictures(1)[0]), ("cls", 0))]
        files[name] = shard(tmp_path / name, members).read_bytes()
    hub.add("datasets/org/shards", files)
    hub.fault(cut, "/resolve/.*/test-0.tar")
    with pytest.raises(ConnectionError, match=r"the Hub cannot be reached \(.*start again: what was downloaded is kept"):
        import_hf("org/shards")
    hub.faults.clear()
    manifest = imported("org/shards")
    assert manifest.splits == {"train": 2, "test": 1}
    assert manifest.root.is_relative_to(tmp_path / "hub")
    assert not hub.paths("validation-0.tar"), "a split that is not used is not downloaded"
    assert not list(cache.rglob("*.arrow"))
    go_offline(monkeypatch)
    assert imported("org/shards").paths.to_pylist() == manifest.paths.to_pylist()


def test_a_dataset_of_the_hub_that_cannot_be_read_says_what_to_do(hub, monkeypatch):
    def refused(kind, text, name="org/birds", **options):
        with pytest.raises(kind, match=text) as caught:
            import_hf(name, **options)
        assert "\n" not in str(caught.value)

    refused(ValueError, "org/birds has no revision 'new'; give a branch, a tag or a commit of", revision="new")
    refused(FileNotFoundError, "org/other is neither a local file or folder nor a dataset of the Hub", "org/other")
    hub.add("datasets/org/script", {"script.py": b"raise SystemExit", "README.md": b"# Birds"})
    refused(ValueError, "`datasets` cannot read org/script: Dataset scripts are no longer supported", "org/script")
    hub.add("datasets/org/laughs", {"README.md": CARD.encode()})
    refused(ValueError, "README.md is not a readable dataset card: its YAML has aliases", "org/laughs")
    for status in (cut, 500, 503):
        hub.fault(status, "/resolve/.*parquet")
        refused(ConnectionError, "org/birds is no local file or folder, and the Hub cannot be reached")
        hub.faults.clear()
    hub.repositories["datasets/org/birds"].gated = True
    refused(PermissionError, rf"org/birds is gated: accept its conditions at {hub.url}/.*hf auth login")
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    refused(PermissionError, r"org/birds cannot be read .*; log in with a token that may read it")


def test_an_import_leaves_the_settings_of_the_process_as_they_were(tmp_path):
    def settings():
        hugging_face = datasets.config.HF_HUB_OFFLINE, datasets.config.HF_DATASETS_CACHE, are_progress_bars_disabled()
        return *hugging_face, datasets.are_progress_bars_disabled(), logging.getLogger("datasets").level

    for bars in (datasets.enable_progress_bars, datasets.disable_progress_bars):
        bars()
        before = settings()
        birds().to_parquet(tmp_path / "x.parquet")
        import_hf(tmp_path / "x.parquet")
        assert settings() == before
