"""The images of retrieval data: pictures wherever they are, unit embeddings, and what queries find."""

import shutil

import numpy as np
import pytest

from suprank import open_data
from suprank.data import Manifest
from suprank.data.images import BrokenImage
from suprank.explorer.images import best_items, matching_rows, read_picture, shared_levels, unit_blocks
from tests.explorer import runs


@pytest.fixture
def pictures(tmp_path):
    return runs.collection(tmp_path / "data")


def test_the_best_items_are_in_exact_order_with_copies_but_not_the_query(pictures):
    vectors = runs.vectors(pictures)
    vectors[9] = vectors[4]  # a copy
    rows, scores = best_items(runs.of_arrays("x", vectors, pictures), [4, 9], 5)
    assert (rows[0, 0], rows[1, 0]) == (9, 4)
    assert scores[:, 0] == pytest.approx(1)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit[4]
    cosines[4] = -np.inf
    assert rows[0].tolist() == np.argsort(-cosines)[:5].tolist()


def test_an_item_that_is_the_query_itself_is_not_in_its_list(tmp_path, pictures):
    ids = [f"i{row // 2}" for row in range(24)]
    data = runs.of_arrays("x", runs.vectors(pictures), pictures.with_columns(id=ids))
    assert data.self_rows(5).tolist() == [4, 5]
    assert not set(best_items(data, [5], 24)[0][0]) & {4, 5}
    runs.embeddings(tmp_path / "e", pictures.take(np.arange(0, 24, 3)).with_columns(split=["query"] * 8))
    runs.embeddings(tmp_path / "e", pictures.with_columns(split=["gallery"] * 24))
    data = open_data(tmp_path / "e")
    assert data.self_rows(1).tolist() == [3], "the same image in the gallery, under its own path"
    rows, _ = best_items(data, [1], 30)
    assert sorted(rows[0][rows[0] >= 0]) == [row for row in range(24) if row != 3]


def test_unit_rows_have_length_one_in_float32_whatever_is_stored(pictures):
    vectors = runs.vectors(pictures, dtype=np.float16)
    vectors[2] = 0
    images = runs.of_arrays("x", vectors, pictures).items
    unit = np.concatenate([rows for _, rows in unit_blocks(images, 7)])
    assert unit.dtype == np.float32
    assert np.linalg.norm(np.delete(unit, 2, 0), axis=1) == pytest.approx(1)
    assert not unit[2].any()
    assert [first for first, _ in unit_blocks(images, 7)] == [0, 7, 14, 21]


def test_pictures_come_from_files_and_zips_and_say_why_they_do_not(tmp_path):
    zipped = runs.collection(tmp_path / "z", archive="p.zip")
    data = runs.of_arrays("x", runs.vectors(zipped), zipped)
    assert read_picture(data.items, 0).size == (48, 40)
    plain = runs.collection(tmp_path / "f", extension="jpg")
    data = runs.of_arrays("x", runs.vectors(plain), plain)
    assert read_picture(data.items, 7, min_short_side=10).mode == "RGB"
    (tmp_path / "f" / "pictures" / "0-0-0.jpg").unlink()
    gone = read_picture(data.items, 0)
    assert isinstance(gone, BrokenImage)
    assert "is not under" in gone.reason
    shutil.rmtree(tmp_path / "f")
    fresh = runs.of_arrays("x", runs.vectors(plain), plain.take(np.arange(24)))
    assert "not a folder" in read_picture(fresh.items, 1).reason


def test_a_shared_level_needs_all_coarser_levels_shared():
    own = np.array([[5, 2, 1]])
    theirs = np.array([[5, 2, 1], [6, 2, 1], [6, 3, 1], [5, 3, 1], [5, 2, 0], [-1, 2, 1], [-1, -1, -1]])
    assert shared_levels(own, theirs).tolist() == [3, 2, 1, 1, 0, 2, 0]
    assert shared_levels(np.array([[-1, -1, -1]]), theirs).tolist() == [0] * 7


@pytest.fixture
def birds():
    columns = {
        "path": [f"{row}.jpg" for row in range(5)],
        "split": ["test", "test", "gallery", "gallery", "distractor"],
        "label_kind": ["red jay", "blue jay", "red jay", "wren", None],
        "label_family": ["Corvidae", "Corvidae", "Corvidae", "Troglodytidae", None],
    }
    return Manifest.from_columns(columns, root=".")


def test_every_key_of_a_filter_must_match_by_one_of_its_names(birds):
    for where, expected in (
        ({}, [0, 1, 2, 3, 4]),
        ({"family": ["Corvidae"]}, [0, 1, 2]),
        ({"kind": ["wren", "blue jay"]}, [1, 3]),
        ({"kind": ["red jay"], "split": ["gallery", "distractor"]}, [2]),
    ):
        assert np.flatnonzero(matching_rows(birds, where, "birds")).tolist() == expected


def test_names_and_levels_that_no_item_has_are_refused_with_near_ones(birds):
    with pytest.raises(ValueError, match="birds has no item with kind=red jai; the nearest names are red jay, blue jay"):
        matching_rows(birds, {"kind": ["wren", "red jai"]}, "birds")
    with pytest.raises(ValueError, match="birds has no item with family=x; the nearest names are Corvidae, Troglodytidae."):
        matching_rows(birds, {"family": ["x"]}, "birds")
    with pytest.raises(ValueError, match="birds has no level 'order'; choose from kind, family, split."):
        matching_rows(birds, {"order": ["x"]}, "birds")
    few = birds.take([0, 1])
    with pytest.raises(ValueError, match="few has no item with kind=wren; the nearest names are blue jay, red jay."):
        matching_rows(few, {"kind": ["wren"]}, "few")
