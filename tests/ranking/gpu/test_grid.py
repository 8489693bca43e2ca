"""The Triton kernels of the grid: on a GPU where there is one, else at small sizes through Triton's interpreter."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from suprank.ranking import Sigmoid, SupStep, chunked, gridded, heaviside, ranks, tree_relevance
from suprank.ranking.gpu.grid import Survey, gridded_on_gpu, survey
from suprank.ranking.gpu.step_table import TERMS, bins_per_score, step_table
from tests.ranking.gpu.test_pairs import DEVICE, assert_agree, on_gpu, problem, values_and_gradient
from tests.ranking.random_rankings import algorithm_of
from tests.ranking.ranks.test_gridded import scores_of

STEPS = {
    "SupRank": (heaviside, SupStep(tau=0.1, delta=0.503)),
    "exact": (heaviside, heaviside),
    "sigmoids": (Sigmoid(0.2), Sigmoid(0.3)),
    "smooth above, bound below": (Sigmoid(0.5), SupStep(tau=0.1, delta=0.13, value_at_delta=1.44)),
    "no margin": (heaviside, SupStep(tau=0.2, rho=3.0, delta=0.0, jump=0.7)),
    "wide and flat": (heaviside, SupStep(tau=0.3, rho=0.0, delta=0.21)),
}


@pytest.mark.parametrize("steps", STEPS)
def test_the_kernels_give_the_definition_forward_and_backward(steps):
    scores, level, upstream = problem(1, 37, depth=3, spread=0.2)
    level[0, 3:9] = 2
    scores[0, 3:6] = scores[0, 9]  # ties within a level and across
    assert_agree(scores, level, tree_relevance(level, depth=3), upstream, *STEPS[steps], using=gridded_on_gpu)


@pytest.mark.parametrize("step", [Sigmoid(0.02), SupStep(), SupStep(tau=0.1, delta=0.05), SupStep(delta=0.0)], ids=str)
def test_the_table_is_the_step_between_any_two_bins(step):
    table = step_table(step, torch.device("cpu"))
    width, coordinate = 1 / bins_per_score(step), np.linspace(-1, 1, 9)
    powers = np.vander(coordinate, TERMS, increasing=True)
    for tap, polynomials in enumerate(table.near.double().numpy()):
        gap = width * (table.above - tap + (coordinate[None, :] - coordinate[:, None]) / 2)
        sigmoid = 1 / (1 + np.exp(-gap / step.tau))
        np.testing.assert_allclose(powers @ polynomials[:, :TERMS] @ powers.T, sigmoid, rtol=2e-6, atol=1e-12)
        np.testing.assert_allclose(
            powers @ polynomials[:, TERMS:] @ powers.T, sigmoid * (1 - sigmoid) / step.tau, rtol=6e-6, atol=1e-10
        )
    if isinstance(step, SupStep):
        terms = len(table.cut)
        gap = torch.tensor(width * (table.above + (coordinate[None, :] - coordinate[:, None]) / 2))
        more = step.rho * (gap - step.delta) + step.height - step.jump - torch.sigmoid(gap / step.tau)
        powers = np.vander(coordinate, terms, increasing=True)
        np.testing.assert_allclose(powers @ table.cut[:, :terms].double().numpy() @ powers.T, more, atol=5e-7 * step.height)


def test_a_survey_knows_the_lists():
    scores = torch.tensor([[0.5, -1.0, 0.25, 9.0], [0.5, 0.5, 0.5, 0.5]], device=DEVICE)
    level = torch.tensor([[2, 0, 1, -1], [0, 0, 0, -1]], dtype=torch.int8, device=DEVICE)
    known = survey(scores, level, tree_relevance(level, depth=2))
    assert (known.range, known.positives, known.most_positives, known.depth, known.regular) == (1.5, 1.0, 2, 2, True)
    assert known.counts.tolist() == [[3, 2], [3, 0]]
    assert survey(scores, level, torch.rand_like(scores) * (level == 0) + level.clamp(min=0)).regular  # 0 has no relevance
    level[0, 2] = 2
    assert not survey(scores, level, torch.tensor([[1.0, 0, 0.5, 0], [0, 0, 0, 0]], device=DEVICE)).regular
    scores[0, 1] = torch.nan
    assert not survey(scores, level, None).regular


def test_a_grid_has_no_more_bins_than_a_gpu_launches_and_than_a_table_is_made_for():
    nothing = torch.empty(0)
    known = partial(Survey, positives=9.0, most_positives=9, depth=1, regular=True, counts=nothing, ends=nothing, by_level=None)
    step = SupStep()  # 60 bins to a score of 1
    assert known(490.0).fits(60_000, heaviside, step)
    assert not known(510.0).fits(60_000, heaviside, step)
    assert known(1000.0).fits(200_000, heaviside, step)
    assert not known(1100.0).fits(200_000, heaviside, step)
    assert not known(1.0).fits(5_000_000, heaviside, step)
    assert not known(1.0).fits(60_000, heaviside, SupStep(delta=1e6))
    assert known(1e9).fits(60_000, heaviside, heaviside)


def test_many_levels_are_counted_in_several_words():
    scores, level, upstream = problem(1, 33, depth=15)
    assert_agree(scores, level, tree_relevance(level, depth=15), upstream, *STEPS["exact"], using=gridded_on_gpu)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_levels_of_any_integer_dtype_are_accepted(dtype):
    scores, level, upstream = problem(1, 21, depth=1)
    assert_agree(scores, level.clamp(min=0).to(dtype), None, upstream, *STEPS["wide and flat"], using=gridded_on_gpu)


def test_scores_without_a_grid_and_mixed_relevance_are_ranked_by_their_pairs():
    scores, level, upstream = problem(2, 9, depth=2)
    wide = scores.clone()
    wide[0, 0] = 1e6
    assert_agree(wide, level.abs(), None, upstream, *STEPS["SupRank"], using=gridded_on_gpu)
    mixed = torch.rand(scores.shape, device=DEVICE) * level.clamp(min=0)
    assert_agree(scores, level, mixed, upstream, *STEPS["SupRank"], using=gridded_on_gpu)


def test_nothing_to_rank_and_other_dtypes():
    scores = torch.zeros(0, 5, device=DEVICE)
    assert gridded_on_gpu(scores, torch.zeros(0, 5, dtype=torch.int8, device=DEVICE)).minus.shape == (0, 5)
    with pytest.raises(ValueError, match="float64.*leave `using` out"):
        gridded_on_gpu(torch.zeros(2, 5, dtype=torch.float64), torch.ones(2, 5, dtype=torch.int8))


def test_a_second_derivative_is_refused_with_the_way_out():
    scores, level, _ = problem(1, 8, depth=1, spread=0.3)
    scores.requires_grad_()
    total = gridded_on_gpu(scores, level, minus=SupStep(tau=0.3, delta=1.5)).minus.where(level > 0, 0).sum()
    (gradient,) = torch.autograd.grad(total, scores, create_graph=True)
    with pytest.raises(NotImplementedError, match="using='definition'"):
        gradient.sum().backward()


def test_blocks_of_queries_and_two_runs_give_the_same_bits():
    queries, items = (2, 20) if DEVICE == "cpu" else (64, 3000)
    scores, level, upstream = problem(queries, items, depth=3, spread=0.3)
    runs = [
        values_and_gradient(partial(gridded_on_gpu, budget=budget), scores, level, None, upstream, *STEPS["SupRank"])
        for budget in (1, 2**30, 2**30)
    ]
    for values, gradient in runs[1:]:
        assert torch.equal(gradient, runs[0][1])
        assert all(torch.equal(value, first) for value, first in zip(values, runs[0][0], strict=True))


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("tau", [1e-3, 0.01, 1.0])
@pytest.mark.parametrize("kind", ["cosines", "narrow", "two clusters", "nearly equal", "equal", "tied", "outside of [−1, 1]"])
def test_float32_ranks_are_within_2e_6_and_gradients_within_1e_5(kind, tau):
    generator = torch.Generator().manual_seed(int(1 / tau))
    scores = scores_of(kind, generator, (4, 1500)).to(DEVICE)
    level = torch.randint(-1, 4, scores.shape, generator=generator, dtype=torch.int8).to(DEVICE)
    upstream = [torch.randn(scores.shape, generator=generator).to(DEVICE) for _ in range(3)]
    relevance = tree_relevance(level, depth=3)
    for steps in ((heaviside, SupStep(tau=tau, delta=5.03 * tau)), (Sigmoid(tau), Sigmoid(tau))):
        truth, slope = values_and_gradient(chunked, scores.double(), level, relevance.double(), upstream, *steps)
        found, gradient = values_and_gradient(gridded_on_gpu, scores, level, relevance, upstream, *steps)
        for part, expected in zip(found, truth, strict=True):
            assert ((part - expected)[level > 0].abs() / (0.01 + expected[level > 0])).max() < 2e-6
        assert (gradient - slope).norm() < 1e-5 * slope.norm() + 1e-9


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("depth", [1, 3, 15])
@pytest.mark.parametrize("items", [255, 4097, 100_000])
def test_the_kernels_agree_with_chunked_and_sorting_at_real_sizes(items, depth):
    scores, level, upstream = problem(3, items, depth, spread=0.05)
    level = level.where(torch.rand(level.shape, device=DEVICE) < 300 / items, 0)
    relevance = tree_relevance(level, depth=depth)
    found, gradient = values_and_gradient(gridded_on_gpu, scores, level, relevance, upstream, heaviside, SupStep())
    truth, slope = values_and_gradient(chunked, scores.double(), level, relevance.double(), upstream, heaviside, SupStep())
    for part, expected in zip(found, truth, strict=True):
        assert ((part - expected)[level > 0].abs() / (0.01 + expected[level > 0])).max() < 2e-6
    assert (gradient - slope).norm() < 1e-5 * slope.norm()
    exact = gridded(scores.cpu(), level.cpu(), relevance.cpu(), minus=heaviside)
    for part, expected in zip(gridded_on_gpu(scores, level, relevance, minus=heaviside), exact, strict=True):
        torch.testing.assert_close(part.cpu(), expected, rtol=1e-6, atol=0)


@pytest.mark.gpu
@on_gpu
def test_the_grid_is_chosen_where_positives_are_many_and_not_under_capture():
    scores, level, _ = problem(1024, 4096, depth=3)
    scores.requires_grad_()
    few = level.clamp(max=0)
    few[:, 0] = 1
    assert [algorithm_of(ranks(scores, one)) for one in (level, few, level.float())] == ["gridded", "fused", "fused"]
    assert algorithm_of(gridded(scores, few)) == "gridded"
    assert algorithm_of(ranks(scores[:, :512], level[:, :512])) == "fused"
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        recorded = ranks(scores, level)
    assert algorithm_of(recorded) == "fused"


@pytest.mark.gpu
@on_gpu
def test_a_side_stream_is_kept_to():
    scores, level, upstream = problem(64, 2000, depth=3)
    wanted, slope = values_and_gradient(gridded_on_gpu, scores, level, None, upstream, heaviside, SupStep())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**8)  # what is launched elsewhere would run ahead of the scores made here
        late = scores * 1.0
        values, gradient = values_and_gradient(gridded_on_gpu, late, level, None, upstream, heaviside, SupStep())
    side.synchronize()
    assert torch.equal(gradient, slope)
    assert all(torch.equal(value, expected) for value, expected in zip(values, wanted, strict=True))
