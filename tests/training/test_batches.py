"""Training batches: the same pixels on any number of workers and processes, after a resume, and in place of broken images."""

import gc
import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.data import BalancedBatchSampler, ImageDataset, Manifest, train_transform
from suprank.training import batches as batches_module
from suprank.training.batches import TrainBatches
from suprank.training.config import TrainConfig
from suprank.training.seeds import derive_seed
from tests.data.pictures import encoded, smooth
from tests.training.runs import start_process
from tests.waiting import wait_until


def collection(root, classes=6, images=4, broken=()):
    """Classes c0, c1, ... two to a group, of pictures of several sizes; a further test image comes first."""
    rows = [(f"{row}.png", f"c{row // images}", f"g{row // images // 2}") for row in range(classes * images)]
    root.mkdir(exist_ok=True)
    for row, (path, _, _) in enumerate(rows):
        data = encoded(smooth(40 + row, 30, seed=row))
        (root / path).write_bytes(data[:60] if row in broken else data)
    paths, kinds, groups = zip(("t.png", "other", "other"), *rows, strict=True)
    splits = ["test", *["train"] * len(rows)]
    return Manifest.from_columns({"path": paths, "split": splits, "label_kind": kinds, "label_group": groups}, root=root)


def recipe(workers=0, **parts):
    """A recipe of 16 × 16 crops and batches of 8, two of a class."""
    return TrainConfig.model_validate(
        {
            "data": {"manifest": "m.parquet", "workers": workers, **parts.pop("data", {})},
            "images": {"size": 16, "test_resize": 16},
            "loss": {"name": "smooth-ap"},
            "batch": {"size": 8, "images_per_class": 2, **parts.pop("batch", {})},
            **parts,
        }
    )


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.images == other.images).all()
        assert (one.labels == other.labels).all()
        assert one.ids.tolist() == other.ids.tolist()
        assert one.replaced == other.replaced


def test_a_batch_holds_the_samplers_rows_under_the_seeds_of_their_places(tmp_path):
    manifest = collection(tmp_path)
    batches = TrainBatches.from_config(recipe(run={"seed": 5}), manifest)
    train = manifest.split("train")
    sampler = BalancedBatchSampler(train.labels, 8, 2, seed=5)
    dataset = ImageDataset(train, train_transform(16, mean=None))
    assert len(batches) == len(sampler)
    seen = list(batches.batches(0, 0, 2))
    rows = [*sampler, *sampler]  # the second time round is epoch 1
    assert [one.ids.tolist() for one in seen] == rows
    for number, one in enumerate(seen):
        epoch, batch = divmod(number, len(batches))
        assert one.images.dtype == torch.uint8
        assert one.images.shape == (8, 3, 16, 16)
        for place, row in enumerate(one.ids.tolist()):
            torch.manual_seed(derive_seed(5, epoch, batch, place))
            assert (one.images[place] == dataset[row].image).all()
    assert (seen[0].labels == batches.labels[seen[0].ids]).all()


def test_labels_are_numbered_from_0_over_the_training_images(tmp_path):
    batches = TrainBatches.from_config(recipe(), collection(tmp_path))  # "other" comes last in the alphabet, of groups too
    assert batches.levels == ("kind", "group")
    assert batches.classes == 6
    assert batches.labels.tolist() == [[row // 4, row // 8] for row in range(24)]
    assert batches.labels.dtype == torch.int64
    assert batches.paths[0].as_py() == "0.png"
    last = Manifest.from_columns(
        {"path": ["a", "b", "c"], "split": ["test", "train", "train"], "label_k": ["a", "c", "b"]}, root=tmp_path
    )
    assert TrainBatches.from_config(recipe(batch={"size": 2, "images_per_class": 1}), last).labels.tolist() == [[1], [0]]
    groups = TrainBatches.from_config(recipe(data={"levels": ["group"]}, batch={"size": 4}), collection(tmp_path))
    assert groups.labels.tolist() == [[row // 8] for row in range(24)]


def test_training_images_without_a_label_are_no_class_of_their_own(tmp_path):
    manifest = collection(tmp_path)
    kinds = [None if row < 2 else name for row, name in enumerate(manifest.table["label_kind"].to_pylist())]
    with pytest.raises(ValueError, match="kind is blank; fill it in"):
        TrainBatches.from_config(recipe(), manifest.with_columns(label_kind=kinds))


@pytest.mark.parametrize("levels", [("kind", "group"), ("group", "kind")], ids=["two parents", "reversed"])
def test_labels_that_are_no_tree_finest_first_are_warned_of(tmp_path, caplog, levels):
    manifest = collection(tmp_path)
    columns = {name: manifest.table[name].to_pylist() for name in ("path", "split", "label_kind", "label_group")}
    if levels == ("kind", "group"):
        columns["label_group"][1] = columns["label_group"][-1]
    ordered = {name: columns[name] for name in ("path", "split", *(f"label_{level}" for level in levels))}
    TrainBatches.from_config(recipe(), manifest)
    assert caplog.text == ""
    TrainBatches.from_config(recipe(batch={"size": 4}), Manifest.from_columns(ordered, root=tmp_path))
    assert "training labels of" in caplog.text
    assert ("finest first" if levels[0] == "group" else "stands under group 0, and under 2") in caplog.text


def test_epochs_and_places_and_seeds_see_different_crops(tmp_path):
    manifest = collection(tmp_path, classes=1, images=2)
    batch = {"size": 2, "images_per_class": 2}
    batches = TrainBatches.from_config(recipe(batch=batch), manifest)
    other = TrainBatches.from_config(recipe(batch=batch, run={"seed": 1}), manifest)
    crops = {one.images[one.ids == 0].numpy().tobytes() for each in (batches, other) for one in each.batches(0, 0, 10)}
    assert len(crops) == 20


# Workers, processes, resuming


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_and_random_numbers_of_the_process_make_no_difference(tmp_path):
    manifest = collection(tmp_path)
    alone = list(TrainBatches.from_config(recipe(), manifest).batches(0, 0, 2))
    torch.manual_seed(123)
    before = torch.get_rng_state()
    assert_same(list(TrainBatches.from_config(recipe(workers=2), manifest).batches(0, 0, 2)), alone)
    list(TrainBatches.from_config(recipe(), manifest).batches(0, 0, 1))
    assert (torch.get_rng_state() == before).all()


@pytest.mark.parametrize("sampler", ["m-per-class", "hierarchical"])
@pytest.mark.parametrize("broken", [(), (0, 1, 2, 3, 9, 17)])
def test_processes_see_together_what_one_sees_alone(tmp_path, sampler, broken):
    manifest = collection(tmp_path, broken=broken)
    config = recipe(batch={"sampler": sampler}, data={"on_broken": "skip"})
    alone = list(TrainBatches.from_config(config, manifest).batches(0, 0, 2))
    for world in (2, 4):
        parts = [
            list(TrainBatches.from_config(config, manifest, rank=rank, world_size=world).batches(0, 0, 2))
            for rank in range(world)
        ]
        together = [
            batches_module.TrainBatch(
                *(torch.cat(column) for column in list(zip(*part, strict=True))[:3]), sum(one.replaced for one in part)
            )
            for part in zip(*parts, strict=True)
        ]
        assert_same(together, alone)


def test_large_batches_are_put_together_from_pieces(tmp_path, monkeypatch):
    manifest = collection(tmp_path, broken=[5])
    config = recipe(data={"on_broken": "skip"})
    whole = list(TrainBatches.from_config(config, manifest).batches(0, 0, 1))
    monkeypatch.setattr(batches_module, "MAX_PIECE", 3)
    assert_same(list(TrainBatches.from_config(config, manifest).batches(0, 0, 1)), whole)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return collection(tmp_path_factory.mktemp("images"))


@given(consumed=st.integers(0, 6))
def test_a_resumed_feed_yields_what_was_left(manifest, consumed):
    batches = TrainBatches.from_config(recipe(), manifest)
    whole = list(batches.batches(0, 0, 2))
    state = batches.state_dict(0, consumed)
    resumed = TrainBatches.from_config(recipe(), manifest)
    resumed.check_state_dict(state)
    assert_same(list(resumed.batches(state["epoch"], state["consumed"], 2)), whole[consumed:])
    assert_same(list(resumed.batches(0, consumed, 2)), whole[consumed:])


def test_states_of_other_images_labels_or_settings_are_refused(tmp_path):
    manifest = collection(tmp_path)
    batches = TrainBatches.from_config(recipe(), manifest)
    state = batches.state_dict(1, 2)
    TrainBatches.from_config(recipe(), manifest, rank=1, world_size=2).check_state_dict(state)
    with pytest.raises(ValueError, match="batch_size was 8 and is 4"):
        TrainBatches.from_config(recipe(batch={"size": 4}), manifest).check_state_dict(state)
    with pytest.raises(ValueError, match="seed was 0 and is 1"):
        TrainBatches.from_config(recipe(run={"seed": 1}), manifest).check_state_dict(state)
    shuffled = manifest.take(np.arange(len(manifest))[::-1])
    for other in (
        TrainBatches.from_config(recipe(), shuffled),
        TrainBatches.from_config(recipe(data={"levels": ["kind"]}), manifest),
    ):
        with pytest.raises(ValueError, match="training images or their labels are not those that the run began with"):
            other.check_state_dict(state)
    assert batches.state_dict(0, len(batches)) == batches.state_dict(1, 0), "a finished epoch is the beginning of the next"


# Broken images


def test_a_broken_image_is_replaced_by_one_of_its_class_and_named_once(tmp_path, caplog):
    manifest = collection(tmp_path, classes=4, broken=[5])
    batches = TrainBatches.from_config(recipe(data={"on_broken": "skip"}), manifest)
    whole = TrainBatches.from_config(recipe(data={"on_broken": "skip"}), collection(tmp_path / "whole", classes=4))
    with caplog.at_level(logging.WARNING):
        seen = list(batches.batches(0, 0, 4))
    replaced = 0
    for one, expected in zip(seen, whole.batches(0, 0, 4), strict=True):
        missing = expected.ids == 5
        assert one.replaced == missing.sum()
        assert (one.images[~missing] == expected.images[~missing]).all()
        assert (one.labels == expected.labels).all(), "of its class"
        assert 5 not in one.ids
        replaced += one.replaced
    assert replaced >= 4
    output = [record.getMessage() for record in caplog.records]
    assert len(output) == 1
    assert output[0].startswith("replaced 5.png by another image of the batch: cannot be decoded")


def test_a_broken_image_with_several_labels_is_replaced_by_one_that_shares_one(tmp_path):
    single = collection(tmp_path, classes=4, broken=[5])
    kinds = [[kind, "other"] if row % 2 else [kind] for row, kind in enumerate(single.table["label_kind"].to_pylist())]
    manifest = single.with_columns(label_kind=kinds, label_group=["g"] * len(single))
    batches = TrainBatches.from_config(recipe(data={"on_broken": "skip"}), manifest)
    assert batches.labels.shape == (16, 2, 2)
    whole = BalancedBatchSampler(batches.labels.numpy(), 8, 2, seed=0)
    replaced = 0
    for one, rows in zip(batches.batches(0, 0, 1), whole, strict=True):
        for row, expected in zip(one.ids.tolist(), rows, strict=True):
            assert row == expected or expected == 5
            assert set(batches.labels[row, 0].tolist()) & set(batches.labels[expected, 0].tolist()) - {-1}
        replaced += one.replaced
    assert replaced


def test_a_class_that_is_all_broken_is_replaced_by_others_of_the_batch(tmp_path):
    batches = TrainBatches.from_config(recipe(data={"on_broken": "skip"}), collection(tmp_path, classes=4, broken=range(4)))
    for one in batches.batches(0, 0, 2):
        assert one.replaced == 2
        assert one.ids.min() >= 4
        assert (one.labels == batches.labels[one.ids]).all()


def test_a_batch_without_any_whole_image_raises(tmp_path):
    batches = TrainBatches.from_config(recipe(data={"on_broken": "skip"}), collection(tmp_path, broken=range(24)))
    with pytest.raises(ValueError, match=r"all 8 images of batch 0 of epoch 0 are broken, \d+.png for one: cannot be"):
        next(batches.batches(0, 0, 1))


def test_a_broken_image_raises_unless_it_may_be_skipped(tmp_path):
    batches = TrainBatches.from_config(recipe(), collection(tmp_path, broken=[3]))
    with pytest.raises(ValueError, match="3.png: cannot be decoded"):
        list(batches.batches(0, 0, 1))


# Settings


def test_held_images_are_the_same(tmp_path):
    manifest = collection(tmp_path, broken=[7])
    output = []
    config = recipe(data={"on_broken": "skip"})
    cached = recipe(data={"on_broken": "skip", "cache_images": True})
    batches = TrainBatches.from_config(cached, manifest, progress=lambda done, total: output.append((done, total)))
    assert output[-1] == (24, 24)
    expected = list(TrainBatches.from_config(config, manifest).batches(0, 0, 1))
    for file in tmp_path.glob("*.png"):
        file.unlink()  # nothing is read again
    assert_same(list(batches.batches(0, 0, 1)), expected)


@pytest.mark.parametrize("way", ["cache_images", "crop_on_device"])
def test_decoded_images_in_a_folder_are_the_same_for_every_run(tmp_path, way):
    manifest = collection(tmp_path, broken=[7])
    without, shared = (
        recipe(data={"on_broken": "skip", way: True, **further})
        for further in ({}, {"cache_folder": str(tmp_path / "decoded")})
    )
    expected = list(TrainBatches.from_config(without, manifest).batches(0, 0, 1))
    first = TrainBatches.from_config(shared, manifest)
    second = TrainBatches.from_config(shared, manifest, progress=lambda *_: pytest.fail("it decodes again"))
    assert_same(list(first.batches(0, 0, 1)), expected)
    assert_same(list(second.batches(0, 0, 1)), expected)


def test_crops_are_those_of_the_recipe(tmp_path):
    manifest = collection(tmp_path)
    crops = {"size": 16, "test_resize": 16, "crop_scale": [1.0, 1.0], "crop_ratio": [1.2, 1.2], "flip": 1.0, "resize": 20}
    batches = TrainBatches.from_config(recipe(images=crops), manifest)
    expected = train_transform(16, resize=20, scale=(1.0, 1.0), ratio=(1.2, 1.2), flip=1.0, mean=None)
    assert repr(batches._images.images.transform) == repr(expected)
    assert batches._images.images.min_short_side is None
    fast = TrainBatches.from_config(recipe(data={"fast_jpeg": True, "decoder": "turbo"}), manifest)
    assert fast._images.images.min_short_side == 47  # 16 / sqrt(0.16 · 0.75)
    assert (batches._images.images.decoder, fast._images.images.decoder) == ("pil", "turbo")


def test_the_hierarchical_sampler_takes_its_level_by_name(tmp_path):
    manifest = collection(tmp_path)
    config = {"sampler": "hierarchical", "batches": 3, "coarse_per_batch": 1}
    for level in (None, "group"):
        for one in TrainBatches.from_config(recipe(batch={**config, "level": level}), manifest).batches(0, 0, 1):
            assert len(one.labels[:, 1].unique()) == 1


@pytest.mark.parametrize(
    ("parts", "world", "complaint"),
    [
        (
            {"data": {"levels": ["genus"]}},
            1,
            r"data.levels=\['genus'\] must be one or more of the levels of m.parquet: kind, group",
        ),
        ({"data": {"levels": ["group", "kind"]}}, 1, "must come once each, finest first, as in m.parquet: kind, group"),
        (
            {"batch": {"sampler": "hierarchical", "level": "kind"}},
            1,
            "needs a level coarser than kind.*choose batch.level from group",
        ),
        ({"batch": {"sampler": "hierarchical"}, "data": {"levels": ["kind"]}}, 1, "use the m-per-class sampler"),
        ({}, 3, "batch.size=8 must be a multiple of batch.images_per_class=2 × 3 processes = 6.*try 6 or 12"),
        ({"batch": {"size": 14}}, 1, "needs 7 classes"),
    ],
)
def test_what_the_images_cannot_give_is_refused(tmp_path, parts, world, complaint):
    with pytest.raises(ValueError, match=complaint):
        TrainBatches.from_config(recipe(**parts), collection(tmp_path), world_size=world)


def test_a_manifest_without_training_images_or_labels_is_refused(tmp_path):
    with pytest.raises(ValueError, match="m.parquet has no images to train on, only test"):
        TrainBatches.from_config(recipe(), collection(tmp_path).split("test"))
    bare = Manifest.from_columns({"path": ["0.png"], "split": ["train"]}, root=tmp_path, levels=())
    with pytest.raises(ValueError, match="m.parquet has no labels to train with"):
        TrainBatches.from_config(recipe(), bare)


# Worker processes


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_ignore_signals_and_end_with_the_iterator(tmp_path):
    before = set(multiprocessing.active_children())
    batches = TrainBatches.from_config(recipe(workers=2), collection(tmp_path)).batches(0, 0, 50)
    next(batches)
    started = set(multiprocessing.active_children()) - before
    assert len(started) == 2
    for worker in started:
        os.kill(worker.pid, signal.SIGINT)
        os.kill(worker.pid, signal.SIGTERM)
    for _ in range(8):  # more than they had read ahead
        next(batches)
    assert all(worker.is_alive() for worker in started)
    del batches
    gc.collect()
    assert not any(worker.is_alive() for worker in started)


def read_for_ever(folder):
    """Read batches with two workers, whose process ids are written to a file."""
    torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 0.2  # of 5 s
    batches = TrainBatches.from_config(recipe(workers=2), Manifest.read(folder / "m.parquet")).batches(0, 0, 1000)
    next(batches)
    (folder / "some").write_text(" ".join(str(child.pid) for child in multiprocessing.active_children()))
    (folder / "some").rename(folder / "workers")
    time.sleep(60)


@pytest.mark.slow
def test_workers_end_when_the_process_that_trains_is_killed(forked, tmp_path):
    collection(tmp_path).save(tmp_path / "m.parquet")
    process = start_process(forked, read_for_ever, tmp_path)
    wait_until(lambda: (tmp_path / "workers").exists())
    workers = [int(number) for number in (tmp_path / "workers").read_text().split()]
    process.kill()
    process.join()
    assert len(workers) == 2
    wait_until(lambda: not any(map(alive, workers)))  # they look now and then whether their parent is there


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:  # it has just ended
        return False


# Cropped on the device


def test_crops_on_the_device_are_of_the_samplers_rows_and_differ_between_epochs(tmp_path):
    manifest = collection(tmp_path)
    ours = list(TrainBatches.from_config(recipe(data={"crop_on_device": True}), manifest).batches(0, 0, 2))
    usual = list(TrainBatches.from_config(recipe(), manifest).batches(0, 0, 2))
    assert [one.ids.tolist() for one in ours] == [one.ids.tolist() for one in usual]
    assert [one.labels.tolist() for one in ours] == [one.labels.tolist() for one in usual]
    assert {(one.images.dtype, one.images.shape) for one in ours} == {(torch.uint8, (8, 3, 16, 16))}
    assert len({one.images.numpy().tobytes() for one in ours}) == len(ours)


def test_crops_on_the_device_are_the_same_after_a_resume_and_on_several_processes(tmp_path):
    manifest, config = collection(tmp_path), recipe(data={"crop_on_device": True})
    whole = list(TrainBatches.from_config(config, manifest).batches(0, 0, 2))
    assert_same(list(TrainBatches.from_config(config, manifest).batches(0, 2, 2)), whole[2:])
    parts = [list(TrainBatches.from_config(config, manifest, rank=rank, world_size=2).batches(0, 0, 2)) for rank in range(2)]
    for one, *halves in zip(whole, *parts, strict=True):
        assert (torch.cat([half.images for half in halves]) == one.images).all()
        assert torch.cat([half.ids for half in halves]).tolist() == one.ids.tolist()


def test_broken_images_are_replaced_when_crops_are_made_on_the_device(tmp_path, caplog):
    manifest = collection(tmp_path, broken=(1, 6))
    data = {"crop_on_device": True, "on_broken": "skip"}
    ours = list(TrainBatches.from_config(recipe(data=data), manifest).batches(0, 0, 2))
    usual = list(TrainBatches.from_config(recipe(data={"on_broken": "skip"}), manifest).batches(0, 0, 2))
    assert [one.ids.tolist() for one in ours] == [one.ids.tolist() for one in usual]
    assert [one.replaced for one in ours] == [one.replaced for one in usual]
    assert "replaced 1.png" in caplog.text
    with pytest.raises(ValueError, match=r"1\.png"):
        TrainBatches.from_config(recipe(data={"crop_on_device": True}), manifest)


def test_a_resize_before_the_crop_is_done_once_for_the_device(tmp_path):
    config = recipe(data={"crop_on_device": True}, images={"size": 8, "test_resize": 16, "resize": 12, "crop_scale": [1, 1]})
    batches = TrainBatches.from_config(config, collection(tmp_path))
    assert batches._images.images.shapes.min() == 12
