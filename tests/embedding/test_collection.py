"""A manifest through a model into files: equal to the plain loop, whatever interrupts it, however many processes share it."""

import os
import shutil
import zipfile
from contextlib import closing, nullcontext

import numpy as np
import pytest
import torch

from suprank.data import ImageDataset, Manifest, eval_transform
from suprank.data.cached_images import InMemoryImages
from suprank.data.workers import loader_batches
from suprank.embedding import ImageLoaderSettings, collection, embed_collection, feature_moments, image_loading, read_embedded
from suprank.embedding.processes import Processes
from suprank.models import pca_projection
from tests.data.pictures import folder
from tests.models.tiny import embedder
from tests.ports import free_port

SHIFT = eval_transform(32, resize=None)


def reading(**changed):
    return ImageLoaderSettings(**({"transform": SHIFT, "batch_size": 2, "workers": 0} | changed))


def plain(model, manifest):
    """One image at a time, no loader, no files."""
    with torch.inference_mode():
        rows = [model(item.image[None]) for item in (ImageDataset(manifest, SHIFT)[row] for row in range(len(manifest)))]
    return torch.cat(rows).numpy()


def test_rows_are_those_of_the_plain_loop_and_items_are_a_manifest(tmp_path):
    manifest, model = folder(tmp_path), embedder(dim=8)
    found = embed_collection(model, manifest, tmp_path / "out", loading=reading())
    assert found == {"test": tmp_path / "out" / "test"}
    part = read_embedded(tmp_path / "out", "test")
    assert part.broken == 0
    assert part.items.table["path"].to_pylist() == ["a3.png", "a4.png", "a5.png"]
    assert (part.items.labels == manifest.split("test").labels).all()
    assert part.items.names == manifest.names
    np.testing.assert_allclose(part.embeddings, plain(model, manifest.split("test")), atol=1e-6)
    assert not (tmp_path / "out" / "test" / "parts").exists()


def test_splits_become_parts_and_distractors_join_the_gallery(tmp_path):
    split = ["train", "query", "gallery", "distractor", "test", "gallery"]
    manifest = folder(tmp_path, split=split)
    assert collection.choose_parts(manifest) == {"test": ("test",), "query": ("query",), "gallery": ("gallery", "distractor")}
    assert collection.choose_parts(manifest, ["train"]) == {"train": ("train",)}
    assert collection.choose_parts(manifest.split("train")) == {"train": ("train",)}
    with pytest.raises(ValueError, match="no split 'valid' here"):
        collection.choose_parts(manifest, ["valid"])
    embed_collection(embedder(), manifest, tmp_path / "out", loading=reading())
    assert read_embedded(tmp_path / "out", "gallery").items.table["path"].to_pylist() == ["a2.png", "a3.png", "a5.png"]


class StopsError(Exception):
    """An interruption."""


@pytest.mark.parametrize("stop_after", range(5))
def test_a_run_that_was_interrupted_goes_on_without_redoing_parts(tmp_path, monkeypatch, stop_after):
    monkeypatch.setattr(collection, "SHARD_ROWS", 2)
    manifest, model = folder(tmp_path, count=9, split=["test"] * 9), embedder()
    embed_collection(model, manifest, tmp_path / "whole", loading=reading())
    seen = []

    def counted(image):
        seen.append(image)
        if len(seen) > 2 * stop_after:
            raise StopsError
        return SHIFT(image)

    interrupted = Transform(counted)
    with pytest.raises(StopsError):
        embed_collection(model, manifest, tmp_path / "out", loading=reading(transform=interrupted))
    seen.clear()
    going_on = Transform(lambda image: seen.append(image) or SHIFT(image))
    embed_collection(model, manifest, tmp_path / "out", loading=reading(transform=going_on))
    assert len(seen) == 9 - 2 * stop_after
    whole, again = (read_embedded(tmp_path / name, "test").embeddings for name in ("whole", "out"))
    assert (np.asarray(whole) == np.asarray(again)).all()


class Transform:
    """A function that says the same of itself whichever it is."""

    def __init__(self, function):
        self.function = function

    def __call__(self, image):
        return self.function(image)

    def __repr__(self):
        return "Transform()"


def replace_image(manifest, name, by):
    """Give an image the bytes of another one, and an old time."""
    (manifest.root / name).write_bytes((manifest.root / by).read_bytes())
    os.utime(manifest.root / name, (0, 0))


def test_images_that_were_replaced_under_the_same_names_are_refused(tmp_path):
    manifest, model = folder(tmp_path), embedder()
    embed_collection(model, manifest, tmp_path / "out", loading=reading())
    replace_image(manifest, "a4.png", by="a0.png")
    with pytest.raises(ValueError, match=r"other images of the same names: 1 of 3, the first a4.png. Choose another"):
        embed_collection(model, manifest, tmp_path / "out", loading=reading())


@pytest.fixture
def nine(tmp_path, monkeypatch):
    """A function that embeds nine images, two in a shard, from a copy of the images on a machine, or what it is given."""
    monkeypatch.setattr(collection, "SHARD_ROWS", 2)
    manifest = folder(tmp_path, count=9, split=["test"] * 9)

    def embed_nine(out, shard=None, machine="", model=embedder(), **options):
        root = tmp_path / machine
        if machine and not root.exists():
            root.mkdir()
            for file in tmp_path.glob("*.png"):
                shutil.copyfile(file, root / file.name)
        copied = Manifest.from_columns(manifest.table, root=root)
        embed_collection(model, copied, tmp_path / out, loading=reading(), shard=shard, **options)
        return tmp_path / out / "test"

    return embed_nine


def test_shares_of_machines_that_see_nothing_of_each_other_are_copied_into_one_folder_and_joined(nine):
    """Each has a copy of the images, with other times of change, and the one that joins them has none."""
    alone, notes = nine("alone"), []
    one = nine("one", (1, 2), "a", note=notes.append)
    other = nine("other", (2, 2), "b", note=notes.append)
    assert notes == [
        f"{one}: 0 of 3 shards of 1/2 were there, 3 computed now.",
        f"{other}: 0 of 2 shards of 2/2 were there, 2 computed now.",
    ]
    shutil.copytree(other, one, dirs_exist_ok=True)
    nine("one", machine="a", note=notes.append)
    assert notes[2] == f"{one}: 5 of 5 shards were there, 0 computed now, joined."
    assert (one / "embeddings.npy").read_bytes() == (alone / "embeddings.npy").read_bytes()
    assert sorted(file.name for file in one.iterdir()) == sorted(file.name for file in alone.iterdir())
    assert read_embedded(one.parent, "test").items.table.equals(read_embedded(alone.parent, "test").items.table)


def test_a_share_of_another_model_is_noticed_when_it_is_copied(nine):
    one = nine("one", (1, 2))
    other = nine("other", (2, 2), model=embedder(seed=1))
    shutil.copytree(other, one, dirs_exist_ok=True)
    shutil.copytree(one, one.parent.parent / "parts alone" / "test", ignore=shutil.ignore_patterns("run.json"))
    for out in ("one", "parts alone"):
        with pytest.raises(ValueError, match="has the embeddings of another run: model is"):
            nine(out)
    (one / "parts/1-of-2.json").unlink()
    with pytest.raises(ValueError, match="has the embeddings of another run: model is"):
        nine("one")


@pytest.mark.parametrize("left_behind", [(), ("run.json",)])
def test_images_of_other_bytes_than_a_share_was_embedded_from_are_refused_when_it_is_joined(nine, tmp_path, left_behind):
    shutil.copytree(nine("other", (2, 2), "b"), tmp_path / "third/test", ignore=shutil.ignore_patterns(*left_behind))
    shutil.copy(tmp_path / "a0.png", tmp_path / "b/a6.png")
    with pytest.raises(ValueError, match=r"third/test has the embeddings of other images .*: 1 of 9, the first a6.png"):
        nine("third", machine="b")


def test_shards_whose_images_are_not_known_are_not_joined(nine):
    one, other = nine("one", (1, 2)), nine("other", (2, 2))
    shutil.copytree(other / "parts", one / "parts", dirs_exist_ok=True)
    with pytest.raises(FileNotFoundError, match=r"one/test/contents lacks 2 of 5 files, the first 00002.npy"):
        nine("one")
    shutil.copytree(other / "contents", one / "contents", dirs_exist_ok=True)
    nine("one")


def test_a_machine_looks_at_the_images_of_its_own_share_only(nine, tmp_path):
    nine("out", (1, 2))
    shutil.copy(tmp_path / "a0.png", tmp_path / "a1.png")
    nine("out", (2, 2))
    for shard in ((1, 2), None):
        with pytest.raises(ValueError, match="other images of the same names: 1 of 9, the first a1.png"):
            nine("out", shard)


def test_an_image_that_was_replaced_during_an_interruption_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(collection, "SHARD_ROWS", 2)
    manifest, model, seen = folder(tmp_path, count=9, split=["test"] * 9), embedder(), []

    def stopping(image):
        seen.append(image)
        if len(seen) > 4:
            raise StopsError
        return SHIFT(image)

    with pytest.raises(StopsError):
        embed_collection(model, manifest, tmp_path / "out", loading=reading(transform=Transform(stopping)))
    replace_image(manifest, "a8.png", by="a0.png")  # not embedded yet
    replace_image(manifest, "a1.png", by="a0.png")
    with pytest.raises(ValueError, match=r"of the same names: 1 of 9, the first a1.png"):
        embed_collection(model, manifest, tmp_path / "out", loading=reading(transform=Transform(SHIFT)))


def test_a_copy_of_the_images_elsewhere_goes_on_and_images_that_are_gone_are_no_other_images(tmp_path):
    (tmp_path / "one").mkdir()
    manifest, model = folder(tmp_path / "one"), embedder()
    (tmp_path / "one" / "a5.png").write_bytes(b"broken")
    options = {"loading": reading(on_broken="skip")}
    embed_collection(model, manifest, tmp_path / "out", **options)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for file in (tmp_path / "two").iterdir():
        os.utime(file, (1, 1))
    copied = Manifest.from_columns(manifest.table, root=tmp_path / "two")
    before = (tmp_path / "out/test/embeddings.npy").stat().st_mtime_ns
    embed_collection(model, copied, tmp_path / "out", **options)
    shutil.copy(tmp_path / "two" / "a0.png", tmp_path / "two" / "a5.png")
    with pytest.raises(ValueError, match="1 of 3, the first a5.png"):  # a broken image that was repaired
        embed_collection(model, copied, tmp_path / "out", **options)
    for file in (tmp_path / "two").iterdir():
        file.unlink()
    embed_collection(model, copied, tmp_path / "out", **options)
    assert (tmp_path / "out/test/embeddings.npy").stat().st_mtime_ns == before


def test_an_image_that_was_replaced_in_an_archive_is_refused_and_a_new_archive_of_the_same_is_not(tmp_path):
    folder(tmp_path)

    def packed(names):
        with zipfile.ZipFile(tmp_path / "i.zip", "w") as archive:
            for place, name in enumerate(names):
                archive.write(tmp_path / name, f"{place}.png")

    columns = {"path": [f"i.zip::{place}.png" for place in range(3)], "split": ["test"] * 3, "label_a": ["x"] * 3}
    manifest, model = Manifest.from_columns(columns, root=tmp_path), embedder()
    for names in (("a0.png", "a1.png", "a2.png"), ("a0.png", "a1.png", "a2.png"), ("a0.png", "a1.png", "a3.png")):
        packed(names)
        with nullcontext() if names[2] == "a2.png" else pytest.raises(ValueError, match="1 of 3, the first i.zip::2.png"):
            embed_collection(model, manifest, tmp_path / "out", loading=reading())


def test_labels_are_those_of_the_manifest_now_and_that_is_said_in_one_line(tmp_path, caplog):
    manifest, model = folder(tmp_path), embedder()
    for fine in (["f0", "f0", "f1", "f1", "f2", "f2"], ["f0", "f0", "f1", "f1", "f2", "f3"]):
        caplog.clear()
        embed_collection(model, manifest.with_columns(label_fine=fine), tmp_path / "out", loading=reading())
    assert [one.getMessage() for one in caplog.records] == [
        f"{tmp_path / 'out' / 'test'}: the labels (fine) are replaced by those of the manifest."
    ]
    assert read_embedded(tmp_path / "out", "test").items.table["label_fine"].to_pylist() == ["f1", "f2", "f3"]
    caplog.clear()
    embed_collection(model, manifest.with_columns(label_fine=fine), tmp_path / "out", loading=reading())
    assert not caplog.records


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model": embedder(seed=1)}, "model is"),
        ({"manifest": lambda manifest: manifest.take([5, 4, 3])}, "images is"),
        ({"precision": "bf16"}, "precision is 'bf16' and was 'fp32'"),
        ({"scales": (1.0, 0.5)}, "scales is"),
        ({"loading": reading(transform=eval_transform(16, resize=None))}, "transform is"),
        ({"loading": reading(decoder="turbo")}, "decoder is 'turbo' and was 'pil'"),
    ],
)
def test_another_run_in_the_folder_is_refused_with_what_differs(tmp_path, changed, named):
    manifest, model = folder(tmp_path), embedder()
    embed_collection(model, manifest, tmp_path / "out", loading=reading())
    changed = dict(changed)
    other = changed.pop("manifest", lambda manifest: manifest)(manifest)
    with pytest.raises(ValueError, match=named):
        embed_collection(changed.pop("model", model), other, tmp_path / "out", **({"loading": reading()} | changed))


def test_broken_images_are_left_out_and_counted_and_so_is_a_batch_of_nothing_else(tmp_path):
    manifest, model = folder(tmp_path, count=9, split=["test"] * 9), embedder()
    for broken in (2, 3, 8):
        (tmp_path / f"a{broken}.png").write_bytes(b"no image")
    embed_collection(model, manifest, tmp_path / "out", loading=reading(on_broken="skip"))
    part = read_embedded(tmp_path / "out", "test")
    assert part.broken == 3
    assert part.items.table["path"].to_pylist() == [f"a{i}.png" for i in (0, 1, 4, 5, 6, 7)]
    kept = manifest.take([0, 1, 4, 5, 6, 7])
    np.testing.assert_allclose(part.embeddings, plain(model, kept), atol=1e-6)


def test_half_precision_on_disk_and_several_scales(tmp_path):
    manifest, model = folder(tmp_path), embedder()
    embed_collection(model, manifest, tmp_path / "half", loading=reading(), dtype="float16")
    embed_collection(model, manifest, tmp_path / "scales", loading=reading(), scales=(1.0, 0.5))
    half, scales = (read_embedded(tmp_path / name, "test").embeddings for name in ("half", "scales"))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, plain(model, manifest.split("test")), atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(scales, axis=1), 1, atol=1e-6)
    assert np.abs(scales - plain(model, manifest.split("test"))).max() > 1e-3


def test_images_that_are_decoded_and_transformed_already_are_copied_in_this_process(tmp_path, monkeypatch):
    manifest, loading = folder(tmp_path), reading(workers=2)
    loaders = []
    monkeypatch.setattr(image_loading, "loader_batches", lambda loader: loaders.append(loader) or loader_batches(loader))
    for images in (loading.dataset(manifest), InMemoryImages.transformed(loading.dataset(manifest))):
        with closing(loading.batches(images, np.arange(6), pinned=False)) as batches:
            assert torch.cat([batch.images for batch in batches]).shape == (6, 3, 32, 32)
    assert [loader.num_workers for loader in loaders] == [2, 0]


def test_workers_give_the_same_rows(tmp_path):
    manifest, model = folder(tmp_path, count=9, split=["test"] * 9), embedder()
    for workers in (0, 2):
        embed_collection(model, manifest, tmp_path / str(workers), loading=reading(workers=workers))
    one, two = (np.asarray(read_embedded(tmp_path / name, "test").embeddings) for name in "02")
    assert (one == two).all()


def test_folders_without_a_finished_run_say_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no embeddings"):
        read_embedded(tmp_path, "test")
    (tmp_path / "test").mkdir()
    with pytest.raises(FileNotFoundError, match="not a folder of `suprank embed`"):
        read_embedded(tmp_path, "test")
    (tmp_path / "test" / "run.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="interrupted; give its `suprank embed` again"):
        read_embedded(tmp_path, "test")


def test_moments_of_a_manifest_are_those_of_its_features(tmp_path):
    manifest, model = folder(tmp_path, count=9), embedder(normalization="l2")
    moments = feature_moments(model, manifest, loading=reading())
    with torch.inference_mode():
        features = torch.cat([model.features(ImageDataset(manifest, SHIFT)[row].image[None]) for row in range(9)]).double()
    np.testing.assert_allclose(moments.mean, features.mean(0), atol=1e-6)
    np.testing.assert_allclose(moments.covariance(), np.cov(features.T), atol=1e-6)
    projected = model.with_projection(*pca_projection(moments, 4))
    assert projected.dim == 4


WORKER = """
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from suprank.data import Manifest, eval_transform
from suprank.data.cached_images import InMemoryImages
from suprank.data.workers import loader_batches
from suprank.embedding import ImageLoaderSettings, collection, embed_collection, torchrun_processes, feature_moments
from suprank.models import Embedder
collection.SHARD_ROWS = 2
folder = Path(sys.argv[1])
child = os.fork()
rank = str(int(child == 0))
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}
with torchrun_processes() as processes:
    model, manifest = Embedder.load(folder / "model"), Manifest.read(folder / "m.parquet")
    reading = ImageLoaderSettings(eval_transform(32, resize=None), batch_size=2, workers=0)
    embed_collection(model, manifest, folder / "shared", loading=reading, processes=processes)
    moments = feature_moments(model, manifest, loading=reading, processes=processes)
    (folder / f"rank{processes.rank}").write_text(f"{moments.count} {moments.scatter.trace()}")
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) if child else 0)
"""


def test_two_processes_write_what_one_does(forked, tmp_path):
    manifest, model = folder(tmp_path, count=9, split=["test"] * 9), embedder()
    manifest.save(tmp_path / "m.parquet")
    model.save(tmp_path / "model")
    embed_collection(model, manifest, tmp_path / "alone", loading=reading())
    code, _, errors = forked.script(WORKER, tmp_path, free_port()).end(timeout=120)
    assert code == 0, errors[-2000:]
    alone, shared = (np.asarray(read_embedded(tmp_path / name, "test").embeddings) for name in ("alone", "shared"))
    assert (alone == shared).all()
    moments = feature_moments(model, manifest, loading=reading())
    for rank in (0, 1):
        count, trace = (tmp_path / f"rank{rank}").read_text().split()
        assert int(count) == moments.count == 9
        assert float(trace) == pytest.approx(moments.scatter.trace(), rel=1e-4)


def test_a_run_that_came_to_nothing_does_not_stand_in_the_way_of_another(tmp_path):
    manifest, model = folder(tmp_path), embedder()
    (tmp_path / "a4.png").rename(tmp_path / "elsewhere.png")
    with pytest.raises(FileNotFoundError, match="a4.png"):
        embed_collection(model, manifest, tmp_path / "out", loading=reading())
    (tmp_path / "elsewhere.png").rename(tmp_path / "a4.png")
    embed_collection(embedder(seed=1), manifest, tmp_path / "out", loading=reading())
    assert len(read_embedded(tmp_path / "out", "test").embeddings) == 3


def test_progress_of_moments_ends_at_the_end_also_without_broken_images(tmp_path):
    manifest, said = folder(tmp_path, count=9), []
    for broken in (4, 8):
        (tmp_path / f"a{broken}.png").write_bytes(b"no image")
    skipping = reading(on_broken="skip")
    moments = feature_moments(embedder(), manifest, loading=skipping, progress=lambda *at: said.append(at))
    assert moments.count == 7
    assert said[-1] == (9, 9)


def test_a_model_that_gives_nan_is_refused_and_not_taken_for_broken_images(tmp_path):
    model = embedder(dim=8)
    with torch.no_grad():
        model.projection.bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"the model gives NaN for a3\.png, an intact image"):
        embed_collection(model, folder(tmp_path), tmp_path / "out", loading=reading())


def test_a_column_that_called_an_image_broken_in_an_earlier_run_is_told_anew(tmp_path):
    manifest = folder(tmp_path).with_columns(broken=[True] * 6)
    embed_collection(embedder(), manifest, tmp_path / "out", loading=reading())
    part = read_embedded(tmp_path / "out", "test")
    assert part.broken == 0
    assert len(part.items) == len(part.embeddings) == 3


def test_parts_of_two_models_do_not_share_a_folder(tmp_path):
    manifest = folder(tmp_path, split=["query"] * 3 + ["gallery"] * 3)
    embed_collection(embedder(), manifest, tmp_path / "out", loading=reading(), splits=["query"])
    with pytest.raises(ValueError, match="out/query was embedded with another model, and parts of one folder are compared"):
        embed_collection(embedder(seed=1), manifest, tmp_path / "out", loading=reading(), splits=["gallery"])
    embed_collection(embedder(), manifest, tmp_path / "out", loading=reading(), splits=["gallery"])


def test_items_of_another_length_than_the_embeddings_are_refused(tmp_path):
    manifest = folder(tmp_path)
    embed_collection(embedder(), manifest, tmp_path / "out", loading=reading())
    manifest.save(tmp_path / "out" / "test" / "items.parquet")
    with pytest.raises(ValueError, match=r"items\.parquet has 6 rows and embeddings\.npy 3"):
        read_embedded(tmp_path / "out", "test")


def test_processes_that_ask_for_cuda_have_a_gpu_each(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(Processes(rank, 3, rank).device("cuda")) for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert str(Processes(1, 3, 1).device("cuda:0")) == "cuda:0"
    assert str(Processes(1, 3, 1).device("cpu")) == "cpu"
