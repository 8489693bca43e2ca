"""Crops of whole batches: the boxes of torchvision's random crop, and the pixels of its resize within one gray level."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.data import ImageDataset, Manifest, device_images
from suprank.data.device_images import BOX_NUMBERS, DeviceImages, random_boxes
from suprank.data.in_memory import InMemoryImages
from suprank.data.transforms import functional, resize_transform, v2  # which prepares torchvision
from tests.data.pictures import encoded, smooth

SIDES = [(40, 30), (17, 33), (64, 64), (5, 90)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Pictures of several sizes; no two pixels of a neighborhood are equal."""
    root = tmp_path_factory.mktemp("pictures")
    for number, (width, height) in enumerate(SIDES):
        (root / f"{number}.png").write_bytes(encoded(smooth(width, height, seed=number)))
    columns = {
        "path": [f"{number}.png" for number in range(len(SIDES))],
        "split": ["train"] * len(SIDES),
        "label_kind": ["a"] * len(SIDES),
    }
    return ImageDataset(Manifest.from_columns(columns, root=root))


@pytest.fixture(scope="module")
def images(dataset):
    return InMemoryImages(dataset)


def as_tensor(picture):
    return functional.pil_to_tensor(picture)


def draw(shapes, scale=(0.16, 1.0), ratio=(0.75, 1.33), seed=0):
    numbers = np.random.default_rng(seed).random((len(shapes), BOX_NUMBERS))
    return random_boxes(np.asarray(shapes), scale, ratio, numbers)


def test_a_crop_of_the_output_size_is_cut_out_exactly(dataset, images):
    crop = DeviceImages(images, "cpu").crop(np.array([2]), np.array([[3, 7, 16, 16]]), np.array([False]), 16)
    assert (crop[0] == as_tensor(dataset[2].image)[:, 3:19, 7:23]).all()


@given(st.data())
def test_crops_are_those_of_torchvision_within_a_gray_level(dataset, images, data):
    rows = np.array(data.draw(st.lists(st.integers(0, len(SIDES) - 1), min_size=1, max_size=4)))
    size, seed = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 2**31))
    boxes = draw(images.shapes[rows], scale=(0.02, 1.0), ratio=(0.3, 3.0), seed=seed)
    mirrored = np.random.default_rng(seed).random(len(rows)) < 0.5
    crops = DeviceImages(images, "cpu").crop(rows, boxes, mirrored, size)
    for row, box, mirror, crop in zip(rows, boxes, mirrored, crops, strict=True):
        expected = functional.resized_crop(as_tensor(dataset[int(row)].image), *box.tolist(), [size, size], antialias=True)
        expected = functional.horizontal_flip(expected) if mirror else expected
        assert (crop.int() - expected.int()).abs().max() <= 1


def test_few_pixels_at_a_time_give_the_same_crops(images, monkeypatch):
    rows = np.arange(len(SIDES))
    arguments = rows, draw(images.shapes[rows]), rows % 2 == 0, 12
    whole = DeviceImages(images, "cpu").crop(*arguments)
    monkeypatch.setattr(device_images, "_PIXELS_AT_ONCE", 1)
    assert (DeviceImages(images, "cpu").crop(*arguments) == whole).all()


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
    crop = DeviceImages(prepared, "cpu").crop(np.array([0]), np.array([[0, 0, 10, 10]]), np.array([False]), 10)
    assert (crop[0] == resize_transform(10)(dataset[0].image)[:, :10, :10]).all()


def test_images_beyond_half_of_the_free_memory_of_a_gpu_are_refused(images, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (images.nbytes, 2**40))
    with pytest.raises(ValueError, match=r"of cuda:0 are free.*data\.crop_on_device=false"):
        DeviceImages(images, "cuda:0")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_makes_the_crops_of_a_cpu_within_a_gray_level(images):
    rows = np.arange(len(SIDES)).repeat(8)
    arguments = rows, draw(images.shapes[rows]), rows % 2 == 0, 12
    difference = DeviceImages(images, "cuda").crop(*arguments).cpu().int() - DeviceImages(images, "cpu").crop(*arguments).int()
    assert difference.abs().max() <= 1
