"""Which runs are in a grid, what their folders are called, and how values are written with commas between them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.experiments.grid import Combination, Grid, canonical_value, sort_values, split_values


def test_values_with_commas_are_axes_and_their_product_is_the_runs():
    grid = Grid.from_values(["loss.weight=0,0.1", "batch.size=64", "loss.name=roadmap,sup-ap"], seeds=2)
    assert grid.fixed == (("batch.size", "64"),)
    assert [run.name for run in grid.combinations()] == [
        "loss.weight=0,loss.name=roadmap,seed=0",
        "loss.weight=0,loss.name=roadmap,seed=1",
        "loss.weight=0,loss.name=sup-ap,seed=0",
        "loss.weight=0,loss.name=sup-ap,seed=1",
        "loss.weight=0.1,loss.name=roadmap,seed=0",
        "loss.weight=0.1,loss.name=roadmap,seed=1",
        "loss.weight=0.1,loss.name=sup-ap,seed=0",
        "loss.weight=0.1,loss.name=sup-ap,seed=1",
    ]
    assert grid.overrides(grid.combinations()[1]) == ["batch.size=64", "loss.weight=0", "loss.name=roadmap", "run.seed=1"]


@given(st.lists(st.text("ab/ .=,é'\"[]", min_size=1, max_size=200), min_size=1, max_size=8, unique=True))
def test_names_of_folders_are_distinct_and_safe_whatever_the_values(listed):
    names = [Combination((("data.root", value), ("run.seed", "0"))).name for value in listed]
    assert len(set(names)) == len(listed)
    assert all(len(name) <= 120 and "/" not in name and name.isascii() and " " not in name for name in names)


@pytest.mark.parametrize(
    ("arguments", "seeds", "complaint"),
    [
        (["loss.weight"], None, "must be key=value"),
        (["=3"], None, "must be key=value"),
        (["loss.weight=0,"], None, "has an empty value"),
        (["loss.weight=0.1,0.10"], None, "has 0.1 twice"),
        (["loss.weight=0", "loss.weight=1"], None, "given twice; .* loss.weight=0,1"),
        (["run.seed=0,1"], 3, "run.seed=0,1 and seeds=3 both"),
        ([], 0, "at least 1"),
    ],
)
def test_a_bad_grid_is_refused(arguments, seeds, complaint):
    with pytest.raises(ValueError, match=complaint):
        Grid.from_values(arguments, seeds)


# Values with commas between them


def test_a_comma_in_brackets_or_quotes_does_not_split():
    assert split_values("[1,2],[4]") == ["[1,2]", "[4]"]
    assert split_values('"a,b",c') == ['"a,b"', "c"]
    assert split_values(r'"a\",b",c') == [r'"a\",b"', "c"]
    assert split_values(r"'a\',b") == [r"'a\'", "b"]
    assert split_values("{a=1,b=[2,3]},5") == ["{a=1,b=[2,3]}", "5"]


bare = st.text("abc01.-_/ é", min_size=1).map(str.strip).filter(bool)
values = st.recursive(
    bare | st.text("ab, [}]'").map(json.dumps),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
    max_leaves=6,
)


@given(st.lists(values, min_size=1, max_size=5))
def test_whatever_the_values_are_joining_them_by_commas_and_splitting_gives_them_back(listed):
    assert split_values(",".join(listed)) == listed


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0,,1", "has an empty value"),
        ("0,1,", "has an empty value"),
        ("[1,2", "unclosed bracket or quote"),
        ("1],2", "unclosed bracket or quote"),
        ('"1,2', "unclosed bracket or quote"),
    ],
)
def test_what_is_not_closed_or_empty_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        split_values(text)


def test_spellings_of_a_number_mean_the_same_and_nothing_else_does():
    assert canonical_value("0.1") == canonical_value("0.10") == canonical_value("1e-1")
    assert len({canonical_value(value) for value in ("nan", "inf", "0", "true", "[0]")}) == 5


def test_numbers_are_in_order_of_size_and_names_as_they_came():
    assert sort_values(["100", "1e1", "1000", "100"]) == ["1e1", "100", "1000"]
    assert sort_values(["b", "a", "1"]) == ["b", "a", "1"]
