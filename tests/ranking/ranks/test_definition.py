"""The ranks as the paper writes them: by hand, against the loops, and their laws."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.ranking import Sigmoid, SupStep, definition, heaviside, tree_relevance
from tests import reference
from tests.ranking.random_rankings import PLENTY, SOME, STEP_PAIRS, assert_near, rankings

REFERENCE_STEPS = {
    "SupRank": (reference.heaviside, reference.h_minus()),
    "exact": (reference.heaviside, reference.heaviside),
    "Smooth-AP": (reference.smooth(), reference.smooth()),
    "soft Smooth-AP": (reference.smooth(0.2), reference.smooth(0.1)),
    "SOP recipes": (reference.heaviside, reference.h_minus(value_at_delta=1.44)),
    "iNaturalist recipes": (reference.heaviside, reference.h_minus(jump=0.0, value_at_delta=1.0)),
    "no margin": (reference.heaviside, reference.h_minus(tau=0.05, rho=3.0, delta=0.0, jump=0.7)),
    "bound on both sides": (reference.h_minus(tau=0.1), reference.h_minus(delta=0.2)),
}


def test_ranks_of_a_small_list_by_hand():
    scores = torch.tensor([[0.9, 0.8, 0.8, 0.5, 0.4, 0.95]])
    level = torch.tensor([[0, 2, 1, 2, 1, -1]])  # the best item is not in the list
    found = definition(scores, level, minus=heaviside)
    assert found.plus.tolist() == [[0, 1, 2, 2, 4, 0]]
    assert found.minus.tolist() == [[math.inf, 2, 1, 2, 1, math.inf]]  # the tie counts: an error for the deeper of the two
    assert found.total.tolist() == [[math.inf, 3, 3, 4, 5, math.inf]]
    assert found.hierarchical is None


def test_sup_rank_of_two_items_by_hand():
    found = definition(torch.tensor([[0.3, 0.24]], dtype=torch.float64), torch.tensor([[0, 1]]))
    assert found.plus[0, 1].item() == 1
    assert found.minus[0, 1].item() == pytest.approx(2.4933071491)  # H⁻(0.06) = 100·0.01 + σ(5) + ½


def test_ranks_of_equal_items_count_each_other():
    found = definition(torch.zeros(1, 3), torch.tensor([[1, 1, 1]]), torch.ones(1, 3))
    assert found.plus.tolist() == [[3, 3, 3]]
    assert found.hierarchical is not None
    assert found.hierarchical.tolist() == [[3, 3, 3]]
    assert found.minus.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("name", STEP_PAIRS)
@SOME
@given(drawn=rankings(), decay=st.sampled_from([0.0, 1.0, 3.0]))
def test_the_definition_equals_the_reference(name, drawn, decay):
    plus, minus = STEP_PAIRS[name]
    slow_plus, slow_minus = REFERENCE_STEPS[name]
    relevance = tree_relevance(drawn.level, decay, depth=4, dtype=torch.float64)
    found = definition(drawn.scores, drawn.level, relevance, plus=plus, minus=minus)
    assert found.hierarchical is not None
    expected = torch.tensor([[0.0, math.inf, 0.0]], dtype=torch.float64).repeat(drawn.scores.numel(), 1)
    rows = zip(drawn.scores.tolist(), drawn.level.tolist(), relevance.tolist(), strict=True)
    for query, (scores, level, weights) in enumerate(rows):
        for k in reference.positives(level):
            ranks_of_k = (
                reference.rank_plus(k, scores, level, slow_plus),
                reference.rank_minus(k, scores, level, slow_minus),
                reference.h_rank(k, scores, level, weights, slow_plus),
            )
            expected[query * len(scores) + k] = torch.tensor(ranks_of_k, dtype=torch.float64)
    found_rows = torch.stack([found.plus, found.minus, found.hierarchical], -1).flatten(0, 1)
    assert_near(found_rows, expected, 1e-12)


@PLENTY
@given(drawn=rankings())
def test_every_exact_rank_is_a_place_in_the_list(drawn):
    found = definition(drawn.scores, drawn.level, minus=heaviside)
    positive = drawn.level > 0
    listed = (drawn.level >= 0).sum(-1, keepdim=True).expand_as(drawn.level)
    assert (found.total[positive] >= 1).all()
    assert (found.total[positive] <= listed[positive]).all()


@PLENTY
@given(drawn=rankings())
def test_sup_ranks_are_never_below_exact_ranks(drawn):
    for minus in (SupStep(), SupStep(value_at_delta=1.44), SupStep.saturating(0.1, 0.2)):
        assert (definition(drawn.scores, drawn.level, minus=minus).total >= definition(*drawn, minus=heaviside).total).all()


def test_sigmoid_ranks_fall_below_exact_ranks_which_is_why_they_bound_nothing():
    scores, level = torch.tensor([[0.5, 0.5]]), torch.tensor([[0, 1]])
    assert definition(scores, level, minus=Sigmoid()).total[0, 1] < definition(scores, level, minus=heaviside).total[0, 1]
