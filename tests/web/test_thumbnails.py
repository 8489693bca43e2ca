"""Thumbnails for a page."""

import io

import pytest
from PIL import Image

from suprank.web.thumbnails import PLACEHOLDER, ThumbnailCache


def noise(width, height):
    return Image.effect_noise((width, height), 50).convert("RGB")


def test_large_photographs_become_small_and_keep_their_shape():
    thumbnails, photograph = ThumbnailCache(), noise(2000, 1000)
    small, large = (thumbnails.thumbnail(("a", side), side, lambda: photograph) for side in (224, 800))
    assert Image.open(io.BytesIO(small.data)).size == (224, 112)
    assert Image.open(io.BytesIO(large.data)).size == (800, 400)
    assert small.media_type == "image/jpeg"
    assert photograph.size == (2000, 1000)


def test_small_drawings_stay_as_they_are():
    encoded = ThumbnailCache().thumbnail("a", 224, lambda: Image.new("RGB", (8, 8), "red"))
    assert (encoded.media_type, encoded.cache_headers["Cache-Control"]) == ("image/png", "private, max-age=86400")
    assert Image.open(io.BytesIO(encoded.data)).getpixel((3, 3)) == (255, 0, 0)


def test_a_missing_picture_is_drawn_and_not_kept():
    thumbnails = ThumbnailCache()
    missing = thumbnails.thumbnail("a", 224, lambda: None)
    assert (missing.data, missing.found, missing.cache_headers) == (PLACEHOLDER, False, {"Cache-Control": "no-store"})
    assert thumbnails.thumbnail("a", 224, lambda: Image.new("RGB", (8, 8))).found
    assert thumbnails.thumbnail("a", 224, lambda: pytest.fail("read again")).found


def test_no_more_than_so_many_bytes_are_kept():
    thumbnails = ThumbnailCache(max_bytes=60_000)
    sizes = [len(thumbnails.thumbnail(key, 224, lambda: noise(200, 200)).data) for key in (0, 1, 2, 0, 1, 2)]
    assert max(sizes) < 60_000
    assert thumbnails._size <= 60_000
    assert thumbnails._size == sum(len(one.data) for one in thumbnails._cache.values())
