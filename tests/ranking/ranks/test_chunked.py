"""The bounded-memory form: the numbers and gradients of the definition, block by block, and never more than its budget."""

import itertools
import math
import weakref
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suprank.ranking import Sigmoid, SupStep, chunked, definition, gridded, heaviside, ranks, tree_relevance
from tests.ranking.random_rankings import SOME, STEP_PAIRS, assert_near, random_ranking, rankings, steepest

ONE_ROW = 1


def with_gradient(implementation, scores, level, relevance, plus, minus, seed=0):
    """The ranks as a list, and the gradient of a random weighting of all that are finite."""
    scores = scores.detach().requires_grad_()
    found = implementation(scores, level, relevance, plus=plus, minus=minus)
    generator = torch.Generator().manual_seed(seed)
    parts = [part for part in found if part is not None]
    weights = [torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part.dtype) for part in parts]
    positive = level > 0
    total = sum((part.where(positive, 0) * weight).sum() for part, weight in zip(parts, weights, strict=True))
    if not total.requires_grad:  # the definition of exact ranks holds nothing to differentiate
        return parts, torch.zeros_like(scores)
    (gradient,) = torch.autograd.grad(total, scores)
    return [part.detach() for part in parts], gradient


@pytest.mark.parametrize("name", STEP_PAIRS)
@SOME
@given(drawn=rankings(), budget=st.sampled_from([ONE_ROW, 2500, 2**20]), graded=st.booleans(), seed=st.integers(0, 9))
def test_chunked_equals_the_definition_forward_and_backward(name, drawn, budget, graded, seed):
    plus, minus = STEP_PAIRS[name]
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        scores = drawn.scores.to(dtype)
        relevance = tree_relevance(drawn.level, depth=4, dtype=dtype) if graded else None
        expected, slope = with_gradient(definition, scores, drawn.level, relevance, plus, minus, seed)
        found, gradient = with_gradient(partial(chunked, budget=budget), scores, drawn.level, relevance, plus, minus, seed)
        assert len(found) == len(expected) == 2 + graded
        for part, truth in zip(found, expected, strict=True):
            assert part.dtype == dtype
            assert_near(part, truth, tolerance)
        assert_near(gradient, slope, tolerance, scale=1 + steepest(plus, minus))


@SOME
@given(drawn=rankings(lowest=0), seed=st.integers(0, 99))
def test_graded_relevance_may_stand_in_for_levels(drawn, seed):
    grades = torch.rand(drawn.level.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    graded = (drawn.level * (1 + grades.round(decimals=1))).where(drawn.level > 0, drawn.level - (grades > 0.7).double())
    truth, slope = with_gradient(definition, drawn.scores, graded, graded.clamp(min=0), heaviside, SupStep())
    found, gradient = with_gradient(
        partial(chunked, budget=ONE_ROW), drawn.scores, graded, graded.clamp(min=0), heaviside, SupStep()
    )
    for part, expected in zip(found, truth, strict=True):
        assert_near(part, expected, 1e-10)
    assert_near(gradient, slope, 1e-10)


@SOME
@given(drawn=rankings(), seed=st.integers(0, 99))
def test_relevance_of_items_that_are_not_positive_weighs_nothing(drawn, seed):
    relevance = torch.rand(drawn.level.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    truth, slope = with_gradient(
        definition, drawn.scores, drawn.level, relevance.where(drawn.level > 0, 0), Sigmoid(), SupStep()
    )
    for implementation in (chunked, definition):
        found, gradient = with_gradient(implementation, drawn.scores, drawn.level, relevance, Sigmoid(), SupStep())
        assert_near(found[2], truth[2], 1e-10)
        assert_near(gradient, slope, 1e-10)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32], ids=str)
def test_levels_of_any_dtype_order_alike(dtype):
    scores, level = random_ranking(3, queries=4, items=11, deepest=1)
    level = level.clamp(min=0)
    for implementation in (chunked, definition):
        found = implementation(scores, level.to(dtype))
        assert torch.equal(found.plus, definition(scores, level).plus)
        assert torch.equal(found.minus, definition(scores, level).minus)


@pytest.mark.parametrize("shape", [(1, 1), (1, 13), (7, 1), (5, 40), (40, 5)], ids=str)
@pytest.mark.parametrize("budget", [ONE_ROW, 4000, 2**25])
def test_rectangular_lists_of_any_size_fit_any_budget(shape, budget):
    scores, level = random_ranking(sum(shape), *shape)
    relevance = tree_relevance(level, dtype=torch.float64)
    truth, slope = with_gradient(definition, scores, level, relevance, Sigmoid(), SupStep())
    found, gradient = with_gradient(partial(chunked, budget=budget), scores, level, relevance, Sigmoid(), SupStep())
    for part, expected in zip(found, truth, strict=True):
        assert_near(part, expected, 1e-10)
    assert_near(gradient, slope, 1e-10)


LAYOUTS = {
    "transposed": lambda tensor: tensor.T.contiguous().T,
    "every other column": lambda tensor: tensor.repeat_interleave(2, 1)[:, ::2],
    "part of a wider matrix": lambda tensor: torch.cat([tensor, tensor], 1)[:, : tensor.shape[1]],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_non_contiguous_inputs_give_the_same_ranks_and_gradients(layout):
    scores, level = random_ranking(8, 5, 9)
    relevance = tree_relevance(level, dtype=torch.float64)
    other_scores, other_level, other_relevance = (LAYOUTS[layout](tensor) for tensor in (scores, level, relevance))
    assert not any(tensor.is_contiguous() for tensor in (other_scores, other_level, other_relevance))
    truth, slope = with_gradient(definition, scores, level, relevance, Sigmoid(), SupStep())
    by_block = partial(chunked, budget=700)
    found, gradient = with_gradient(by_block, other_scores, other_level, other_relevance, Sigmoid(), SupStep())
    for part, expected in zip(found, truth, strict=True):
        assert_near(part, expected, 1e-12)
    assert_near(gradient, slope, 1e-12)


def test_one_row_of_scores_shared_by_all_queries_collects_all_their_gradients():
    _, level = random_ranking(5, 4, 8)
    row = random_ranking(6, 1, 8).scores.requires_grad_()
    gradients: list[torch.Tensor] = []
    for implementation in (chunked, definition):
        found = implementation(row.expand(4, 8), level, plus=Sigmoid(0.1), minus=SupStep(0.1))
        gradients += torch.autograd.grad((found.total.where(level > 0, 0) ** 2).sum(), row)
    assert_near(gradients[0], gradients[1], 1e-12)
    assert gradients[1].abs().max() > 1


@pytest.mark.parametrize("part", ["plus", "minus", "hierarchical"])
def test_each_rank_alone_backpropagates_as_in_the_definition(part):
    scores, level = random_ranking(12, 3, 8)
    relevance = tree_relevance(level, dtype=torch.float64)
    slopes: list[torch.Tensor] = []
    for implementation in (chunked, definition):
        leaf = scores.clone().requires_grad_()
        value = getattr(implementation(leaf, level, relevance, plus=Sigmoid(0.1), minus=SupStep(0.1)), part)
        weight = torch.arange(value.numel(), dtype=torch.float64).view_as(value)  # equal weights would cancel pair by pair
        slopes += torch.autograd.grad((value * weight)[level > 0].sum(), leaf)
    assert_near(slopes[0], slopes[1], 1e-12)
    assert slopes[1].abs().max() > 1


@pytest.mark.parametrize("name", ["SupRank", "Smooth-AP", "SOP recipes", "no margin", "bound on both sides"])
def test_gradcheck_passes_away_from_ties(name):
    plus, minus = STEP_PAIRS[name]
    order = torch.tensor([[4, 0, 3, 1, 5, 2], [1, 5, 0, 2, 4, 3]], dtype=torch.float64)
    scores = (0.017 * order - 0.04).requires_grad_()  # gaps are multiples of 0.017: none is within 1e-3 of 0, δ
    level = torch.tensor([[2, 0, 1, 1, 0, 2], [0, 0, 3, -1, 1, 2]])
    relevance = tree_relevance(level, dtype=torch.float64)

    def finite_ranks(values):
        found = chunked(values, level, relevance, plus=plus, minus=minus, budget=500)
        return tuple(part[level > 0] for part in found if part is not None)

    assert torch.autograd.gradcheck(finite_ranks, scores)


def test_no_gradient_passes_through_heaviside_ranks():
    scores, level = random_ranking(1, 3, 9)
    leaf = scores.clone().requires_grad_()
    found = chunked(leaf, level, tree_relevance(level, dtype=torch.float64))
    assert found.hierarchical is not None
    assert (found.plus.requires_grad, found.hierarchical.requires_grad, found.minus.requires_grad) == (False, False, True)


@SOME
@given(drawn=rankings(), seed=st.integers(0, 99))
def test_ignored_items_change_neither_ranks_nor_gradients(drawn, seed):
    junk = 2 * torch.rand(len(drawn.scores), 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
    order = torch.randperm(drawn.scores.shape[1] + 4, generator=torch.Generator().manual_seed(seed))
    level = torch.cat([drawn.level, torch.full_like(junk, -1).to(torch.int8)], 1)[:, order]
    kept = order < drawn.scores.shape[1]
    back = order[kept]
    leaf, crowded = drawn.scores.clone().requires_grad_(), torch.cat([drawn.scores, junk], 1)[:, order].requires_grad_()
    alone, found = chunked(leaf, drawn.level), chunked(crowded, level)
    for part, expected in zip(found[:2], alone[:2], strict=True):
        torch.testing.assert_close(part[:, kept], expected[:, back])
    (slope,) = torch.autograd.grad(alone.minus.where(drawn.level > 0, 0).sum(), leaf)
    (gradient,) = torch.autograd.grad(found.minus.where(level > 0, 0).sum(), crowded)
    torch.testing.assert_close(gradient[:, kept], slope[:, back])
    assert (gradient[:, ~kept] == 0).all()


@SOME
@given(drawn=rankings())
def test_a_query_without_positives_changes_neither_the_others_ranks_nor_their_gradients(drawn):
    extra = drawn.scores[:1].flip(1)
    level = torch.cat([drawn.level, torch.zeros_like(drawn.level[:1])])
    leaf, longer = drawn.scores.clone().requires_grad_(), torch.cat([drawn.scores, extra]).requires_grad_()
    alone, found = chunked(leaf, drawn.level), chunked(longer, level)
    assert torch.equal(found.plus[:-1], alone.plus)
    assert torch.equal(found.minus[:-1], alone.minus)
    assert found.plus[-1].eq(0).all()
    assert found.minus[-1].eq(math.inf).all()
    (slope,) = torch.autograd.grad(alone.minus.where(drawn.level > 0, 0).sum(), leaf)
    (gradient,) = torch.autograd.grad(found.minus.where(level > 0, 0).sum(), longer)
    assert torch.equal(gradient[:-1], slope)
    assert gradient[-1].eq(0).all()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)], ids=str)
def test_nothing_to_rank_gives_empty_ranks(shape):
    for implementation in (chunked, gridded, definition):
        scores = torch.zeros(shape, requires_grad=True)
        found = implementation(scores, torch.zeros(shape, dtype=torch.int8), torch.zeros(shape))
        assert found.hierarchical is not None
        assert found.plus.shape == found.minus.shape == found.hierarchical.shape == shape
        found.total.sum().backward()


@pytest.mark.parametrize("relevance_dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_relevance_need_not_have_the_dtype_of_the_scores(dtype, relevance_dtype):
    scores, level = random_ranking(4, dtype=dtype)
    relevance = level.clamp(min=0).to(relevance_dtype)
    truth, slope = with_gradient(definition, scores, level, relevance.to(dtype), Sigmoid(), SupStep())
    found, gradient = with_gradient(chunked, scores, level, relevance, Sigmoid(), SupStep())
    assert found[2].dtype == dtype
    assert_near(found[2], truth[2], 1e-5)
    assert_near(gradient, slope, 1e-5, scale=steepest(SupStep()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("implementation", [chunked, definition])
def test_half_precision_scores_are_ranked(implementation, dtype):
    scores, level = random_ranking(4, dtype=dtype)
    relevance = tree_relevance(level, dtype=dtype)
    found = implementation(scores, level, relevance, minus=heaviside)
    truth = definition(scores.double(), level, relevance.double(), minus=heaviside)
    assert torch.equal(found.plus.double(), truth.plus)
    assert torch.equal(found.minus.double(), truth.minus)
    assert implementation(scores, level, relevance).minus[level > 0].isfinite().all()


@pytest.mark.parametrize("using", [chunked, gridded])
def test_a_second_derivative_is_refused_with_the_way_out_which_works(using):
    scores, level = random_ranking(0)
    scores.requires_grad_()

    def penalty(using):
        found = ranks(scores, level, minus=Sigmoid(0.1), using=using)
        (gradient,) = torch.autograd.grad(found.minus[level > 0].sum(), scores, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), scores)[0]

    with pytest.raises(NotImplementedError, match=r"second derivative.*using='definition'"):
        penalty(using)
    assert penalty(definition).abs().max() > 1


def test_the_first_derivative_may_be_kept_in_a_graph_that_is_not_differentiated():
    scores, level = random_ranking(0)
    scores.requires_grad_()
    (gradient,) = torch.autograd.grad(chunked(scores, level).minus[level > 0].sum(), scores, create_graph=True)
    assert gradient.isfinite().all()


class Memory(TorchDispatchMode):
    """Bytes of the tensors that operations create: the largest, and the most that were alive together."""

    def __init__(self, known_shape):
        super().__init__()
        self.known_shape, self.largest, self.alive, self.peak = known_shape, 0, 0, 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in given and leaf.shape != self.known_shape:
                self.add(leaf)
        return result

    def add(self, tensor):
        size = tensor.untyped_storage().nbytes()
        self.largest, self.alive = max(self.largest, size), self.alive + size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(tensor, self.drop, size)

    def drop(self, size):
        self.alive -= size


@pytest.mark.parametrize(
    ("name", "dtype", "level_dtype"),
    [
        *itertools.product(("SupRank", "Smooth-AP", "bound on both sides"), (torch.float32, torch.float64), [torch.int8]),
        *itertools.product(["SupRank"], [torch.float32], (torch.int64, torch.float64)),
    ],
    ids=str,
)
def test_temporaries_stay_within_the_budget(name, dtype, level_dtype):
    plus, minus = STEP_PAIRS[name]
    scores, level = random_ranking(7, 3, 300, deepest=2, dtype=dtype)
    relevance = tree_relevance(level, dtype=dtype)
    positives, budget = int((level > 0).sum()), 80_000
    index = 2 * 8 * positives  # where the positives are: two integers each, kept for backward
    scores.requires_grad_()
    with Memory(scores.shape) as memory:
        found = chunked(scores, level.to(level_dtype), relevance, plus=plus, minus=minus, budget=budget)
    assert 0 < memory.largest <= max(budget, index)
    assert memory.peak <= budget + 2 * index
    assert found.hierarchical is not None
    total = (found.plus + found.minus.where(level > 0, 0) + found.hierarchical).sum()
    with Memory(scores.shape) as memory:
        total.backward()
    assert 0 < memory.largest <= budget
    assert memory.peak <= budget


def test_the_definition_would_break_that_budget():
    scores, level = random_ranking(7, 3, 300, deepest=2)
    with Memory(scores.shape) as memory:
        definition(scores, level)
    assert memory.largest >= 3 * 300 * 300 * 8
