"""Pictures for the page."""

import io

import numpy as np
from PIL import Image

from suprank.data import Manifest
from suprank.explorer import Source
from suprank.explorer.web import Place
from suprank.explorer.web.pictures import Pictures


def side(root, count=3):
    columns = {"path": [f"{row}.jpg" for row in range(count)], "split": ["test"] * count}
    return Source.of("s", np.eye(count, dtype=np.float32), Manifest.of(columns, root=root, levels=())).gallery


def test_large_photographs_become_small_and_keep_their_shape(tmp_path):
    Image.effect_noise((2000, 1000), 50).convert("RGB").save(tmp_path / "0.jpg")
    pictures, images = Pictures(), side(tmp_path)
    small, large = (pictures.encoded(images, Place(0, "gallery", 0), size) for size in ("small", "large"))
    assert Image.open(io.BytesIO(small.data)).size == (224, 112)
    assert Image.open(io.BytesIO(large.data)).size == (800, 400)
    assert small.kind == "image/jpeg"


def test_a_missing_or_damaged_picture_is_drawn_and_not_kept(tmp_path):
    (tmp_path / "1.jpg").write_bytes(b"\xff\xd8\xff nothing of a picture")
    pictures, images = Pictures(), side(tmp_path)
    for row in (0, 1):
        assert not pictures.encoded(images, Place(0, "gallery", row), "small").there
    Image.new("RGB", (8, 8), "red").save(tmp_path / "0.jpg")
    assert pictures.encoded(images, Place(0, "gallery", 0), "small").there


def test_no_more_than_so_many_bytes_are_kept(tmp_path):
    for row in range(3):
        Image.effect_noise((200, 200), 50).convert("RGB").save(tmp_path / f"{row}.jpg")
    pictures, images = Pictures(kept_bytes=60_000), side(tmp_path)
    sizes = [len(pictures.encoded(images, Place(0, "gallery", row), "small").data) for row in (0, 1, 2, 0, 1, 2)]
    assert max(sizes) < 60_000
    assert pictures._size <= 60_000
    assert pictures._size == sum(len(one.data) for one in pictures._kept.values())
