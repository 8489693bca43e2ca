"""Exact ranks by sorting: the definition's numbers without a pair."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.ranking import SupStep, definition, heaviside, ranks, sorting, tree_relevance, weighted_ap_relevance
from suprank.ranking.ranks.sorting import sort_falling
from tests.ranking.random_rankings import PLENTY, assert_near, random_ranking, rankings


def test_two_tied_positives_above_a_negative_share_the_lower_rank():
    found = sorting(torch.tensor([[0.9, 0.9, 0.5, 0.4]]), torch.tensor([[1, 1, 0, 2]]))
    assert found.plus.tolist() == [[3 - 1, 2, 0, 1]]
    assert found.minus.tolist() == [[0, 0, torch.inf, 3]]


@PLENTY
@given(drawn=rankings(), weighing=st.sampled_from(["none", "tree", "weighted"]))
def test_sorting_equals_the_definition(drawn, weighing):
    relevance = {
        "none": lambda: None,
        "tree": lambda: tree_relevance(drawn.level, 1.5, dtype=torch.float64),
        "weighted": lambda: weighted_ap_relevance(drawn.level, [0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
    }[weighing]()
    expected = definition(drawn.scores, drawn.level, relevance, minus=heaviside)
    for part, truth in zip(sorting(drawn.scores, drawn.level, relevance), expected, strict=True):
        assert (part is None) == (truth is None)
        if part is not None and truth is not None:
            assert_near(part, truth, 1e-12)


@pytest.mark.parametrize("odd", [0.0, -0.0, 1e-45, 3e38, torch.inf, -torch.inf])
def test_float32_scores_are_sorted_with_their_indices_whatever_their_values(odd):
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    scores[1, 7:11], scores[2, 9] = odd, -odd
    falling, ranking = sort_falling(scores)
    assert torch.equal(falling, scores.sort(-1, descending=True).values)
    assert torch.equal(scores.gather(1, ranking), falling)
    assert torch.equal(ranking.sort(-1).values, torch.arange(50).expand(3, -1))


def test_exact_ranks_of_many_positives_are_sorted_for_by_default():
    scores, level = random_ranking(0, 5, 80)
    found = ranks(scores, level, minus=heaviside)
    assert torch.equal(found.minus, sorting(scores, level).minus)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64])
def test_a_query_of_ignored_items_or_of_none_has_no_ranks(dtype):
    level = torch.zeros(2, 3, dtype=dtype)
    found = sorting(torch.rand(2, 3), level if dtype == torch.uint8 else level - 1)
    assert found.plus.sum() == 0
    assert found.minus.isinf().all()
    assert ranks(torch.rand(2, 0), torch.zeros(2, 0, dtype=dtype), minus=heaviside).plus.shape == (2, 0)


def test_what_cannot_be_counted_is_refused_and_left_to_others_by_default():
    scores, level = random_ranking(1, 2, 9)
    uneven = torch.rand_like(scores)
    with pytest.raises(ValueError, match="one relevance for each level.*leave `using` out"):
        sorting(scores, level, uneven)
    with pytest.raises(ValueError, match="integer levels"):
        sorting(scores, level.double())
    with pytest.raises(ValueError, match=r"must be heaviside, not .*SupStep"):
        sorting(scores, level, minus=SupStep())
    chosen = ranks(scores, level, uneven, minus=heaviside).hierarchical
    truth = definition(scores, level, uneven, minus=heaviside).hierarchical
    assert chosen is not None and truth is not None  # noqa: PT018 (one fact, for the type checker)
    assert_near(chosen, truth, 1e-12)
