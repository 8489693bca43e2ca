"""AP of soft histograms: the definition, pytorch-metric-learning's FastAP, what happens on knots and at the ends, and edges."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from suprank.losses.baselines import binned
from suprank.losses.baselines.binned import FastAP, SoftBinAP, soft_histograms
from tests import reference
from tests.losses.batches import COMPOSITIONS, batch, gradient_of, on_a_circle, rows
from tests.ranking.random_rankings import SOME, rankings

LOSSES = {"FastAP": FastAP, "SoftBinAP": SoftBinAP}
KNOTS = {"FastAP": 11, "SoftBinAP": 20}


def slow_binned_ap(scores, level, knots):
    """1/N⁺ Σ_m h⁺_m H⁺_m / H_m of one query in loops, over numpy's linear interpolation; NaN without positives."""
    centers = np.linspace(-1, 1, knots)
    shares = {k: [np.interp(scores[k], centers, hat) for hat in np.eye(knots)] for k in range(len(level)) if level[k] >= 0}
    positives = reference.positives(level)
    if not positives:
        return math.nan
    total = seen = found = 0.0
    for m in reversed(range(knots)):
        here = sum(shares[k][m] for k in positives)
        found += here
        seen += sum(share[m] for share in shares.values())
        total += here * found / seen if seen else 0.0
    return total / len(positives)


def slow_loss(embeddings, labels, knots, *, include_self=False):
    lists = reference.batch_lists(embeddings.tolist(), rows(labels), include_self=include_self)
    depth = len(rows(labels)[0])
    return reference.mean_loss([slow_binned_ap(scores, reference.binary(level, depth), knots) for scores, level in lists])


# Worked examples


def test_three_knots_and_three_points_by_hand():
    queries, items = on_a_circle(0), on_a_circle(60, 90)
    gallery = {"ref_emb": items, "ref_labels": torch.tensor([0, 1])}
    # Knots 1, 0, −1. The positive at cos 60° = ½ is half at 1 and half at 0, where the negative is, whole. Of the half at
    # the top all that was seen is positive; of the other half, 1 of 2: ½·1 + ½·(1/2).
    for loss in (FastAP(bins=2), SoftBinAP(bins=3)):
        assert loss(queries, torch.tensor([0]), **gallery).item() == pytest.approx(1 - (1 / 2 + 1 / 4))
    # With the roles exchanged, ½ a negative was seen at 1, and the positive stands whole at 0 with all of it.
    gallery["ref_labels"] = torch.tensor([1, 0])
    assert FastAP(bins=2)(queries, torch.tensor([0]), **gallery).item() == pytest.approx(1 - 1 / 2)


def test_the_histograms_of_four_scores_by_hand():
    scores = torch.tensor([[0.5, 0.25, -1.0, 0.9]])
    positives, all_items = soft_histograms(scores, torch.tensor([[1, 0, 0, -1]]), 5)  # at 1, ½, 0, −½, −1
    assert positives.tolist() == [[0, 1, 0, 0, 0]]
    assert all_items.tolist() == [[0, 1.5, 0.5, 0, 1]]


def test_equal_scores_are_one_bin_in_which_precision_is_the_share_of_positives():
    embeddings, labels = torch.ones(4, 2), torch.tensor([0, 0, 0, 1])
    for name, make in LOSSES.items():
        value, gradient = gradient_of(make(), embeddings, labels)
        assert value.item() == pytest.approx(1 - 2 / 3), name
        assert gradient.isfinite().all()


# Against the definition and against others


@pytest.mark.parametrize("include_self", [False, True], ids=["without self", "with self"])
@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_equals_its_definition_on_any_batch(name, composition, include_self):
    embeddings, labels = batch(composition)
    found, gradient = gradient_of(LOSSES[name](include_self=include_self), embeddings, labels)
    expected = slow_loss(embeddings, labels, KNOTS[name], include_self=include_self)
    assert found.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("bins", [1, 10, 37])
@pytest.mark.parametrize("composition", ["unequal classes", "singletons and a pair"])
def test_fast_ap_is_pytorch_metric_learnings_in_value_and_gradient(composition, bins):
    from pytorch_metric_learning.losses import FastAPLoss

    embeddings, labels = batch(composition, seed=2)
    theirs, their_gradient = gradient_of(FastAPLoss(num_bins=bins), embeddings, labels)
    ours, gradient = gradient_of(FastAP(bins=bins), embeddings, labels)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient, their_gradient)


def test_squared_distances_and_scores_are_cut_alike():
    embeddings, labels = batch("three levels")
    for bins in (1, 4, 10):
        fast = gradient_of(FastAP(bins=bins), embeddings, labels)
        soft = gradient_of(SoftBinAP(bins=bins + 1), embeddings, labels)
        assert torch.equal(fast[0], soft[0])
        assert torch.equal(fast[1], soft[1])
    assert FastAP()(embeddings, labels) != SoftBinAP()(embeddings, labels)


@pytest.mark.parametrize("bins", [2, 20])
def test_gradients_are_those_of_finite_differences(bins):
    for composition in ("unequal classes", "three levels"):
        embeddings, labels = batch(composition, seed=1)
        loss = SoftBinAP(bins=bins)
        assert torch.autograd.gradcheck(lambda values: loss(values, labels), embeddings.requires_grad_(), fast_mode=True)  # noqa: B023
        assert torch.autograd.gradgradcheck(lambda values: loss(values, labels), embeddings, fast_mode=True)  # noqa: B023


@pytest.mark.parametrize("block", [1, 17, 64])
def test_queries_may_be_taken_in_blocks_of_any_size(monkeypatch, block):
    embeddings, labels = batch("three levels")
    expected, slope = gradient_of(FastAP(), embeddings, labels)
    monkeypatch.setattr(binned, "_CPU_BLOCK", block)  # eight queries of eight items: one, two and eight at a time
    value, gradient = gradient_of(FastAP(), embeddings, labels)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, slope)


# Laws


@SOME
@given(rankings(deepest=1), st.integers(2, 30))
def test_every_listed_item_weighs_one(ranking, knots):
    positives, all_items = soft_histograms(ranking.scores, ranking.level, knots)
    torch.testing.assert_close(positives.sum(-1), (ranking.level > 0).sum(-1).double())
    torch.testing.assert_close(all_items.sum(-1), (ranking.level >= 0).sum(-1).double())
    assert (positives <= all_items + 1e-12).all()


@SOME
@given(st.data())
def test_scores_on_knots_of_their_own_give_the_exact_loss_and_scores_beside_them_a_little_more(data):
    items = 8
    places = torch.tensor(data.draw(st.permutations(range(1, 20))))[:items] * 3  # three knots apart, of 61
    positive = torch.tensor(data.draw(st.lists(st.booleans(), min_size=items, max_size=items).filter(any)))
    scores = torch.linspace(1, -1, 61, dtype=torch.float64)[places]
    exact = 1 - average_precision_score(positive, scores)

    def loss(scores):
        items = torch.stack([scores, (1 - scores.square()).sqrt()], -1)
        return FastAP(bins=60)(on_a_circle(0), torch.tensor([1]), ref_emb=items, ref_labels=positive.int()).item()

    assert loss(scores) == pytest.approx(exact)
    # Where an item has not arrived whole, the negatives above it weigh more. One above a lone positive costs most.
    beside = loss(scores - data.draw(st.floats(0, 1)) / 30)
    assert -1e-9 <= beside - exact <= (3 - 2 * math.sqrt(2)) / 2 + 1e-9


# On knots and at the ends


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scores_beyond_one_count_as_one(dtype):
    beyond = torch.tensor([[1.0000002, 1.0, -1.0, -1.0000002]], dtype=dtype).requires_grad_()
    positives, all_items = soft_histograms(beyond, torch.ones(1, 4, dtype=torch.int8), 4)
    assert all_items.tolist() == positives.tolist() == [[2, 0, 0, 2]]
    torch.autograd.backward(positives, torch.tensor([[5.0, 1.0, 20.0, 30.0]], dtype=dtype))
    assert beyond.grad is not None
    torch.testing.assert_close(beyond.grad, torch.tensor([[6.0, 6.0, -15.0, -15.0]], dtype=dtype))  # over Δ = 2/3


def test_on_a_knot_the_slope_is_that_of_the_scores_just_below():
    weights = torch.tensor([[5.0, 1.0, 20.0]], dtype=torch.float64)
    slopes = {}
    for score in (1e-9, 0.0, -1e-9):
        scores = torch.tensor([[score]], dtype=torch.float64, requires_grad=True)
        positives, _ = soft_histograms(scores, torch.tensor([[1]]), 3)
        (slope,) = torch.autograd.grad((weights * positives).sum(), scores)
        slopes[score] = slope.item()
    assert slopes == {1e-9: 4, 0.0: -19, -1e-9: -19}


def test_each_histogram_has_a_slope_of_its_own_and_ignored_items_have_none():
    scores = torch.tensor([[0.3, 0.3, 0.3]], dtype=torch.float64, requires_grad=True)
    histograms = soft_histograms(scores, torch.tensor([[1, 0, -1]]), 3)
    for histogram, expected in zip(histograms, ([4.0, 0.0, 0.0], [4.0, 4.0, 0.0]), strict=True):
        (slope,) = torch.autograd.grad((torch.tensor([[5.0, 1.0, 20.0]]) * histogram).sum(), scores, retain_graph=True)
        assert slope.tolist() == [expected]


# Edges


@pytest.mark.parametrize("name", LOSSES)
def test_empty_bins_above_and_below_do_no_harm(name):
    queries, labels = on_a_circle(0), torch.tensor([0])  # all scores within one bin of twenty
    gallery = {"ref_emb": on_a_circle(95, 96, 97), "ref_labels": torch.tensor([0, 1, 0])}
    value, gradient = gradient_of(LOSSES[name](), queries, labels, **gallery)
    assert 0 < value < 1
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_takes_other_bins_later(name):
    embeddings, labels = batch("three levels")
    loss = LOSSES[name](bins=7)
    loss.bins = 5
    assert torch.equal(loss(embeddings, labels), LOSSES[name](bins=5)(embeddings, labels))
