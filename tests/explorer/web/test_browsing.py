"""Listing by text, split and label."""

import numpy as np
import pytest

from suprank.data import Manifest
from suprank.explorer.web import ImageId, Node
from suprank.explorer.web.browsing import Browser, ImageSelection, _mixed_order
from tests.explorer.runs import of_arrays


def rows(listing):
    return [image.row for image in listing.images]


def test_pages_show_every_image_once_and_the_first_many_classes(one):
    browser = one.browser
    pages = [browser.list_images(ImageSelection(), offset=offset, limit=10) for offset in range(0, 100, 10)]
    assert sorted(row for page in pages for row in rows(page)) == list(range(96))
    assert len({one.data.items.labels[row, 0] for row in rows(pages[0])}) >= 6
    assert rows(browser.list_images(ImageSelection(), offset=0, limit=10)) == rows(pages[0])
    assert rows(browser.list_images(ImageSelection(), offset=500)) == []


@pytest.mark.parametrize("total", [0, 1, 2, 3, 48, 97, 1000])
def test_mixing_is_a_permutation(total):
    assert sorted(_mixed_order(np.arange(total), total).tolist()) == list(range(total))


def test_text_is_found_in_labels_and_paths_whatever_the_case(one):
    browser = one.browser
    assert rows(browser.list_images(ImageSelection("CLOVER"), limit=99)) == list(range(48, 56))
    assert rows(browser.list_images(ImageSelection("clover/3.png"))) == [51]
    assert browser.list_images(ImageSelection("star")).total == 24
    assert browser.list_images(ImageSelection("no such thing")).total == 0
    assert browser.list_images(ImageSelection(".*")).total == 0  # it is no pattern


def test_labels_are_found_by_their_names_coarse_ones_first(one):
    nodes, total = one.browser.labels("star")
    assert [one.tree.name(node) for node in nodes] == ["star", "five-pointed star", "four-pointed star", "eight-pointed star"]
    assert total == 4
    assert one.browser.labels("star", limit=1) == ([nodes[0]], 4)


def test_labels_without_an_image_are_not_found():
    columns = {"path": list("abc"), "split": ["train", "test", "test"], "label_kind": ["red jay", "jay", "jay"]}
    tested = Manifest.from_columns(columns, root=".").split("test")
    browser = Browser(of_arrays("s", np.eye(2, dtype=np.float32), tested))
    nodes, total = browser.labels("jay")
    assert [browser.data.names["kind"][node.label] for node in nodes] == ["jay"]
    assert total == 1


def test_labels_and_splits_narrow_the_list_together():
    columns = {"path": list("abcdef"), "split": ["gallery", "distractor"] * 3, "label_kind": ["x", None, "x", None, "y", "x"]}
    gallery = Manifest.from_columns(columns, root=".")
    queries = Manifest.from_columns({"path": ["q"], "split": ["query"], "label_kind": ["y"]}, root=".")
    vectors = np.eye(6, dtype=np.float32)
    browser = Browser(of_arrays("s", vectors[:1], queries, vectors, gallery))
    kind = browser.data.names["kind"].index("x")
    assert sorted(rows(browser.list_images(ImageSelection(split="distractor")))) == [1, 3, 5]
    assert sorted(rows(browser.list_images(ImageSelection(node=Node(0, kind))))) == [0, 2, 5]
    assert rows(browser.list_images(ImageSelection(node=Node(0, kind), split="distractor"))) == [5]
    assert browser.list_images(ImageSelection(side="query")).images == (ImageId(0, "query", 0),)
    assert browser.splits == {"query": ["query"], "gallery": ["gallery", "distractor"]}
