"""Images in memory are those that the dataset would decode, pixel by pixel, in every kind of worker."""

import multiprocessing
import pickle
import time
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from suprank.data import (
    BrokenImage,
    BrokenImageError,
    ImageDataset,
    InMemoryImages,
    Manifest,
    collate,
    decoded_files,
    eval_transform,
    in_memory,
    min_short_side,
    train_transform,
)
from suprank.files.locking import lock_folder
from tests.data.pictures import encoded, smooth, tensor


def pictures(root, count=40):
    """Pictures of many sizes and both formats, every third cropped to a box."""
    root.mkdir(exist_ok=True)
    paths = [f"{row}.{'jpg' if row % 2 else 'png'}" for row in range(count)]
    for row, path in enumerate(paths):
        (root / path).write_bytes(encoded(smooth(60 + row, 90 - row // 2, seed=row), "JPEG" if row % 2 else "PNG"))
    boxes = [[3, 4, 40, 45] if row % 3 == 0 else None for row in range(count)]
    labels = [f"k{row % 5}" for row in range(count)]
    return Manifest.from_columns({"path": paths, "split": ["train"] * count, "label_kind": labels, "box": boxes}, root=root)


def same(one, other):
    assert type(one) is type(other)
    assert one.index == other.index
    assert one.labels.tolist() == other.labels.tolist()
    if isinstance(one.image, Image.Image):
        return (np.asarray(one.image) == np.asarray(other.image)).all()
    return (one.image == other.image).all()


def corner(image):
    """A transform of pictures and of bytes; here, because spawned workers import the module it is in."""
    return (tensor(image) if isinstance(image, Image.Image) else image)[:, :16, :16].clone()


@pytest.mark.parametrize(
    "transform",
    [
        train_transform(32),
        train_transform(32, resize=48, mean=None),
        train_transform(32, mean=None, scale=(0.5, 1.0)),
        eval_transform(32, resize=40),
        eval_transform(32, resize=40, squash=True, interpolation="bicubic", mean=None),
        eval_transform(100, resize=None, mean=None),
        None,
    ],
)
def test_items_are_those_of_the_dataset_to_the_last_bit(tmp_path, transform):
    dataset = ImageDataset(pictures(tmp_path), transform)
    kept = InMemoryImages(dataset)
    assert len(kept) == 40
    for row in (0, 1, 3, 17, 39, -1):
        torch.manual_seed(row)
        expected = dataset[row]
        torch.manual_seed(row)
        assert same(kept[row], expected)
    assert kept.labels is dataset.labels
    with pytest.raises(IndexError, match="there is no image 40"):
        kept[40]


def test_without_a_transform_an_item_holds_the_picture(tmp_path):
    assert isinstance(InMemoryImages(ImageDataset(pictures(tmp_path, 2)))[0].image, Image.Image)


def test_fractions_of_large_jpegs_are_held_at_the_size_they_were_decoded_to(tmp_path):
    (tmp_path / "a.jpg").write_bytes(encoded(smooth(160, 120), "JPEG"))
    manifest = Manifest.from_columns({"path": ["a.jpg"], "split": ["test"]}, root=tmp_path, levels=())
    transform = eval_transform(24, resize=30)
    dataset = ImageDataset(manifest, transform, min_short_side=min_short_side(transform))
    kept = InMemoryImages(dataset)
    assert kept.nbytes == 3 * 40 * 30
    assert same(kept[0], dataset[0])


def test_nothing_is_read_again_and_progress_reaches_all(tmp_path):
    manifest = pictures(tmp_path)
    told = []
    dataset = ImageDataset(manifest, eval_transform(32, resize=40))
    expected = dataset[5].image
    kept = InMemoryImages(dataset, progress=lambda *counted: told.append(counted))
    for file in tmp_path.iterdir():
        file.unlink()
    assert (kept[5].image == expected).all()
    assert told == [(32, 40), (40, 40)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_decode_the_same_and_leave_random_numbers_alone(tmp_path):
    dataset = ImageDataset(pictures(tmp_path, 70))
    before = torch.get_rng_state()
    alone, together = InMemoryImages(dataset), InMemoryImages(dataset, workers=2)
    assert (torch.get_rng_state() == before).all()
    assert alone.nbytes == together.nbytes
    assert all(same(together[row], alone[row]) for row in range(70))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_loaders_workers_share_the_memory(tmp_path, start):
    dataset = ImageDataset(pictures(tmp_path, 8), corner)
    kept = InMemoryImages(dataset)
    loader = DataLoader(kept, batch_size=4, num_workers=1, collate_fn=collate, multiprocessing_context=start)
    for found, expected in zip(loader, DataLoader(dataset, batch_size=4, collate_fn=collate), strict=True):
        assert (found.images == expected.images).all()
    assert kept.pixels.is_shared() == (start == "spawn"), "what is forked is shared as it is; what is sent moves there once"


def test_a_transform_never_changes_what_is_held(tmp_path):
    kept = InMemoryImages(ImageDataset(pictures(tmp_path, 4), train_transform(32)))
    before = kept.pixels.clone()
    for row in range(4):
        kept[row].image.zero_()
    assert (kept.pixels == before).all()


# Broken images


def test_broken_images_raise_or_are_kept_as_such(tmp_path):
    manifest = pictures(tmp_path, 6)
    (tmp_path / "2.png").write_bytes(b"no image")
    (tmp_path / "5.jpg").unlink()
    with pytest.raises(BrokenImageError, match="2.png: is not an image"):
        InMemoryImages(ImageDataset(manifest))
    dataset = ImageDataset(manifest, eval_transform(16, resize=20), on_broken="skip")
    kept = InMemoryImages(dataset)
    for row in (2, 5):
        assert isinstance(kept[row], BrokenImage)
        assert kept[row] == dataset[row]
    assert same(kept[3], dataset[3])
    assert same(kept[4], dataset[4])


def test_all_may_be_broken(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    manifest = Manifest.from_columns({"path": ["a.png"], "split": ["test"]}, root=tmp_path, levels=())
    kept = InMemoryImages(ImageDataset(manifest, on_broken="skip"))
    assert kept.nbytes == 0
    assert kept[0].reason == "is empty."


def test_members_of_archives_are_held_too(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.png", encoded(smooth()))
    manifest = Manifest.from_columns({"path": ["x.zip::a.png"], "split": ["test"]}, root=tmp_path, levels=())
    dataset = ImageDataset(manifest)
    assert same(pickle.loads(pickle.dumps(InMemoryImages(dataset)))[0], dataset[0])


# How much


def test_the_size_is_estimated_before_and_known_after(tmp_path):
    dataset = ImageDataset(pictures(tmp_path))
    exact = sum(3 * dataset[row].image.width * dataset[row].image.height for row in range(40))
    assert in_memory.estimate_bytes(dataset) == exact, "all are looked at where they are few"
    assert InMemoryImages(dataset).nbytes == exact


def test_more_than_the_limit_is_refused_before_anything_is_decoded(tmp_path, monkeypatch):
    dataset = ImageDataset(pictures(tmp_path))
    told = []
    size = in_memory.estimate_bytes(dataset)
    with pytest.raises(ValueError, match=r"40 decoded images take 0.0 GiB or more.*set data.cache_images=false"):
        InMemoryImages(dataset, limit=size - 1, progress=lambda *counted: told.append(counted))
    assert told == []
    assert InMemoryImages(dataset, limit=size).nbytes == size
    monkeypatch.setattr(in_memory, "free_memory", lambda: 2 * size - 2)
    with pytest.raises(ValueError, match="by default half of the free memory"):
        InMemoryImages(dataset)


def test_an_estimate_that_was_too_low_is_noticed_on_the_way(tmp_path, monkeypatch):
    dataset = ImageDataset(pictures(tmp_path))
    size = in_memory.estimate_bytes(dataset)
    monkeypatch.setattr(in_memory, "estimate_bytes", lambda *_: 0)
    with pytest.raises(ValueError, match="set data.cache_images=false"):
        InMemoryImages(dataset, limit=size - 1)


def test_free_memory_is_what_this_machine_has():
    assert 2**20 < in_memory.free_memory() < 2**50


# In files that runs share


def test_a_second_dataset_maps_the_file_of_the_first_and_decodes_nothing(tmp_path):
    manifest, folder = pictures(tmp_path / "pictures"), tmp_path / "cache"
    dataset = ImageDataset(manifest, eval_transform(32, resize=40))
    told = []
    first = InMemoryImages(dataset, folder=folder, progress=lambda *counted: told.append(counted))
    second = InMemoryImages(ImageDataset(manifest), folder=folder, progress=lambda *_: pytest.fail("it decodes again"))
    assert told[-1] == (40, 40)
    assert len(list(folder.glob("*.npy"))) == 1
    assert torch.equal(first.pixels, second.pixels)
    assert all(same(first[row], dataset[row]) for row in range(40))
    first.pixels.zero_()
    assert second.pixels.any(), "a process does not change the file, or what others see"


@pytest.mark.parametrize("change", ["an image", "the box", "the transform", "the decoder's setting", "the rows"])
def test_what_changes_the_pixels_changes_the_file(tmp_path, change):
    manifest, folder = pictures(tmp_path / "pictures", 6), tmp_path / "cache"
    InMemoryImages(ImageDataset(manifest), folder=folder)
    options, prepare = {}, None
    if change == "an image":
        (tmp_path / "pictures" / "2.png").write_bytes(encoded(smooth(30, 30, seed=9), "PNG"))
    elif change == "the box":
        manifest = manifest.with_columns(box=[[1, 2, 30, 35]] * 6)
    elif change == "the transform":
        prepare = eval_transform(16, resize=20, mean=None)
    elif change == "the decoder's setting":
        options = {"min_short_side": 20}
    else:
        manifest = manifest.take(np.arange(5))
    changed = InMemoryImages(ImageDataset(manifest, **options), folder=folder, prepare=prepare)
    assert torch.equal(changed.pixels, InMemoryImages(ImageDataset(manifest, **options), prepare=prepare).pixels)
    assert len(list(folder.glob("*.npy"))) == 2


def test_broken_images_are_broken_in_the_file_too(tmp_path):
    manifest, folder = pictures(tmp_path / "pictures", 6), tmp_path / "cache"
    (tmp_path / "pictures" / "2.png").write_bytes(b"no image")
    (tmp_path / "pictures" / "5.jpg").unlink()
    with pytest.raises(BrokenImageError, match="2.png: is not an image"):
        InMemoryImages(ImageDataset(manifest), folder=folder)
    assert not list(folder.glob("*.np*")), "nothing is kept of a dataset that was refused"
    dataset = ImageDataset(manifest, on_broken="skip")
    for _ in range(2):
        kept = InMemoryImages(dataset, folder=folder)
        assert kept[2] == dataset[2]
        assert kept[5] == dataset[5]
        assert same(kept[3], dataset[3])


def test_a_file_without_its_shapes_is_decoded_again(tmp_path):
    manifest, folder = pictures(tmp_path / "pictures", 6), tmp_path / "cache"
    expected = InMemoryImages(ImageDataset(manifest), folder=folder).pixels.clone()
    (shapes,) = folder.glob("*.npz")
    shapes.unlink()  # as if the run had been killed before it wrote them
    (pixels,) = folder.glob("*.npy")
    pixels.write_bytes(b"half a file")
    assert torch.equal(InMemoryImages(ImageDataset(manifest), folder=folder).pixels, expected)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_at_the_same_time_decode_once(tmp_path):
    root, folder = tmp_path / "pictures", tmp_path / "cache"
    manifest = pictures(root, 6)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    key = decoded_files.decoding_key(ImageDataset(manifest), None)
    with lock_folder(folder, "", "", name=f"{key}.lock"):
        processes = [context.Process(target=_load, args=(manifest, folder, found)) for _ in range(3)]
        for process in processes:
            process.start()
        time.sleep(0.3)
        assert not list(folder.glob("*.np*")), "they wait for the one that holds the lock"
    numbers = [found.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert [decoded for decoded, _ in numbers].count(True) == 1
    assert len({total for _, total in numbers}) == 1


def _load(manifest, folder, found):
    decoded = []
    images = InMemoryImages(ImageDataset(manifest), folder=folder, progress=lambda *_: decoded.append(True))
    found.put((bool(decoded), int(images.pixels.sum())))


def test_transformed_images_are_stored_as_the_transform_returns_them(tmp_path):
    dataset = ImageDataset(pictures(tmp_path, 8), eval_transform(32, resize=40, mean=None))
    kept = InMemoryImages.transformed(dataset)
    assert kept.nbytes == 8 * 3 * 32 * 32
    assert all(same(kept[row], dataset[row]) for row in range(8))
    again = pickle.loads(pickle.dumps(kept))
    assert same(again[3], dataset[3])
