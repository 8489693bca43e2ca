"""Images for a DataLoader: the pixels of torchvision's ImageFolder, boxes, broken files, and workers of every kind."""

import os
import pickle
import struct
import zipfile

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader

from suprank.data.archives import UnreadableArchiveError
from suprank.data.datasets import ImageBatch, ImageDataset, ImageItem, collate
from suprank.data.images import BrokenImage, BrokenImageError
from suprank.data.manifest import Manifest
from suprank.system import torchvision_operators
from tests.data.pictures import encoded, folder, smooth, tensor


def open_manifest(root, paths, **columns):
    given = {"path": paths, "split": ["test"] * len(paths), "label_a": ["x"] * len(paths)}
    return Manifest.from_columns(given | columns, root=root)


def test_an_item_is_the_image_its_labels_and_its_row(tmp_path):
    dataset = ImageDataset(folder(tmp_path), tensor)
    item = dataset[5]
    assert isinstance(item, ImageItem)
    assert (item.image == tensor(smooth(seed=5))).all()
    assert item.labels.tolist() == [2, 0]
    assert item.labels.dtype == torch.int64
    assert item.index == dataset[-1].index == dataset[np.int64(5)].index == 5
    assert (len(dataset), dataset.labels.tolist(), dataset.paths[5].as_py()) == (6, dataset.manifest.labels.tolist(), "a5.png")
    with pytest.raises(IndexError, match="there is no image 6; the manifest has 6"):
        dataset[6]


def test_labels_of_an_item_can_be_changed_without_changing_the_manifest(tmp_path):
    dataset = ImageDataset(folder(tmp_path))
    dataset[0].labels.fill_(9)
    assert dataset[0].labels.tolist() == [0, 0]


def test_without_labels_or_transform_there_is_the_picture_alone(tmp_path):
    manifest = Manifest.from_columns(folder(tmp_path).table.select(["path", "split"]), root=tmp_path, levels=())
    item = ImageDataset(manifest)[0]
    assert isinstance(item.image, Image.Image)
    assert item.labels.shape == (0,)
    batch = collate([item, item])
    assert (len(batch.images), batch.labels.shape) == (2, (2, 0))


def test_pixels_and_order_are_those_of_torchvisions_image_folder(tmp_path):
    torchvision_operators.declare()
    from torchvision.datasets import ImageFolder

    for place in range(8):
        file = tmp_path / f"class{place % 2}" / f"{place}.jpg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(encoded(smooth(70 + place, 50, seed=place), "JPEG"))
    theirs = ImageFolder(tmp_path)
    paths = [os.path.relpath(path, tmp_path) for path, _ in theirs.samples]
    ours = ImageDataset(open_manifest(tmp_path, paths, label_a=[theirs.classes[label] for _, label in theirs.samples]))
    for (picture, label), item in zip(theirs, ours, strict=True):
        assert (np.asarray(picture) == np.asarray(item.image)).all()
        assert item.labels.tolist() == [label]


def test_large_jpegs_are_decoded_at_a_fraction_when_the_transform_needs_no_more(tmp_path):
    manifest = folder(tmp_path, kind="JPEG", suffix="jpg")
    assert ImageDataset(manifest)[0].image.size == (64, 48)
    assert ImageDataset(manifest, min_short_side=24)[0].image.size == (32, 24)


# Boxes


def boxed(root, box, **options):
    (root / "a.jpg").write_bytes(encoded(smooth(80, 60), "JPEG", **options))
    return open_manifest(root, ["a.jpg"], box=pa.array([box], pa.list_(pa.float32(), 4)))


def test_a_box_is_cropped_in_pixels_of_the_full_image(tmp_path):
    manifest = boxed(tmp_path, [10.4, 20.0, 29.6, 60.0])
    whole = ImageDataset(manifest, crop_boxes=False)[0].image
    for min_short_side in (None, 8):  # a fraction would be another scale
        found = ImageDataset(manifest, min_short_side=min_short_side)[0].image
        assert (np.asarray(found) == np.asarray(whole)[20:60, 10:30]).all()


def test_a_row_without_a_box_is_the_whole_image(tmp_path):
    assert ImageDataset(boxed(tmp_path, None), min_short_side=30)[0].image.size == (40, 30)


def test_boxes_are_those_of_the_image_turned_upright(tmp_path):
    exif = b"Exif\0\0II*\0" + struct.pack("<IHHHIHH", 8, 1, 0x0112, 3, 1, 6, 0) + bytes(4)
    manifest = boxed(tmp_path, [0, 0, 60, 10], exif=exif)
    upright = ImageDataset(manifest, crop_boxes=False)[0].image
    assert upright.size == (60, 80)
    assert (np.asarray(ImageDataset(manifest)[0].image) == np.asarray(upright)[:10]).all()


def test_a_box_is_cut_at_the_border_and_refused_mostly_outside(tmp_path):
    assert ImageDataset(boxed(tmp_path, [-1, 50, 81, 65]))[0].image.size == (80, 10)
    for box in ([70, 0, 91, 10], [100, 0, 120, 10], [5.1, 0, 5.2, 9]):
        with pytest.raises(BrokenImageError, match=r"a.jpg: the box .* is outside of the image, which has 80 × 60 pixels"):
            ImageDataset(boxed(tmp_path, box))[0]


# Broken images


@pytest.fixture
def partly_broken(tmp_path):
    manifest = folder(tmp_path)
    (tmp_path / "a1.png").write_bytes((tmp_path / "a1.png").read_bytes()[:100])
    (tmp_path / "a4.png").unlink()
    return manifest


def test_a_broken_image_raises_and_names_the_file(partly_broken):
    dataset = ImageDataset(partly_broken)
    with pytest.raises(BrokenImageError, match="^a1.png: cannot be decoded") as caught:
        dataset[1]
    assert "on_broken='skip'" in caught.value.__notes__[0]
    with pytest.raises(FileNotFoundError, match="a4.png is not under"):
        dataset[4]


def test_skipped_images_are_counted_beside_the_batch(partly_broken):
    dataset = ImageDataset(partly_broken, tensor, on_broken="skip")
    assert dataset[1] == BrokenImage(1, "a1.png", dataset[1].reason)
    assert dataset[1].reason.startswith("cannot be decoded")
    batches = list(DataLoader(dataset, batch_size=3, collate_fn=collate))
    assert [batch.indices.tolist() for batch in batches] == [[0, 2], [3, 5]]
    assert [[broken.path for broken in batch.broken] for batch in batches] == [["a1.png"], ["a4.png"]]
    assert batches[0].images.shape == (2, 3, 48, 64)
    assert batches[1].labels.tolist() == [[1, 0], [2, 0]]


def test_a_batch_that_lost_all_its_images_is_empty(partly_broken):
    dataset = ImageDataset(partly_broken, tensor, on_broken="skip")
    batch = collate([dataset[1], dataset[4]])
    assert (len(batch.images), batch.labels.shape, len(batch.indices), len(batch.broken)) == (0, (0, 0), 0, 2)


def test_members_with_damage_are_broken_and_archives_that_cannot_be_listed_raise(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.png", encoded(smooth()))
    manifest = open_manifest(tmp_path, ["x.zip::a.png", "x.zip::none.png"])
    damaged = bytearray((tmp_path / "x.zip").read_bytes())
    damaged[60] ^= 1
    (tmp_path / "x.zip").write_bytes(damaged)
    dataset = ImageDataset(manifest, on_broken="skip")
    assert "checksum" in dataset[0].reason
    assert "no member" in dataset[1].reason
    (tmp_path / "x.zip").write_bytes(b"bad")
    with pytest.raises(UnreadableArchiveError, match="x.zip is not a readable zip file"):
        ImageDataset(manifest, on_broken="skip")


def test_errors_of_the_transform_are_never_skipped_and_name_the_image(tmp_path):
    def wrong(picture):
        raise BrokenImageError("in the transform")

    with pytest.raises(BrokenImageError, match="in the transform") as caught:
        ImageDataset(folder(tmp_path), wrong, on_broken="skip")[2]
    assert caught.value.__notes__ == ["While transforming image 2, a2.png."]


def test_bad_arguments_are_refused(tmp_path):
    manifest = folder(tmp_path)
    with pytest.raises(ValueError, match="on_broken='ignore' must be 'raise' or 'skip'"):
        ImageDataset(manifest, on_broken="ignore")
    with pytest.raises(FileNotFoundError, match="the root .* is not a folder"):
        ImageDataset(Manifest(manifest.table, tmp_path / "none", manifest.levels))
    pictures = [ImageItem(torch.zeros(3, 4, 5), torch.tensor([0]), 0), ImageItem(torch.zeros(3, 4, 6), torch.tensor([0]), 1)]
    with pytest.raises(ValueError, match=r"shapes \[3, 4, 5\] and \[3, 4, 6\]; let the transform"):
        collate(pictures)


# Workers


def packed(root):
    with zipfile.ZipFile(root / "x.zip", "w") as archive:
        for place in range(8):
            archive.writestr(f"m/{place}.png", encoded(smooth(seed=place)))
        archive.writestr("m/broken.png", b"no image")
    paths = [f"x.zip::m/{place}.png" for place in range(8)] + ["x.zip::m/broken.png"]
    return ImageDataset(open_manifest(root, paths), tensor, on_broken="skip")


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])  # a spawned one imports torch anew
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_give_what_none_give_from_one_archive(tmp_path, start, workers):
    dataset = packed(tmp_path)
    dataset[0]  # the parent has the archive open when it forks
    loader = DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=collate, multiprocessing_context=start)
    for _ in range(2 if start == "fork" else 1):
        for found, expected in zip(loader, DataLoader(dataset, batch_size=2, collate_fn=collate), strict=True):
            assert isinstance(found, ImageBatch)
            assert (found.images == expected.images).all()
            assert found.indices.tolist() == expected.indices.tolist()
            assert found.broken == expected.broken


def test_an_error_in_a_worker_keeps_its_type_the_file_and_the_way_out(tmp_path):
    dataset = packed(tmp_path)
    dataset.on_broken = "raise"
    try:  # how a worker hands its errors on; a real one that raised takes torch 5 s to stop
        dataset[8]
    except BrokenImageError:
        carried = pickle.loads(pickle.dumps(ExceptionWrapper(where="in a worker")))
    with pytest.raises(BrokenImageError, match=r"(?s)x.zip::m/broken.png: is not an image.*on_broken='skip' leaves"):
        carried.reraise()


def test_what_spawned_workers_are_sent_is_about_as_large_as_the_paths(tmp_path):
    count = 20_000
    (tmp_path / "x").mkdir()
    dataset = ImageDataset(open_manifest(tmp_path, [f"x/{place:08}.jpg" for place in range(count)]))
    assert dataset.labels.shape == (count, 1)
    assert len(pickle.dumps(dataset)) < count * 50


def test_a_file_too_large_to_be_an_image_is_skipped_too(tmp_path):
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate((1 << 30) + 1)  # sparse: takes no room
    manifest = Manifest.from_columns({"path": ["large.png"], "split": ["test"]}, root=tmp_path, levels=())
    assert "an image has at most" in ImageDataset(manifest, on_broken="skip")[0].reason
