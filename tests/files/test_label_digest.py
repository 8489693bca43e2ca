"""Digests of labels: equal for equal labels, in any order and any spelling of Unicode."""

import pytest

from suprank.files.label_digest import label_digests


def test_the_order_of_rows_means_nothing_with_ids_and_everything_without():
    assert label_digests(["a", "b"], {"x": ["1", "2"]}) == label_digests(["b", "a"], {"x": ["2", "1"]})
    assert label_digests(None, {"x": ["1", "2"]}) != label_digests(None, {"x": ["2", "1"]})


@pytest.mark.parametrize(
    ("names", "same"), [([" 1"], ["1"]), (["e\u0301"], ["\u00e9"]), ([["b", "a"]], [("a", "b")]), ([None], [None])]
)
def test_spellings_of_one_label_are_the_same(names, same):
    assert label_digests(["i"], {"x": names}) == label_digests(["i"], {"x": same})


def test_another_label_no_label_and_another_image_are_others():
    digests = [label_digests([key], {"x": [name]})["x"] for key, name in (("i", "1"), ("i", "2"), ("i", None), ("j", "1"))]
    assert len(set(digests)) == 4
