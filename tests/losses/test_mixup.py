"""Similarity mixup: virtual examples by their definition, who is in whose list, and what is left alone."""

import math

import pytest
import torch

from suprank.losses import (
    PairCalibration,
    RetrievalLoss,
    SimilarityMixup,
    SupAP,
    SupHAP,
    roadmap,
)
from suprank.ranking import IGNORED
from tests import reference
from tests.losses.batches import COMPOSITIONS, RANK_LOSSES, batch, rows, slow_loss_of_lists


class Seen(RetrievalLoss):
    """Keeps the batch it is given."""

    def compute(self, batch):
        self.batch = batch
        return batch.scores.sum()


def mixed(embeddings, labels, **options):
    seen = Seen()
    SimilarityMixup(seen)(embeddings, labels, **options)
    return seen.batch


def seeded(loss, embeddings, labels, seed=0, **options):
    torch.manual_seed(seed)
    return loss(embeddings, labels, **options)


def virtual_lists(embeddings, labels, seed=0, *, include_self=False):
    """The lists of every query, real and virtual, in loops: an example is a sequence of (weight, image)."""
    n = len(labels)
    pairs = [(x, z) for x in range(n) for z in range(x + 1, n) if labels[x] == labels[z] and min(labels[x]) >= 0]
    torch.manual_seed(seed)
    alphas = torch.rand(len(pairs), 1)[:, 0].double().tolist()
    examples = [[(1.0, x)] for x in range(n)]
    examples += [[(alpha, x), (1 - alpha, z)] for alpha, (x, z) in zip(alphas, pairs, strict=True)]
    similarity = [[reference.cosine(one, other) for other in embeddings] for one in embeddings]
    lists = []
    for query in examples:
        scores = [sum(a * b * similarity[x][y] for a, x in query for b, y in item) for item in examples]
        level = [reference.common_level(labels[query[0][1]], labels[item[0][1]]) for item in examples]
        for place, item in enumerate(examples):
            if not include_self and {x for _, x in query} & {y for _, y in item}:
                level[place] = IGNORED
        lists.append((scores, level))
    return lists


# Worked examples


def test_two_classes_of_two_by_hand():
    angle = torch.tensor([0.0, 60.0, 90.0, 170.0], dtype=torch.float64).deg2rad()
    embeddings, labels = torch.stack([angle.cos(), angle.sin()], -1), torch.tensor([0, 0, 1, 1])
    torch.manual_seed(0)
    alpha, beta = torch.rand(2, 1)[:, 0].double().tolist()  # between the first two, between the last two
    step, cos = reference.h_minus(), lambda degrees: math.cos(math.radians(degrees))

    def one_positive(score, *others):
        return 1 / (1 + sum(step(other - score) for other in others))

    aps = [
        # Each image has its mate, the other class and the virtual example between the other class; not the one it is in.
        one_positive(cos(60), cos(90), cos(170), beta * cos(90) + (1 - beta) * cos(170)),
        one_positive(cos(60), cos(30), cos(110), beta * cos(30) + (1 - beta) * cos(110)),
        one_positive(cos(80), cos(90), cos(30), alpha * cos(90) + (1 - alpha) * cos(30)),
        one_positive(cos(80), cos(170), cos(110), alpha * cos(170) + (1 - alpha) * cos(110)),
    ]
    loss = SimilarityMixup(SupAP())
    assert seeded(loss, embeddings, labels).item() == pytest.approx(1 - sum(aps) / 4, rel=1e-6)
    assert loss.log["queries_without_positives"].item() == 2, "a virtual example of both images of a class has no positive"


def test_who_is_in_whose_list_in_a_class_of_three():
    found = mixed(torch.eye(4), torch.tensor([[0, 0], [0, 0], [0, 0], [1, 0]]))
    out = IGNORED
    assert found.level().tolist() == [  # 0, 1, 2, then the stranger 3, then between 0 and 1, 0 and 2, 1 and 2
        [out, 2, 2, 1, out, out, 2],
        [2, out, 2, 1, out, 2, out],
        [2, 2, out, 1, 2, out, out],
        [1, 1, 1, out, 1, 1, 1],
        [out, out, 2, 1, out, out, out],
        [out, 2, out, 1, out, out, out],
        [2, out, out, 1, out, out, out],
    ]
    assert found.level(include_self=True).min() == 1
    assert torch.equal(found.fine_level(), torch.where(found.level() < 0, out, (found.level() == 2).to(torch.int8)))


# Against the definition


@pytest.mark.parametrize("include_self", [False, True], ids=["without self", "with self"])
@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("name", ["SupHAP", "SmoothAP"])
def test_a_mixed_loss_equals_the_definition_in_loops(name, composition, include_self):
    embeddings, labels = batch(composition)
    lists = virtual_lists(embeddings.tolist(), rows(labels), include_self=include_self)
    found = seeded(SimilarityMixup(RANK_LOSSES[name](include_self=include_self)), embeddings, labels)
    assert found.item() == pytest.approx(slow_loss_of_lists(name, lists, len(rows(labels)[0])), rel=1e-9, abs=1e-12)


def test_mixed_pair_calibration_and_roadmap_equal_the_definition():
    embeddings, labels = batch("unequal classes")
    lists = virtual_lists(embeddings.tolist(), rows(labels))
    pairs = reference.pair_calibration(lists)
    assert seeded(SimilarityMixup(PairCalibration()), embeddings, labels).item() == pytest.approx(pairs, rel=1e-9)
    expected = 0.9 * slow_loss_of_lists("SupAP", lists, 1) + 0.1 * pairs
    loss = SimilarityMixup(roadmap(decomposability=PairCalibration()))
    assert seeded(loss, embeddings, labels).item() == pytest.approx(expected, rel=1e-9)
    assert set(loss.log) == {"SupAP", "PairCalibration", "loss", "queries_without_positives"}


# Random numbers


def test_every_precision_and_default_draws_the_same():
    embeddings, labels = batch("equal classes", dtype=torch.float32)
    expected = seeded(SimilarityMixup(SupAP()), embeddings.double(), labels).item()
    assert seeded(SimilarityMixup(SupAP()), embeddings, labels).item() == pytest.approx(expected, rel=1e-4)
    torch.set_default_dtype(torch.float64)
    try:
        assert seeded(SimilarityMixup(SupAP()), embeddings.double(), labels).item() == expected
    finally:
        torch.set_default_dtype(torch.float32)


# What is left alone


@pytest.mark.parametrize("name", ["SupAP", "SmoothNDCG"])
@pytest.mark.parametrize("composition", ["singletons only", "one image", "coarse company only", "a fine id under two parents"])
def test_without_two_images_of_a_class_it_is_the_plain_loss(name, composition):
    embeddings, labels = batch(composition)
    if composition == "a fine id under two parents":
        embeddings, labels = embeddings[:2], labels[:2]  # one fine id, two classes
    state = torch.get_rng_state()
    found = SimilarityMixup(RANK_LOSSES[name]())(embeddings, labels)
    assert torch.equal(found, RANK_LOSSES[name]()(embeddings, labels))
    assert torch.equal(torch.get_rng_state(), state), "nothing to mix, nothing drawn"


def test_references_are_not_mixed():
    embeddings, labels = batch("three levels")
    references, ref_labels = batch("three levels", seed=1)
    memory = {"ref_emb": references, "ref_labels": ref_labels, "ids": torch.arange(8), "ref_ids": torch.arange(4, 12)}
    assert torch.equal(SimilarityMixup(SupHAP())(embeddings, labels, **memory), SupHAP()(embeddings, labels, **memory))
