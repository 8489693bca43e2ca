"""Images in memory, in a folder and on a device are those that the dataset would decode, in every kind of worker."""

import multiprocessing
import pickle
import time
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from suprank.data import (
    BrokenImage,
    BrokenImageError,
    ImageDataset,
    InMemoryImages,
    Manifest,
    cached_images,
    collate,
    eval_transform,
    min_short_side,
    train_transform,
)
from suprank.data.cached_images import BOX_NUMBERS, decoding_key, estimate_bytes, random_boxes
from suprank.data.transforms import functional, resize_transform, v2  # which prepares torchvision
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
        train_transform(32, resize=48, mean=None),
        train_transform(32, scale=(0.5, 1.0)),
        eval_transform(32, resize=40, squash=True, interpolation="bicubic", mean=None),
        eval_transform(100, resize=None, mean=None),
        None,
    ],
)
def test_items_are_those_of_the_dataset_to_the_last_bit_and_a_transform_changes_nothing(tmp_path, transform):
    dataset = ImageDataset(pictures(tmp_path), transform)
    kept = InMemoryImages(dataset)
    assert len(kept) == 40
    for row in (0, 1, 3, 17, 39, -1, 1):
        torch.manual_seed(row)
        expected = dataset[row]
        torch.manual_seed(row)
        found = kept[row]
        assert same(found, expected)
        if isinstance(found.image, torch.Tensor):
            found.image.zero_()
    assert kept.labels is dataset.labels
    with pytest.raises(IndexError, match="there is no image 40"):
        kept[40]


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


def test_transformed_images_are_stored_as_the_transform_returns_them(tmp_path):
    dataset = ImageDataset(pictures(tmp_path, 8), eval_transform(32, resize=40, mean=None))
    kept = InMemoryImages.transformed(dataset)
    assert kept.nbytes == 8 * 3 * 32 * 32
    assert all(same(kept[row], dataset[row]) for row in range(8))
    assert same(pickle.loads(pickle.dumps(kept))[3], dataset[3])


@pytest.mark.parametrize("folder", [None, "cache"])
def test_broken_images_raise_or_are_kept_as_such(tmp_path, folder):
    manifest, folder = pictures(tmp_path / "pictures", 6), folder and tmp_path / folder
    (tmp_path / "pictures" / "2.png").write_bytes(b"no image")
    (tmp_path / "pictures" / "5.jpg").unlink()
    with pytest.raises(BrokenImageError, match="2.png: is not an image"):
        InMemoryImages(ImageDataset(manifest), folder=folder)
    assert not list(tmp_path.rglob("*.np*")), "nothing is kept of a dataset that was refused"
    dataset = ImageDataset(manifest, eval_transform(16, resize=20), on_broken="skip")
    for _ in range(2):
        kept = InMemoryImages(dataset, folder=folder)
        assert isinstance(kept[2], BrokenImage)
        assert [kept[row] == dataset[row] for row in (2, 5)] == [True] * 2
        assert same(kept[3], dataset[3])


def test_all_may_be_broken(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.png", b"")
    manifest = Manifest.from_columns({"path": ["x.zip::a.png"], "split": ["test"]}, root=tmp_path, levels=())
    kept = InMemoryImages(ImageDataset(manifest, on_broken="skip"))
    assert kept.nbytes == 0
    assert kept[0].reason == "is empty."


# How much


def test_more_than_the_limit_is_refused_before_anything_is_decoded(tmp_path, monkeypatch):
    dataset = ImageDataset(pictures(tmp_path))
    told = []
    size = estimate_bytes(dataset)
    assert size == sum(3 * dataset[row].image.width * dataset[row].image.height for row in range(40)), "few are all looked at"
    with pytest.raises(ValueError, match=r"40 decoded images take 0.0 GiB or more.*set data.cache_images=false"):
        InMemoryImages(dataset, limit=size - 1, progress=lambda *counted: told.append(counted))
    assert told == []
    assert InMemoryImages(dataset, limit=size).nbytes == size
    monkeypatch.setattr(cached_images, "free_memory", lambda: 2 * size - 2)
    with pytest.raises(ValueError, match="by default half of the free memory"):
        InMemoryImages(dataset)
    monkeypatch.setattr(cached_images, "estimate_bytes", lambda *_: 0)
    with pytest.raises(ValueError, match="set data.cache_images=false"):  # noticed on the way
        InMemoryImages(dataset, limit=size - 1)


def test_free_memory_is_what_this_machine_has():
    assert 2**20 < cached_images.free_memory() < 2**50


# In a folder that runs share


def test_a_second_dataset_maps_the_files_of_the_first_and_decodes_nothing(tmp_path):
    manifest, folder = pictures(tmp_path / "pictures"), tmp_path / "cache"
    dataset = ImageDataset(manifest, eval_transform(32, resize=40))
    told = []
    first = InMemoryImages(dataset, folder=folder, progress=lambda *counted: told.append(counted))
    second = InMemoryImages(ImageDataset(manifest), folder=folder, progress=lambda *_: pytest.fail("it decodes again"))
    assert told[-1] == (40, 40)
    assert len(list(folder.glob("*/pixels.npy"))) == 1
    assert torch.equal(first.pixels, second.pixels)
    assert all(same(first[row], dataset[row]) for row in range(40))
    first.pixels.zero_()
    assert second.pixels.any(), "a process does not change the file, or what others see"
    with pytest.raises(OSError, match="0.png is not writable .*; name a folder that is"):
        InMemoryImages(dataset, folder=tmp_path / "pictures" / "0.png")


@pytest.mark.parametrize("change", ["an image", "the box", "the transform", "the decoder's setting", "the rows"])
def test_what_changes_the_pixels_changes_the_files(tmp_path, change):
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
    assert len(list(folder.glob("*/pixels.npy"))) == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_at_the_same_time_decode_once(tmp_path):
    root, folder = tmp_path / "pictures", tmp_path / "cache"
    manifest = pictures(root, 6)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    key = decoding_key(ImageDataset(manifest), None)
    with lock_folder(folder, "", "", name=f".{key}.lock"):
        processes = [context.Process(target=_load, args=(manifest, folder, found)) for _ in range(3)]
        for process in processes:
            process.start()
        time.sleep(0.3)
        assert not list(folder.rglob("*.np*")), "they wait for the one that holds the lock"
    numbers = [found.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert [decoded for decoded, _ in numbers].count(True) == 1
    assert len({total for _, total in numbers}) == 1


def _load(manifest, folder, found):
    decoded = []
    images = InMemoryImages(ImageDataset(manifest), folder=folder, progress=lambda *_: decoded.append(True))
    found.put((bool(decoded), int(images.pixels.sum())))


# On a device: the boxes of torchvision's random crop, and the pixels of its resize within one gray level

SIDES = [(40, 30), (17, 33), (64, 64), (5, 90)]
ROWS = np.arange(len(SIDES))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Pictures of several sizes; no two pixels of a neighborhood are equal."""
    root = tmp_path_factory.mktemp("pictures")
    for number, (width, height) in enumerate(SIDES):
        (root / f"{number}.png").write_bytes(encoded(smooth(width, height, seed=number)))
    columns = {"path": [f"{number}.png" for number in ROWS], "split": ["train"] * len(ROWS), "label_kind": ["a"] * len(ROWS)}
    return ImageDataset(Manifest.from_columns(columns, root=root))


@pytest.fixture(scope="module")
def images(dataset):
    return InMemoryImages(dataset)


def draw(shapes, scale=(0.16, 1.0), ratio=(0.75, 1.33), seed=0):
    numbers = np.random.default_rng(seed).random((len(shapes), BOX_NUMBERS))
    return random_boxes(np.asarray(shapes), scale, ratio, numbers)


def test_a_crop_of_the_output_size_is_cut_out_exactly(dataset, images):
    crop = images.to("cpu").crop(np.array([2]), np.array([[3, 7, 16, 16]]), np.array([False]), 16)
    assert (crop[0] == functional.pil_to_tensor(dataset[2].image)[:, 3:19, 7:23]).all()


@given(st.data())
def test_crops_are_those_of_torchvision_within_a_gray_level(dataset, images, data):
    rows = np.array(data.draw(st.lists(st.integers(0, len(SIDES) - 1), min_size=1, max_size=4)))
    size, seed = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 2**31))
    boxes = draw(images.shapes[rows], scale=(0.02, 1.0), ratio=(0.3, 3.0), seed=seed)
    mirrored = np.random.default_rng(seed).random(len(rows)) < 0.5
    crops = images.to("cpu").crop(rows, boxes, mirrored, size)
    for row, box, mirror, crop in zip(rows, boxes, mirrored, crops, strict=True):
        picture = functional.pil_to_tensor(dataset[int(row)].image)
        expected = functional.resized_crop(picture, *box.tolist(), [size, size], antialias=True)
        expected = functional.horizontal_flip(expected) if mirror else expected
        assert (crop.int() - expected.int()).abs().max() <= 1


def test_few_pixels_at_a_time_give_the_same_crops(images, monkeypatch):
    arguments = ROWS, draw(images.shapes[ROWS]), ROWS % 2 == 0, 12
    whole = images.to("cpu").crop(*arguments)
    monkeypatch.setattr(cached_images, "_PIXELS_AT_ONCE", 1)
    assert (images.to("cpu").crop(*arguments) == whole).all()


@pytest.mark.parametrize("shape", [(60, 80), (11, 90)])  # of the second, a crop of this share and ratio rarely fits
def test_boxes_have_the_distribution_of_torchvisions(shape):
    boxes = draw([shape] * 4000)
    crop = v2.RandomResizedCrop(8, scale=(0.16, 1.0), ratio=(0.75, 1.33))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = [crop.make_params([torch.empty(shape, device="meta")]) for _ in range(2000)]
    expected = np.array([[one["top"], one["left"], one["height"], one["width"]] for one in drawn])
    for column in range(4):
        quantiles = np.linspace(0.05, 0.95, 10)
        mine, theirs = np.quantile(boxes[:, column], quantiles), np.quantile(expected[:, column], quantiles)
        assert np.abs(mine - theirs).max() <= 3.5


@given(st.integers(1, 300), st.integers(1, 300), st.floats(0.001, 1), st.floats(0.05, 20), st.integers(0, 1000))
def test_every_box_is_inside_its_image(height, width, least, ratio, seed):
    top, left, tall, wide = draw([(height, width)] * 3, (least, 1.0), (ratio, 2 * ratio), seed).T
    assert min(top.min(), left.min()) >= 0
    assert min(tall.min(), wide.min()) > 0
    assert (top + tall).max() <= height
    assert (left + wide).max() <= width


def test_images_are_prepared_once_before_they_are_kept(dataset):
    prepared = InMemoryImages(dataset, prepare=resize_transform(10))
    assert prepared.shapes.min(1).tolist() == [10] * len(SIDES)
    assert prepared.nbytes == 3 * prepared.shapes.prod(1).sum()
    crop = prepared.to("cpu").crop(np.array([0]), np.array([[0, 0, 10, 10]]), np.array([False]), 10)
    assert (crop[0] == resize_transform(10)(dataset[0].image)[:, :10, :10]).all()


def test_images_beyond_half_of_the_free_memory_of_a_gpu_are_refused(images, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (images.nbytes, 2**40))
    with pytest.raises(ValueError, match=r"of cuda:0 are free.*data\.crop_on_device=false"):
        images.to("cuda:0")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_makes_the_crops_of_a_cpu_within_a_gray_level(images):
    rows = ROWS.repeat(8)
    arguments = rows, draw(images.shapes[rows]), rows % 2 == 0, 12
    difference = images.to("cuda").crop(*arguments).cpu().int() - images.to("cpu").crop(*arguments).int()
    assert difference.abs().max() <= 1
