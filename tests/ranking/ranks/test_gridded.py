"""Smooth ranks on a grid: the definition's numbers and gradients without the pairs, at any spread of the scores."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.ranking import Sigmoid, SupStep, definition, gridded, heaviside, ranks, tree_relevance
from suprank.ranking.ranks import dispatch
from suprank.ranking.ranks.grid import Grid
from suprank.ranking.ranks.running_sums import sort_falling
from tests.ranking.random_rankings import SOME, assert_near, random_ranking, rankings, steepest
from tests.ranking.ranks.test_chunked import with_gradient

# δ off the grid of drawn scores: at a gap of exactly δ the slope is whatever rounding makes of s_k + δ.
STEPS = {
    "SupRank": (heaviside, SupStep(delta=0.0503)),
    "Smooth-AP": (Sigmoid(), Sigmoid()),
    "two τ": (Sigmoid(0.2), Sigmoid(0.1)),
    "smooth above, bound below": (Sigmoid(0.03), SupStep(delta=0.0503)),
    "exact below": (Sigmoid(), heaviside),
    "exact": (heaviside, heaviside),
    "SOP recipes": (heaviside, SupStep(delta=0.0503, value_at_delta=1.44)),
    "iNaturalist recipes": (heaviside, SupStep(delta=0.0503, jump=0.0, value_at_delta=1.0)),
    "no margin": (heaviside, SupStep(tau=0.05, rho=3.0, delta=0.0, jump=0.7)),
    "wide and flat": (heaviside, SupStep(tau=0.1, rho=0.0, delta=0.21)),
    "far margin": (heaviside, SupStep(delta=0.4999)),
}


@pytest.mark.parametrize("name", STEPS)
@settings(SOME, max_examples=8)
@given(drawn=rankings(), weighted=st.booleans(), seed=st.integers(0, 9))
def test_gridded_equals_the_definition_forward_and_backward(name, drawn, weighted, seed):
    plus, minus = STEPS[name]
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        scores = drawn.scores.to(dtype)
        relevance = tree_relevance(drawn.level, depth=4, dtype=dtype) if weighted else None
        expected, slope = with_gradient(definition, scores, drawn.level, relevance, plus, minus, seed)
        found, gradient = with_gradient(gridded, scores, drawn.level, relevance, plus, minus, seed)
        assert len(found) == len(expected)
        for part, truth in zip(found, expected, strict=True):
            assert part.dtype == dtype
            assert_near(part, truth, tolerance)
        assert_near(gradient, slope, tolerance, scale=1 + steepest(plus, minus))


def scores_of(kind, generator, shape):
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    return {
        "cosines": 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1,
        "narrow": 0.05 * normal,
        "two clusters": 1e-3 * normal + (normal > 0.3),
        "nearly equal": 1e-6 * normal,
        "equal": torch.full(shape, 0.3, dtype=torch.float64),
        "tied": (20 * normal).round() / 40,
        "outside of [−1, 1]": 5 + 3 * normal,
    }[kind].float()


@pytest.mark.parametrize("tau", [1e-3, 0.01, 1.0])
@pytest.mark.parametrize("kind", ["cosines", "narrow", "two clusters", "nearly equal", "equal", "tied", "outside of [−1, 1]"])
def test_float32_ranks_are_within_2e_6_and_gradients_within_1e_5(kind, tau):
    generator = torch.Generator().manual_seed(int(1 / tau))
    scores = scores_of(kind, generator, (2, 300))
    level = torch.randint(-1, 4, scores.shape, generator=generator, dtype=torch.int8)
    relevance = tree_relevance(level, dtype=torch.float64)
    sup = [SupStep(tau=tau, delta=delta * tau) for delta in (0.53, 5.03)]
    for plus, minus in ((heaviside, sup[0]), (heaviside, sup[1]), (Sigmoid(tau), Sigmoid(tau))):
        truth, slope = with_gradient(definition, scores.double(), level, relevance, plus, minus)
        found, gradient = with_gradient(gridded, scores, level, relevance.float(), plus, minus)
        for part, expected in zip(found, truth, strict=True):
            off = (part - expected)[level > 0].abs() / (0.01 + expected[level > 0])
            assert off.max() < 2e-6
        assert (gradient - slope).norm() < 1e-5 * slope.norm() + 1e-9


@SOME
@given(seed=st.integers(0, 99), items=st.integers(1, 80), spread=st.floats(0, 3), tau=st.sampled_from([0.01, 0.3]))
def test_sums_on_a_grid_are_those_of_the_pairs(seed, items, spread, tau):
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(2, items, generator=generator, dtype=torch.float64)
    weights = torch.randn(2, items, generator=generator, dtype=torch.float64)
    group = torch.randint(0, 3, (2, items), generator=generator)
    width = int((scores.amax(-1) - scores.amin(-1)).max() / (2 * tau)) + 1
    grid = Grid.from_scores(scores, tau, width)
    moments = grid.spread(group, 3, weights)
    sigmoid = torch.sigmoid((scores[:, None, :] - scores[:, :, None]) / tau)
    for kind, pairs in (("value", sigmoid), ("slope", sigmoid * (1 - sigmoid) / tau)):
        expected = (pairs * weights[:, None] * (group[:, None] == group[:, :, None])).sum(-1)
        assert_near(grid.read(grid.connect(moments, kind), group)[0], expected, 1e-10, scale=1 / tau if kind == "slope" else 1)


def test_blocks_of_any_size_give_the_same_ranks():
    scores, level = random_ranking(4, 30, 60, deepest=3)
    relevance = tree_relevance(level, dtype=torch.float64)
    truth, slope = with_gradient(definition, scores, level, relevance, Sigmoid(), SupStep())
    for budget in (1, 2**20, 2**30):
        found, gradient = with_gradient(partial(gridded, budget=budget), scores, level, relevance, Sigmoid(), SupStep())
        for part, expected in zip(found, truth, strict=True):
            assert_near(part, expected, 1e-9)
        assert_near(gradient, slope, 1e-9)


@pytest.mark.parametrize("lowest", [-1, 0])
def test_levels_in_int64_stay_as_they_are_and_scores_may_be_a_transpose(lowest):
    scores, level = random_ranking(4, 40, 3)
    level = level.clamp(min=lowest)
    given = level.long()
    truth, slope = with_gradient(definition, scores.T, level.T, None, Sigmoid(), SupStep())
    found, gradient = with_gradient(gridded, scores.T, given.T, None, Sigmoid(), SupStep())
    assert torch.equal(given, level.long())
    assert_near(found[1], truth[1], 1e-9)
    assert_near(gradient, slope, 1e-9)


@pytest.mark.parametrize("shift", [-3e4, 1e4])
def test_scores_far_from_zero_keep_their_ranks(shift):
    scores, level = random_ranking(4, 3, 40)
    truth, slope = with_gradient(definition, scores + shift, level, None, heaviside, SupStep(delta=0.0503))
    found, gradient = with_gradient(gridded, scores + shift, level, None, heaviside, SupStep(delta=0.0503))
    assert_near(found[1], truth[1], 1e-9)
    assert_near(gradient, slope, 1e-9)


def test_a_gap_of_delta_costs_k_what_it_gives_j():
    scores = 0.05 * torch.arange(20, dtype=torch.float32).repeat(2, 1)  # s_k + δ and s_j − δ are rounded apart here
    level = torch.arange(20).remainder(3).repeat(2, 1)
    leaf = scores.requires_grad_()
    (gradient,) = torch.autograd.grad(gridded(leaf, level).minus.where(level > 0, 0).sum(), leaf)
    assert gradient.sum(-1).abs().max() < 1e-3 * gradient.abs().max()


@pytest.mark.parametrize("outlier", [1e6, -torch.inf, torch.inf])
def test_scores_without_a_grid_are_ranked_by_their_pairs(outlier):
    scores, level = random_ranking(4, 3, 40)
    scores[1, 5], level[1, 5] = outlier, 0
    truth = definition(scores, level, minus=Sigmoid())
    assert_near(gridded(scores, level, minus=Sigmoid()).minus, truth.minus, 1e-12)
    scores[1, 5], level[1, 5] = 1e6, -1  # an ignored item does not widen the grid
    assert_near(gridded(scores, level, minus=Sigmoid()).minus, definition(scores, level, minus=Sigmoid()).minus, 1e-9)


def test_many_levels_are_counted_in_several_words():
    scores, level = random_ranking(3, 2, 50, deepest=20)
    relevance = tree_relevance(level, dtype=torch.float64)
    truth, slope = with_gradient(definition, scores, level, relevance, heaviside, SupStep())
    found, gradient = with_gradient(gridded, scores, level, relevance, heaviside, SupStep())
    for part, expected in zip(found, truth, strict=True):
        assert_near(part, expected, 1e-9)
    assert_near(gradient, slope, 1e-9)


def test_autocast_does_not_touch_the_gradient():
    scores, level = random_ranking(4, 3, 200, dtype=torch.float32)
    gradients = []
    for enabled in (False, True):
        leaf = scores.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            value = gridded(leaf, level).minus.where(level > 0, 0).sum()
            gradients += torch.autograd.grad(value, leaf)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", ["SupRank", "Smooth-AP", "exact"])
def test_a_batch_without_positives_has_no_ranks(name):
    plus, minus = STEPS[name]
    scores, level = torch.rand(2, 5), torch.tensor([5 * [0], 5 * [-1]])
    found = gridded(scores, level, torch.zeros(2, 5), plus=plus, minus=minus)
    assert [part.unique().tolist() for part in found] == [[0], [torch.inf], [0]]


def test_it_is_chosen_where_positives_are_many_and_only_there(monkeypatch):
    chosen: list[int] = []

    def spy(scores, level, relevance=None, **options):
        chosen.append(scores.shape[1])
        return gridded(scores, level, relevance, **options)

    monkeypatch.setattr(dispatch, "gridded", spy)
    scores, level = random_ranking(2, 3, 40)
    few = level.clamp(max=0)
    few[:, 0] = 1
    for plus, minus in ((heaviside, SupStep()), (Sigmoid(), Sigmoid())):
        ranks(scores, few, plus=plus, minus=minus)
        ranks(scores, level.double(), plus=plus, minus=minus)
        ranks(scores, level, torch.rand_like(scores), plus=plus, minus=minus)
    ranks(scores, level, plus=SupStep(), minus=SupStep())
    assert chosen == []
    ranks(scores, level, plus=Sigmoid(), minus=Sigmoid())
    ranks(scores, level)
    ranks(scores, level, minus=heaviside)
    assert chosen == [40, 40, 40]


def test_what_it_cannot_do_is_refused_with_the_way_out():
    scores, level = random_ranking(1, 2, 9)
    with pytest.raises(ValueError, match="leave `using` out"):
        gridded(scores, level, plus=SupStep())
    with pytest.raises(ValueError, match=r"float64; leave `using` out"):
        gridded(scores, level.double())
    with pytest.raises(ValueError, match="are for a CPU, or float32 on CUDA .*float64 on meta"):
        gridded(scores.to("meta"), level.to("meta"))


def test_two_tied_positives_above_a_negative_share_the_lower_rank():
    found = gridded(torch.tensor([[0.9, 0.9, 0.5, 0.4]]), torch.tensor([[1, 1, 0, 2]]), minus=heaviside)
    assert found.plus.tolist() == [[3 - 1, 2, 0, 1]]
    assert found.minus[0, [0, 1, 3]].tolist() == [0, 0, 3]


@pytest.mark.parametrize("odd", [0.0, -0.0, 1e-45, 3e38, torch.inf, -torch.inf])
def test_float32_scores_are_sorted_with_their_indices_whatever_their_values(odd):
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    scores[1, 7:11], scores[2, 9] = odd, -odd
    falling, ranking = sort_falling(scores)
    assert torch.equal(falling, scores.sort(-1, descending=True).values)
    assert torch.equal(scores.gather(1, ranking), falling)
    assert torch.equal(ranking.sort(-1).values, torch.arange(50).expand(3, -1))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64])
def test_exact_ranks_of_a_query_of_ignored_items_or_of_none_are_none(dtype):
    level = torch.zeros(2, 3, dtype=dtype)
    found = gridded(torch.rand(2, 3), level if dtype == torch.uint8 else level - 1, minus=heaviside)
    assert found.plus.sum() == 0
    assert found.minus.isinf().all()
    assert ranks(torch.rand(2, 0), torch.zeros(2, 0, dtype=dtype), minus=heaviside).plus.shape == (2, 0)
