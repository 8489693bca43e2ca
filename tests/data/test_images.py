"""Decoding: every mode and orientation against PIL, JPEGs at a fraction of their size, and everything that is no image."""

import io
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, UnidentifiedImageError

from suprank.data.images import BrokenImageError, ImageInfo, decode_image, inspect_image
from tests.attacks import attack
from tests.data.pictures import encoded, smooth


def pixels(picture):
    assert picture.mode == "RGB"
    return np.asarray(picture).astype(int)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF"])
def test_a_plain_picture_of_every_format_is_what_pil_decodes(kind):
    data = encoded(smooth(), kind)
    with Image.open(io.BytesIO(data)) as theirs:
        assert (pixels(decode_image(data, "a")) == pixels(theirs.convert("RGB"))).all()
        assert inspect_image(data, "a") == ImageInfo(kind, theirs.mode, 64, 48)


# Modes


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 0), (65535, 255), (257 * 100, 100), (257 * 100 + 128, 100), (257 * 100 + 129, 101)]
)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled_by_257_not_cut_off(value, expected, kind):
    data = encoded(Image.fromarray(np.full((2, 3), value, np.uint16)), kind)
    assert (pixels(decode_image(data, "a")) == expected).all()


def test_floats_and_long_integers_are_stretched_from_least_to_greatest():
    ramp = np.array([[-2.0, 0.0, 2.0]], np.float32)
    assert pixels(decode_image(encoded(Image.fromarray(ramp), "TIFF"), "a"))[0, :, 0].tolist() == [0, 128, 255]
    ramp = np.array([[-100_000, 0, 100_000]], np.int32)
    assert pixels(decode_image(encoded(Image.fromarray(ramp), "TIFF"), "a"))[0, :, 0].tolist() == [0, 128, 255]
    assert (pixels(decode_image(encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"), "a")) == 0).all()
    with pytest.raises(BrokenImageError, match="a.tif: has pixels that are not finite"):
        decode_image(encoded(Image.fromarray(np.array([[np.nan, 1]], np.float32)), "TIFF"), "a.tif")


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_one_bit_gray_and_palette_become_rgb(mode):
    picture = smooth().convert(mode)
    assert (pixels(decode_image(encoded(picture), "a")) == pixels(picture.convert("RGB"))).all()


def test_transparency_lies_on_white():
    quarter = Image.new("RGBA", (1, 3))
    for row, pixel in enumerate([(10, 20, 30, 255), (10, 20, 30, 0), (0, 0, 0, 51)]):
        quarter.putpixel((0, row), pixel)
    for kind in ("PNG", "TIFF"):
        assert pixels(decode_image(encoded(quarter, kind), "a"))[:, 0].tolist() == [[10, 20, 30], [255] * 3, [204] * 3]


def test_gray_with_alpha_and_palette_with_transparency_lie_on_white():
    gray = Image.merge("LA", [Image.new("L", (2, 1), 7), Image.frombytes("L", (2, 1), b"\xff\0")])
    assert pixels(decode_image(encoded(gray), "a"))[0, :, 0].tolist() == [7, 255]
    palette = Image.frombytes("P", (2, 1), b"\0\1")
    palette.putpalette([1, 2, 3, 4, 5, 6])
    for kind, transparency in [("PNG", 1), ("PNG", b"\xff\0"), ("GIF", 1)]:
        data = encoded(palette, kind, transparency=transparency)
        assert pixels(decode_image(data, "a"))[0].tolist() == [[1, 2, 3], [255] * 3]


@pytest.mark.parametrize(
    ("picture", "transparency"), [(Image.new("RGB", (1, 1), (9, 8, 7)), (9, 8, 7)), (Image.new("L", (1, 1), 9), 9)]
)
def test_a_transparent_color_without_alpha_lies_on_white(picture, transparency):
    assert pixels(decode_image(encoded(picture, transparency=transparency), "a")).tolist() == [[[255] * 3]]


def test_cmyk_jpegs_are_inverted_as_adobe_writes_them():
    for mode in ("CMYK", "YCCK"):  # PIL writes the first; the second says so in its Adobe marker
        ink = smooth().convert("CMYK")
        data = encoded(ink, "JPEG", quality=95)
        if mode == "YCCK":
            at = data.index(b"Adobe") + 11
            data = data[:at] + b"\2" + data[at + 1 :]
        with Image.open(io.BytesIO(data)) as theirs:
            assert theirs.mode == "CMYK"
            assert (pixels(decode_image(data, "a")) == pixels(theirs.convert("RGB"))).all()
        if mode == "CMYK":
            assert abs(pixels(decode_image(data, "a")) - pixels(smooth())).mean() < 4


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_shown(kind):
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {}))
    assert (pixels(decode_image(data, "a")) == [255, 0, 0]).all()


def test_color_profiles_are_ignored_and_damaged_ones_too():
    assert (pixels(decode_image(encoded(smooth(), icc_profile=b"no profile"), "a")) == pixels(smooth())).all()


# Orientation


def exif(orientation, order="<", kind=3):
    value = struct.pack(f"{order}{'I' if kind == 4 else 'H'}", orientation).ljust(4, b"\0")
    tiff = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IHHHI", 8, 1, 0x0112, kind, 1) + value + bytes(4)
    return b"Exif\0\0" + tiff


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_every_orientation_is_turned_as_pil_turns_it(orientation, kind):
    options = {"exif": exif(orientation)} if kind != "TIFF" else {"tiffinfo": {0x0112: orientation}}
    data = encoded(smooth(), kind, **options)
    with Image.open(io.BytesIO(data)) as theirs:
        expected = ImageOps.exif_transpose(theirs).convert("RGB")
    found = decode_image(data, "a")
    assert (pixels(found) == pixels(expected)).all()
    assert (pixels(ImageOps.exif_transpose(found)) == pixels(found)).all(), "it would be turned twice"


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
def test_orientation_is_read_in_both_byte_orders_and_types(order, kind):
    assert decode_image(encoded(smooth(64, 48), "JPEG", exif=exif(6, order, kind)), "a").size == (48, 64)


@given(st.binary(max_size=40), st.booleans())
def test_damaged_exif_leaves_the_picture_as_it_is_and_says_nothing(junk, begins_well):
    data = encoded(smooth(8, 6), "JPEG", exif=b"Exif\0\0" + (b"II*\0\x08\0\0\0" if begins_well else b"") + junk)
    assert decode_image(data, "a").size in [(8, 6), (6, 8)]


# JPEGs at a fraction of their size


@pytest.mark.parametrize(
    ("size", "min_short_side", "expected"),
    [
        ((1600, 1200), None, (1600, 1200)),
        ((1600, 1200), 601, (1600, 1200)),
        ((1600, 1200), 600, (800, 600)),
        ((1600, 1200), 301, (800, 600)),
        ((1600, 1200), 256, (400, 300)),
        ((1200, 1600), 256, (300, 400)),
        ((1600, 1200), 150, (200, 150)),
        ((1600, 1200), 1, (200, 150)),
        ((1600, 1200), (100, 256), (400, 300)),
        ((1001, 333), 166, (501, 167)),
        ((100, 80), 256, (100, 80)),
    ],
)
def test_a_jpeg_is_decoded_no_smaller_than_asked_for(size, min_short_side, expected):
    assert decode_image(encoded(smooth(*size), "JPEG"), "a", min_short_side=min_short_side).size == expected


@given(width=st.integers(1, 300), height=st.integers(1, 300), min_short_side=st.integers(1, 300))
@example(width=219, height=219, min_short_side=55)
@settings(max_examples=30, deadline=None)
def test_the_short_side_never_falls_below_what_is_asked_for_nor_stays_over_twice_that(width, height, min_short_side):
    found = decode_image(encoded(smooth(width, height), "JPEG"), "a", min_short_side=min_short_side)
    short = min(width, height)
    assert min(found.size) >= min(short, min_short_side)
    assert min(found.size) <= 2 * min_short_side or min(found.size) == -(-short // 8)  # 219 px, 55 asked for: a half, 110
    assert abs(found.width * height - found.height * width) <= 8 * max(width, height)


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_fraction_shows_the_same_as_all_of_it_resized(orientation):
    data = encoded(smooth(1600, 1200, seed=3), "JPEG", quality=90, exif=exif(orientation))
    size = (342, 256) if orientation == 1 else (256, 342)
    full, draft = (
        decode_image(data, "a", min_short_side=asked).resize(size, Image.Resampling.BILINEAR) for asked in (None, 256)
    )
    assert abs(pixels(full) - pixels(draft)).mean() < 0.5


def test_other_formats_are_decoded_in_full():
    assert decode_image(encoded(smooth(640, 480)), "a", min_short_side=10).size == (640, 480)


@pytest.mark.parametrize("min_short_side", [0, -1, (0, -5)])
def test_at_least_nothing_is_refused(min_short_side):
    with pytest.raises(ValueError, match="must be a number of pixels of at least 1"):
        decode_image(encoded(smooth()), "a", min_short_side=min_short_side)


# No image


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><p>404", r"is not an image \(JPEG, .*\): it looks like a web page"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "is not an image"),
        (b"\xff\xd8\xff", "cannot be decoded"),
        (b"\x89PNG\r\n\x1a\n", "cannot be decoded"),
        (b"GIF89a", "cannot be decoded"),
    ],
)
def test_what_is_no_image_is_named_with_the_reason(data, reason):
    for read in (decode_image, inspect_image):
        with pytest.raises(BrokenImageError, match=f"^photos/a.jpg: {reason}"):
            read(data, "photos/a.jpg")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000"])
@pytest.mark.parametrize("min_short_side", [None, 8])
def test_a_truncated_picture_is_broken_whether_decoded_in_full_or_not(kind, min_short_side):
    data = encoded(smooth(128, 96), kind)
    cut = data[: len(data) * 2 // 3]
    with pytest.raises(BrokenImageError, match="^a.x: cannot be decoded"):
        decode_image(cut, "a.x", min_short_side=min_short_side)
    with pytest.raises(BrokenImageError, match="^a.x: cannot be decoded"):
        inspect_image(cut, "a.x")


def claimed(width, height):
    """A PNG of a few bytes that claims these dimensions."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(100_000, 100_000), (13_378, 13_378), (2**31 - 1, 2**31 - 1)])
def test_a_bomb_is_refused_before_it_is_decoded(size):
    with pytest.raises(BrokenImageError, match=rf"a.png: claims {size[0]:,} × {size[1]:,} pixels, and more than 178,956,970"):
        decode_image(claimed(*size), "a.png")


def test_the_limit_can_be_set_and_pil_does_not_warn_below_it():
    with pytest.raises(BrokenImageError, match="claims 64 × 48 pixels, and more than 3,071"):
        decode_image(encoded(smooth()), "a", max_pixels=64 * 48 - 1)
    assert decode_image(encoded(smooth()), "a", max_pixels=64 * 48).size == (64, 48)
    with pytest.raises(BrokenImageError, match="cannot be decoded"):  # over PIL's limit for a warning, under ours
        decode_image(claimed(10_000, 10_000), "a")


def test_a_webp_that_claims_too_much_is_refused():
    data = bytearray(encoded(smooth(), "WEBP", lossless=True))
    at = data.index(b"VP8L") + 9
    data[at : at + 4] = struct.pack("<I", 16383 | 16383 << 14)
    with pytest.raises(BrokenImageError, match="^a: "):
        decode_image(bytes(data), "a")


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]))
def test_damage_gives_a_picture_or_a_broken_image_error_and_no_warning(data, kind):
    content = bytearray(encoded(smooth(24, 16), kind))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_image(bytes(content), "a", max_pixels=10**6).mode
    except BrokenImageError as error:
        found = str(error)[:3]
    assert found in ("RGB", "a: ")


def test_warnings_of_pil_are_not_heard_and_filters_are_left_alone_by_threads():
    data = encoded(smooth(), "TIFF", tiffinfo={0x010E: "x" * 20})
    at = data.index(struct.pack("<HH", 0x010E, 2)) + 4  # the length of the description: more than the file has
    odd = data[:at] + struct.pack("<I", 10**6) + data[at + 4 :]
    before = list(warnings.filters)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            with Image.open(io.BytesIO(odd)) as theirs:
                theirs.load()
        except UnidentifiedImageError:
            pytest.skip("this PIL refuses the file instead of warning")
    assert heard, "PIL has nothing to warn of here any more"
    with ThreadPoolExecutor(4) as pool:
        assert all(picture.size == (64, 48) for picture in pool.map(lambda _: decode_image(odd, "a"), range(40)))
    assert list(warnings.filters) == before


@pytest.mark.parametrize("mode", ["F", "I", "RGBA"])
def test_a_small_file_of_many_pixels_takes_little_more_than_its_pixels(mode):
    data = encoded(Image.new(mode, (4_000, 10_000)), "TIFF", compression="tiff_lzw")
    assert attack(lambda: decode_image(data, "bomb.tif"), megabytes=430) == ""  # 11 bytes a pixel
