"""SupRank on a CPU, a level at a time: the definition's numbers and gradients with one sigmoid a pair."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.ranking import Sigmoid, SupStep, definition, heaviside, levelwise, ranks, tree_relevance
from suprank.ranking.ranks import dispatch
from tests.ranking.random_rankings import PLENTY, assert_near, random_ranking, rankings, steepest
from tests.ranking.ranks.test_chunked import Memory, with_gradient

# δ off the grid of drawn scores: at a gap of exactly δ the slope is whatever rounding makes of s_k + δ.
STEPS = {
    "SupRank": SupStep(delta=0.0503),
    "SOP recipes": SupStep(delta=0.0503, value_at_delta=1.44),
    "iNaturalist recipes": SupStep(delta=0.0503, jump=0.0, value_at_delta=1.0),
    "wide and flat": SupStep(tau=0.1, rho=0.0, delta=0.21),
}


@pytest.mark.parametrize("name", STEPS)
@PLENTY
@given(drawn=rankings(), weighted=st.booleans(), seed=st.integers(0, 9))
def test_levelwise_equals_the_definition_forward_and_backward(name, drawn, weighted, seed):
    minus = STEPS[name]
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        scores = drawn.scores.to(dtype)
        relevance = tree_relevance(drawn.level, depth=4, dtype=dtype) if weighted else None
        expected, slope = with_gradient(definition, scores, drawn.level, relevance, heaviside, minus, seed)
        found, gradient = with_gradient(levelwise, scores, drawn.level, relevance, heaviside, minus, seed)
        for part, truth in zip(found, expected, strict=True):
            assert part.dtype == dtype
            assert_near(part, truth, tolerance)
        assert_near(gradient, slope, tolerance, scale=1 + steepest(minus))


def test_levelwise_equals_the_definition_on_a_real_batch_in_blocks_of_any_size():
    scores, level = random_ranking(4, 30, 60, deepest=3)
    relevance = tree_relevance(level, dtype=torch.float64)
    truth, slope = with_gradient(definition, scores, level, relevance, heaviside, SupStep())
    for budget in (1, 50_000, 2**30):
        found, gradient = with_gradient(partial(levelwise, budget=budget), scores, level, relevance, heaviside, SupStep())
        for part, expected in zip(found, truth, strict=True):
            assert_near(part, expected, 1e-10)
        assert_near(gradient, slope, 1e-10)


@pytest.mark.parametrize("shift", [-3e4, -1e4, 1e4])
def test_scores_far_from_zero_keep_their_ranks(shift):
    scores, level = random_ranking(4, 3, 40)
    truth, slope = with_gradient(definition, scores + shift, level, None, heaviside, SupStep(delta=0.0503))
    found, gradient = with_gradient(levelwise, scores + shift, level, None, heaviside, SupStep(delta=0.0503))
    assert_near(found[1], truth[1], 1e-10)
    assert_near(gradient, slope, 1e-10)


def test_a_gap_of_delta_costs_k_what_it_gives_j():
    scores = 0.05 * torch.arange(20, dtype=torch.float32).repeat(2, 1)  # s_k + δ and s_j − δ are rounded apart here
    level = torch.arange(20).remainder(3).repeat(2, 1)
    leaf = scores.requires_grad_()
    (gradient,) = torch.autograd.grad(levelwise(leaf, level).minus.where(level > 0, 0).sum(), leaf)
    assert gradient.sum(-1).abs().max() < 1e-3 * gradient.abs().max()


def test_autocast_does_not_touch_the_gradient():
    scores, level = random_ranking(4, 3, 200, dtype=torch.float32)
    gradients = []
    for enabled in (False, True):
        leaf = scores.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            value = levelwise(leaf, level).minus.where(level > 0, 0).sum()
            gradients += torch.autograd.grad(value, leaf)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)], ids=str)
def test_nothing_to_rank_gives_empty_ranks(shape):
    scores = torch.zeros(shape, requires_grad=True)
    found = levelwise(scores, torch.zeros(shape, dtype=torch.int8), torch.zeros(shape))
    found.minus.sum().backward()
    assert found.plus.shape == found.minus.shape == shape


@pytest.mark.parametrize("positives", [1, 40, 300])
def test_pairs_stay_within_the_budget_however_many_positives_one_query_has(positives):
    scores, budget = random_ranking(7, 2, 400, dtype=torch.float32).scores, 40_000
    level = (torch.arange(400) < positives).to(torch.int8).repeat(2, 1)
    scores.requires_grad_()
    with Memory(scores.shape) as memory:
        total = levelwise(scores, level, budget=budget).minus.where(level > 0, 0).sum()
        total.backward()
    assert memory.largest <= budget


def test_it_is_chosen_where_positives_are_many_and_only_there(monkeypatch):
    chosen: list[int] = []

    def spy(scores, level, relevance=None, *, plus, minus):
        chosen.append(scores.shape[1])
        return levelwise(scores, level, relevance, plus=plus, minus=minus)

    monkeypatch.setattr(dispatch, "levelwise", spy)
    scores, level = random_ranking(2, 3, 40)
    few = level.clamp(max=0)
    few[:, 0] = 1
    ranks(scores, few)
    ranks(scores, level.double())
    ranks(scores, level, plus=Sigmoid(), minus=Sigmoid())
    ranks(scores, level, torch.rand_like(scores))
    assert chosen == []
    ranks(scores, level)
    assert chosen == [40]


def test_a_second_derivative_is_refused_with_the_way_out():
    scores, level = random_ranking(0)
    scores.requires_grad_()
    total = levelwise(scores, level).minus.where(level > 0, 0).sum()
    (gradient,) = torch.autograd.grad(total, scores, create_graph=True)
    with pytest.raises(NotImplementedError, match="using='definition'"):
        gradient.sum().backward()


def test_what_it_cannot_do_is_refused_with_the_way_out():
    scores, level = random_ranking(1, 2, 9)
    with pytest.raises(ValueError, match="leave `using` out"):
        levelwise(scores, level, plus=Sigmoid())
    with pytest.raises(ValueError, match=r"float64; leave `using` out"):
        levelwise(scores, level.double())
