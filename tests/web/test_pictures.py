"""Pictures for a page."""

import io

import pytest
from PIL import Image

from suprank.web.pictures import MISSING, Pictures


def noise(width, height):
    return Image.effect_noise((width, height), 50).convert("RGB")


def test_large_photographs_become_small_and_keep_their_shape():
    pictures, photograph = Pictures(), noise(2000, 1000)
    small, large = (pictures.encoded(("a", side), side, lambda: photograph) for side in (224, 800))
    assert Image.open(io.BytesIO(small.data)).size == (224, 112)
    assert Image.open(io.BytesIO(large.data)).size == (800, 400)
    assert small.kind == "image/jpeg"
    assert photograph.size == (2000, 1000)


def test_small_drawings_stay_as_they_are():
    made = Pictures().encoded("a", 224, lambda: Image.new("RGB", (8, 8), "red"))
    assert (made.kind, made.kept["Cache-Control"]) == ("image/png", "private, max-age=86400")
    assert Image.open(io.BytesIO(made.data)).getpixel((3, 3)) == (255, 0, 0)


def test_a_missing_picture_is_drawn_and_not_kept():
    pictures = Pictures()
    missing = pictures.encoded("a", 224, lambda: None)
    assert (missing.data, missing.there, missing.kept) == (MISSING, False, {"Cache-Control": "no-store"})
    assert pictures.encoded("a", 224, lambda: Image.new("RGB", (8, 8))).there
    assert pictures.encoded("a", 224, lambda: pytest.fail("read again")).there


def test_no_more_than_so_many_bytes_are_kept():
    pictures = Pictures(kept_bytes=60_000)
    sizes = [len(pictures.encoded(key, 224, lambda: noise(200, 200)).data) for key in (0, 1, 2, 0, 1, 2)]
    assert max(sizes) < 60_000
    assert pictures._size <= 60_000
    assert pictures._size == sum(len(one.data) for one in pictures._kept.values())
