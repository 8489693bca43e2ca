"""Which part is ranked against which; labels by name; which rows are one image."""

import numpy as np
import pytest

from suprank.data import Manifest
from suprank.embedding import combine_parts, ranked_parts
from suprank.embedding.query_gallery import shared_levels


def part(labels, split="test", **columns):
    """Rows with these labels, and their embeddings: row numbers."""
    given = {"path": [f"{split}{row}.png" for row in range(len(labels))], "split": [split] * len(labels), "label_kind": labels}
    return np.arange(len(labels), dtype=np.float32)[:, None] + 1, Manifest.from_columns(given | columns, root=".")


@pytest.mark.parametrize(
    ("there", "ranked"),
    [
        ({"query", "gallery", "test", "train"}, ("query", "gallery")),
        ({"query"}, ("query", "gallery")),
        ({"test", "gallery", "train"}, ("test", "gallery")),
        ({"test", "train"}, ("test",)),
        ({"train"}, ("train",)),
        ({"train", "gallery"}, ("train",)),
    ],
)
def test_queries_go_before_test_images_and_those_before_train(there, ranked):
    assert ranked_parts(there) == ranked


def test_one_part_is_ranked_against_itself_by_place_or_by_id():
    found = combine_parts({"test": part(["a", "b"])}, name="x")
    assert (found.levels, found.gallery, found.queries.ids) == (("kind",), None, None)
    assert found.queries.labels.tolist() == [[0], [1]]
    assert combine_parts({"test": part(["a", "b"], id=["one", "one"])}, name="x").queries.ids == ["one", "one"]


def test_queries_and_gallery_are_matched_by_class_name_and_path():
    query, gallery = part(["y", "z"], "query"), part(["x", "z", "y"], "gallery", path=["a", "query1.png", "b"])
    queries, items = combine_parts({"query": query, "gallery": gallery}, name="x").sides
    assert (queries.labels[:, None] == items.labels[None]).all(-1).tolist() == [[False, False, True], [False, True, False]]
    assert [one in items.ids for one in queries.ids] == [False, True]
    assert items.embeddings[:].tolist() == [[1], [2], [3]]


def test_ids_count_only_where_all_parts_have_them():
    query, gallery = part(["a"], "query", id=["7"]), part(["a"], "gallery")
    queries, items = combine_parts({"query": query, "gallery": gallery}, name="x").sides
    assert (queries.ids, items.ids) == (["query0.png"], ["gallery0.png"])
    known = part(["a"], "gallery", id=["7"])
    queries, items = combine_parts({"query": query, "gallery": known}, name="x").sides
    assert queries.ids == items.ids == ["7"]


def test_test_images_stand_before_the_distractors_in_the_gallery():
    queries, items = combine_parts({"test": part(["a", "b"]), "gallery": part(["", "b"], "distractor")}, name="x").sides
    assert len(queries.labels) == 2
    assert items.labels.tolist() == [[0], [1], [-1], [1]]
    assert items.ids[:2] == queries.ids
    assert items.embeddings[:].tolist() == [[1], [2], [1], [2]]


def test_levels_are_those_that_all_parts_have():
    _, two = part(["a"], label_group=["g"])
    _, one = part(["a"], "gallery")
    assert (shared_levels([two, one]), shared_levels([two])) == (("kind",), ("kind", "group"))
    bare = Manifest.from_columns({"path": ["a"], "split": ["test"]}, root=".", levels=())
    assert shared_levels([two, bare]) == ()
