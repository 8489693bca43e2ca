"""Manifests of images with several labels at a level: reading, saving, counting, and sampling batches."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data.class_pools import RowsByClass
from suprank.data.class_statistics import class_statistics
from suprank.data.duplicates import find_duplicates
from suprank.data.manifest import Manifest
from suprank.data.samplers import BalancedBatchSampler, HierarchicalBatchSampler
from suprank.data.splits import holdout_classes
from suprank.files.labels import LabelColumn

COLUMNS = {
    "path": ["1.jpg", "2.jpg", "3.jpg", "4.jpg"],
    "split": ["train", "query", "gallery", "distractor"],
    "label_thing": ["dog|person", "person", "cat | dog|dog", ""],
    "label_kind": ["animal|human", "human", "animal", None],
}
SETS = [[[1, 2], [0, 1]], [[2, -1], [1, -1]], [[0, 1], [0, -1]], [[-1, -1], [-1, -1]]]


def manifest(separator="|", **columns):
    return Manifest.from_columns(COLUMNS | columns, root=".", label_separator=separator)


def test_a_cell_holds_several_labels_where_the_separator_says_so():
    found = manifest()
    assert found.labels.tolist() == SETS
    assert found.names == {"thing": ("cat", "dog", "person"), "kind": ("animal", "human")}
    assert found.has_label_sets
    assert repr(found) == "Manifest(1 train, 1 query, 1 gallery, 1 distractor; 3 thing, 2 kind; root .)"


def test_without_a_separator_a_bar_is_part_of_a_name():
    found = manifest(None)
    assert found.names["thing"] == ("cat | dog|dog", "dog|person", "person")
    assert found.labels.ndim == 2


def test_lists_are_sets_and_lists_of_one_label_are_that_label():
    lists = {"label_thing": [["person", "dog"], ["person"], ["dog", "cat", "dog"], []]}
    kinds = {"label_kind": [["human", "animal"], ["human"], ["animal"], None]}
    assert manifest(None, **lists, **kinds).labels.tolist() == SETS
    single = manifest(None, label_thing=[["dog"], ["dog"], ["cat"], []], label_kind=["animal", "animal", "animal", ""])
    assert single.labels.tolist() == [[1, 0], [1, 0], [0, 0], [-1, -1]]
    assert not single.has_label_sets


def test_in_lists_of_numbers_minus_one_is_padding():
    padded = manifest(None, label_thing=[[3, 7], [7, -1], [-1, 3], [-1, -1]], label_kind=["k", "k", "k", ""])
    assert padded.names["thing"] == ("3", "7")
    assert padded.labels[:, 0].tolist() == [[0, 1], [1, -1], [0, -1], [-1, -1]]
    with pytest.raises(ValueError, match="row 1: thing is blank"):
        manifest(None, label_thing=[[3, 7], [-1, -1], [3], []], label_kind=["k", "k", "k", ""])


@pytest.mark.parametrize("file", ["sets.csv", "sets.parquet"])
def test_a_saved_manifest_reads_the_same(tmp_path, file):
    names = {"label_thing": [["a|b", "c"], ["c"], ["x", "a|b"], []]}  # so that the bar cannot stand between labels
    for found in (manifest(), manifest(None, **names, label_kind=["k", "k", "k", ""])):
        found.save(tmp_path / file)
        again = Manifest.read(tmp_path / file)
        assert again.labels.tolist() == found.labels.tolist()
        assert again.names == found.names
        subset = again.split("query", "gallery")
        subset.save(tmp_path / file)
        assert Manifest.read(tmp_path / file).labels.tolist() == found.labels[1:3].tolist()


def test_a_parquet_file_of_anybody_may_hold_lists(tmp_path):
    lists = pa.array([["b", "a"], ["a"]], pa.large_list(pa.large_string()))
    pq.write_table(pa.table({"path": ["1", "2"], "split": ["train"] * 2, "label_x": lists}), tmp_path / "x.parquet")
    assert Manifest.read(tmp_path / "x.parquet").labels.tolist() == [[[0, 1]], [[0, -1]]]


def test_subsets_keep_ids_and_new_columns_keep_labels():
    found = manifest().take([2, 0]).with_columns(extra=[1, 2])
    assert found.labels.tolist() == [SETS[2], SETS[0]]
    assert found.names == manifest().names


def test_a_subset_or_a_level_of_one_label_an_image_has_single_labels():
    found = manifest()
    assert found.take([1, 3]).labels.tolist() == [[2, 1], [-1, -1]]
    assert not found.take([1]).has_label_sets
    single = manifest(label_kind=["living", "living", "living", ""])
    assert single.labels.ndim == 3
    assert single.labels_at(["kind"]).tolist() == [[0], [0], [0], [-1]]
    single.require_single_labels("a thing", levels=["kind"])
    with pytest.raises(ValueError, match="a thing needs one label for an image at each level, but images have several thing"):
        single.require_single_labels("a thing")


def test_labels_that_every_csv_separator_occurs_in_need_parquet(tmp_path):
    found = manifest(None, label_thing=[["|", ";"], ["~"], ["^", "§"], []], label_kind=["k", "k", "k", ""])
    with pytest.raises(ValueError, match=r"save the manifest as \.parquet"):
        found.save(tmp_path / "x.csv")


def test_lists_that_are_no_labels_need_parquet(tmp_path):
    found = manifest(tags=[["red"], ["red", "wet"], [], None])
    with pytest.raises(ValueError, match=r"column 'tags' holds lists, which a CSV cannot hold; save the manifest as \.parquet"):
        found.save(tmp_path / "x.csv")
    assert not list(tmp_path.iterdir())
    found.save(tmp_path / "x.parquet")
    assert Manifest.read(tmp_path / "x.parquet").table["tags"].to_pylist() == [["red"], ["red", "wet"], [], None]


@pytest.mark.parametrize(
    ("columns", "separator", "message"),
    [
        ({"label_thing": ["dog||person", "cat", "cat", ""]}, "|", "row 0: there is a blank among the labels of thing"),
        ({"label_thing": [["dog", None], ["cat"], ["cat"], []]}, None, "there is a blank among the labels"),
        ({"label_thing": [[], ["cat"], ["cat"], []]}, None, "row 0: thing is blank"),
        ({"label_kind": ["animal", "", "animal", ""]}, "|", "there is a label of thing, but none of kind"),
        ({"label_thing": [[1.5], [2.0], [3.0], []]}, None, "must hold text"),
        ({"label_all": ["a", "a", "a", ""], "label_kind": ["", "k", "k", ""]}, "|", "row 0.*fill it in: with several"),
        ({}, "", "label_separator='' must be a character"),
        ({}, " ", "label_separator=' ' must be a character"),
    ],
)
def test_bad_sets_are_refused(columns, separator, message):
    with pytest.raises((ValueError, TypeError), match=message):
        manifest(separator, **columns)


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from(["a", "bb", "c d"]), max_size=4), min_size=1, max_size=6))
def test_splitting_undoes_joining(rows):
    column = LabelColumn.from_values(["|".join(row) for row in rows]).split_cells("|")
    members = iter(column.codes.tolist())
    assert [[column.names[next(members)] for _ in range(size)] for size in column.lengths.tolist()] == rows


def test_a_parent_is_a_label_that_all_images_of_a_class_have():
    assert manifest().two_parents() == []
    tree = manifest().to_tree()
    assert [tree.path(label) for label in range(3)] == [("cat", "animal"), ("dog", "animal"), ("person", "human")]
    assert [images.tolist() for images in tree.images] == [[1, 2, 2], [2, 2]]
    apart = manifest(label_kind=["animal", "human", "pet", ""])
    assert apart.two_parents() == [
        "images of thing 'dog' have no kind in common",
        "images of thing 'person' have no kind in common",
    ]
    together = manifest(label_kind=["animal|human", "human", "animal|human", ""])
    with pytest.raises(
        ValueError, match=r"parent of thing 'cat' is unknown: all its images have the kind 'animal' and 'human'"
    ):
        together.to_tree()


def test_an_image_counts_for_each_of_its_classes():
    found = class_statistics(manifest())
    assert found.counts["thing"] == {"train": 2, "query": 1, "gallery": 2}
    assert found.shared == {"thing": 2, "kind": 2}
    assert found.unanswerable == 1  # the person
    assert class_statistics(manifest(split=["query", "query", "gallery", "distractor"])).unanswerable == 1
    assert found.sizes == {"1": 1, "2": 2}
    assert found.multi_label == {"thing": 2, "kind": 1}


def test_copies_with_the_same_set_do_not_contradict_each_other():
    same = manifest(label_thing=["dog|cat", "cat|dog", "dog", ""], label_kind=["animal"] * 3 + [""])
    assert find_duplicates(same, np.array([0, 0, 1, 2])).contradictions == ()
    assert len(find_duplicates(same, np.array([0, 1, 1, 2])).contradictions) == 1


def test_a_split_by_classes_is_refused():
    with pytest.raises(ValueError, match="a split by classes needs one label for an image.*images have several thing"):
        holdout_classes(manifest())


# Batches


def random_sets(images, classes, seed=0):
    random = np.random.default_rng(seed)
    labels = np.full((images, 1, 3), -1)
    for row in labels[:, 0]:
        count = random.integers(1, 4)
        row[:count] = random.choice(classes, count, replace=False)
    return labels


def test_rows_are_in_the_pool_of_each_of_their_labels():
    found = RowsByClass.from_sets(np.array([[4, 1, -1], [1, -1, -1], [4, 4, 1]]))
    assert [sorted(found.class_rows(label).tolist()) for label in range(len(found))] == [[0, 1, 2], [0, 2]]


@settings(max_examples=20)
@given(seed=st.integers(0, 100))
def test_batches_hold_m_images_of_each_class_no_image_twice_and_every_image_once_an_epoch(seed):
    labels = random_sets(60, 10, seed)
    sampler = BalancedBatchSampler(labels, batch_size=12, images_per_class=3, seed=seed)
    batches = list(sampler)
    assert set(np.concatenate(batches).tolist()) == set(range(60))
    for batch in batches:
        assert len(set(batch)) == 12
        groups = [
            np.concatenate([labels[row, 0][labels[row, 0] >= 0] for row in batch[start : start + 3]]) for start in (0, 3, 6, 9)
        ]
        assert all(np.bincount(group).max() == 3 for group in groups)
    assert [list(batch) for batch in BalancedBatchSampler(labels, 12, 3, seed=seed)] == [list(batch) for batch in batches]


def test_a_class_without_other_images_repeats_one():
    labels = np.array([[[0, 1]], [[0, 1]]])
    for batch in BalancedBatchSampler(labels, batch_size=4, images_per_class=2):
        assert sorted(batch) == [0, 0, 1, 1]


def test_sets_of_one_label_give_the_same_batches():
    labels = np.arange(40) % 8
    sets = np.stack([labels, labels, np.full(40, -1)], axis=1)[:, None]
    single, several = (BalancedBatchSampler(one, batch_size=8, images_per_class=2, seed=3) for one in (labels, sets))
    assert [list(batch) for batch in single] == [list(batch) for batch in several]


def test_unlabeled_images_and_coarse_classes_are_refused():
    with pytest.raises(ValueError, match="1 of 3 images, first in row 1, are unlabeled"):
        BalancedBatchSampler(np.array([[[0, 1]], [[-1, -1]], [[1, -1]]]), batch_size=2, images_per_class=1)
    with pytest.raises(ValueError, match="HierarchicalBatchSampler needs one label for an image"):
        HierarchicalBatchSampler(np.zeros((4, 2, 2), int), batch_size=4)
