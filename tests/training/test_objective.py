"""The loss that a recipe names is the one built by hand, and the memory counts as the equation says."""

import pytest
import torch

from suprank import losses
from suprank.losses.memory import EmbeddingMemory
from suprank.training.config import LossConfig
from suprank.training.loss_names import LOSSES
from suprank.training.objective import SURROGATES, Objective, build_loss, gradients

FINE = torch.arange(6)
CLASSES, DIM = torch.stack([FINE, FINE // 2], -1), 8
SUP = {"tau": 0.03, "rho": 50.0, "delta": 0.1, "jump": 0.25, "value_at_delta": 1.2, "include_self": True}
SMOOTH = {"tau": 0.03, "include_self": True}
RECALL = {"ks": (1, 3), "rank_tau": 0.7}
PAIRS = {"positive_floor": 0.8, "negative_ceiling": 0.3, "average": "violating"}
HOT = {"temperature": 0.2}


def proxies():
    return losses.ProxySoftmax(6, DIM, **HOT)


# Entries of a recipe, each another than its default, beside the loss by hand.
BY_HAND = {
    "sup-ap": (SUP, lambda: losses.SupAP(**SUP)),
    "sup-recall": (SUP | RECALL, lambda: losses.SupRecall(**SUP, **RECALL)),
    "sup-hap": ({**SUP, "decay": 2.0}, lambda: losses.SupHAP(**SUP, decay=2.0)),
    "sup-ndcg": (SUP, lambda: losses.SupNDCG(**SUP)),
    "smooth-ap": (SMOOTH, lambda: losses.SmoothAP(**SMOOTH)),
    "smooth-recall": (SMOOTH | RECALL, lambda: losses.SmoothRecall(**SMOOTH, **RECALL)),
    "smooth-hap": ({**SMOOTH, "decay": 2.0}, lambda: losses.SmoothHAP(**SMOOTH, decay=2.0)),
    "smooth-ndcg": (SMOOTH, lambda: losses.SmoothNDCG(**SMOOTH)),
    "pair-calibration": (PAIRS, lambda: losses.PairCalibration(**PAIRS)),
    "nsm": (HOT, proxies),
    "roadmap": (
        {**SUP, **PAIRS, "weight": 0.3},
        lambda: losses.roadmap(decomposability=losses.PairCalibration(**PAIRS), decomposability_weight=0.3, **SUP),
    ),
    "rod-recall": (
        {**SUP, **RECALL, **PAIRS, "weight": 0.3},
        lambda: losses.rod_recall(decomposability=losses.PairCalibration(**PAIRS), decomposability_weight=0.3, **SUP, **RECALL),
    ),
    "happier": (
        {**SUP, **HOT, "decay": 2.0, "weight": 0.3},
        lambda: losses.happier(decomposability=proxies(), decay=2.0, decomposability_weight=0.3, **SUP),
    ),
    "rod-ndcg": (
        {**SUP, **HOT, "weight": 0.3},
        lambda: losses.rod_ndcg(decomposability=proxies(), decomposability_weight=0.3, **SUP),
    ),
    "fast-ap": ({"bins": 7, "include_self": True}, lambda: losses.FastAP(bins=7, include_self=True)),
    "softbin-ap": ({"bins": 7, "include_self": True}, lambda: losses.SoftBinAP(bins=7, include_self=True)),
    "blackbox-ap": (
        {"interpolation": 40.0, "margin": 0.5, "include_self": True},
        lambda: losses.BlackBoxAP(interpolation=40.0, margin=0.5, include_self=True),
    ),
    "triplet-sh": ({"margin": 0.4}, lambda: losses.TripletSemiHard(margin=0.4)),
    "triplet-dw": (
        {"margin": 0.4, "cutoff": 1.2, "farthest": 1.5},
        lambda: losses.DistanceWeightedTriplet(margin=0.4, cutoff=1.2, farthest=1.5),
    ),
    "contrastive-xbm": ({"margin": 0.2}, lambda: losses.ContrastiveXBM(margin=0.2)),
    "multi-similarity": (
        {"alpha": 3.0, "beta": 40.0, "base": 0.3},
        lambda: losses.MultiSimilarity(alpha=3.0, beta=40.0, base=0.3),
    ),
    "proxy-nca": ({"scale": 2.0}, lambda: losses.ProxyNCA(6, DIM, scale=2.0)),
    "proxy-anchor": ({"margin": 0.2, "scale": 20.0}, lambda: losses.ProxyAnchor(6, DIM, margin=0.2, scale=20.0)),
    "arcface": ({"margin": 0.2, "scale": 20.0}, lambda: losses.ArcFace(6, DIM, margin=0.2, scale=20.0)),
    "cosface": ({"margin": 0.2, "scale": 20.0}, lambda: losses.CosFace(6, DIM, margin=0.2, scale=20.0)),
    "csl": ({"margins": (0.1, 0.3), "scale": 20.0}, lambda: losses.CSL(CLASSES, DIM, margins=(0.1, 0.3), scale=20.0)),
    "sum-triplet-sh": (
        {"margin": 0.4},
        lambda: losses.SumOverLevels([losses.TripletSemiHard(margin=0.4), losses.TripletSemiHard(margin=0.4)]),
    ),
    "sum-nsm": (HOT, lambda: losses.SumOverLevels([proxies(), losses.ProxySoftmax(3, DIM, **HOT)])),
    "sum-proxy-nca": (
        {"scale": 2.0},
        lambda: losses.SumOverLevels([losses.ProxyNCA(6, DIM, scale=2.0), losses.ProxyNCA(3, DIM, scale=2.0)]),
    ),
}


def data(seed=0, count=12):
    generator = torch.Generator().manual_seed(seed)
    fine = torch.arange(count) % 6
    ids = torch.randperm(30, generator=generator)[:count]
    return torch.randn(count, DIM, generator=generator), torch.stack([fine, fine // 2], -1), ids


def seeded(make):
    torch.manual_seed(1)  # proxies are drawn
    return make()


def value_of(make):
    loss = seeded(make)
    embeddings, labels, _ = data()
    return seeded(lambda: loss(embeddings, labels))  # some losses draw at every call


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_the_one_built_by_hand_with_all_that_it_reads(name):
    entries, by_hand = BY_HAND[name]
    tried = set(entries) | {"mixup", "decomposability", "level_weights"}
    assert tried >= LOSSES[name].reads(None), "an entry is not tried"
    expected = value_of(by_hand)
    assert torch.equal(value_of(lambda: build_loss(LossConfig(name=name, **entries), CLASSES, DIM)), expected)
    assert abs(value_of(lambda: build_loss(LossConfig(name=name), CLASSES, DIM)) - expected) > 1e-4


@pytest.mark.parametrize("name", LOSSES)
def test_each_entry_that_a_loss_reads_has_an_effect(name):
    """On embeddings that are neither sorted nor tied; but `value_at_delta` needs a gap beyond δ, and there are many."""
    entries, _ = BY_HAND[name]
    embeddings, labels, _ = data()

    def found(given):
        """The value and its slopes: the solver's step of blackbox-ap moves these alone."""
        loss = seeded(lambda: build_loss(LossConfig(name=name, **given), CLASSES, DIM))
        leaf = embeddings.clone().requires_grad_()
        value = seeded(lambda: loss(leaf, labels))
        return torch.cat([value.detach()[None], torch.autograd.grad(value, leaf)[0].flatten()])

    for entry in entries:
        others = {key: entries[key] for key in entries if key != entry}
        assert not torch.equal(found(entries), found(others)), entry


@pytest.mark.parametrize("name", ["sup-hap", "smooth-hap", "happier"])
def test_level_weights_make_it_a_sum_of_ap_over_levels(name):
    def value(weights):
        return value_of(lambda: build_loss(LossConfig(name=name, level_weights=weights), CLASSES, DIM))

    by_hand = {
        "sup-hap": lambda: losses.SupHAP(weights=(0.5, 0.5)),
        "smooth-hap": lambda: losses.SmoothHAP(weights=(0.5, 0.5)),
        "happier": lambda: losses.happier(6, DIM, weights=(0.5, 0.5)),
    }[name]
    assert torch.equal(value("equal"), value_of(by_hand))
    assert torch.equal(value((0.5, 0.5)), value_of(by_hand))
    assert value((0.1, 0.9)) != value("equal")


def test_level_weights_for_other_levels_are_refused_before_the_first_step():
    with pytest.raises(ValueError, match=r"level_weights=\(1\.0, 2\.0, 3\.0\) are 3, but the labels have 2 level\(s\)"):
        build_loss(LossConfig(name="sup-hap", level_weights=(1.0, 2.0, 3.0)), CLASSES, DIM)


@pytest.mark.parametrize("name", ["roadmap", "happier", "rod-recall", "rod-ndcg"])
@pytest.mark.parametrize("decomposability", ["pairs", "proxies"])
def test_either_decomposability_loss_can_be_chosen(name, decomposability):
    loss = build_loss(LossConfig(name=name, decomposability=decomposability), CLASSES, DIM)
    assert isinstance(loss, losses.Combined)
    assert isinstance(loss.surrogate, SURROGATES[LOSSES[name].surrogate])
    assert isinstance(loss.decomposability, losses.PairCalibration if decomposability == "pairs" else losses.ProxySoftmax)
    assert sum(parameter.numel() for parameter in loss.parameters()) == (6 * DIM if decomposability == "proxies" else 0)


@pytest.mark.parametrize("name", [name for name, made in LOSSES.items() if made.surrogate])
def test_mixup_is_around_the_surrogate_alone(name):
    loss = build_loss(LossConfig(name=name, mixup=True), CLASSES, DIM)
    plain = build_loss(LossConfig(name=name), CLASSES, DIM)
    mixed, expected = (loss.surrogate, plain.surrogate) if LOSSES[name].combined else (loss, plain)
    assert isinstance(mixed, losses.SimilarityMixup)
    assert mixed.loss.__dict__.keys() == expected.__dict__.keys()
    assert type(mixed.loss) is type(expected)


def on_a_corner(memory_weight):
    """Two images of two classes at a right angle: nothing to complain of within the batch. The memory holds an image of the
    first one's class, where the second one is."""
    memory = EmbeddingMemory(10, 2, 1)
    objective = Objective(losses.PairCalibration(), memory, memory_weight)
    memory.add(torch.tensor([[0.0, 1.0]]), torch.tensor([[0]]), torch.tensor([7]))
    batch = torch.eye(2), torch.tensor([[0], [1]]), torch.tensor([0, 1])
    return objective, batch


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_memory_has_its_share_of_the_loss(weight):
    objective, batch = on_a_corner(weight)
    # The first image's only positive has the score 0, by 0.9 too low. Of the second's two negatives one has the score 1, by 0.4
    # too high, which is 0.2 on average; the first has a negative too, without a complaint: 0.1.
    assert objective(*batch).item() == pytest.approx(weight * (0.9 + 0.1))
    assert objective.log["loss"].item() == pytest.approx(weight)
    assert objective.log["against memory"].item() == pytest.approx(1.0)
    assert len(objective.memory) == 3


def test_what_an_image_was_earlier_is_not_in_its_own_list():
    objective, batch = on_a_corner(1.0)
    objective.memory.add(torch.tensor([[0.0, 1.0]]), torch.tensor([[0]]), torch.tensor([0]))  # the first image, elsewhere
    # Still 0.9 for the first image. The second has two negatives of score 1 among three.
    assert objective(*batch).item() == pytest.approx(0.9 + (0.8 / 3) / 2)


@pytest.mark.parametrize("name", ["roadmap", "happier", "sup-ndcg", "smooth-recall"])
def test_the_loss_is_that_of_the_batch_and_that_of_all_that_was_seen(name):
    loss = build_loss(LossConfig(name=name), CLASSES, DIM)
    objective = Objective(loss, EmbeddingMemory(30, DIM, 2), 0.25)
    earlier, now = data(1), data(2)
    objective(*earlier, remembering=False)
    items, item_labels, item_ids = (torch.cat(both) for both in zip(earlier, now, strict=True))
    against = loss(now[0], now[1], ref_emb=items, ref_labels=item_labels, ids=now[2], ref_ids=item_ids)
    torch.testing.assert_close(objective(*now), 0.75 * loss(*now[:2]) + 0.25 * against)


def test_a_memory_before_its_epoch_is_filled_and_not_looked_at():
    objective, batch = on_a_corner(0.5)
    assert objective(*batch, remembering=False).item() == 0
    assert "against memory" not in objective.log
    assert objective.memory.contents().ids.tolist() == [7, 0, 1]
    assert objective(*batch).item() > 0


def test_the_parts_of_a_combined_loss_are_told_without_a_graph():
    objective = Objective(build_loss(LossConfig(name="happier", weight=0.25), CLASSES, DIM), EmbeddingMemory(30, DIM, 2))
    embeddings, labels, ids = data()
    value = objective(embeddings.requires_grad_(), labels, ids)
    log = objective.log
    assert list(log) == ["loss", "queries_without_positives", "SupHAP", "ProxySoftmax", "against memory"]
    assert not any(part.requires_grad for part in log.values())
    within = 0.75 * log["SupHAP"] + 0.25 * log["ProxySoftmax"]
    torch.testing.assert_close(value.detach(), 0.5 * within + 0.5 * log["against memory"])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("remembers", [False, True])
def test_gradients_are_those_of_backward(name, remembers):
    loss = build_loss(LossConfig(name=name), CLASSES, DIM)
    embeddings, labels, ids = data()
    embeddings.requires_grad_()
    parameters = list(loss.parameters())

    def value():
        memory = EmbeddingMemory(30, DIM, 2) if remembers and LossConfig(name=name).ranks_items else None
        if memory is not None:
            memory.add(*data(1))
        return Objective(loss, memory)(embeddings, labels, ids)

    on_embeddings, on_parameters = gradients(seeded(value), embeddings, parameters)
    seeded(value).backward()
    torch.testing.assert_close(on_embeddings, embeddings.grad)
    assert len(on_parameters) == len(parameters)
    assert bool(parameters) == LossConfig(name=name).has_proxies
    for found, parameter in zip(on_parameters, parameters, strict=True):
        torch.testing.assert_close(found, parameter.grad)
    assert embeddings.grad.norm() > 0


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("name", ["roadmap", "happier"])
def test_a_part_of_no_weight_has_gradients_too_all_of_them_zero(name, weight):
    loss = build_loss(LossConfig(name=name, weight=weight), CLASSES, DIM)
    embeddings, labels, _ = data()
    _, on_parameters = gradients(loss(embeddings.requires_grad_(), labels), embeddings, list(loss.parameters()))
    for gradient in on_parameters:
        assert bool(gradient.any()) == (weight == 1)


def test_gradients_do_not_reach_the_memory():
    objective = Objective(losses.roadmap(decomposability=losses.PairCalibration()), EmbeddingMemory(30, DIM, 2))
    first, second = data(1), data(2)
    first[0].requires_grad_()
    objective(*first)
    second[0].requires_grad_()
    objective(*second).backward()
    assert first[0].grad is None
    assert second[0].grad is not None
