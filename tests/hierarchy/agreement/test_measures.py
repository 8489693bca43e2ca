import math
import warnings
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, cohen_kappa_score
from sklearn.metrics.cluster import pair_confusion_matrix

from suprank.hierarchy.agreement.measures import (
    adjusted_mutual_information,
    adjusted_rand,
    cohen_kappa,
    count_pairs,
    percent_agreement,
)

partitions = st.integers(1, 30).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(0, 4), min_size=size, max_size=size) for _ in range(3)])
)


def test_kappa_of_a_table_worked_by_hand():
    # 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: p_o = 35/50 = 0.7, p_e = 0.5 · 0.6 + 0.5 · 0.4 = 0.5, κ = 0.2/0.5 = 0.4
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert percent_agreement(first, second).value == pytest.approx(0.7)
    assert cohen_kappa(first, second).value == pytest.approx(0.4)


def test_a_weight_counts_a_label_several_times():
    first, second, weights = ["a", "a", "b", "c"], ["a", "b", "b", "a"], [3, 1, 2, 0]
    repeated = [np.repeat(one, weights) for one in (first, second)]
    assert cohen_kappa(first, second, weights).value == pytest.approx(cohen_kappa(*repeated).value)
    assert percent_agreement(first, second, weights).value == pytest.approx(5 / 6)


def test_pairs_worked_by_hand():
    # {1,2,3} {4,5} against {1,2} {3,4,5}: together in both are 12 and 45; in the first 12 13 23 45; in the second 12 34 35 45
    pairs = count_pairs([0, 0, 0, 1, 1], [0, 0, 1, 1, 1])
    assert (pairs.both, pairs.first, pairs.second) == (2, 4, 4)
    assert (pairs.precision.value, pairs.recall.value, pairs.f1.value) == (0.5, 0.5, 0.5)
    one_whole = count_pairs([0, 0, 0, 0], [0, 0, 1, 1])  # all six pairs, of which the second has two
    assert (one_whole.precision.value, one_whole.recall.value, one_whole.f1.value) == (2 / 6, 1.0, 0.5)


@settings(max_examples=25, deadline=None)
@given(partitions)
def test_pair_counts_equal_counting_one_by_one(given_):
    first, second, weights = given_
    pairs = count_pairs(first, second, weights)
    counted = [0, 0, 0]
    for i, j in combinations(range(len(first)), 2):
        one, two = first[i] == first[j], second[i] == second[j]
        counted = [sum_ + weights[i] * weights[j] * there for sum_, there in zip(counted, (one and two, one, two), strict=True)]
    assert [pairs.both, pairs.first, pairs.second] == counted


@settings(max_examples=25, deadline=None)
@given(partitions)
def test_measures_agree_with_scikit_learn(given_):
    first, second, weights = given_
    (_, only_second), (only_first, both) = pair_confusion_matrix(second, first) // 2
    pairs = count_pairs(first, second)
    assert (pairs.both, pairs.first - pairs.both, pairs.second - pairs.both) == (both, only_second, only_first)
    if (rand := adjusted_rand(first, second).value) is not None:
        assert rand == pytest.approx(adjusted_rand_score(first, second))
    for weight in (None, weights if any(weights) else None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn warns where there is one category, and answers nan
            expected = cohen_kappa_score(first, second, sample_weight=weight)
        found = cohen_kappa(first, second, weight).value
        assert found == pytest.approx(expected) if not math.isnan(expected) else found is None


@settings(max_examples=25, deadline=None)
@given(partitions, st.permutations(range(5)))
def test_measures_are_symmetric_and_ignore_group_names(given_, renamed):
    first, second, weights = given_
    swapped = [renamed[one] for one in second]
    assert adjusted_rand(first, second) == adjusted_rand(second, first)
    assert count_pairs(first, second, weights).f1 == count_pairs(second, first, weights).f1
    assert count_pairs(first, second).precision.value == count_pairs(second, first).recall.value
    assert count_pairs(first, second, weights) == count_pairs(first, swapped, weights)
    rand, again = adjusted_rand(first, second).value, adjusted_rand(first, swapped).value
    assert rand == again if rand is None else rand == pytest.approx(again)
    for measure in (adjusted_rand, adjusted_mutual_information, cohen_kappa, percent_agreement):
        assert measure(first, first).value in (None, pytest.approx(1.0))
    if 1 < len(set(first)) < len(first):
        assert adjusted_rand(first, first).value == 1.0


@pytest.mark.parametrize(
    ("measure", "first", "second", "why"),
    [
        (cohen_kappa, [], [], "no label was reviewed by both"),
        (percent_agreement, [], [], "no label was reviewed by both"),
        (adjusted_rand, [], [], "no label was reviewed by both"),
        (cohen_kappa, ["a", "a"], ["a", "a"], "both use one category only"),
        (adjusted_rand, [0, 0, 0], [1, 1, 1], "both put all labels into one group"),
        (adjusted_rand, [0], [0], "both put all labels into one group"),
        (adjusted_rand, [0, 1, 2], [2, 1, 0], "both put every label into a group of its own"),
        (adjusted_mutual_information, [0, 0, 0], [1, 1, 1], "both put all labels into one group"),
    ],
)
def test_zero_by_zero_is_undefined(measure, first, second, why):
    found = measure(first, second)
    assert (found.value, str(found)) == (None, f"undefined ({why})")


def test_undefined_pairs_say_which_side_has_none():
    pairs = count_pairs([0, 1, 2], [0, 0, 1])
    assert (pairs.recall.value, pairs.f1.value) == (0.0, 0.0)
    assert str(pairs.precision) == "undefined (no two labels share a group in the first branch)"
    alone = count_pairs([0, 1], [0, 1])
    assert str(alone.f1) == "undefined (no two labels share a group in either branch)"
    assert str(alone.recall) == "undefined (no two labels share a group in the second branch)"
    assert count_pairs([], []).f1.value is None


def test_without_items_the_weighted_kappa_is_undefined_and_the_plain_one_is_not():
    assert str(cohen_kappa([0, 1], [0, 1], [0, 0])) == "undefined (no label that was reviewed by both has items)"
    assert cohen_kappa([0, 1], [0, 1]).value == 1.0
    assert cohen_kappa([0, 0, 1], [0, 0, 0], [1, 1, 0]).undefined == "both use one category only"


def test_one_group_against_single_labels_is_no_agreement_and_not_undefined():
    assert adjusted_rand([0, 0, 0], [0, 1, 2]).value == 0.0


def test_errors_name_bad_input():
    with pytest.raises(ValueError, match="2 and 1 groups and 2 weights"):
        cohen_kappa([1, 2], [1])
    with pytest.raises(ValueError, match="weight -1 must not be negative"):
        count_pairs([1, 2], [1, 2], [1, -1])
