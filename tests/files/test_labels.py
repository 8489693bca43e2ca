"""Labels of a table: their spelling, several in a cell, gaps, and the tree that they form."""

import unicodedata
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.files.labels import LabelColumn, LabelSpellingWarning, check_tree, clean_labels, label_digests, stack_labels


def where(row):
    return f"x.csv:{row + 2}"


def cleaned(cells, **options):
    """The labels `[rows, levels]` and the names of each level."""
    columns = {level: LabelColumn.from_values(values) for level, values in cells.items()}
    found = clean_labels(columns, where, **options)
    labels = stack_labels([*found.values()], len(columns[next(iter(columns))]))
    return labels.tolist(), [tuple(one.names) for one in found.values()]


def test_labels_are_numbered_in_alphabetical_order_after_the_names_that_are_known():
    assert cleaned({"a": ["wren", "jay", "wren"]}) == ([[1], [0], [1]], [("jay", "wren")])
    assert cleaned({"a": ["wren", "jay"]}, names={"a": ["tit", "wren"]}) == ([[1], [2]], [("tit", "wren", "jay")])


def test_a_blank_a_null_and_among_numbers_minus_one_are_no_label():
    assert cleaned({"a": ["", None, " ", float("nan"), "x"]})[0] == [[-1], [-1], [-1], [-1], [0]]
    assert cleaned({"a": ["-1.0", "", "-1", "7"]}) == ([[-1], [-1], [-1], [0]], [("7",)])
    assert cleaned({"a": np.array([-1, 5])})[0] == [[-1], [0]]
    assert cleaned({"a": ["-1", "+1"]})[1] == [("+1", "-1")], "among words it is the name of an emoji"


@pytest.mark.parametrize(
    ("one", "other"), [("1", "1.0"), ("caf\u00e9", "cafe\u0301"), ("10", "10.00")], ids=["whole number", "accent", "zeros"]
)
def test_two_spellings_of_a_value_are_one_class_and_are_named(one, other):
    with pytest.warns(LabelSpellingWarning, match="a: two spellings are taken for one class: '") as seen:
        assert cleaned({"a": [one, f" {other}"]})[0] == [[0], [0]]
    assert ascii(one)[1:-1] in str(seen[0].message)


def test_words_that_look_like_numbers_stay_apart():
    values = ["1.5", "1", "01", "1e0", "1.", "v1.0", ".0"]
    assert len({row[0] for row in cleaned({"a": values})[0]}) == len(values)


@given(st.lists(st.text(alphabet="abe\u0301\u00e9- ", max_size=3), min_size=1))
def test_labels_are_equal_exactly_where_their_spellings_are(values):
    with warnings.catch_warnings(action="ignore"):
        found = np.array(cleaned({"a": values})[0])[:, 0]
    plain = np.array([unicodedata.normalize("NFC", value.strip()) for value in values])
    assert ((found >= 0) == (plain != "")).all()
    assert ((found[:, None] == found) == (plain[:, None] == plain)).all()


def test_lists_and_cells_with_a_separator_are_sets_ascending_each_label_once():
    expected = ([[[1, 2]], [[2, -1]], [[0, 1]], [[-1, -1]]], [("cat", "dog", "person")])
    assert cleaned({"a": ["dog|person", "person", "cat | dog|dog", ""]}, separator="|") == expected
    assert cleaned({"a": [["person", "dog"], "person", ("dog", "cat", "dog"), None]}) == expected
    assert cleaned({"a": np.array([[3, 7], [7, -1]]).tolist()})[0] == [[[0, 1]], [[1, -1]]], "−1 is padding"
    assert cleaned({"a": [["x"], []]})[0] == [[0], [-1]], "plain labels, if no row has two"


CATS = {
    "species": ["lynx", "lynx", "puma", "lion"],
    "genus": ["", "", "", "Panthera"],
    "family": ["Felidae"] * 4,
}


def test_a_placeholder_names_the_level_below_it_where_that_is_not_the_next():
    wide = {"species": ["lynx"], "genus": [""], "family": [""], "order": ["Carnivora"]}
    assert cleaned(wide, fill_gaps=True)[1][2] == ("(no family) Carnivora: lynx (species)",)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.booleans()), min_size=1, max_size=8))
def test_filling_fills_the_gaps_and_nothing_else(rows):
    """Every class has its own path of four levels, of which the two in the middle may be blank."""
    shown = {name: ("1", *middle, "1") for name, *middle in rows}
    cells = {level: [level + name if shown[name][number] else "" for name, *_ in rows] for number, level in enumerate("wxyz")}
    before, after = (np.array(cleaned(cells, fill_gaps=fill)[0]) for fill in (False, True))
    assert (after >= 0).all()
    same = [len({(one, other) for one, other in zip(before[:, level], after[:, level], strict=True)}) for level in (0, 3)]
    assert same == [len(np.unique(before[:, level])) for level in (0, 3)]


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        ({"a": ["0", "-2"]}, {}, "x.csv:3: a is -2, but classes are numbered from 0, and −1 or a blank is no label"),
        ({"a": ["x||y", "x"]}, {"separator": "|"}, "x.csv:2: there is a blank among the labels of a; fill it in, or leave it"),
        ({"a": ["x"]}, {"separator": " "}, "label_separator=' ' must be a character or more, without white space"),
        (
            {"a": [["x", "y"]], "b": ["z"]},
            {"fill_gaps": True},
            "fill_gaps needs one label in a row at each level",
        ),
        (CATS | {"genus": ["", "Lynx", "", "Panthera"]}, {"fill_gaps": True}, "x.csv:2: species 'lynx' stands under genus"),
    ],
)
def test_cells_that_cannot_be_labels_are_refused_with_their_row(cells, options, message):
    with pytest.raises(ValueError, match=message.replace("|", r"\|")):
        cleaned(cells, **options)


def test_other_kinds_of_cells_are_refused():
    with pytest.raises(TypeError, match="a label is 0.5, but labels are text or whole numbers; convert them with str"):
        LabelColumn.from_values([0.5])


def test_a_tree_may_be_read_in_parts_and_its_errors_count_rows_through_them():
    parts = [np.array([[0, 0], [1, 0]]), np.array([[2, 1], [-1, 0]])]
    check_tree(parts, ["a", "b"])
    with pytest.raises(ValueError, match="row 1: a 1 stands under b 0, and under 1 in row 2"):
        check_tree([parts[0], np.array([[1, 1]])], ["a", "b"])


# Fingerprints

IDS, NAMES = ["a", "b", "c"], ["jay", "Möwe", None]


def digest(names, ids=IDS):
    return label_digests(ids, {"species": names})["species"]


def test_the_order_of_rows_and_the_spelling_of_accents_do_not_matter():
    shuffled = digest([" Mo\u0308we ", None, "jay"], ["b", "c", "a"])
    assert unicodedata.normalize("NFC", "Mo\u0308we") == "Möwe"
    assert digest(NAMES) == shuffled


def test_another_name_another_id_and_another_place_do():
    others = [
        digest(["jay", "Möwe", "jay"]),
        digest(NAMES, ["a", "b", "d"]),
        digest(["Möwe", "jay", None]),
        digest(NAMES, None),
    ]
    assert len({digest(NAMES), *others}) == 5
    assert digest(NAMES, None) != digest(["Möwe", "jay", None], None), "without ids, by position"


def test_a_set_of_names_has_no_order():
    assert digest([["dog", "person"], ["cat"], []]) == digest([("person", "dog"), "cat", None])
    assert digest([["dog", "person"], ["cat"], []]) != digest([["dog"], ["cat"], ["person"]])
