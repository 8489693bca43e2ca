"""Values with commas between them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.experiments.sweep.values import meaning, ordered_values, split_values


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
        ("[1,2", "without its other"),
        ("1],2", "without its other"),
        ('"1,2', "without its other"),
    ],
)
def test_what_is_not_closed_or_empty_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        split_values(text)


def test_spellings_of_a_number_mean_the_same_and_nothing_else_does():
    assert meaning("0.1") == meaning("0.10") == meaning("1e-1")
    assert len({meaning(value) for value in ("nan", "inf", "0", "true", "[0]")}) == 5


def test_numbers_are_in_order_of_size_and_names_as_they_came():
    assert ordered_values(["100", "1e1", "1000", "100"]) == ["1e1", "100", "1000"]
    assert ordered_values(["b", "a", "1"]) == ["b", "a", "1"]
