"""The label tree as JSON: written a line a class, read back the same, and checked at the door."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data.tree import LabelTree


def birds():
    return LabelTree(
        ("species", "family"),
        (("crow", "jay", "wren"), ("Corvidae", "Troglodytidae")),
        (np.array([0, 0, -1]),),
        (np.array([5, 2, 4]), np.array([7, 4])),
    )


@given(st.lists(st.integers(-1, 3), max_size=12))
def test_children_are_the_classes_with_that_parent_in_their_order(parents):
    names = (tuple(map(str, range(len(parents)))), ("a", "b", "c", "d"))
    images = (np.ones(len(parents), np.int64), np.ones(4, np.int64))
    tree = LabelTree(("fine", "coarse"), names, (np.array(parents, np.int64),), images)
    for parent in range(4):
        assert tree.children(1, parent).tolist() == [child for child, above in enumerate(parents) if above == parent]


def test_a_small_tree_is_written_a_line_a_class():
    assert birds().to_json().splitlines() == [
        "{",
        ' "format": "suprank.label-tree",',
        ' "version": 1,',
        ' "levels": [',
        '  {"name": "species", "classes": [',
        '   {"name": "crow", "parent": "Corvidae", "images": 5},',
        '   {"name": "jay", "parent": "Corvidae", "images": 2},',
        '   {"name": "wren", "parent": null, "images": 4}',
        "  ]},",
        '  {"name": "family", "classes": [',
        '   {"name": "Corvidae", "images": 7},',
        '   {"name": "Troglodytidae", "images": 4}',
        "  ]}",
        " ]",
        "}",
    ]


def test_a_saved_tree_comes_back_whole(tmp_path):
    birds().save(tmp_path / "tree.json")
    read = LabelTree.read(tmp_path / "tree.json")
    assert read.levels == ("species", "family")
    assert read.names == birds().names
    assert [one.tolist() for one in read.parents] == [[0, 0, -1]]
    assert [one.tolist() for one in read.images] == [[5, 2, 4], [7, 4]]
    assert [file.name for file in tmp_path.iterdir()] == ["tree.json"]


names = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), max_size=5, unique=True).map(tuple)


@st.composite
def trees(draw):
    levels = draw(st.lists(st.text(max_size=4), min_size=1, max_size=4, unique=True))
    classes = [draw(names) for _ in levels]
    parents = [np.array([draw(st.integers(-1, len(above) - 1)) for _ in below], np.int64) for below, above in pairwise(classes)]
    images = [np.array([draw(st.integers(0, 2**63 - 1)) for _ in level], np.int64) for level in classes]
    return LabelTree(tuple(levels), tuple(classes), tuple(parents), tuple(images))


@settings(max_examples=40, deadline=None)
@given(trees())
def test_what_was_read_is_written_byte_for_byte(tree):
    text = tree.to_json()
    again = LabelTree.from_json(text)
    assert again.to_json() == text
    assert (again.levels, again.names) == (tree.levels, tree.names)
    assert [one.tolist() for one in again.parents] == [one.tolist() for one in tree.parents]
    json.loads(text)  # and others can read it


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('"version": 1', '"version": 2', "has version 2, and this suprank reads 1"),
        ('"suprank.label-tree"', '"other"', "is not a label tree"),
        ('"crow", "parent": "Corvidae"', '"crow", "parent": "Paridae"', "species 'crow' stands under 'Paridae', which is no"),
        ('"name": "jay"', '"name": "crow"', "two classes of species called 'crow'"),
        ('"name": "jay"', '"name": ""', "class 1 of species must have a name"),
        ('"name": "family"', '"name": "species"', "two levels called 'species'"),
        ('"images": 5', '"images": -5', "images is -5, but must be a whole number"),
        ('"images": 5', '"images": true', "images is True"),
        ('"images": 5', '"images": 5.5', "images is 5.5"),
        ('"parent": "Corvidae", "images": 5', '"images": 5', "'crow'.* must have a parent"),
        ('"Corvidae", "images": 7', '"Corvidae", "parent": null, "images": 7', "'Corvidae'.* must have no parent"),
        ('"name": "family", "classes": [', '"name": "family", "those": [', "level 1 must have a name and a list of classes"),
        ("{", "", "is not JSON"),
    ],
)
def test_what_is_no_tree_is_refused(before, after, complaint):
    text = birds().to_json()
    assert before in text
    with pytest.raises(ValueError, match=f"birds.json.*{complaint}"):
        LabelTree.from_json(text.replace(before, after, 1), about="birds.json")


def test_lists_texts_and_bytes_that_are_none_are_refused(tmp_path):
    for text in ("[]", '"tree"', '{"format": "suprank.label-tree", "version": 1, "levels": []}'):
        with pytest.raises(ValueError, match="the label tree"):
            LabelTree.from_json(text)
    (tmp_path / "latin.json").write_bytes(b'{"name": "caf\xe9"}')
    with pytest.raises(ValueError, match="latin.json is not a readable label tree"):
        LabelTree.read(tmp_path / "latin.json")
