"""Losses of pytorch-metric-learning under our call: against their equations in loops, and what the package would get wrong."""

import importlib.util
import math
import sys

import pytest
import torch
from pytorch_metric_learning.losses import CosFaceLoss, MultiSimilarityLoss, ProxyAnchorLoss

from suprank.losses import SimilarityMixup
from suprank.losses.baselines import wrapped
from suprank.losses.baselines.wrapped import CosFace, MultiSimilarity, ProxyAnchor
from tests import reference
from tests.losses.batches import COMPOSITIONS, DIM, batch, gradient_of, rows, with_a_class

CLASSES = 6

PROXIES = {
    "ProxyAnchor": lambda **options: ProxyAnchor(CLASSES, DIM, **options),
    "CosFace": lambda **options: CosFace(CLASSES, DIM, **options),
}
EACH = {"MultiSimilarity": MultiSimilarity, **PROXIES}
NUMBERED = [name for name in COMPOSITIONS if name != "ids far apart"]


def proxies_of(loss):
    """[classes, dim], whichever way the package holds them."""
    (weights,) = loss.parameters()
    return weights.T if isinstance(loss, CosFace) else weights


def soft_sum(values):
    """log(1 + Σ exp)."""
    highest = max([0.0, *values])
    return highest + math.log(sum(math.exp(value - highest) for value in [0.0, *values]))


def slow_multi_similarity(lists, depth, alpha=2.0, beta=50.0, base=0.5):
    total = 0.0
    for scores, level in lists:
        pairs = list(zip(scores, level, strict=True))
        total += soft_sum([-alpha * (score - base) for score, one in pairs if one == depth]) / alpha
        total += soft_sum([beta * (score - base) for score, one in pairs if 0 <= one < depth]) / beta
    return total / len(lists)


def slow_proxy_anchor(embeddings, classes, proxies, margin=0.1, scale=32.0):
    positive, negative = [], []
    for own, proxy in enumerate(proxies):
        pairs = [(reference.cosine(embedding, proxy), one) for embedding, one in zip(embeddings, classes, strict=True)]
        if own in classes:
            positive.append(soft_sum([-scale * (score - margin) for score, one in pairs if one == own]))
        negative.append(soft_sum([scale * (score + margin) for score, one in pairs if one != own]))
    return sum(positive) / len(positive) + sum(negative) / len(proxies)


def slow_cosface(embeddings, classes, proxies, margin=0.35, scale=64.0):
    total = 0.0
    for embedding, own in zip(embeddings, classes, strict=True):
        logits = [scale * (reference.cosine(embedding, proxy) - margin * (z == own)) for z, proxy in enumerate(proxies)]
        total += soft_sum([logit - logits[own] for z, logit in enumerate(logits) if z != own])
    return total / len(classes)


SLOW = {"ProxyAnchor": slow_proxy_anchor, "CosFace": slow_cosface}


# Multi-Similarity


def test_multi_similarity_by_hand():
    embeddings, labels = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 2.0]]).double(), torch.tensor([0, 0, 1])
    loss = MultiSimilarity(alpha=1.0, beta=2.0, base=0.5)
    pair = math.log1p(math.exp(-(0.6 - 0.5)))
    expected = [
        pair + math.log1p(math.exp(2 * (0 - 0.5))) / 2,
        pair + math.log1p(math.exp(2 * (0.8 - 0.5))) / 2,
        math.log1p(math.exp(2 * (0 - 0.5)) + math.exp(2 * (0.8 - 0.5))) / 2,  # no positive, but negatives to keep away
    ]
    assert loss(embeddings, labels).item() == pytest.approx(sum(expected) / 3)


@pytest.mark.parametrize("given", [{}, {"alpha": 5.0, "beta": 10.0, "base": 0.1}], ids=str)
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_multi_similarity_equals_its_equation(composition, given):
    embeddings, labels = batch(composition)
    lists = reference.batch_lists(embeddings.tolist(), rows(labels))
    expected = slow_multi_similarity(lists, len(rows(labels)[0]), **given)
    value, slope = gradient_of(MultiSimilarity(**given), embeddings, labels)
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-15)
    assert slope.isfinite().all()
    assert slope.any() == (composition != "one image")


def test_it_is_pytorch_metric_learnings_within_a_batch():
    embeddings, labels = batch("unequal classes")
    value, slope = gradient_of(MultiSimilarity(), embeddings, labels)
    expected, theirs = gradient_of(MultiSimilarityLoss(alpha=2, beta=50, base=0.5), embeddings, labels)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(slope, theirs)


def test_a_query_with_one_positive_and_one_negative_counts():
    query, references, labels = torch.eye(2).double()[:1], torch.eye(2).double(), torch.tensor([0, 1])
    memory = {"ref_emb": references, "ref_labels": labels}
    expected = math.log1p(math.exp(-2 * 0.5)) / 2 + math.log1p(math.exp(-50 * 0.5)) / 50
    assert MultiSimilarity()(query, labels[:1], **memory).item() == pytest.approx(expected)
    assert MultiSimilarityLoss()(query, labels[:1], **memory) == 0, "the package takes two pairs for none"


def test_virtual_examples_are_not_normalized_again():
    embeddings, labels = batch("equal classes")
    seen = []

    class Watched(MultiSimilarity):
        def compute(self, batch):
            seen.append(batch)
            return super().compute(batch)

    found = SimilarityMixup(Watched())(embeddings, labels)
    (virtual,) = seen
    assert virtual.queries.norm(dim=1).min() < 0.99
    level = virtual.fine_level()
    lists = list(zip(virtual.scores.tolist(), level.tolist(), strict=True))
    assert found.item() == pytest.approx(slow_multi_similarity(lists, 1), rel=1e-10)


# Proxies


def test_proxy_anchor_by_hand():
    loss = ProxyAnchor(2, 2, margin=0.1, scale=2.0).double()
    proxies_of(loss).data.copy_(torch.tensor([[2.0, 0.0], [0.0, 0.5]]))
    found = loss(torch.tensor([[0.6, 0.8]]).double(), torch.tensor([0]))
    # One proxy has an image, at 0.6; for the other that image is a negative, at 0.8, of two proxies in all.
    expected = math.log1p(math.exp(-2 * (0.6 - 0.1))) + math.log1p(math.exp(2 * (0.8 + 0.1))) / 2
    assert found.item() == pytest.approx(expected)


def test_cosface_by_hand():
    loss = CosFace(2, 2, margin=0.25, scale=4.0).double()
    proxies_of(loss).data.copy_(torch.tensor([[2.0, 0.0], [0.0, 0.5]]))
    found = loss(torch.tensor([[0.6, 0.8]]).double(), torch.tensor([0]))
    assert found.item() == pytest.approx(math.log1p(math.exp(4 * (0.8 - 0.6 + 0.25))))


@pytest.mark.parametrize("given", [{}, {"margin": 0.2, "scale": 7.0}], ids=str)
@pytest.mark.parametrize("composition", NUMBERED)
@pytest.mark.parametrize("name", PROXIES)
def test_proxies_equal_the_equation(name, composition, given):
    embeddings, labels = batch(composition)
    loss = PROXIES[name](**given).double()
    known, classes = with_a_class(embeddings, labels)
    expected = SLOW[name](known.tolist(), classes, proxies_of(loss).tolist(), **given) if classes else 0.0
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("name", "theirs"), [("ProxyAnchor", ProxyAnchorLoss), ("CosFace", CosFaceLoss)])
def test_defaults_are_the_packages(name, theirs):
    embeddings, labels = batch("unequal classes", dtype=torch.float32)
    ours, package = PROXIES[name](), theirs(CLASSES, DIM)
    package.load_state_dict(ours.theirs.state_dict())
    torch.testing.assert_close(ours(embeddings, labels), package(embeddings, labels))


@pytest.mark.parametrize(("kind", "weight"), [(ProxyAnchor, "proxies"), (CosFace, "W")])
def test_proxies_start_as_ours_so_that_one_learning_rate_fits_all(kind, weight):
    proxies = getattr(kind(500, 16).theirs, weight)
    assert 0.24 < proxies.abs().max() <= 0.25


@pytest.mark.parametrize("weights", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PROXIES)
def test_a_call_leaves_proxies_in_their_dtype(name, dtype, weights):
    # Left to itself the package gives its parameter the dtype of the embeddings.
    embeddings, labels = batch("unequal classes", dtype=dtype)
    loss = PROXIES[name]().to(weights)
    before = proxies_of(loss).detach().clone()
    value, slope = gradient_of(loss, embeddings, labels)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert slope.dtype == dtype
    (parameter,) = loss.parameters()
    assert parameter.dtype == weights
    assert parameter.grad is not None
    assert parameter.grad.dtype == weights
    assert torch.equal(proxies_of(loss), before)
    expected = SLOW[name](embeddings.tolist(), labels.tolist(), before.tolist())
    assert value.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", PROXIES)
def test_an_embedding_on_its_proxy_has_finite_gradients(name):
    loss = PROXIES[name]()
    value, slope = gradient_of(loss, proxies_of(loss).detach(), torch.arange(CLASSES))
    (parameter,) = loss.parameters()
    assert value.isfinite()
    assert slope.isfinite().all()
    assert parameter.grad is not None
    assert parameter.grad.isfinite().all()


# All


@pytest.mark.parametrize("name", EACH)
def test_without_the_package_the_error_names_the_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    with pytest.raises(ImportError, match='pip install "suprank\\[train\\]"') as raised:
        EACH[name]()
    assert raised.value.name == "pytorch_metric_learning"


def test_the_module_needs_the_package_only_when_a_loss_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    found = importlib.util.spec_from_file_location("wrapped_without_the_package", wrapped.__file__)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert module.CosFace is not CosFace
