"""Triplet losses: by hand, against loops over all triplets, beside pytorch-metric-learning's, and how negatives are drawn."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.losses import RetrievalBatch
from suprank.losses.baselines import triplets
from suprank.losses.baselines.triplets import DistanceWeightedTriplet, TripletSemiHard
from tests.losses.batches import COMPOSITIONS, batch, gradient_of, on_a_circle
from tests.ranking.random_rankings import PLENTY

BOTH = (TripletSemiHard, DistanceWeightedTriplet)


def with_levels(scores, level):
    """A batch of one query with given scores and levels, which no embedding has to produce."""
    scores = torch.tensor([scores], dtype=torch.float64)
    items = torch.eye(scores.shape[1], dtype=torch.float64)
    return RetrievalBatch(scores, items, None, None, torch.tensor([level]).double(), is_self=None, within_batch=False)


def semi_hard(scores, level, margin):
    """The hinges of all semi-hard triplets, by three loops, and the slope of their sum in every score."""
    hinges, slope = [], torch.zeros_like(scores)
    for query, (row, kinds) in enumerate(zip(scores, level.tolist(), strict=True)):
        for p, positive in enumerate(row):
            threshold = positive - margin  # rounded as the loss rounds it
            for n, negative in enumerate(row):
                if kinds[p] == 1 and kinds[n] == 0 and threshold < negative < positive:
                    hinges.append(negative.item() - threshold.item())
                    slope[query, n] += 1
                    slope[query, p] -= 1
    return hinges, slope


def mean(values):
    return sum(values) / max(1, len(values))


def grouped(embeddings, labels, strength=4.0):
    """Embeddings drawn together by class, so that triplets of every kind are there."""
    column = labels if labels.ndim == 1 else labels[:, 0]
    return embeddings + strength * torch.eye(8, embeddings.shape[1], dtype=embeddings.dtype)[column % 3]


# TripletSemiHard


def test_three_semi_hard_triplets_by_hand():
    # Positives at 0.5 and 0.25, negatives at 0.4, 0.3, 0.2 and 0.6. With a margin of 0.25 the range of the first positive
    # is (0.25, 0.5), which holds 0.4 and 0.3; that of the second is (0, 0.25), which holds 0.2.
    batch = with_levels([0.5, 0.4, 0.25, 0.3, 0.2, 0.6], [1, 0, 1, 0, 0, 0])
    loss = TripletSemiHard(margin=0.25)
    assert loss.compute(batch).item() == pytest.approx((0.15 + 0.05 + 0.2) / 3)
    assert loss.log["triplets"].item() == 3
    assert loss.log["queries_without_positives"].item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_tie_is_not_semi_hard_and_nor_is_a_negative_that_keeps_the_margin(dtype):
    # Multiples of 1/8 are exact: 0.5 ties, 0.25 keeps the margin of 0.25 exactly, 0.375 is in between.
    for negative, expected in [(0.5, 0), (0.25, 0), (0.375, 0.125), (0.625, 0), (0.125, 0)]:
        scores = torch.tensor([[0.5, negative]], dtype=dtype, requires_grad=True)
        total, count = triplets._SemiHardHinges.apply(scores, torch.tensor([[1, 0]]), 0.25)
        total.backward()
        assert total.item() == expected
        assert count.item() == (expected > 0)
        assert scores.grad is not None
        assert scores.grad.tolist() == ([[-1, 1]] if expected else [[0, 0]])


@PLENTY
@given(data=st.data())
def test_counts_and_slopes_are_those_of_three_loops_with_ties_of_every_kind(data):
    # Few values, all multiples of 1/8 or a float away from one, and a margin that is one of their gaps.
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    queries, items = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    eighths = st.lists(st.integers(-8, 8), min_size=items, max_size=items)
    scores = torch.tensor(data.draw(st.lists(eighths, min_size=queries, max_size=queries)), dtype=dtype) / 8
    nudges = st.lists(st.sampled_from([0, 0, 0, -math.inf, math.inf]), min_size=items, max_size=items)
    towards = torch.tensor([data.draw(nudges) for _ in range(queries)], dtype=dtype)
    scores = torch.where(towards == 0, scores, torch.nextafter(scores, towards))
    level = torch.tensor([data.draw(st.lists(st.integers(-1, 1), min_size=items, max_size=items)) for _ in range(queries)])
    margin = data.draw(st.sampled_from([0.125, 0.25, 1.0, 3.0, 1e-9, 1e-30]))
    hinges, expected = semi_hard(scores, level, margin)
    leaf = scores.clone().requires_grad_()
    totals, counts = triplets._SemiHardHinges.apply(leaf, level, margin)
    totals.sum().backward()
    assert counts.sum() == len(hinges)
    assert totals.sum().item() == pytest.approx(sum(hinges), rel=1e-12, abs=1e-15)
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, expected)


@pytest.mark.parametrize("margin", [0.05, 0.4, 2.5])
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_semi_hard_equals_the_definition_on_any_batch(composition, margin):
    embeddings, labels = batch(composition)
    loss = TripletSemiHard(margin=margin)
    value, gradient = gradient_of(loss, embeddings, labels)
    leaf = embeddings.clone().requires_grad_()
    seen = RetrievalBatch.from_embeddings(leaf, labels)
    hinges, slope = semi_hard(seen.scores.detach(), seen.fine_level(), margin)
    assert value.item() == pytest.approx(mean(hinges), rel=1e-12, abs=1e-15)
    assert loss.log["triplets"].item() == len(hinges)
    (expected,) = torch.autograd.grad((seen.scores * slope).sum() / max(1, len(hinges)), leaf)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("margin", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("composition", ["equal classes", "unequal classes", "singletons and a pair", "many", "two classes"])
def test_semi_hard_equals_pytorch_metric_learnings_miner_and_loss(composition, margin):
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import TripletMarginMiner

    if composition in COMPOSITIONS:
        embeddings, labels = batch(composition, dtype=torch.float32)
    else:
        generator = torch.Generator().manual_seed(2)
        labels = torch.randint(2 if composition == "two classes" else 12, (60,), generator=generator)
        embeddings = torch.randn(60, 8, generator=generator)
    embeddings = grouped(embeddings, labels, strength=1.0)
    miner = TripletMarginMiner(margin, "semihard", distance=CosineSimilarity())
    theirs = TripletMarginLoss(margin, distance=CosineSimilarity())
    mined = miner(embeddings, labels)
    expected, slope = gradient_of(lambda values, _: theirs(values, labels, mined), embeddings)
    ours = TripletSemiHard(margin=margin)
    value, gradient = gradient_of(ours, embeddings, labels)
    assert ours.log["triplets"].item() == len(mined[0])
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-5)
    if composition in ("many", "two classes"):
        assert len(mined[0]) > 50


@pytest.mark.parametrize("block", [1, 3, 7, 20])
def test_queries_are_looked_at_in_blocks_without_a_trace(block, monkeypatch):
    embeddings, labels = batch("three levels")
    for make in BOTH:
        loss = make(margin=0.5)
        torch.manual_seed(0)
        whole, count = gradient_of(loss, embeddings, labels), loss.log["triplets"]
        with monkeypatch.context() as patch:
            patch.setattr(triplets, "_BLOCK", block)
            torch.manual_seed(0)
            pieces = gradient_of(loss, embeddings, labels)
        torch.testing.assert_close(pieces, whole)
        assert loss.log["triplets"] == count
        assert count > 2


def test_half_of_a_large_batch_being_positive_needs_no_memory_of_triplets():
    # 250 million triplets, many of them semi-hard: listing them would take gigabytes and more time than a test has.
    generator = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(1000, 4, generator=generator), torch.arange(1000) % 2
    loss = TripletSemiHard(margin=1.0)
    value, gradient = gradient_of(loss, embeddings, labels)
    assert loss.log["triplets"] > 5e7
    assert 0 < value < 1
    exact = TripletSemiHard(margin=1.0)(embeddings.double(), labels)
    assert value.item() == pytest.approx(exact.item(), rel=1e-6), "float32 keeps its digits over many triplets"
    assert gradient.isfinite().all()


# DistanceWeightedTriplet: how negatives are drawn


def probabilities(batch, cutoff=0.5, farthest=1.4):
    """Of every item as the negative of every query, by the equation in plain floats; None for a query without any."""
    dim = batch.queries.shape[1]
    found = []
    for row, kinds in zip(batch.scores.tolist(), batch.fine_level().tolist(), strict=True):
        logs = []
        for score, kind in zip(row, kinds, strict=True):
            distance = math.sqrt(max(0.0, 2 - 2 * score))
            d = max(distance, cutoff)
            ok = kind == 0 and distance < farthest
            logs.append((2 - dim) * math.log(d) + (3 - dim) / 2 * math.log(1 - d * d / 4) if ok else -math.inf)
        top = max(logs)
        weights = [math.exp(log - top) for log in logs] if top > -math.inf else None
        found.append(weights and [weight / sum(weights) for weight in weights])
    return found


def test_weights_are_one_over_the_density_of_distances_on_the_sphere():
    # (1 + s)/2 of random unit vectors is Beta((n−1)/2, (n−1)/2), and d = √(2 − 2s): dens(d) = dens((1 + s)/2) · d/2.
    distance = torch.linspace(0.1, 1.9, 50, dtype=torch.float64)
    for dim in (2, 3, 4, 64, 512):
        half = torch.tensor((dim - 1) / 2, dtype=torch.float64)
        density = torch.distributions.Beta(half, half).log_prob(1 - distance.square() / 4) + distance.log()
        constant = DistanceWeightedTriplet.log_density(distance, dim) - density
        torch.testing.assert_close(constant, constant[:1].expand(50), rtol=0, atol=1e-9)


def test_negatives_are_drawn_as_often_as_the_equation_says():
    # One query; 4,000 positives draw 4,000 negatives. Items at distances from 0.2 (below the cutoff) to 1.6 (too far).
    angle = torch.tensor([0.2, 0.6, 0.9, 1.0, 1.2, 1.39, 1.6], dtype=torch.float64)
    distant = torch.stack([1 - angle**2 / 2, (1 - (1 - angle**2 / 2) ** 2).sqrt(), *torch.zeros(2, 7).double()], -1)
    query = torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float64)
    items = torch.cat([distant[:3], query.expand(4000, 4), distant[3:]])
    relevance = torch.zeros(1, len(items))
    relevance[0, 3:4003] = 1
    seen = RetrievalBatch.from_embeddings(query, ref_emb=items, relevance=relevance)
    torch.manual_seed(0)
    negative, drawn = DistanceWeightedTriplet().draw_negatives(seen)
    assert torch.equal(drawn, relevance > 0)
    counts = Counter(negative[drawn].tolist())
    (chances,) = probabilities(seen)
    assert set(counts) <= {index for index, chance in enumerate(chances) if chance > 0}
    assert chances[0] == pytest.approx(max(chances)), "below the cutoff the weight is the cutoff's"
    chi_square = sum((counts[index] - 4000 * chance) ** 2 / (4000 * chance) for index, chance in enumerate(chances) if chance)
    assert chi_square < 20.5, "p = 0.001 at 5 degrees of freedom"
    likely = [counts[index] for index in (0, 1, 2, 4003, 4004, 4005)]
    assert min(likely) > 100


def test_every_query_draws_by_its_own_weights():
    torch.manual_seed(1)
    embeddings, labels = torch.randn(12, 3, dtype=torch.float64), torch.tensor([0, 1, 2]).repeat_interleave(4)
    seen = RetrievalBatch.from_embeddings(embeddings, labels)
    expected = probabilities(seen)
    loss, counts = DistanceWeightedTriplet(), torch.zeros(12, 12)
    for _ in range(700):
        negative, drawn = loss.draw_negatives(seen)
        for query in range(12):
            counts[query] += torch.bincount(negative[query][drawn[query]], minlength=12)
    for row, chances in zip(counts, expected, strict=True):
        assert chances is not None
        assert row.sum() == 3 * 700, "one for each positive"
        assert (row / row.sum() - torch.tensor(chances)).abs().max() < 0.04, "four standard deviations"


def test_one_near_pair_in_many_dimensions_leaves_the_other_queries_their_negatives():
    torch.manual_seed(0)
    embeddings, labels = torch.randn(64, 512), torch.arange(64) // 2
    embeddings[2] = embeddings[1] + 0.01 * torch.randn(512)  # a near pair of two classes, exp(300) times the weight of others
    loss = DistanceWeightedTriplet(farthest=1.6)
    for seen in (RetrievalBatch.from_embeddings(embeddings, labels), RetrievalBatch.from_embeddings(embeddings.half(), labels)):
        negative, drawn = loss.draw_negatives(seen)
        assert torch.equal(drawn, seen.fine_level() > 0), "every pair has a negative"
        assert (seen.fine_level().gather(1, negative)[drawn] == 0).all()
        assert negative[1, 0] == 2
        assert negative[2, 3] == 1


@pytest.mark.parametrize(("uniform", "expected"), [(0.0, 1), (1 - 2**-53, 3)], ids=["first", "last"])
def test_the_ends_of_the_uniform_numbers_draw_the_first_and_the_last_item_allowed(uniform, expected, monkeypatch):
    items, ref_labels = on_a_circle(180, 30, 20, 40, 0, 180), torch.tensor([1, 1, 0, 1, 0, 1])  # 180° is too far
    seen = RetrievalBatch.from_embeddings(on_a_circle(0), torch.tensor([0]), ref_emb=items, ref_labels=ref_labels)
    monkeypatch.setattr(torch, "rand", lambda shape, **options: torch.full(shape, uniform, **options))
    negative, drawn = DistanceWeightedTriplet().draw_negatives(seen)
    assert drawn.tolist() == [[False, False, True, False, True, False]]
    assert negative[drawn].tolist() == [expected, expected]


def test_a_query_with_no_negative_near_enough_is_left_out():
    # Query 0 and its mate face away from the other class; the other class's two are √2 ± a little apart from each.
    embeddings, labels = on_a_circle(0, 10, 170, 180), torch.tensor([0, 0, 1, 1])
    loss = DistanceWeightedTriplet()
    _, drawn = loss.draw_negatives(RetrievalBatch.from_embeddings(embeddings, labels))
    assert not drawn.any()
    value, gradient = gradient_of(loss, embeddings, labels)
    assert value == 0
    assert gradient.eq(0).all()
    assert loss.log["triplets"].item() == 0
    # With references, one query of two keeps its pair.
    queries, references = on_a_circle(0, 90), on_a_circle(10, 170)
    relevance = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    negative, drawn = loss.draw_negatives(RetrievalBatch.from_embeddings(queries, ref_emb=references, relevance=relevance))
    assert drawn.tolist() == [[False, False], [True, False]]
    assert negative[1, 0] == 1


# DistanceWeightedTriplet: the loss, given the draw


def test_the_only_negative_there_is_by_hand():
    # d² = 2 − 2 cos: query 0 and 1 are 60° apart, d = 1. The one negative is at 90° and 30°: d = √2 > 1.4 is too far for
    # query 0; query 1 draws it, with a hinge of 1 − d(30°) + 0.2.
    embeddings, labels = on_a_circle(0, 60, 90), torch.tensor([0, 0, 1])
    near = 2 * math.sin(math.radians(15))
    loss = DistanceWeightedTriplet()
    assert loss(embeddings, labels).item() == pytest.approx(1 - near + 0.2)
    assert loss.log["triplets"].item() == 1
    assert loss.log["queries_without_positives"].item() == 1
    both = DistanceWeightedTriplet(margin=0.5, farthest=1.5)(embeddings, labels)
    assert both.item() == pytest.approx(((1 - near + 0.5) + (1 - math.sqrt(2) + 0.5)) / 2)


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_given_the_draw_the_loss_equals_its_equation(composition):
    embeddings, labels = batch(composition)
    loss = DistanceWeightedTriplet(margin=0.6, farthest=1.9)
    seen = RetrievalBatch.from_embeddings(embeddings, labels)
    torch.manual_seed(0)
    negative, drawn = loss.draw_negatives(seen)
    distance = (2 - 2 * seen.scores).clamp(min=0).sqrt().tolist()
    hinges = [
        distance[query][item] - distance[query][negative[query, item]] + 0.6
        for query in range(len(labels))
        for item in range(len(labels))
        if drawn[query, item]
    ]
    hinges = [hinge for hinge in hinges if hinge > 0]
    torch.manual_seed(0)
    value, gradient = gradient_of(loss, embeddings, labels)
    assert value.item() == pytest.approx(mean(hinges), rel=1e-12)
    assert gradient.isfinite().all()
    assert loss.log["triplets"].item() == len(hinges)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_given_the_draw_the_loss_equals_pytorch_metric_learnings():
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import TripletMarginLoss

    generator = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(40, 8, generator=generator), torch.arange(40) // 4
    loss = DistanceWeightedTriplet(margin=0.3)
    torch.manual_seed(0)
    negative, drawn = loss.draw_negatives(RetrievalBatch.from_embeddings(embeddings, labels))
    anchor, positive = drawn.nonzero(as_tuple=True)
    listed = (anchor, positive, negative[anchor, positive])
    theirs = TripletMarginLoss(0.3, distance=LpDistance())
    expected, slope = gradient_of(lambda values, _: theirs(values, labels, listed), embeddings)
    torch.manual_seed(0)
    value, gradient = gradient_of(loss, embeddings, labels)
    assert expected > 0.1
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_images_that_coincide_have_distance_0_and_finite_gradients(dtype):
    # Each query coincides with its mate and with a negative; another negative is 60° away, and too far to be drawn.
    embeddings = on_a_circle(20, 20, 20, 80, dtype=dtype)
    value, gradient = gradient_of(DistanceWeightedTriplet(farthest=0.9), embeddings, torch.tensor([0, 0, 1, 2]))
    assert value.item() == pytest.approx(0.2, abs=1e-3)
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 10


def test_the_order_of_items_changes_neither_who_may_be_drawn_nor_the_expected_loss():
    generator = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(30, 4, generator=generator), torch.arange(30) // 3
    order = torch.randperm(30, generator=generator)
    loss = DistanceWeightedTriplet(margin=0.5)
    torch.manual_seed(0)
    plain = torch.stack([loss(embeddings, labels) for _ in range(100)])
    shuffled = torch.stack([loss(embeddings[order], labels[order]) for _ in range(100)])
    error = ((plain.var() + shuffled.var()) / 100).sqrt()
    assert (plain.mean() - shuffled.mean()).abs() < 4 * error
    drawn = loss.draw_negatives(RetrievalBatch.from_embeddings(embeddings, labels))[1]
    shuffled_batch = RetrievalBatch.from_embeddings(embeddings[order], labels[order])
    assert torch.equal(loss.draw_negatives(shuffled_batch)[1], drawn[order][:, order])
