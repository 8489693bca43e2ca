"""`ranks`: the paper's figures, the laws that every implementation keeps, and what is refused."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.ranking import SupStep, chunked, definition, gridded, heaviside, ranks, tree_relevance
from suprank.ranking.ranks import dispatch
from tests.ranking.random_rankings import PLENTY, SOME, STEP_PAIRS, assert_near, random_ranking, rankings

IMPLEMENTATIONS = [None, chunked, definition]


@pytest.mark.parametrize("using", IMPLEMENTATIONS)
@pytest.mark.parametrize(("intruder", "expected"), [(2 / 3, 5 / 3), (1 / 3, 4 / 3)])
def test_h_rank_reproduces_the_papers_lada_figure(using, intruder, expected):
    relevance = torch.tensor([[intruder, 1.0]])  # a Lada, then a mere car, above the Lada #2
    found = ranks(torch.tensor([[0.9, 0.8]]), (3 * relevance).round().int(), relevance, using=using)
    assert found.hierarchical is not None
    assert found.hierarchical[0, 1].item() == pytest.approx(expected)
    assert found.plus[0, 1].item() == 1, "on binary labels the intruder would not count at all"


@pytest.mark.parametrize("using", IMPLEMENTATIONS)
def test_the_default_is_the_papers_sup_rank(using):
    found = ranks(torch.tensor([[0.3, 0.24, 0.1]], dtype=torch.float64), torch.tensor([[0, 1, 1]]), using=using)
    assert found.plus[0].tolist() == [0, 1, 2]
    assert found.minus[0, 1:].tolist() == pytest.approx([2.4933071491, 16.4933071491])


@PLENTY
@given(drawn=rankings(), name=st.sampled_from(sorted(STEP_PAIRS)), seed=st.integers(0, 99))
def test_the_order_of_the_items_is_irrelevant(drawn, name, seed):
    plus, minus = STEP_PAIRS[name]
    order = torch.randperm(drawn.scores.shape[1], generator=torch.Generator().manual_seed(seed))
    relevance = tree_relevance(drawn.level, dtype=torch.float64)
    first = ranks(drawn.scores, drawn.level, relevance, plus=plus, minus=minus)
    second = ranks(drawn.scores[:, order], drawn.level[:, order], relevance[:, order], plus=plus, minus=minus)
    for one, other in zip(first, second, strict=True):
        assert one is not None and other is not None  # noqa: PT018 (one fact, for the type checker)
        assert_near(other, one[:, order], 1e-12)


@SOME
@given(drawn=rankings(), shift=st.floats(-3, 3))
def test_a_shift_of_all_scores_is_irrelevant_to_exact_ranks(drawn, shift):
    shifted = drawn.scores.round(decimals=6) * 2**10 + round(shift)  # steps of a power of two keep ties and order
    before = ranks(drawn.scores.round(decimals=6) * 2**10, drawn.level, minus=heaviside)
    for one, other in zip(before[:2], ranks(shifted, drawn.level, minus=heaviside)[:2], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("using", [definition, chunked, gridded])
def test_an_implementation_can_be_named(using):
    scores, level = random_ranking(0)
    calls = []

    def spy(*arguments, **options):
        calls.append(using.__name__)
        return using(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(dispatch.IMPLEMENTATIONS, using.__name__, spy)
        found = ranks(scores, level, using=using.__name__)
    assert calls == [using.__name__]
    assert torch.equal(found.plus, definition(scores, level).plus)


def test_an_unknown_implementation_is_refused_with_the_names():
    names = "'definition', 'chunked', 'gridded', 'fused'"
    for unknown in ("chunks", "sorting"):
        with pytest.raises(ValueError, match=f"using='{unknown}' is not an implementation of ranks; choose from {names}"):
            ranks(*random_ranking(0), using=unknown)


def test_without_triton_the_fused_implementation_says_what_is_missing(monkeypatch):
    monkeypatch.delitem(dispatch.IMPLEMENTATIONS, "fused", raising=False)
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="using='fused' needs Triton.*use 'chunked'"):
        ranks(*random_ranking(0), using="fused")


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_the_fused_implementation_is_refused_on_a_cpu(monkeypatch):
    monkeypatch.setattr(import_module("suprank.ranking.gpu.pairs"), "_COMPILED", True)
    with pytest.raises(ValueError, match="fused ranks need a GPU, and the scores are on the CPU"):
        ranks(*random_ranking(0, dtype=torch.float32), using="fused")


def test_an_implementation_is_called_with_what_was_given():
    calls = []

    def spy(scores, level, relevance=None, *, plus=heaviside, minus=heaviside):
        calls.append((plus, minus))
        return definition(scores, level, relevance, plus=plus, minus=minus)

    scores, level = random_ranking(0)
    found = ranks(scores, level, minus=heaviside, using=spy)
    assert calls == [(heaviside, heaviside)]
    assert torch.equal(found.plus, definition(scores, level).plus)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_counts_beyond_what_it_can_hold(dtype):
    scores, level = torch.zeros(1, 5001, dtype=dtype), torch.tensor([[1] + [0] * 5000])
    assert ranks(scores, level, minus=heaviside).total[0, 0].item() == 5001
    assert ranks(scores + 2 * (level == 0), level).minus[0, 0].isfinite()


def test_relevance_is_a_constant():
    scores, level = random_ranking(0)
    relevance = tree_relevance(level, dtype=torch.float64).requires_grad_()
    for using in IMPLEMENTATIONS:
        found = ranks(scores, level, relevance, using=using)
        assert found.hierarchical is not None
        assert not found.hierarchical.requires_grad


def test_a_build_of_torch_with_cuda_but_without_triton_is_no_obstacle():
    script = "import sys, torch; sys.modules['triton'] = None; torch.version.cuda = '12.6'; import suprank.losses"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_inputs_are_left_as_they_were():
    scores, level = random_ranking(0)
    relevance = tree_relevance(level, dtype=torch.float64)
    copies = scores.clone(), level.clone(), relevance.clone()
    leaf = scores.requires_grad_()
    ranks(leaf, level, relevance).minus[level > 0].sum().backward()
    assert all(torch.equal(now, before) for now, before in zip((leaf, level, relevance), copies, strict=True))


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ((torch.zeros(3), torch.zeros(3)), ["float32", "(3,)", "[queries, items]", "scores[None]"]),
        ((torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)), ["(2, 3, 4)", "[queries, items]"]),
        ((torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3)), ["int64", "floating point"]),
        ((torch.zeros(2, 3), torch.zeros(3, 2)), ["level", "(3, 2)", "(2, 3)"]),
        ((torch.zeros(2, 3), torch.zeros(3)), ["level", "(3,)", "(2, 3)"]),
        ((torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(1, 3)), ["relevance", "(1, 3)", "(2, 3)"]),
    ],
)
def test_wrong_shapes_are_refused_with_the_shapes(arguments, fragments):
    with pytest.raises(ValueError, match="queries") as error:
        ranks(*arguments)
    assert all(fragment in str(error.value) for fragment in fragments), str(error.value)


@pytest.mark.parametrize("items", [12, 120], ids=["few positives", "many"])
def test_exact_ranks_backpropagate_zero_rather_than_fail_however_many_positives(items):
    scores, level = random_ranking(2, 4, items)
    leaf = scores.clone().requires_grad_()
    found = ranks(leaf, level, tree_relevance(level, dtype=torch.float64), minus=heaviside)
    assert not found.plus.requires_grad
    assert found.hierarchical is not None
    assert not found.hierarchical.requires_grad
    found.total[level > 0].sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.zeros_like(leaf))


@pytest.mark.parametrize("minus", [SupStep(), heaviside], ids=["SupRank", "exact"])
def test_ranks_are_computed_where_the_scores_are_whatever_the_default_device(minus):
    scores, level = random_ranking(3, 5, 150)
    expected = ranks(scores, level, minus=minus)
    with torch.device("meta"):
        found = ranks(scores, level, minus=minus)
    assert torch.equal(found.minus, expected.minus)
