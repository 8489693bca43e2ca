"""BlackBox-AP: the exact loss, the solver's gradient against its definition in loops, noise, and edges."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch.nn.functional import normalize

from suprank.losses.baselines.blackbox import BlackBoxAP
from tests import reference
from tests.losses.batches import COMPOSITIONS, batch, gradient_of, on_a_circle, rows
from tests.ranking.random_rankings import SOME, rankings


def slow_ranks(scores, level):
    """Places from 1 on, of equal scores the earlier item first; None for an item of no list."""
    order = sorted((k for k in range(len(scores)) if level[k] >= 0), key=lambda k: (-scores[k], k))
    return [order.index(k) + 1 if k in order else None for k in range(len(scores))]


def slow_loss_and_slopes(lists, interpolation=4.0):
    """1 − mean AP, and (r(s + λg) − r(s))/λ with g = ∂L/∂r, r = rank/n: one number and a matrix."""
    queries = sum(any(own > 0 for own in level) for _, level in lists)
    loss, slopes = 1.0 if queries else 0.0, []
    for scores, level in lists:
        ranks, n, positives = slow_ranks(scores, level), sum(own >= 0 for own in level), reference.positives(level)
        towards = [0.0] * len(scores)
        for k in positives:
            rank, among = ranks[k], sum(ranks[j] <= ranks[k] for j in positives)
            loss -= among / rank / len(positives) / queries
            # −AP = −Σ (among/n) / r / N⁺, so its derivative in r is (among/n) / r² / N⁺.
            towards[k] = (among / n) / (rank / n) ** 2 / len(positives) / queries
        moved = slow_ranks([s + interpolation * g for s, g in zip(scores, towards, strict=True)], level)
        slopes.append([0.0 if a is None else (b / n - a / n) / interpolation for a, b in zip(ranks, moved, strict=True)])
    return loss, slopes


def embedding_gradient(embeddings, slopes):
    """What slopes of the scores of a batch are to its embeddings."""
    leaf = embeddings.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cosines(leaf), leaf, torch.tensor(slopes, dtype=torch.float64))
    return gradient


def cosines(embeddings):
    unit = normalize(embeddings, dim=-1)
    return unit @ unit.T


def lists_of(embeddings, labels, *, include_self=False, margin=0.0):
    """The lists of a batch, with the noise of seed 0 upon the scores."""
    depth = len(rows(labels)[0])
    lists = []
    torch.manual_seed(0)
    noise = torch.randn(len(labels), len(labels), dtype=torch.float64).abs().tolist()
    found = reference.batch_lists(embeddings.tolist(), rows(labels))
    for row, own_labels, (scores, level) in zip(noise, rows(labels), found, strict=True):
        if include_self:
            level = [(depth if min(own_labels) >= 0 else 0) if own < 0 else own for own in level]
        fine = reference.binary(level, depth)
        lists.append(([s - margin * e * (y - 0.5) for s, e, y in zip(scores, row, fine, strict=True)], fine))
    return lists


# The worked example


def test_one_error_by_hand():
    queries, gallery = on_a_circle(0), on_a_circle(60, 45)  # the positive at ½, below the negative at 0.707
    queries.requires_grad_()
    items = {"ref_emb": gallery.requires_grad_(), "ref_labels": torch.tensor([0, 1])}
    value = BlackBoxAP(margin=0)(queries, torch.tensor([0]), **items)
    assert value.item() == pytest.approx(1 - 1 / 2)
    value.backward()
    # r = 2/2 and L = 1 − ½/r, so ∂L/∂r = ½: a step of 4·½ brings the positive from the second place to the first, r = ½.
    # The slopes are (½ − 1)/4 for the positive and (1 − ½)/4 for the negative, and ∂s/∂(angle) is ∓ the sine.
    assert gallery.grad is not None
    tangent = torch.stack([-gallery[:, 1], gallery[:, 0]], -1).detach()
    sines = torch.tensor([60, 45], dtype=torch.float64).deg2rad().sin()
    torch.testing.assert_close((gallery.grad * tangent).sum(-1), torch.tensor([1 / 8, -1 / 8]).double() * sines)


def test_a_step_too_small_to_change_places_has_no_gradient():
    gallery = {"ref_emb": on_a_circle(60, 45), "ref_labels": torch.tensor([0, 1])}
    gap = math.cos(math.radians(45)) - 0.5
    for interpolation, moves in ((2 * gap - 1e-6, False), (2 * gap + 1e-6, True)):  # it moves the positive by λ/2
        loss = BlackBoxAP(interpolation=interpolation, margin=0)
        _, gradient = gradient_of(loss, on_a_circle(0), torch.tensor([0]), **gallery)
        assert bool(gradient.abs().max() > 0) == moves


# Against the definition and against others


@pytest.mark.parametrize("include_self", [False, True], ids=["without self", "with self"])
@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_value_and_gradient_are_their_definition_on_any_batch(composition, margin, include_self):
    embeddings, labels = batch(composition)
    for interpolation in (0.3, 4.0):
        loss = BlackBoxAP(interpolation=interpolation, margin=margin, include_self=include_self)
        value, gradient = gradient_of(loss, embeddings, labels)
        lists = lists_of(embeddings, labels, include_self=include_self, margin=margin)
        expected, slopes = slow_loss_and_slopes(lists, interpolation)
        assert value.item() == pytest.approx(expected, abs=1e-12)
        torch.testing.assert_close(gradient, embedding_gradient(embeddings, slopes))


@SOME
@given(st.integers(0, 1000))
def test_without_noise_the_loss_is_one_minus_scikit_learns_ap(seed):
    embeddings, labels = batch("unequal classes", seed=seed)
    scores = cosines(embeddings).tolist()
    values = []
    for i in range(7):
        others = [j for j in range(7) if j != i]
        relevant = [labels[j].item() == labels[i].item() for j in others]
        values.append(average_precision_score(relevant, [scores[i][j] for j in others]) if any(relevant) else math.nan)
    assert BlackBoxAP(margin=0)(embeddings, labels).item() == pytest.approx(reference.mean_loss(values))


# Laws


@SOME
@given(rankings(lowest=0, deepest=1, queries=1), st.floats(0.1, 10))
def test_the_gradient_pulls_positives_up_and_negatives_down(ranking, interpolation):
    scores = ranking.scores.clamp(-0.99, 0.99)
    items = torch.stack([scores[0], (1 - scores[0].square()).sqrt()], -1).requires_grad_()
    relevance = ranking.level.double()
    BlackBoxAP(margin=0, interpolation=interpolation)(on_a_circle(0), ref_emb=items, relevance=relevance).backward()
    assert items.grad is not None
    tangent = torch.stack([items[:, 1], -items[:, 0]], -1).detach()  # towards the query
    slope = (items.grad * tangent).sum(-1)
    assert (slope[relevance[0] == 0] >= -1e-12).all()
    assert slope[relevance[0] > 0].sum() <= 1e-12
    _, slopes = slow_loss_and_slopes([(scores[0].tolist(), ranking.level[0].tolist())], interpolation)
    assert sum(slopes[0]) == pytest.approx(0), "places are only exchanged"


@pytest.mark.parametrize("factor", [1e-4, 0.5, 65536.0])
def test_a_factor_before_the_loss_scales_the_gradient_and_does_no_more(factor):
    embeddings, labels = batch("three levels")
    _, gradient = gradient_of(BlackBoxAP(), embeddings, labels)
    assert gradient.abs().max() > 0
    leaf = embeddings.clone().requires_grad_()
    torch.manual_seed(0)
    (factor * BlackBoxAP()(leaf, labels)).backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, factor * gradient)


def test_a_perfect_ranking_has_zero_loss_and_zero_gradient():
    value, gradient = gradient_of(BlackBoxAP(margin=0), on_a_circle(0, 5, 90, 98), torch.tensor([0, 0, 1, 1]))
    assert value.item() == pytest.approx(0)
    assert gradient.eq(0).all()


# Noise


def test_noise_moves_positives_down_and_negatives_up():
    for seed in range(20):
        embeddings, labels = batch("unequal classes", seed=seed)
        exact = BlackBoxAP(margin=0)(embeddings, labels)
        torch.manual_seed(seed)
        assert BlackBoxAP(margin=0.3)(embeddings, labels) >= exact - 1e-12
    torch.manual_seed(0)
    assert BlackBoxAP(margin=1e6)(embeddings, labels) > 0.5, "with noise enough all positives are at the end"


def test_no_noise_is_drawn_without_a_margin():
    embeddings, labels = batch("three levels")
    before = torch.get_rng_state()
    BlackBoxAP(margin=0)(embeddings, labels)
    assert torch.equal(torch.get_rng_state(), before)


# Edges


def test_of_equal_scores_the_earlier_item_is_first():
    queries, items = torch.ones(1, 2), torch.ones(3, 2)
    for labels, expected in (([0, 1, 1], 0), ([1, 0, 1], 1 / 2), ([1, 1, 0], 2 / 3)):
        value = BlackBoxAP(margin=0)(queries, torch.tensor([0]), ref_emb=items, ref_labels=torch.tensor(labels))
        assert value.item() == pytest.approx(expected)


def test_ignored_items_are_counted_neither_in_ranks_nor_after_the_step():
    queries, _ = batch("equal classes")
    items, _ = batch("unequal classes", seed=1)
    relevance = torch.randint(0, 2, (6, 7), generator=torch.Generator().manual_seed(0)).double()
    junk = torch.cat([items, queries, -queries])  # exact copies and opposites
    ignored = torch.cat([relevance, torch.full((6, 12), -1.0, dtype=torch.float64)], 1)
    for interpolation in (4.0, 50.0, 1e3):
        loss = BlackBoxAP(margin=0, interpolation=interpolation)
        expected, slope = gradient_of(loss, queries, None, ref_emb=items, relevance=relevance)
        value, gradient = gradient_of(loss, queries, None, ref_emb=junk, relevance=ignored)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradient, slope)
        assert slope.abs().max() > 0


def test_the_slopes_are_constants_to_a_second_derivative():
    embeddings, labels = batch("unequal classes")
    _, slopes = slow_loss_and_slopes(lists_of(embeddings, labels))
    weights, leaf = torch.tensor(slopes, dtype=torch.float64), embeddings.requires_grad_()
    second = []
    for make in (lambda: BlackBoxAP(margin=0)(leaf, labels), lambda: (weights * cosines(leaf)).sum()):
        (gradient,) = torch.autograd.grad(make(), leaf, create_graph=True)
        second.append(torch.autograd.grad(gradient.square().sum(), leaf)[0])
    torch.testing.assert_close(second[0], second[1])
