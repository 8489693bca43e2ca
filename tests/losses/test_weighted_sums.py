"""A loss for each level or width, summed: against the separate losses, with scores computed once, and what each part sees."""

import math

import pytest
import torch

from suprank import losses
from suprank.losses import (
    Combined,
    Matryoshka,
    PairCalibration,
    ProxySoftmax,
    RetrievalBatch,
    RetrievalLoss,
    SimilarityMixup,
    SumOverLevels,
    SupAP,
    SupHAP,
    roadmap,
)
from suprank.losses.baselines.proxies import ProxyNCA
from suprank.losses.baselines.triplets import TripletSemiHard
from tests.losses.batches import DIM, Products, batch, gradient_of

COUNTS = (5, 3, 2)  # classes at each level of the composition "three levels"

SUMS = {
    "ΣTL": lambda: [TripletSemiHard(margin=0.5) for _ in COUNTS],
    "ΣNSM": lambda: [ProxySoftmax(count, DIM) for count in COUNTS],
    "ΣNCA++": lambda: [ProxyNCA(count, DIM) for count in COUNTS],
    "ΣAP": lambda: [SupAP() for _ in COUNTS],
}


def pairs_too():
    return roadmap(decomposability=PairCalibration())


class Seen(RetrievalLoss):
    """Keeps the batch it is given."""

    def compute(self, batch):
        self.batch = batch
        return batch.queries.sum()


# The sum


def test_two_levels_by_hand():
    # One pair of a fine class at a right angle; a stranger of the same coarse class, between them.
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).double()
    labels = torch.tensor([[0, 0], [0, 0], [1, 0]])
    half = math.sqrt(0.5)
    fine = 0.9 + (half - 0.6)  # the positives at 0, and every negative at √½
    coarse = (2 * (0.9 + 0.9 - half) / 2 + (0.9 - half)) / 3  # no negatives
    loss = SumOverLevels([PairCalibration(), PairCalibration()])
    assert loss(embeddings, labels).item() == pytest.approx((fine + coarse) / 2)
    weighted = SumOverLevels([PairCalibration(), PairCalibration()], weights=(3.0, 0.25))
    assert weighted(embeddings, labels).item() == pytest.approx(3 * fine + 0.25 * coarse)


@pytest.mark.parametrize("weights", [None, (0.5, 0.0, 2.0)], ids=["mean", "weighted"])
@pytest.mark.parametrize("name", SUMS)
def test_it_is_the_weighted_sum_of_the_separate_losses_on_the_columns(name, weights):
    embeddings, labels = batch("three levels")
    losses = SUMS[name]()
    value, slope = gradient_of(SumOverLevels(losses, weights=weights).double(), embeddings, labels)
    parts = [gradient_of(one, embeddings, labels[:, level]) for level, one in enumerate(losses)]
    for found, expected in zip((value, slope), zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(found, sum(w * part for w, part in zip(weights or 3 * [1 / 3], expected, strict=True)))
    assert slope.any()


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("first", [SupAP, SupHAP])
def test_losses_of_other_kinds_may_stand_at_each_level(first, include_self):
    embeddings, labels = batch("two levels")
    losses = [first(include_self=include_self), ProxySoftmax(3, DIM)]
    expected = (losses[0](embeddings, labels) + losses[1](embeddings, labels[:, 1])) / 2
    assert SumOverLevels(losses)(embeddings, labels).item() == pytest.approx(expected.item())


# What a level sees


@pytest.mark.parametrize("composition", ["three levels", "a fine id under two parents"])
def test_a_level_sees_its_column_and_those_above(composition):
    embeddings, labels = batch(composition)
    seen = [Seen() for _ in labels[0]]
    SumOverLevels(seen)(embeddings, labels)
    for level, one in enumerate(seen):
        assert torch.equal(one.batch.labels, labels[:, level:])
        assert one.batch.depth == labels.shape[1] - level
        same = (labels[:, None, level:] == labels[None, :, level:]).all(-1)
        assert torch.equal(one.batch.fine_level(include_self=True).bool(), same)
        assert one.batch.fine_level().diagonal().eq(-1).all()


def test_scores_are_computed_once():
    embeddings, labels = batch("three levels", dtype=torch.float32)
    loss = Combined(SupHAP(), SumOverLevels([SupAP(), SupAP(), PairCalibration()]))
    with Products() as counted:
        loss(embeddings, labels)
    assert counted.count == 1
    proxies = SumOverLevels(SUMS["ΣNSM"]())
    with Products() as counted:
        proxies(embeddings, labels)
    assert counted.count == 3, "one for each set of proxies: nobody asked for scores of images"


def test_levels_of_a_batch_share_scores_and_leave_it_as_it_was():
    embeddings, labels = batch("three levels")
    whole = RetrievalBatch.from_embeddings(embeddings, labels)
    fine = whole.fine_level().clone()
    coarse = whole.at_level(2)
    assert coarse.scores is whole.scores
    assert coarse.fine_level().sum() > fine.sum()
    assert torch.equal(whole.fine_level(), fine)
    assert torch.equal(whole.at_level(0).fine_level(), fine)
    assert torch.equal(coarse.level(), RetrievalBatch.from_embeddings(embeddings, labels[:, 2]).level())


def test_references_and_who_is_who_reach_every_level():
    embeddings, labels = batch("three levels")
    references, ref_labels = batch("three levels", seed=1)
    memory = {"ref_emb": references, "ids": torch.arange(8), "ref_ids": torch.arange(4, 12)}
    losses = [SupAP(), PairCalibration(), SupAP()]
    value, slope = gradient_of(SumOverLevels(losses), embeddings, labels, ref_labels=ref_labels, **memory)
    expected = [
        gradient_of(one, embeddings, labels[:, level], ref_labels=ref_labels[:, level], **memory)
        for level, one in enumerate(losses)
    ]
    torch.testing.assert_close(value, torch.stack([one for one, _ in expected]).mean())
    torch.testing.assert_close(slope, torch.stack([one for _, one in expected]).mean(0))


# Inside and around other losses


def test_it_adds_up_inside_a_combination_and_within_itself():
    embeddings, labels = batch("three levels")
    proxies = SumOverLevels(SUMS["ΣNSM"]()).double()
    combined = Combined(SupHAP(), proxies, 0.25)
    expected = 0.75 * SupHAP()(embeddings, labels) + 0.25 * proxies(embeddings, labels)
    assert combined(embeddings, labels).item() == pytest.approx(expected.item())
    assert {"SupHAP", "SumOverLevels", "loss", "level 2 ProxySoftmax", "queries_without_positives"} <= set(combined.log)

    embeddings, labels = batch("one column")
    nested = SumOverLevels([SumOverLevels([SupAP()])])
    assert torch.equal(nested(embeddings, labels), SupAP()(embeddings, labels))
    assert "level 0 level 0 SupAP" in nested.log


def test_it_can_be_mixed_up_if_it_ranks_items():
    embeddings, labels = batch("two levels")
    torch.manual_seed(0)
    found = SimilarityMixup(SumOverLevels([SupAP(), SupAP()]))(embeddings, labels)
    values = []
    for level in (0, 1):
        # Virtual examples lie within fine classes, so the tree has to stay whole: the other level weighs nothing.
        torch.manual_seed(0)
        weights = [0.5 * (level == other) for other in (0, 1)]
        values.append(SimilarityMixup(SumOverLevels([SupAP(), SupAP()], weights=weights))(embeddings, labels).item())
    assert found.item() == pytest.approx(sum(values))
    with pytest.raises(TypeError, match="ProxySoftmax ranks no items"):
        SimilarityMixup(SumOverLevels([SupAP(), ProxySoftmax(3, DIM)]))


def test_it_ranks_items_if_any_level_does():
    assert SumOverLevels([ProxySoftmax(3, DIM), SupAP()]).ranks_items
    assert not SumOverLevels([ProxySoftmax(3, DIM), ProxyNCA(2, DIM)]).ranks_items


def test_the_log_holds_each_level_detached():
    embeddings, labels = batch("three levels")
    loss = SumOverLevels([SupAP(), PairCalibration(), pairs_too()])
    value = loss(embeddings.requires_grad_(), labels)
    assert list(loss.log) == [
        "level 0 queries_without_positives",
        "level 0 SupAP",
        "level 1 PairCalibration",
        "level 2 queries_without_positives",
        "level 2 SupAP",
        "level 2 PairCalibration",
        "level 2 Combined",
        "loss",
    ]
    assert not any(part.requires_grad for part in loss.log.values())
    assert loss.log["loss"].item() == value.item()
    assert loss.log["level 0 SupAP"].item() == SupAP()(embeddings, labels[:, 0]).item()
    assert loss.log["level 0 queries_without_positives"].item() == 2


# Matryoshka


def test_each_width_is_the_loss_of_its_dimensions_alone():
    embeddings, labels = batch("three levels")
    for make in (SupAP, losses.SupHAP, lambda: SimilarityMixup(SupAP()), losses.SupCon):
        for references in ({}, {"ref_emb": batch("three levels", seed=1)[0], "ref_labels": labels}):
            loss = Matryoshka(make(), dims=(2, 3, 5), weights=(1.0, 0.5, 0.0))
            value, slope = gradient_of(loss, embeddings, labels, **references)
            expected, slopes = torch.zeros(()).double(), torch.zeros_like(embeddings)
            torch.default_generator.manual_seed(0)
            for dim, weight in ((2, 1.0), (3, 0.5)):
                cut = references | ({"ref_emb": references["ref_emb"][:, :dim]} if references else {})
                leaf = embeddings[:, :dim].clone().requires_grad_()
                one = weight * make()(leaf, labels, **cut)
                one.backward()
                expected, slopes[:, :dim] = expected + one.detach(), slopes[:, :dim] + leaf.grad
            torch.testing.assert_close(value, expected)
            torch.testing.assert_close(slope, slopes)


@pytest.mark.parametrize("kind", [ProxySoftmax, losses.CosFace, losses.CrossEntropy, losses.ProxyAnchor])
def test_each_width_has_the_same_dimensions_of_the_proxies(kind):
    embeddings, labels = batch("three levels")
    loss = kind(5, DIM).double()
    value = Matryoshka(loss, dims=(2, DIM))(embeddings, labels)
    small = kind(5, 2).double()
    with torch.no_grad():
        for name, parameter in small.named_parameters():
            full = loss.get_parameter(name)
            parameter.copy_(full[:, :2] if full.ndim == 2 else full)
    torch.testing.assert_close(value, (small(embeddings[:, :2], labels) + loss(embeddings, labels)) / 2)


def test_widths_that_cannot_be_are_refused():
    embeddings, labels = batch("three levels")
    for dims in ((), (0, 4), (4, 4), (2.0, 4), (True, 2)):
        with pytest.raises(ValueError, match="must be different whole numbers from 1 on"):
            Matryoshka(SupAP(), dims=dims)
    with pytest.raises(ValueError, match=r"dims=\(2, 64\), but embeddings have dimension 5; leave larger ones out"):
        Matryoshka(SupAP(), dims=(2, 64))(embeddings, labels)
    with pytest.raises(ValueError, match="must be 2 finite numbers from 0 on, one for each width"):
        Matryoshka(SupAP(), dims=(2, 4), weights=(1.0,))
    with pytest.raises(TypeError, match="loss is a MSELoss"):
        Matryoshka(torch.nn.MSELoss(), dims=(2,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="embeddings have dimension 5 but proxies 4"):
        Matryoshka(ProxySoftmax(5, 4), dims=(2,))(embeddings, labels)
    with pytest.raises(TypeError, match=r"mix inside of it: Matryoshka\(SimilarityMixup\(loss\), dims\)"):
        SimilarityMixup(Matryoshka(SupAP(), dims=(2,)))
