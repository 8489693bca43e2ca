"""The kernels for levels, relevance, AP and the mean: on a GPU where there is one, else through Triton's interpreter.

Elsewhere the plain functions are tested against their definitions; here the kernels against them.
"""

from __future__ import annotations

import sys
from functools import partial

import pytest
import torch

pytest.importorskip("triton")

from suprank.losses import ScoreBatch, SmoothHAP, SmoothNDCG, SmoothRecall, SupAP, SupHAP, SupNDCG
from suprank.losses.score_batch import MOST_LEVELS
from suprank.ranking import (
    Ranks,
    average_precision,
    definition,
    hierarchical_average_precision,
    seam,
    tree_relevance,
    weighted_ap_relevance,
)
from suprank.ranking.gpu import batch
from suprank.ranking.relevance import listed_level

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def kernels(monkeypatch):
    """Take the kernels on a CPU too, through the interpreter."""
    monkeypatch.setattr(seam, "DEVICES", {DEVICE})


@pytest.fixture
def plain(monkeypatch):
    """Take the plain functions on a GPU too."""
    monkeypatch.setattr(seam, "DEVICES", set())


def refuse(*_, **__):
    pytest.fail("the kernels can do this")


def labels_of(queries, items, depth, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randint(-1, 3, (rows, depth), generator=generator).to(DEVICE) for rows in (queries, items)]
    is_self = (torch.rand(queries, items, generator=generator) < 0.1).to(DEVICE)
    return *draw, is_self


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("own", ["mask", "diagonal", "none"])
def test_levels_are_those_of_plain_torch(plain, depth, fine, own):
    labels, items, is_self = labels_of(5, 37, depth)
    arguments = {"fine": fine, "is_self": is_self if own == "mask" else None, "within_batch": own == "diagonal"}
    wanted = listed_level(labels, items, **arguments)
    assert {-1, 0, 1} & set(wanted.unique().tolist()) >= {0, 1}
    assert torch.equal(batch.listed_level(refuse, labels, items, **arguments), wanted)
    columns = torch.stack([labels, labels], 1)[:, 0], items.T.contiguous().T  # strides of their own
    assert torch.equal(batch.listed_level(refuse, *columns, **arguments), wanted)


@pytest.mark.parametrize("depth", [1, 3, 15])
def test_relevance_is_that_of_plain_torch(plain, depth):
    level = torch.randint(-1, depth + 1, (4, 600), dtype=torch.int8, device=DEVICE)
    level[0] = 0
    weights = tuple((one / depth) ** 2.0 for one in range(1, depth + 1))
    tree = batch.shared_weights(refuse, level, weights, cumulative=False, dtype=torch.float32)
    torch.testing.assert_close(tree, tree_relevance(level, 2.0, depth=depth))
    weights = [0.1 * (1 + one) for one in range(depth)]
    weighted = batch.shared_weights(refuse, level, tuple(reversed(weights)), cumulative=True, dtype=torch.float32)
    torch.testing.assert_close(weighted, weighted_ap_relevance(level, weights))
    assert not weighted[0].any()


@pytest.mark.parametrize("weighted", [False, True], ids=["AP", "H-AP"])
@pytest.mark.parametrize("smooth", [False, True], ids=["to rank⁻", "to all ranks"])
def test_ap_and_its_gradients_are_those_of_plain_torch(plain, weighted, smooth):
    level = torch.randint(-1, 4, (4, 50), device=DEVICE)
    level[1] = 0
    relevance = tree_relevance(level, depth=3) if weighted else None
    ranked = [rank for rank in definition(torch.rand(4, 50, device=DEVICE), level, relevance) if rank is not None]
    leaves = [rank.clone().requires_grad_(smooth or place == 1) for place, rank in enumerate(ranked)]
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    ranks = Ranks(*leaves)
    measure, given = (batch.hap_and_weight, relevance) if weighted else (batch.ap_and_weight, level)
    value, weight = measure(refuse, ranks, given)
    loss, skipped = batch.mean_over_queries(refuse, value, weight, complement=True)
    found = torch.autograd.grad(loss, trained)
    plain_value = hierarchical_average_precision(ranks, relevance) if weighted else average_precision(ranks, level > 0)
    wanted = torch.autograd.grad(1 - plain_value[[0, 2, 3]].mean(), trained)
    torch.testing.assert_close(value, plain_value, equal_nan=True)
    torch.testing.assert_close(loss, 1 - plain_value[[0, 2, 3]].mean())
    assert (skipped.item(), skipped.dtype) == (1, torch.int64)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.where(level > 0, 0), other.where(level > 0, 0))
        assert not one[level <= 0].isnan().any()


def test_the_mean_leaves_out_what_has_no_weight():
    each = torch.tensor([3.0, torch.nan, 5.0], device=DEVICE, requires_grad=True)
    mean, skipped = batch.mean_over_queries(refuse, each, torch.tensor([True, False, True], device=DEVICE))
    assert (mean.item(), skipped.item()) == (4.0, 1)
    mean *= 2  # as a user may
    assert torch.autograd.grad(mean, each)[0].tolist() == [1.0, 0.0, 1.0]
    nothing, skipped = batch.mean_over_queries(refuse, each, torch.zeros(3, device=DEVICE), complement=True)
    assert (nothing.item(), skipped.item()) == (0.0, 3)
    assert torch.autograd.grad(nothing, each)[0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("scale", [1e-36, 1.0, 1e30])
def test_unit_vectors_have_the_right_length_where_squares_vanish_or_overflow(scale):
    vectors = torch.randn(3, 70, device=DEVICE)
    vectors[1] = 0
    unit, norm = batch.unit(refuse, scale * vectors)
    torch.testing.assert_close(unit, torch.nn.functional.normalize(vectors.double(), dim=-1).float())
    torch.testing.assert_close(norm[:, 0] / scale, vectors.norm(dim=-1), atol=2e-2, rtol=1e-5)
    with torch.no_grad():  # as in a backward pass
        gradient = batch.unit_gradient(refuse, torch.ones_like(unit), unit, norm, 1e-12)
    assert not gradient[1].any()


@pytest.mark.parametrize("make", [SupAP, SmoothHAP, partial(SmoothRecall, ks=(1, 3, 8)), SupNDCG])
def test_a_loss_made_of_the_kernels_is_the_plain_one_in_value_and_gradient(kernels, make):
    embeddings = torch.randn(7, 20, device=DEVICE, requires_grad=True)
    labels = torch.tensor([[i // 3, i // 6] for i in range(7)], device=DEVICE)
    labels[0] = -1
    loss, exact = make(using="definition"), make(using="definition")
    value = loss(embeddings, labels)
    (gradient,) = torch.autograd.grad(value, embeddings)
    (differentiable,) = torch.autograd.grad(loss(embeddings, labels), embeddings, create_graph=True)
    wanted = exact(embeddings.double(), labels)
    (slope,) = torch.autograd.grad(wanted, embeddings)
    torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(differentiable, gradient, rtol=1e-4, atol=1e-6)
    assert loss.log["queries_without_positives"] == exact.log["queries_without_positives"]
    (second,) = torch.autograd.grad(differentiable.square().sum(), embeddings)
    (wanted,) = torch.autograd.grad(exact(embeddings, labels), embeddings, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(wanted.square().sum(), embeddings)[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "make",
    [SupAP, SmoothHAP, partial(SupHAP, weights=(0.5, 0.3, 0.2)), partial(SmoothRecall, ks=(1, 3, 8)), SmoothNDCG, SupNDCG],
)
@pytest.mark.parametrize("using", ["definition", "fused"])
def test_lists_of_scores_with_padding_are_the_plain_ones_in_value_and_gradient(kernels, make, using):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(4, 21, generator=generator).to(DEVICE).requires_grad_()
    level = torch.randint(-1, 4, (21, 4), generator=generator).to(DEVICE).T  # strides of their own
    mask = (torch.rand(4, 21, generator=generator) < 0.7).to(DEVICE)
    mask[1], level[2] = False, 0
    loss, exact = make(using=using), make(using="definition")
    lists = ScoreBatch.from_scores(scores, level, mask)
    value = loss.compute_lists(ScoreBatch(lists.scores, lists.grades, MOST_LEVELS))  # a GPU does not read the deepest level
    (gradient,) = torch.autograd.grad(value, scores)
    wanted = exact.from_scores(scores.double(), level, mask)  # kernels take float32
    (slope,) = torch.autograd.grad(wanted, scores)
    torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-5)
    assert not gradient[~mask].any()
    assert loss.log["queries_without_positives"].item() == 2


def test_every_function_of_the_room_stands_for_a_plain_one():
    modules = ("measures", "relevance", "ranks.dispatch", "ranks.gridded")
    rooms = [sys.modules[f"suprank.ranking.{name}"] for name in modules] + [sys.modules["suprank.losses.batch"]]
    plain = {name for room in rooms for name, function in vars(room).items() if hasattr(function, "__wrapped__")}
    assert seam._KERNELS.keys() <= plain
