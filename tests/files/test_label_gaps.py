"""Gaps in label paths: what is one, what takes its place, and the laws of filling it."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.files.label_gaps import Placeholder, fill_gaps, find_conflict, find_gaps, placeholder_names


def sizes(labels):
    return (labels.max(axis=0) + 1).tolist()


@st.composite
def trees_with_gaps(draw):
    """Label ids [rows, levels] of a random tree; some classes between the finest and the coarsest level are blank."""
    depth, tops = draw(st.integers(1, 5)), draw(st.integers(1, 2))
    columns = [list(range(tops))]  # of each leaf, its class at every level so far, coarsest first
    for _ in range(depth - 1):
        copies = [leaf for leaf in range(len(columns[0])) for _ in range(draw(st.integers(1, 2)))]
        columns = [*([column[leaf] for leaf in copies] for column in columns), list(range(len(copies)))]
    leaves = np.array(columns[::-1], np.int64).T
    for level in range(1, depth - 1):
        for one in np.unique(leaves[:, level]).tolist():
            if draw(st.booleans()):
                leaves[leaves[:, level] == one, level] = -1
    rows = draw(st.lists(st.integers(0, len(leaves) - 1), min_size=1, max_size=12))
    return leaves[rows]


def is_tree(labels):
    parents = {}
    return all(
        parents.setdefault((level, row[level]), row[level + 1]) == row[level + 1]
        for row in labels.tolist()
        for level in range(len(row) - 1)
    )


def test_a_blank_between_two_labels_is_a_gap_and_the_ends_are_not():
    labels = np.array([[5, -1, -1, 0], [-1, 3, -1, 0], [5, 3, -1, -1], [-1, -1, -1, 0], [5, 3, 1, 0]])
    assert [np.flatnonzero(row).tolist() for row in find_gaps(labels)] == [[1, 2], [2], [], [], []]


@given(trees_with_gaps())
def test_filled_labels_form_a_tree_without_gaps_and_keep_every_label(labels):
    filled, placeholders = fill_gaps(labels, sizes(labels))
    assert is_tree(filled)
    assert (filled >= 0).all()
    assert (filled[labels >= 0] == labels[labels >= 0]).all()
    assert filled.max(axis=0).tolist() == [n + len(p) - 1 for n, p in zip(sizes(labels), placeholders, strict=True)]
    assert find_conflict(labels, filled) is None


@given(trees_with_gaps())
def test_without_gaps_nothing_changes_and_filling_twice_is_filling_once(labels):
    filled, _ = fill_gaps(labels, sizes(labels))
    again, placeholders = fill_gaps(filled, sizes(filled))
    assert again is filled
    assert not any(placeholders)


@given(trees_with_gaps())
def test_two_rows_share_a_placeholder_if_and_only_if_they_share_the_class_below_it(labels):
    filled, _ = fill_gaps(labels, sizes(labels))
    for (one, first), (other, second) in itertools.combinations(zip(labels.tolist(), filled.tolist(), strict=True), 2):
        for level in range(1, labels.shape[1]):
            if one[level] < 0 or other[level] < 0:
                assert (first[level] == second[level]) == (first[level - 1] == second[level - 1])


@given(trees_with_gaps())
def test_the_names_of_placeholders_are_as_many_as_the_placeholders(labels):
    names = [[f"{level}-{one}" for one in range(n)] for level, n in enumerate(sizes(labels))]
    levels = [f"level{level}" for level in range(labels.shape[1])]
    placeholders = fill_gaps(labels, sizes(labels))[1]
    for texts, some in zip(placeholder_names(placeholders, names, levels), placeholders, strict=True):
        assert len(set(texts)) == len(some)


def test_a_species_and_a_genus_of_the_same_name_have_two_placeholders():
    names = [["Bison"], ["Bison"], [], ["Artiodactyla"]]
    species, genus = Placeholder(0, 0, 3, 0), Placeholder(1, 0, 3, 0)
    assert placeholder_names([[], [], [species, genus], []], names, ["species", "genus", "family", "order"])[2] == [
        "(no family) Artiodactyla: Bison (species)",
        "(no family) Artiodactyla: Bison",
    ]


def test_two_gaps_that_would_get_one_name_are_refused():
    names = [["a"], ["a (species)"], [], ["O"]]
    species, genus = Placeholder(0, 0, 3, 0), Placeholder(1, 0, 3, 0)
    with pytest.raises(
        ValueError, match=r"two gaps of family would get the placeholder '\(no family\) O: a \(species\)'; rename"
    ):
        placeholder_names([[], [], [species, genus], []], names, ["species", "genus", "family", "order"])


@pytest.mark.parametrize(
    ("labels", "level", "rows"),
    [
        ([[0, -1, 0], [1, 0, 0], [0, 0, 0]], 0, (0, 2)),  # the genus is blank in one row and named in another
        ([[0, -1, 0], [0, -1, 1]], 1, (0, 1)),  # the family differs
        ([[0, -1, -1, 0], [0, -1, 0, 0]], 1, (0, 1)),  # the family is blank in one row
        ([[0, 0, 0], [0, 1, 0], [1, -1, 0]], None, None),  # two parents, but no gap is to blame: others say so
    ],
)
def test_rows_of_one_class_must_agree_about_a_gap(labels, level, rows):
    labels = np.array(labels)
    conflict = find_conflict(labels, fill_gaps(labels, sizes(labels))[0])
    assert (None if conflict is None else (conflict.level, conflict.rows)) == (None if level is None else (level, rows))
