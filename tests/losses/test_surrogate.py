"""Rank losses: their equations on batches of any composition, their laws, the authors' conventions, and their refusals."""

import math
import pickle
from dataclasses import fields
from functools import partial
from inspect import signature
from typing import Any, Unpack

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.losses import (
    Combined,
    RankLoss,
    RetrievalBatch,
    SmoothAP,
    SmoothHAP,
    SupAP,
    SupHAP,
    SupMRR,
    SupNDCG,
    SupRecall,
    happier,
    roadmap,
    rod_ndcg,
    rod_recall,
)
from suprank.ranking import Sigmoid, SupStep, chunked, definition
from suprank.ranking.steps import SupStepOptions
from tests import reference
from tests.losses.batches import (
    COMPOSITIONS,
    DIM,
    RANK_LOSSES,
    SUP,
    batch,
    gradient_of,
    on_a_circle,
    rows,
    slow_loss,
    slow_loss_of_lists,
)
from tests.ranking.random_rankings import SOME

# Worked examples


def test_sup_ap_of_three_points_on_a_circle_by_hand():
    embeddings, labels = on_a_circle(0, 60, 90), torch.tensor([0, 0, 1])
    # Query 0 sees its mate at cos 60° and the other class at cos 90°: σ(−50) of an error. Query 1 sees its mate at
    # cos 60° = 0.5 below the other at cos 30° = 0.866: one error of H⁻(0.366). Query 2 has no positive, and is left out.
    gap = math.cos(math.radians(30)) - 0.5
    error = 100 * (gap - 0.05) + reference.sigmoid(5) + 0.5
    expected = 1 - (1 / (1 + reference.sigmoid(-50)) + 1 / (1 + error)) / 2
    loss = SupAP()
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-12)
    assert loss.log["queries_without_positives"].item() == 1


def test_sup_recall_of_three_points_on_a_circle_by_hand():
    embeddings, labels = on_a_circle(0, 60, 90), torch.tensor([0, 0, 1])
    error = 100 * (math.cos(math.radians(30)) - 0.5 - 0.05) + reference.sigmoid(5) + 0.5
    recall_1 = reference.sigmoid(1 - 1 - reference.sigmoid(-50)) + reference.sigmoid(1 - 1 - error)
    recall_2 = reference.sigmoid(2 - 1 - reference.sigmoid(-50)) + reference.sigmoid(2 - 1 - error)
    assert SupRecall(ks=(1, 2))(embeddings, labels).item() == pytest.approx(1 - (recall_1 + recall_2) / 4)


def test_sup_ndcg_of_two_levels_by_hand():
    embeddings = on_a_circle(0, 20, 50, 90)  # fine mate, coarse mate, stranger: the right order, far apart
    labels = torch.tensor([[0, 0], [0, 0], [1, 0], [2, 1]])
    reference_only = SupNDCG()(embeddings[:1], labels[:1], ref_emb=embeddings[1:], ref_labels=labels[1:])
    assert reference_only.item() == pytest.approx(0, abs=1e-12)
    swapped = SupNDCG()(embeddings[:1], labels[:1], ref_emb=embeddings[[2, 1, 3]], ref_labels=labels[1:])
    gap = math.cos(math.radians(20)) - math.cos(math.radians(50))
    rank = 1 + 100 * (gap - 0.05) + reference.sigmoid(5) + 0.5  # of the fine item, one error; the coarse one is first
    ideal = 3 / math.log2(2) + 1 / math.log2(3)
    assert swapped.item() == pytest.approx(1 - (3 / math.log2(1 + rank) + 1 / math.log2(2)) / ideal)


# Against the equations


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("name", RANK_LOSSES)
def test_a_loss_equals_its_equation_on_any_batch(name, composition):
    embeddings, labels = batch(composition)
    for include_self in (False, True):
        value, gradient = gradient_of(RANK_LOSSES[name](include_self=include_self), embeddings, labels)
        expected = slow_loss(name, embeddings, labels, include_self=include_self)
        assert value.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", SUP)
def test_include_self_and_value_at_delta_reproduce_the_authors_convention(name):
    for composition in ("equal classes", "unequal classes", "three levels"):
        embeddings, labels = batch(composition, seed=3)
        theirs = slow_loss(name, embeddings, labels, include_self=True, minus=reference.authors_h_minus())
        ours = SUP[name](include_self=True, value_at_delta=1.44)(embeddings, labels)
        assert ours.item() == pytest.approx(theirs, rel=1e-9)
        assert SUP[name]()(embeddings, labels).item() > theirs, "with itself in the list every query looks better"


def test_at_an_exact_tie_the_authors_step_is_one_half_and_ours_a_whole_error():
    embeddings, labels = torch.ones(2, 2, dtype=torch.float64), torch.tensor([0, 1])  # a copy with another label
    assert SupAP(include_self=True)(embeddings, labels).item() == pytest.approx(1 - 1 / 2)
    theirs = slow_loss("SupAP", embeddings, labels, include_self=True, minus=reference.authors_h_minus())
    assert theirs == pytest.approx(1 - 1 / 1.5)
    exact = slow_loss("SupAP", embeddings, labels, include_self=True, minus=reference.heaviside)
    assert theirs < exact, "their loss falls below 1 − AP"


def test_the_way_out_to_second_derivatives_is_right():
    embeddings, labels = batch("unequal classes", seed=1)
    loss = SmoothAP(tau=0.2, using=definition)
    assert torch.autograd.gradgradcheck(lambda values: loss(values, labels), embeddings.requires_grad_())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("classes", "images"), [(2, 2), (3, 3), (5, 5)])
def test_smooth_ap_is_pytorch_metric_learnings_where_that_is_right(classes, images):
    from pytorch_metric_learning.losses import SmoothAPLoss

    # Theirs cuts the batch into images-per-class groups, which are the classes only when both numbers agree and the
    # batch is sorted; the query is in its own list, as a positive.
    labels = torch.arange(classes).repeat_interleave(images)
    embeddings = torch.randn(classes * images, DIM, generator=torch.Generator().manual_seed(classes))
    theirs, their_gradient = gradient_of(SmoothAPLoss(), embeddings, labels)
    ours, gradient = gradient_of(SmoothAP(include_self=True), embeddings, labels)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, their_gradient, rtol=1e-2, atol=1e-3)


# Laws


@pytest.mark.parametrize("name", ["SupAP", "SupHAP", "SupNDCG"])
@SOME
@given(data=st.data(), seed=st.integers(0, 999), depth=st.integers(1, 3), size=st.integers(1, 8))
def test_a_sup_loss_bounds_the_exact_loss(name, data, seed, depth, size):
    row = st.lists(st.integers(0, 2), min_size=depth, max_size=depth)
    labels = torch.tensor(data.draw(st.lists(row, min_size=size, max_size=size)))
    kinds = torch.randint(-1, 2, (size, 3), generator=torch.Generator().manual_seed(seed)).double()  # copies, so ties
    found = RetrievalBatch.from_embeddings(kinds, labels)
    lists = list(zip(found.scores.tolist(), found.level().tolist(), strict=True))
    exact = slow_loss_of_lists(name, lists, depth, minus=reference.heaviside)
    for options in ({}, {"value_at_delta": 1.44}, {"tau": 0.2, "delta": 0.3}):
        assert SUP[name](**options)(kinds, labels).item() >= exact - 1e-12


@pytest.mark.parametrize("name", ["SupAP", "SupHAP", "SupNDCG", "SmoothAP", "SmoothHAP", "SmoothNDCG"])
def test_a_batch_in_perfect_order_with_a_margin_has_next_to_no_loss_and_gradient(name):
    angles, tree = on_a_circle(0, 10, 40, 60, 90), torch.tensor([[0, 0], [0, 0], [1, 0], [2, 0], [3, 1]])
    value, gradient = gradient_of(RANK_LOSSES[name](), angles[:1], tree[:1], ref_emb=angles[1:], ref_labels=tree[1:])
    assert 0 <= value.item() < 1e-8
    assert gradient.abs().max() < 1e-6


@pytest.mark.parametrize("name", RANK_LOSSES)
def test_a_gallery_of_another_size_is_ranked_by_the_equations(name):
    queries, labels = batch("two levels")
    gallery, gallery_labels = batch("a fine id under two parents", seed=6)
    lists = [
        ([reference.cosine(q, g) for g in gallery.tolist()], [reference.common_level(a, b) for b in rows(gallery_labels)])
        for q, a in zip(queries.tolist(), rows(labels), strict=True)
    ]
    found = RANK_LOSSES[name]()(queries, labels, ref_emb=gallery, ref_labels=gallery_labels)
    assert found.item() == pytest.approx(slow_loss_of_lists(name, lists, 2), rel=1e-9, abs=1e-12)


def test_a_relevance_matrix_is_ranked_by_the_equations():
    queries, _ = batch("equal classes")
    gallery, _ = batch("unequal classes", seed=1)
    generator = torch.Generator().manual_seed(0)
    relevance = (torch.rand(6, 7, generator=generator) * 4 - 1).round(decimals=1).clamp(min=-1).double()
    relevance[3] = 0
    levels = relevance.tolist()
    gains = relevance.clamp(min=0).tolist()
    scores = [[reference.cosine(q, g) for g in gallery.tolist()] for q in queries.tolist()]
    step = reference.h_minus()
    expected = {
        SupAP: [
            reference.average_precision(s, [(v > 0) - (v < 0) for v in level], minus=step)
            for s, level in zip(scores, levels, strict=True)
        ],
        SupHAP: [
            reference.h_average_precision(s, level, gain, minus=step)
            for s, level, gain in zip(scores, levels, gains, strict=True)
        ],
        SupNDCG: [reference.ndcg(s, level, gain, minus=step) for s, level, gain in zip(scores, levels, gains, strict=True)],
    }
    for loss, values in expected.items():
        found = loss()(queries, ref_emb=gallery, relevance=relevance)
        assert found.item() == pytest.approx(reference.mean_loss(values), rel=1e-9), loss


# Hyper-parameters


def test_property_ones_weights_make_the_loss_a_weighted_sum_of_ap_losses():
    embeddings, labels = batch("three levels", seed=1)
    lists = reference.batch_lists(embeddings.tolist(), rows(labels))
    weights = (0.5, 0.3, 0.2)  # finest first
    values = [
        reference.h_average_precision(s, level, reference.weighted_ap_relevance(level, weights), minus=reference.h_minus())
        for s, level in lists
    ]
    found = SupHAP(weights=weights)(embeddings, labels)
    assert found.item() == pytest.approx(reference.mean_loss(values), rel=1e-9)
    fine_only = SupHAP(weights=(1.0, 0.0, 0.0), tau=1e-6, rho=0.0, delta=0.0)(embeddings, labels)
    exact = [reference.average_precision_at_level(s, level, 3) for s, level in lists]
    assert fine_only.item() == pytest.approx(reference.mean_loss(exact), rel=1e-6)


def test_a_query_whose_positives_all_weigh_nothing_is_left_out():
    embeddings, labels = batch("coarse company only")  # no query has a positive at the fine level
    loss = SupHAP(weights=(1.0, 0.0))
    value, gradient = gradient_of(loss, embeddings, labels)
    assert value.item() == 0
    assert gradient.eq(0).all()
    assert loss.log["queries_without_positives"].item() == 4


@pytest.mark.parametrize("options", [{"decay": 2.0}, {"weights": (0.5, 0.5)}], ids=str)
def test_a_relevance_beside_weights_or_a_decay_of_levels_is_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}=.* makes a relevance of levels, but a relevance was given"):
        SupHAP(**options)(torch.eye(3), relevance=torch.ones(3, 3))
    with pytest.raises(ValueError, match=f"{name}=.* but a relevance was given"):
        SmoothHAP(**options).from_scores(torch.eye(3), torch.ones(3, 3))


def test_losses_are_made_on_the_meta_device_too():
    with torch.device("meta"):
        loss = happier(4, 8)
        assert SmoothHAP(weights=(0.5, 0.5)).measure == SmoothHAP(weights=(0.5, 0.5)).measure
    assert next(loss.parameters()).is_meta
    with torch.device("meta"), pytest.raises(ValueError, match="decay=-1.0 must be 0 or more"):
        SupHAP(decay=-1.0)


@pytest.mark.parametrize("decay", [0.0, 1.0, 5.0, 3000.0])
def test_any_decay_gives_a_finite_loss(decay):
    for composition in ("unequal classes", "three levels", "coarse company only"):
        value, gradient = gradient_of(SupHAP(decay=decay), *batch(composition))
        assert value.isfinite()
        assert gradient.isfinite().all()


def test_hyper_parameters_reach_the_steps():
    embeddings, labels = batch("unequal classes", seed=1)
    changes: list[dict[str, Any]] = [{"tau": 0.2}, {"rho": 3.0}, {"delta": 0.3}, {"jump": 0.9}, {"value_at_delta": 1.2}]
    for options in changes:
        step = reference.h_minus(**options)
        assert SupAP(**options)(embeddings, labels).item() == pytest.approx(slow_loss("SupAP", embeddings, labels, minus=step))


def test_a_hyper_parameter_set_later_counts_from_then_on():
    embeddings, labels = batch("unequal classes", seed=1)
    for name, make in RANK_LOSSES.items():
        loss = make()
        loss.tau = 0.2
        assert loss(embeddings, labels).item() == make(tau=0.2)(embeddings, labels).item(), name
        assert loss.tau == 0.2
    with pytest.raises(ValueError, match="tau=-1"):
        loss.tau = -1.0
    with pytest.raises(AttributeError, match="margin"):
        loss.margin  # noqa: B018
    recall = SupRecall()
    recall.rank_tau = 0.3
    assert recall(embeddings, labels).item() == SupRecall(rank_tau=0.3)(embeddings, labels).item()


def test_ks_and_rank_tau_reach_the_recall():
    embeddings, labels = batch("unequal classes", seed=1)
    lists = reference.batch_lists(embeddings.tolist(), rows(labels))
    steps = reference.heaviside, reference.h_minus()
    values = [reference.mean_recall(scores, level, (2, 3), *steps, rank_tau=0.5) for scores, level in lists]
    assert SupRecall(ks=[2, 3], rank_tau=0.5)(embeddings, labels).item() == pytest.approx(reference.mean_loss(values))  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", [(1.0,), (0.2, 0.3, 0.5)], ids=str)
def test_weights_must_be_one_a_level(weights):
    embeddings, labels = batch("coarse company only")  # two levels, the fine one without positives
    with pytest.raises(ValueError, match="2") as raised:
        SupHAP(weights=weights)(embeddings, labels)
    assert "weights" in str(raised.value)
    assert "finest first" in str(raised.value)


# A measure and two steps


def reciprocal_rank(batch, ranks, include_self):
    """1 / the rank of the first positive."""
    level = batch.fine_level(include_self=include_self)
    return 1 / ranks(level).total.amin(-1), (level > 0).sum(-1)


class OwnMRR(RankLoss):
    """A loss of one's own, in a few lines."""

    def __init__(self, **step: Unpack[SupStepOptions]) -> None:
        super().__init__(reciprocal_rank, minus=SupStep(**step))


def test_a_new_rank_loss_is_a_measure_of_a_few_lines_and_trains():
    embeddings, labels = batch("unequal classes", dtype=torch.float32)
    lists = reference.batch_lists(embeddings.tolist(), rows(labels))
    minus = reference.h_minus(tau=0.02)
    values = [
        1 / min(reference.rank(k, scores, level, minus=minus) for k in reference.positives(level)) if 1 in level else math.nan
        for scores, level in lists
    ]
    for loss in (
        OwnMRR(tau=0.02),
        RankLoss(reciprocal_rank, minus=SupStep(tau=0.02)),
        pickle.loads(pickle.dumps(OwnMRR(tau=0.02))),
    ):
        assert isinstance(loss, RankLoss)
        assert loss(embeddings, labels).item() == pytest.approx(reference.mean_loss(values), rel=1e-4)
    leaf = embeddings.requires_grad_()
    optimizer = torch.optim.SGD([leaf], lr=0.1)
    before = loss(leaf, labels)
    before.backward()
    optimizer.step()
    assert loss(leaf, labels) < before


def test_the_parameters_of_the_step_are_those_of_sup_step_with_its_defaults():
    names = {field.name for field in fields(SupStep)}
    assert set(SupStepOptions.__annotations__) == names
    other = {"tau": 0.02, "rho": 3.0, "delta": 0.2, "jump": 0.25, "value_at_delta": 1.5}
    combined = (roadmap, rod_recall, happier, rod_ndcg)
    for make in (*SUP.values(), SupMRR, *(partial(one, 4, 8) for one in combined)):
        assert names <= set(signature(make).parameters), make
        for found, step in ((make(), SupStep()), (make(**other), SupStep(**other))):
            loss = found.surrogate if isinstance(found, Combined) else found
            assert loss.minus == step
            assert all(f"{name}={getattr(step, name)}" in repr(loss) for name in names)
    assert SmoothAP().plus == Sigmoid()
    for make in (*SUP.values(), SupMRR):
        assert make.__doc__ is not None
        own = set(signature(make).parameters) - {"include_self", "using"}
        assert all(f"`{name}`" in make.__doc__ for name in own), make
    assert torch.equal(SupRecall(ks=10)(*batch("three levels")), SupRecall(ks=[10])(*batch("three levels")))


def test_an_implementation_is_named_by_a_string_or_given():
    embeddings, labels = batch("three levels")
    expected = SupHAP()(embeddings, labels)
    for using in ("definition", "chunked", "gridded", definition, chunked):
        torch.testing.assert_close(SupHAP(using=using)(embeddings, labels), expected)
    for make in RANK_LOSSES.values():
        with pytest.raises(ValueError, match="using='chunky' is not an implementation of ranks; choose from 'definition'"):
            make(using="chunky")
