"""libjpeg-turbo decodes to the pixels of PIL, as much as is needed and no more; whatever it cannot decode is PIL's."""

import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features

from suprank.data import BrokenImage, ImageDataset, InMemoryImages, Manifest, eval_transform, min_short_side, train_transform
from suprank.data.images import decode_image
from suprank.data.jpeg import check_decoder, read_jpeg
from suprank.data.transforms import DrawnCrop, functional, v2
from tests.data.pictures import encoded

pytest.importorskip("simplejpeg")
pytestmark = pytest.mark.skipif(not features.check_feature("libjpeg_turbo"), reason="this PIL has another JPEG library")
BIRDS = Path(__file__).parents[2] / "../shared/data/cub200_s128.zip"


def detailed(width, height, seed=0):
    """A picture with detail at every scale, as a photograph has."""
    draw = np.random.default_rng(seed)
    total = np.full((height, width, 3), 128.0)
    for cells, strength in ((4, 60), (16, 30), (64, 15)):
        noise = draw.normal(0, strength, (cells, cells, 3)).astype(np.float32)
        channels = [Image.fromarray(noise[..., one]).resize((width, height), Image.Resampling.BICUBIC) for one in range(3)]
        total += np.stack([np.asarray(channel) for channel in channels], -1)
    return Image.fromarray(total.clip(0, 255).astype(np.uint8))


def exif(orientation):
    entries = Image.Exif()
    entries[0x0112] = orientation
    return entries


def as_pil(data, fraction, short):
    return np.asarray(decode_image(data, "a", min_short_side=None if fraction == 1 else short // fraction))


KINDS = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "progressive": {"progressive": True},
    "with restarts": {"restart_marker_rows": 1},
    **{f"orientation {number}": {"exif": exif(number)} for number in range(2, 9)},
}


@pytest.mark.parametrize("kind", [*KINDS, "gray"])
def test_pixels_are_those_of_pil_at_every_fraction_and_in_every_row_that_is_needed(kind):
    picture = detailed(121, 88).convert("L") if kind == "gray" else detailed(121, 88)
    data = encoded(picture, "JPEG", quality=90, **KINDS.get(kind, {}))
    jpeg = read_jpeg(data)
    for fraction in (1, 2, 4, 8):
        expected = as_pil(data, fraction, 88)
        assert (jpeg.decode(fraction) == expected).all()
        for rows in range(1, len(expected) + 1):
            found = jpeg.decode(fraction, rows)
            assert found.shape == expected.shape
            assert (found[:rows] == expected[:rows]).all()
    assert (jpeg.width, jpeg.height) == as_pil(data, 1, 88).shape[1::-1]


def test_rows_below_those_that_are_needed_are_not_decoded():
    white = encoded(Image.new("RGB", (40, 64), "white"), "JPEG")
    found = read_jpeg(white).decode(1, 20)
    assert (found[:20] == 255).all()
    assert (found[22:] == 0).all()


def damaged(data):
    """The picture ends in the middle, and again at the end; libjpeg warns, and PIL shows the rest in gray."""
    half = len(data) // 2
    return data[:half] + b"\xff\xd9" + data[half + 2 :]


LEFT_TO_PIL = {
    "PNG": encoded(detailed(60, 50)),
    "inks": encoded(detailed(60, 50).convert("CMYK"), "JPEG"),
    "cut off": encoded(detailed(60, 50), "JPEG")[:-200],
    "bytes after the end": encoded(detailed(60, 50), "JPEG") + b"\0",
    "no rows": encoded(detailed(60, 50), "JPEG").replace(b"\x08\x00\x32\x00\x3c\x03", b"\x08\x00\x00\x00\x3c\x03"),
    "12 bits": encoded(detailed(60, 50), "JPEG").replace(b"\x08\x00\x32\x00\x3c\x03", b"\x0c\x00\x32\x00\x3c\x03"),
    "too large": encoded(detailed(60, 50), "JPEG").replace(b"\x08\x00\x32\x00\x3c\x03", b"\x08\xff\xff\xff\xff\x03"),
    "header alone": b"\xff\xd8\xff\xe0\xff\xd9",
    "frame cut off": b"\xff\xd8\xff\xc0\x00\x11\xff\xd9",
}


@pytest.mark.parametrize("kind", LEFT_TO_PIL)
def test_other_files_are_left_to_pil(kind):
    assert read_jpeg(LEFT_TO_PIL[kind]) is None


def test_what_libjpeg_complains_of_is_left_to_pil_also_in_part():
    data = encoded(detailed(200, 150), "JPEG", quality=95)
    assert read_jpeg(damaged(data)).decode() is None
    assert read_jpeg(damaged(data)).decode(1, 140) is None
    assert (read_jpeg(damaged(data)).decode(1, 20)[:20] == read_jpeg(data).decode()[:20]).all(), "above the damage"
    without_tables = encoded(detailed(60, 50), "JPEG").replace(b"\xff\xdb", b"\xff\xfe")  # they are comments now
    assert read_jpeg(without_tables).decode() is None
    assert read_jpeg(without_tables).decode(1, 10) is None


# In a dataset


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """JPEGs of all kinds and shapes, and what is left to PIL."""
    root = tmp_path_factory.mktemp("jpegs")
    sizes = [(150, 110), (110, 150), (64, 48), (33, 97), (300, 40), (20, 700), (700, 20), (31, 31), (225, 224)]
    files = {f"{width}x{height}.jpg": encoded(detailed(width, height), "JPEG", quality=90) for width, height in sizes}
    turned = encoded(detailed(150, 110), "JPEG", quality=90, exif=exif(6))
    files |= {"turned.jpg": turned, "damaged.jpg": damaged(files["150x110.jpg"])}
    files |= {f"{name.replace(' ', '-')}.jpg": data for name, data in LEFT_TO_PIL.items()}
    for name, data in files.items():
        (root / name).write_bytes(data)
    return Manifest.from_columns({"path": list(files), "split": ["train"] * len(files)}, root=root, levels=())


TRANSFORMS = {
    "center": eval_transform(48, resize=55, mean=None),
    "center, bicubic": eval_transform(100, resize=128, interpolation="bicubic", mean=None),
    "square": eval_transform(32, resize=40, squash=True, mean=None),
    "not resized": eval_transform(60, resize=None, mean=None),
    "random crop": train_transform(40, mean=None),
    "random crop after a resize": train_transform(40, resize=48),
    "a function": lambda image: functional.to_image(image)[:, :9, :9],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_both_decoders_give_the_same_items_and_use_the_same_random_numbers(manifest, name):
    one, other = (ImageDataset(manifest, TRANSFORMS[name], on_broken="skip", decoder=each) for each in ("pil", "turbo"))
    broken = 0
    for row in range(len(manifest)):
        found, after = [], []
        for dataset in (one, other):
            torch.manual_seed(row)
            found.append(dataset[row])
            after.append(torch.rand(1).item())
        if isinstance(found[0], BrokenImage):
            assert found[0] == found[1]
            broken += 1
        else:
            assert torch.equal(found[0].image, found[1].image), manifest.paths[row]
            assert after[0] == after[1]
    assert broken == 6


def test_at_a_fraction_too_if_no_crop_is_drawn(manifest):
    for transform in (eval_transform(24, resize=26, mean=None), train_transform(20, resize=24, mean=None), None):
        settings = {"on_broken": "skip", "min_short_side": 26 if transform is None else min_short_side(transform)}
        one, other = (ImageDataset(manifest, transform, **settings, decoder=each) for each in ("pil", "turbo"))
        for row in range(11):
            found = []
            for dataset in (one, other):
                torch.manual_seed(row)
                found.append(np.asarray(dataset[row].image))
            assert (found[0] == found[1]).all()


def test_images_in_memory_are_decoded_whole(manifest):
    intact = manifest.take(np.arange(10))
    for transform in (train_transform(40, mean=None), eval_transform(24, resize=26, mean=None)):
        one, other = (InMemoryImages(ImageDataset(intact, transform, decoder=each)) for each in ("pil", "turbo"))
        assert torch.equal(one.pixels, other.pixels)


# At the fraction that a crop needs


def test_a_crop_decides_the_fraction_and_the_rows():
    crop = DrawnCrop(v2.RandomResizedCrop(224), (), 1200, 1600, {"top": 100, "left": 0, "height": 900, "width": 1000})
    assert crop.needed(at_fraction=True) == (4, 252)  # 225 × 250 pixels, of which the last row is 250
    assert crop.needed(at_fraction=False) == (1, 1000)
    lower = DrawnCrop(crop.crop, (), 1200, 1600, {"top": 100, "left": 0, "height": 895, "width": 1000})
    assert lower.needed(at_fraction=True) == (2, 499)
    assert DrawnCrop.draw(eval_transform(), 1200, 1600) is None


@pytest.mark.parametrize("size", [(1601, 1201), (449, 903), (903, 449), (257, 257), (64, 65)])
def test_no_black_row_is_ever_seen(tmp_path, size):
    manifest = written(tmp_path, [encoded(Image.new("RGB", size, "white"), "JPEG", subsampling=2)])
    dataset = ImageDataset(manifest, train_transform(24, mean=None), min_short_side=1, decoder="turbo")
    for seed in range(30):
        torch.manual_seed(seed)
        assert dataset[0].image.min() == 255


def written(root, files):
    for row, data in enumerate(files):
        (root / f"{row}.jpg").write_bytes(data)
    paths = [f"{row}.jpg" for row in range(len(files))]
    return Manifest.from_columns({"path": paths, "split": ["train"] * len(paths)}, root=root, levels=())


def gray_levels(manifest, transform):
    """Mean and greatest difference between a fraction, decoded by turbo, and the reference: PIL in full."""
    full = ImageDataset(manifest, transform)
    part = ImageDataset(manifest, transform, min_short_side=min_short_side(transform), decoder="turbo")
    differences = []
    for row in range(len(manifest)):
        found = []
        for dataset in (full, part):
            torch.manual_seed(row)
            found.append(dataset[row].image.float())
        differences.append((found[0] - found[1]).abs())
    return torch.stack(differences).mean().item(), torch.stack(differences).max().item()


def test_a_fraction_of_a_drawn_photograph_differs_by_few_gray_levels(tmp_path):
    files = [encoded(detailed(800, 600, seed), "JPEG", quality=92) for seed in range(3)]
    manifest = written(tmp_path, files)
    mean, greatest = gray_levels(manifest, eval_transform(112, resize=128, mean=None))
    assert (0.1 < mean < 1, greatest < 10) == (True, True)
    mean, greatest = gray_levels(manifest, train_transform(112, mean=None))
    assert (0.1 < mean < 4, greatest < 40) == (True, True)


@pytest.mark.skipif(not BIRDS.is_file(), reason="needs ../shared/data, which is no part of the repository")
def test_a_fraction_of_a_real_photograph_differs_by_few_gray_levels(tmp_path):
    with zipfile.ZipFile(BIRDS) as archive:
        members = [name for name in archive.namelist() if name.endswith(".webp")][::500]
        pictures = [decode_image(archive.read(member), member) for member in members]
    manifest = written(tmp_path, [encoded(picture, "JPEG", quality=92) for picture in pictures])
    mean, greatest = gray_levels(manifest, eval_transform(28, resize=32, mean=None))
    assert (0.1 < mean < 8, greatest < 200) == (True, True)
    mean, greatest = gray_levels(manifest, train_transform(28, mean=None))
    assert (0.1 < mean < 6, greatest < 120) == (True, True)


# Where it is chosen


def test_a_decoder_that_does_not_exist_or_is_not_installed_is_refused(manifest, monkeypatch):
    with pytest.raises(ValueError, match="decoder='fast' must be one of pil, turbo"):
        ImageDataset(manifest, decoder="fast")
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs simplejpeg, .* pip install \"suprank\[vision\]\", or use pil"):
        ImageDataset(manifest, decoder="turbo")
    check_decoder("pil")
