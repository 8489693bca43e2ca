"""Images as a network takes them."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from suprank.data.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    PRESETS,
    Normalize,
    eval_transform,
    min_short_side,
    train_transform,
    v2,
)


def picture(width, height, seed=0):
    """A smooth random image: photographs have no noise of single pixels."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def normalized(image):
    """By the formula: shares of 255, less the mean, over the deviation."""
    values = torch.from_numpy(np.array(image)).float() / 255
    return ((values - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)).permute(2, 0, 1)


GRAY_LEVEL = 1.01 / 255 / min(IMAGENET_STD)  # Pillow and torch round differently when they resize


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (900, 300), (100, 80), (256, 256)])
def test_the_papers_test_transform_is_a_resize_and_a_central_crop(size):
    image = picture(*size)
    short = min(size)
    width, height = (side * 256 // short for side in size)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    expected = normalized(resized.crop((left, top, left + 224, top + 224)))
    found = eval_transform()(image)
    assert found.dtype == torch.float32
    assert found.shape == (3, 224, 224)
    assert (found - expected).abs().max() <= GRAY_LEVEL


def test_squashing_loses_the_shape_and_nothing_else():
    image = picture(640, 200)
    expected = normalized(image.resize((224, 224), Image.Resampling.BILINEAR))
    assert (PRESETS["landmarks"].test(image) - expected).abs().max() <= GRAY_LEVEL
    expected = normalized(image.resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240)))
    assert (PRESETS["sop"].test(image) - expected).abs().max() <= GRAY_LEVEL


def test_without_a_resize_the_image_is_only_cropped_and_a_small_one_gets_a_black_border():
    image = picture(300, 300)
    assert torch.allclose(eval_transform(resize=None)(image), normalized(image.crop((38, 38, 262, 262))), atol=1e-6)
    bordered = eval_transform(8, resize=None)(Image.new("RGB", (4, 4), "white"))
    assert torch.allclose(bordered[:, 0, 0], -torch.tensor(IMAGENET_MEAN) / torch.tensor(IMAGENET_STD))


@pytest.mark.parametrize(("name", "train", "test"), [("paper", 224, 224), ("sop", 224, 224), ("cub-big", 256, 256)])
def test_presets_have_the_authors_sizes(name, train, test):
    image = picture(320, 280)
    assert PRESETS[name].train(image).shape == (3, train, train)
    assert PRESETS[name].test(image).shape == (3, test, test)


def test_the_landmark_benchmark_embeds_large_images():
    assert PRESETS["landmarks-bench"].test(picture(320, 280)).shape == (3, 1024, 1024)


def test_training_crops_have_the_papers_share_of_the_area_and_ratio():
    # Red is the column and green the row, so a crop says how wide and high it was.
    side = 256
    ramp = np.stack([*np.meshgrid(np.arange(side), np.arange(side)), np.zeros((side, side))], axis=-1).astype(np.uint8)
    transform = train_transform(64, mean=(0, 0, 0), std=(1 / 255,) * 3)
    torch.manual_seed(0)
    areas, ratios, mirrored = [], [], 0
    for _ in range(300):
        crop = transform(Image.fromarray(ramp))
        wide = (crop[0, 32, -1] - crop[0, 32, 0]).item() * 64 / 63
        high = (crop[1, -1, 32] - crop[1, 0, 32]).item() * 64 / 63
        areas.append(abs(wide) * high / side**2)
        ratios.append(abs(wide) / high)
        mirrored += wide < 0
    assert 0.14 < min(areas) < 0.2
    assert 0.85 < max(areas) < 1.02
    assert 0.72 < min(ratios) < 0.8
    assert 1.25 < max(ratios) < 1.38
    assert 110 < mirrored < 190


def test_training_crops_repeat_with_torchs_seed_and_differ_without():
    image, transform = picture(320, 280), pickle.loads(pickle.dumps(PRESETS["sop"].train))
    torch.manual_seed(7)
    first, second = transform(image), transform(image)
    torch.manual_seed(7)
    assert torch.equal(PRESETS["sop"].train(image), first)
    assert not torch.equal(first, second)


def test_sizes_that_a_decoded_image_needs():
    assert min_short_side(eval_transform()) == 256
    assert min_short_side(PRESETS["sop"].train) == 256
    assert min_short_side(PRESETS["landmarks-bench"].test) == 1024
    assert min_short_side(eval_transform(resize=None)) is None
    # The flattest crop of 0.16 of the area of a square of 647 pixels: sqrt(0.16 · 647² / 1.33) = 224.4 pixels high.
    assert min_short_side(train_transform()) == 647


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: eval_transform(0), "size=0 must be a number of pixels, 1 or more"),
        (lambda: train_transform(resize=-1), "resize=-1 must be"),
        (lambda: eval_transform(288), "resize=256 must be at least size=288, .*; try 288"),
        (lambda: eval_transform(resize=None, squash=True), "squash=True .* needs a resize"),
        (lambda: train_transform(scale=(0.5, 0.1)), r"scale=\(0.5, 0.1\) must be two shares of the area, the smaller first"),
        (lambda: train_transform(ratio=(0, 1)), "ratio=.* above 0"),
        (lambda: train_transform(flip=2), "flip=2 must be a probability"),
        (lambda: train_transform(mean=(0.5,), std=(0.5,)), "must be three numbers each"),
    ],
)
def test_impossible_settings_are_refused(made, says):
    with pytest.raises(ValueError, match=says):
        made()


def test_bytes_normalized_as_a_batch_are_what_the_transform_gives():
    photograph = picture(90, 70)
    for made in (eval_transform, train_transform):
        torch.manual_seed(0)
        numbers = made(32)(photograph)
        torch.manual_seed(0)
        left_in_bytes = made(32, mean=None)(photograph)
        assert left_in_bytes.dtype == torch.uint8
        torch.testing.assert_close(Normalize()(torch.stack([left_in_bytes] * 2))[1], numbers)


def test_normalize_refuses_numbers_and_odd_colors():
    with pytest.raises(TypeError, match="must be uint8"):
        Normalize()(torch.zeros(3, 2, 2))
    with pytest.raises(ValueError, match="three numbers each"):
        Normalize(std=(1, 1, 0))


# Images that are far longer than wide


def plain(transform):
    """The same steps by torchvision's own classes, which need memory for the whole resized image."""
    own = {"_Resize": v2.Resize, "_CenterCrop": v2.CenterCrop}

    def twin(step):
        if type(step).__name__ not in own:
            return step
        made = own[type(step).__name__](step.size)
        vars(made).update(vars(step))
        return made

    return v2.Compose([twin(step) for step in transform.transforms])


BOUNDED = {
    "test": eval_transform(mean=None),
    "test, bicubic": eval_transform(interpolation="bicubic", mean=None),
    "test, only cropped": eval_transform(resize=None, mean=None),
    "test, squashed": eval_transform(squash=True, mean=None),
    "train": train_transform(mean=None),
    "train, resized": train_transform(resize=256, mean=None),
}


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (640, 20), (20, 640), (100, 80)])
@pytest.mark.parametrize("name", BOUNDED)
def test_up_to_32_times_as_long_as_wide_the_pixels_are_torchvisions_to_the_bit(name, size):
    image = picture(*size)
    found, expected = ((torch.manual_seed(0), one(image))[1] for one in (BOUNDED[name], plain(BOUNDED[name])))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("size", [(3000, 20), (20, 3000), (2001, 7)])
@pytest.mark.parametrize("name", BOUNDED)
def test_of_longer_ones_the_middle_is_taken_as_torchvision_would_after_resizing_all(name, size):
    image = picture(*size)
    (found, after), (expected, after_plain) = (
        (torch.manual_seed(0), one(image), torch.rand(1))[1:] for one in (BOUNDED[name], plain(BOUNDED[name]))
    )
    difference = (found.int() - expected.int()).abs().float()
    assert difference.mean() < 3, "less than a pixel of the resized image aside"
    assert after == after_plain, "as many random numbers are drawn"


def test_a_fingerprint_of_embeddings_from_before_is_still_theirs():
    for one in BOUNDED.values():
        assert repr(one) == repr(plain(one))


ONE_STRIP = """
import io, resource, sys
from PIL import Image
import torch
from tests.data.test_transforms import BOUNDED
torch.set_num_threads(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for size in ((500_000, 1), (1, 500_000)):
    for transform in BOUNDED.values():
        transform(Image.new("RGB", size))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_strip_of_half_a_million_pixels_takes_little_memory(forked):
    code, output, errors = forked.script(ONE_STRIP).end(timeout=120)
    assert code == 0, errors
    assert int(output) < 100, "MB; 98 GB, in torchvision's way"
