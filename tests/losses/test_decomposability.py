"""Losses that calibrate scores across batches: by hand, against their equations, and beside pytorch-metric-learning's."""

import math

import pytest
import torch

from suprank.losses import PairCalibration, ProxySoftmax
from tests import reference
from tests.losses.batches import COMPOSITIONS, DIM, batch, gradient_of, rows, with_a_class

NOT_CONTIGUOUS = "ids far apart"


def slow_pairs(embeddings, labels, **options):
    depth = len(rows(labels)[0])
    lists = reference.batch_lists(embeddings.tolist(), rows(labels))
    return reference.pair_calibration([(scores, reference.binary(level, depth)) for scores, level in lists], **options)


# PairCalibration


def test_pairs_on_a_circle_by_hand():
    angle = torch.tensor([0.0, 60.0, 30.0], dtype=torch.float64).deg2rad()
    embeddings, labels = torch.stack([angle.cos(), angle.sin()], -1), torch.tensor([0, 0, 1])
    # Both queries of class 0 have one positive at 0.5, 0.4 under the floor, and one negative at cos 30°; query 2 has
    # two negatives at cos 30° and no positive.
    too_close = math.cos(math.radians(30)) - 0.6
    for average in ("all", "violating"):
        assert PairCalibration(average=average)(embeddings, labels).item() == pytest.approx(0.4 + too_close)


def test_the_paper_averages_over_all_pairs_and_the_authors_over_violating_ones():
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1])
    # positives: pairs at 1, 0.6 and 0.6, each counted from both sides; negatives: none above the ceiling
    assert PairCalibration()(embeddings, labels).item() == pytest.approx((0.15 + 0.15 + 0.3) / 3)
    assert PairCalibration(average="violating")(embeddings, labels).item() == pytest.approx(0.3)


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_pairs_equal_the_equation_on_any_batch(composition):
    embeddings, labels = batch(composition)
    value, gradient = gradient_of(PairCalibration(), embeddings, labels)
    assert value.item() == pytest.approx(slow_pairs(embeddings, labels), rel=1e-12, abs=1e-15)
    assert gradient.isfinite().all()
    assert all(part.isfinite().all() for part in gradient_of(PairCalibration(average="violating"), embeddings, labels))
    thresholds = PairCalibration(positive_floor=0.3, negative_ceiling=-0.2)(embeddings, labels)
    assert thresholds.item() == pytest.approx(slow_pairs(embeddings, labels, floor=0.3, ceiling=-0.2), rel=1e-12, abs=1e-15)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("composition", ["equal classes", "unequal classes", "singletons and a pair", "one class only"])
def test_violating_pairs_are_averaged_as_pytorch_metric_learnings_contrastive_loss_does(composition):
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import ContrastiveLoss

    embeddings, labels = batch(composition, dtype=torch.float32)
    # embeddings drawn together by class, so that some pairs keep their thresholds and some break them
    embeddings = embeddings + 4 * torch.eye(8, DIM)[labels % 3]
    theirs, their_gradient = gradient_of(
        ContrastiveLoss(pos_margin=0.9, neg_margin=0.6, distance=CosineSimilarity()), embeddings, labels
    )
    ours, gradient = gradient_of(PairCalibration(average="violating"), embeddings, labels)
    assert theirs.item() > 0
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, their_gradient, rtol=1e-4, atol=1e-5)


def test_pairs_with_references_and_with_relevance():
    queries, references = torch.eye(2, dtype=torch.float64), torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]).double()
    half = math.sqrt(0.5)
    # Query 0 has positives at 1 and √½, a negative at 0; query 1 a positive at 1, negatives at 0 and √½.
    expected = (0.9 - half) / 2 / 2 + (half - 0.6) / 2 / 2
    labels, ref_labels = torch.tensor([0, 1]), torch.tensor([0, 0, 1])
    found = PairCalibration()(queries, labels, ref_emb=references, ref_labels=ref_labels)
    assert found.item() == pytest.approx(expected)
    relevance = torch.tensor([[1.0, 0.2, 0.0], [0.0, 0.0, 3.0]])
    assert PairCalibration()(queries, ref_emb=references, relevance=relevance).item() == pytest.approx(expected)


# ProxySoftmax


def test_two_proxies_by_hand():
    loss = ProxySoftmax(2, 2, temperature=0.5)
    loss.proxies.data = torch.tensor([[3.0, 0.0], [0.0, 0.1]])  # their lengths are of no account
    found = loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    assert found.item() == pytest.approx(math.log(1 + math.exp(-2)))


@pytest.mark.parametrize("composition", [name for name in COMPOSITIONS if name != NOT_CONTIGUOUS])
def test_proxies_equal_the_equation(composition):
    embeddings, labels = batch(composition)
    loss = ProxySoftmax(10, DIM).to(torch.float64)
    known, classes = with_a_class(embeddings, labels)
    expected = reference.proxy_softmax(known.tolist(), classes, loss.proxies.tolist()) if classes else 0.0
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_proxies_equal_pytorch_metric_learnings_normalized_softmax():
    from pytorch_metric_learning.losses import NormalizedSoftmaxLoss

    embeddings, labels = batch("unequal classes", dtype=torch.float32)
    theirs, ours = NormalizedSoftmaxLoss(4, DIM, temperature=0.05), ProxySoftmax(4, DIM, temperature=0.05)
    ours.proxies.data = theirs.W.data.T.clone()  # theirs are columns
    expected, slope = gradient_of(theirs, embeddings, labels)
    found, gradient = gradient_of(ours, embeddings, labels)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-5)
    assert ours.proxies.grad is not None
    torch.testing.assert_close(ours.proxies.grad, theirs.W.grad.T, rtol=1e-4, atol=1e-5)


def test_proxies_start_as_the_authors_do_within_one_over_root_of_the_dimension():
    proxies = ProxySoftmax(500, 16).proxies
    assert proxies.shape == (500, 16)
    assert proxies.abs().max() <= 0.25
    assert proxies.abs().max() > 0.24
    assert proxies.requires_grad


@pytest.mark.parametrize("proxy_dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_proxies_and_embeddings_may_differ_in_dtype(dtype, proxy_dtype):
    embeddings, labels = batch("unequal classes", dtype=dtype)
    loss = ProxySoftmax(4, DIM).to(proxy_dtype)
    found = loss(embeddings, labels)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = reference.proxy_softmax(embeddings.tolist(), labels.tolist(), loss.proxies.tolist())
    assert found.item() == pytest.approx(expected, rel=1e-5)


# Both
