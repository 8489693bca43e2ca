"""Contrastive losses: by hand, and beside pytorch-metric-learning's."""

import math

import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss, SupConLoss
from torch.nn.functional import cross_entropy, normalize

from suprank.losses import SupCon, collection_loss
from tests.losses.batches import COMPOSITIONS, DIM, batch, gradient_of, on_a_circle


def assert_close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_supcon_by_hand():
    embeddings, labels = on_a_circle(0, 60, 90), torch.tensor([0, 0, 1])
    # Of both queries that have a mate it is at cos 60°; the stranger is at cos 90° from one, and at cos 30° from the other.
    first, second = math.exp(0.0 / 0.5) / math.exp(0.5 / 0.5), math.exp((math.sqrt(0.75) - 0.5) / 0.5)
    found = SupCon(temperature=0.5)(embeddings, labels)
    assert found.item() == pytest.approx((math.log1p(first) + math.log1p(second)) / 2)


@pytest.mark.parametrize("composition", [name for name in COMPOSITIONS if "label" not in name])
def test_supcon_is_pytorch_metric_learnings(composition):
    embeddings, labels = batch(composition)
    flat = labels if labels.ndim == 1 else torch.unique(labels, dim=0, return_inverse=True)[1]
    found = gradient_of(SupCon(), embeddings, labels)
    if (flat == flat[0]).all() and len(flat) > 1:  # without negatives theirs is 0: ours is log n, where all are equally near
        assert found[0] >= math.log(len(flat) - 1)
    else:
        assert_close(found, gradient_of(SupConLoss(), embeddings, flat))


def test_supcon_against_references_is_pytorch_metric_learnings():
    embeddings, labels = batch("unequal classes")
    references, ref_labels = torch.randn(9, DIM, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2, 3, 4, 4, 0])
    given = {"ref_emb": references, "ref_labels": ref_labels}
    assert_close(gradient_of(SupCon(), embeddings, labels, **given), gradient_of(SupConLoss(), embeddings, labels, **given))


def test_with_one_positive_supcon_is_infonce():
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(12, DIM, generator=generator, dtype=torch.float64)
    pairs = torch.arange(6).repeat(2)
    loss = SupCon(temperature=0.07)
    assert_close(gradient_of(loss, views, pairs), gradient_of(NTXentLoss(0.07), views, pairs))
    images, texts = normalize(views[:6]), normalize(views[6:])  # CLIP's, from images to texts
    expected = cross_entropy(images @ texts.T / 0.07, torch.arange(6))
    torch.testing.assert_close(loss(images, pairs[:6], ref_emb=texts, ref_labels=pairs[:6]), expected)


def test_supcon_of_lists_and_of_a_collection_in_chunks_is_that_of_the_batch():
    embeddings, labels = batch("three levels")
    expected = SupCon()(embeddings, labels)
    torch.testing.assert_close(collection_loss(SupCon(), embeddings, labels, chunk=3), expected)
    fine = torch.unique(labels, dim=0, return_inverse=True)[1]
    relevance = (fine[:, None] == fine).long().fill_diagonal_(-1)
    scores = normalize(embeddings) @ normalize(embeddings).T
    torch.testing.assert_close(SupCon().from_scores(scores, relevance), expected)
