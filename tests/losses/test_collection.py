"""The loss of a whole collection, a chunk of queries at a time: the value and gradients of the loss on all of it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from suprank.losses import (
    Combined,
    LabelTreeWarning,
    PairCalibration,
    QueryMean,
    RetrievalLoss,
    SumOverLevels,
    SupAP,
    SupHAP,
    collection,
    collection_loss,
)
from tests.losses.batches import COMPOSITIONS, LOSSES, batch, build, on_a_circle

REFUSED = {
    "mixed SupAP": "SimilarityMixup",
    "BlackBoxAP": "BlackBoxAP",
    "DistanceWeightedTriplet": "DistanceWeightedTriplet",
    "IRT_R": "ContrastiveKoLeo",
    "ProxyAnchor": "ProxyAnchor",
}
SPLIT = [name for name in LOSSES if name not in REFUSED]
LABELED = [name for name in COMPOSITIONS if name != "ids far apart"]  # for proxies


def with_gradients(loss, call, embeddings, labels):
    """The value, and the gradients with respect to the embeddings and the parameters of the loss."""
    leaf = embeddings.clone().requires_grad_()
    value = call(leaf, labels)
    return value.detach(), *torch.autograd.grad(value, [leaf, *loss.parameters()], allow_unused=True)


def assert_same(loss, embeddings, labels, chunk, tolerance=1e-12):
    expected = with_gradients(loss, loss, embeddings, labels)
    found = with_gradients(loss, lambda *args: collection_loss(loss, *args, chunk=chunk), embeddings, labels)
    for part, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(part, torch.zeros_like(part) if truth is None else truth, rtol=tolerance, atol=tolerance)


def test_two_queries_with_a_positive_and_one_without_count_two():
    embeddings = on_a_circle(0, 90, 45)
    # The third stands above the positive of the first, and of the second, by cos 45°: far beyond δ = 0.05, on the line of H⁻.
    rank_minus = 100 * (math.cos(math.pi / 4) - 0.05) + 1 / (1 + math.exp(-5)) + 0.5
    value = collection_loss(SupAP(), embeddings, torch.tensor([0, 0, 1]), chunk=1)
    assert value.item() == pytest.approx(1 - 1 / (1 + rank_minus))
    assert collection_loss(SupAP(), embeddings, torch.tensor([0, 1, 2]), chunk=2).item() == 0


@pytest.mark.parametrize("name", SPLIT)
@settings(deadline=None, max_examples=5)
@given(composition=st.sampled_from(LABELED), chunk=st.sampled_from([1, 2, 3, 100, None]), seed=st.integers(0, 9))
def test_any_chunk_gives_the_loss_and_the_gradients_of_the_whole(name, composition, chunk, seed):
    embeddings, labels = batch(composition, seed)
    assert_same(build(name, labels).double(), embeddings, labels, chunk)


@pytest.mark.parametrize("average", ["all", "violating"])
@pytest.mark.parametrize("include_self", [False, True])
def test_means_over_different_numbers_of_queries_and_pairs_are_divided_at_the_end(average, include_self):
    loss = Combined(SupHAP(include_self=include_self), PairCalibration(average=average), 0.3)
    assert_same(loss, *batch("some without a fine label"), chunk=3)


def test_the_value_may_be_scaled_added_and_differentiated_by_an_optimizer():
    embeddings, labels = batch("three levels")
    loss = build("ROADMAP", labels).double()
    leaf = embeddings.clone().requires_grad_()
    (3 * collection_loss(loss, 2 * leaf, labels, chunk=2) + leaf.sum()).backward()
    _, expected, proxies = with_gradients(loss, loss, embeddings, labels)
    torch.testing.assert_close(leaf.grad, 3 * expected + 1)
    torch.testing.assert_close(loss.decomposability.proxies.grad, 3 * proxies)


def test_without_gradients_none_are_computed():
    embeddings, labels = batch("three levels")
    assert not collection_loss(SupHAP(), embeddings, labels, chunk=2).requires_grad
    with torch.no_grad():
        value = collection_loss(SupHAP(), embeddings.requires_grad_(), labels, chunk=2)
    assert not value.requires_grad
    torch.testing.assert_close(value, SupHAP()(embeddings, labels).detach())


def test_half_precision_gets_gradients_of_its_own_type():
    embeddings, labels = batch("three levels", dtype=torch.bfloat16)
    leaf = embeddings.requires_grad_()
    value = collection_loss(SupHAP(), leaf, labels, chunk=3)
    value.backward()
    assert value.dtype == torch.float32
    assert leaf.grad is not None
    assert leaf.grad.dtype == torch.bfloat16


def test_gradients_keep_their_precision_under_autocast():
    embeddings = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(SupAP(), embeddings, torch.arange(40) // 4, chunk=16, tolerance=1e-5)


def test_the_default_chunk_stays_within_its_bytes(monkeypatch):
    rows = []
    monkeypatch.setattr(SupAP, "means", lambda self, batch: rows.append(len(batch.queries)) or super(SupAP, self).means(batch))
    embeddings, labels = torch.randn(100, 4), torch.arange(100) // 4
    collection_loss(SupAP(), embeddings, labels)
    monkeypatch.setattr(collection, "CHUNK_BYTES", 30 * 100 * 80 + 1)
    collection_loss(SupAP(), embeddings, labels)
    assert rows == [100, 30, 30, 30, 10]


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_is_not_made_of_means_is_refused_by_name(name):
    embeddings, labels = batch("three levels")
    for loss in (build(name), Combined(SupAP(), build(name)), SumOverLevels([SupAP(), SupAP(), build(name)])):
        with pytest.raises(TypeError, match=f"{REFUSED[name]} has no `means`.*implement `means"):
            collection_loss(loss, embeddings, labels)


class Farthest(RetrievalLoss):
    def compute(self, batch):
        return -batch.scores.amin()


class DoubleAP(SupAP):
    def compute(self, batch):
        return 2 * super().compute(batch)


class MeanScore(RetrievalLoss):
    def means(self, batch):
        return [QueryMean(batch.scores.sum(-1), torch.full(batch.scores.shape[:1], batch.scores.shape[1]))]


def test_a_loss_of_ones_own_needs_its_means():
    embeddings, labels = batch("three levels")
    for refused in (Farthest(), DoubleAP()):
        with pytest.raises(TypeError, match=f"{type(refused).__name__} has no `means` that belong to its `compute`"):
            collection_loss(refused, embeddings, labels)
    assert_same(MeanScore(), embeddings, labels, chunk=3)
    with pytest.raises(TypeError, match="loss is a MSELoss"):
        collection_loss(nn.MSELoss(), embeddings, labels)


def test_bad_arguments_are_refused_and_reversed_labels_warned_of():
    embeddings, labels = batch("three levels")
    with pytest.raises(ValueError, match="chunk=0 must be 1 or more"):
        collection_loss(SupAP(), embeddings, labels, chunk=0)
    with pytest.raises(ValueError, match="labels are missing"):
        collection_loss(SupAP(), embeddings, None)
    with pytest.warns(LabelTreeWarning, match="reverse the columns"):
        collection_loss(SupAP(), embeddings, labels.flip(1))
