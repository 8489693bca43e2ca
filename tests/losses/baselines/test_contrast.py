"""SupCon, SigLIP, Circle and Multi-Similarity: against their equations in loops, and beside the libraries that have them."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning.losses import CircleLoss, MultiSimilarityLoss, NTXentLoss, SupConLoss
from torch.nn.functional import cross_entropy, normalize

from suprank.losses import Circle, MultiSimilarity, NoPositivesWarning, SigLIP, SimilarityMixup, SupCon, collection_loss
from tests import reference
from tests.losses.batches import COMPOSITIONS, DIM, batch, gradient_of, on_a_circle, rows


def soft_sum(values):
    """log(1 + Σ exp)."""
    highest = max([0.0, *values])
    return highest + math.log(sum(math.exp(value - highest) for value in [0.0, *values]))


def slow_supcon(positives, negatives, temperature=0.1):
    total = 0.0
    for place, score in enumerate(positives):
        others = positives[:place] + positives[place + 1 :] + negatives
        total += soft_sum([(one - score) / temperature for one in others])
    return total / len(positives)


def slow_siglip(positives, negatives, scale=10.0, bias=-10.0):
    together = sum(soft_sum([-scale * one - bias]) for one in positives)
    return together + sum(soft_sum([scale * one + bias]) for one in negatives)


def slow_circle(positives, negatives, margin=0.4, scale=80.0):
    far = [scale * max(0, 1 + margin - one) * (1 - margin - one) for one in positives]
    close = [scale * max(0, one + margin) * (one - margin) for one in negatives]
    return soft_sum([one + other for one in far for other in close])


def slow_multi_similarity(positives, negatives, alpha=2.0, beta=50.0, base=0.5):
    positive = soft_sum([-alpha * (score - base) for score in positives]) / alpha
    return positive + soft_sum([beta * (score - base) for score in negatives]) / beta


# The equation of a query, whether a query counts, and other hyper-parameters.
EACH = {
    SupCon: (slow_supcon, lambda positives, negatives: positives, {"temperature": 0.5}),
    SigLIP: (slow_siglip, lambda positives, negatives: True, {"scale": 3.0, "bias": 0.5}),
    Circle: (slow_circle, lambda positives, negatives: positives and negatives, {"margin": 0.25, "scale": 5.0}),
    MultiSimilarity: (slow_multi_similarity, lambda positives, negatives: True, {"alpha": 5.0, "beta": 10.0, "base": 0.1}),
}
each = pytest.mark.parametrize("kind", EACH, ids=lambda kind: kind.__name__)


def slow(kind, lists, depth, **options):
    equation, counts, _ = EACH[kind]
    values = []
    for scores, level in lists:
        positives = [score for score, one in zip(scores, level, strict=True) if one == depth]
        negatives = [score for score, one in zip(scores, level, strict=True) if 0 <= one < depth]
        if counts(positives, negatives):
            values.append(equation(positives, negatives, **options))
    return sum(values) / max(1, len(values))


def assert_close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@each
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_a_loss_equals_its_equation_on_any_batch(kind, composition):
    embeddings, labels = batch(composition)
    lists = reference.batch_lists(embeddings.tolist(), rows(labels))
    for options in ({}, EACH[kind][2]):
        loss = kind(**options).double()
        for scale in [loss.log_scale] if kind is SigLIP else []:
            scale.data.fill_(math.log(options.get("scale", 10)))  # not float32's
        value, slope = gradient_of(loss, embeddings, labels)
        assert value.item() == pytest.approx(slow(kind, lists, len(rows(labels)[0]), **options), rel=1e-9, abs=1e-15)
        assert slope.isfinite().all()


@each
@given(data=st.data())
def test_an_item_that_moves_towards_its_class_never_raises_the_loss(kind, data):
    """With one query, one positive and some negatives, on scores as they are."""
    cosines = st.floats(-1, 1, width=32)
    near, far = sorted((data.draw(cosines), data.draw(cosines)), reverse=True)
    negatives = data.draw(st.lists(cosines, min_size=1, max_size=5))
    grades = torch.tensor([[1] + [0] * len(negatives)])
    loss = kind().double()
    closer, farther = (loss.from_scores(torch.tensor([[one, *negatives]]).double(), grades) for one in (near, far))
    # Circle's weight [1 + m − s]₊ times 1 − m − s falls up to s = 1, and a negative's rises from s = 0 on.
    assert closer <= farther + 1e-9
    shuffled = torch.randperm(len(negatives) + 1, generator=torch.Generator().manual_seed(len(negatives)))
    torch.testing.assert_close(
        loss.from_scores(torch.tensor([[near, *negatives]]).double()[:, shuffled], grades[:, shuffled]), closer
    )


@given(st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=8), st.integers(1, 2), st.floats(0.125, 8, width=32))
def test_supcon_ignores_a_shift_of_all_scores_and_is_least_where_positives_share_all(scores, positives, scale):
    given, grades = torch.tensor([scores]).double(), (torch.arange(len(scores)) < positives).long()[None]
    value = SupCon(temperature=0.2).from_scores(given, grades)
    torch.testing.assert_close(SupCon(temperature=0.2 * scale).from_scores(scale * given + 3, grades), value)
    assert value >= math.log(positives) - 1e-12


@each
def test_zero_vectors_and_one_class_alone_have_finite_gradients(kind):
    for embeddings, labels in (
        (torch.zeros(4, DIM), torch.tensor([0, 0, 1, 1])),
        (torch.randn(4, DIM, generator=torch.Generator().manual_seed(0)), torch.zeros(4, dtype=torch.int64)),
        (1e3 * torch.ones(3, DIM), torch.tensor([0, 0, 1])),
    ):
        value, slope = gradient_of(kind(), embeddings, labels)
        assert value.isfinite()
        assert slope.isfinite().all()


@pytest.mark.parametrize("kind", [SupCon, Circle], ids=lambda kind: kind.__name__)
def test_a_batch_without_positives_warns_and_has_no_loss(kind):
    embeddings, labels = batch("singletons only")
    loss = kind()
    with pytest.warns(NoPositivesWarning, match=f"{kind.__name__}: none of 4 queries has a positive"):
        value, slope = gradient_of(loss, embeddings, labels)
    assert value == 0
    assert not slope.any()
    assert loss.log["queries_without_positives"] == 4


@each
def test_chunks_of_a_collection_and_lists_of_scores_give_the_loss_of_the_batch(kind):
    embeddings, labels = batch("three levels")
    loss = kind().double()
    expected = loss(embeddings, labels)
    torch.testing.assert_close(collection_loss(loss, embeddings, labels, chunk=3), expected)
    fine = torch.unique(labels, dim=0, return_inverse=True)[1]
    relevance = (fine[:, None] == fine).long().fill_diagonal_(-1)
    torch.testing.assert_close(loss.from_scores(normalize(embeddings) @ normalize(embeddings).T, relevance), expected)


# By hand, and beside other libraries


def test_supcon_by_hand():
    embeddings, labels = on_a_circle(0, 60, 90), torch.tensor([0, 0, 1])
    # Of both queries that have a mate it is at cos 60°; the stranger is at cos 90° from one, and at cos 30° from the other.
    first, second = math.exp(0.0 / 0.5) / math.exp(0.5 / 0.5), math.exp((math.sqrt(0.75) - 0.5) / 0.5)
    found = SupCon(temperature=0.5)(embeddings, labels)
    assert found.item() == pytest.approx((math.log1p(first) + math.log1p(second)) / 2)


def test_multi_similarity_by_hand():
    embeddings, labels = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 2.0]]).double(), torch.tensor([0, 0, 1])
    loss = MultiSimilarity(alpha=1.0, beta=2.0, base=0.5)
    pair = math.log1p(math.exp(-(0.6 - 0.5)))
    expected = [
        pair + math.log1p(math.exp(2 * (0 - 0.5))) / 2,
        pair + math.log1p(math.exp(2 * (0.8 - 0.5))) / 2,
        math.log1p(math.exp(2 * (0 - 0.5)) + math.exp(2 * (0.8 - 0.5))) / 2,  # no positive, but negatives to keep away
    ]
    assert loss(embeddings, labels).item() == pytest.approx(sum(expected) / 3)


@pytest.mark.parametrize("composition", ["equal classes", "unequal classes", "two levels", "three levels"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(SupCon, SupConLoss), (Circle, CircleLoss), (MultiSimilarity, MultiSimilarityLoss)],
    ids=lambda kind: kind.__name__,
)
def test_value_and_gradient_are_pytorch_metric_learnings(ours, theirs, composition):
    embeddings, labels = batch(composition)
    flat = labels if labels.ndim == 1 else torch.unique(labels, dim=0, return_inverse=True)[1]
    assert_close(gradient_of(ours(), embeddings, labels), gradient_of(theirs(), embeddings, flat))
    references, ref_labels = batch("equal classes", seed=1)
    given = {"ref_emb": references, "ref_labels": ref_labels}
    if flat.max() < 3:  # theirs leaves queries without a positive and a negative out
        assert_close(gradient_of(ours(), embeddings, flat, **given), gradient_of(theirs(), embeddings, flat, **given))
    single, theirs32 = gradient_of(ours(), embeddings.float(), labels), gradient_of(theirs(), embeddings.float(), flat)
    torch.testing.assert_close(single[0], theirs32[0], rtol=4e-6, atol=0)
    torch.testing.assert_close(single[1], theirs32[1], rtol=1e-4, atol=1e-5)


def test_with_one_positive_supcon_is_infonce():
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(12, DIM, generator=generator, dtype=torch.float64)
    pairs = torch.arange(6).repeat(2)
    loss = SupCon(temperature=0.07)
    assert_close(gradient_of(loss, views, pairs), gradient_of(NTXentLoss(0.07), views, pairs))
    images, texts = normalize(views[:6]), normalize(views[6:])  # CLIP's, from images to texts
    expected = cross_entropy(images @ texts.T / 0.07, torch.arange(6))
    torch.testing.assert_close(loss(images, pairs[:6], ref_emb=texts, ref_labels=pairs[:6]), expected)


def test_siglip_of_images_and_texts_is_open_clips():
    package = importlib.util.find_spec("open_clip")
    if package is None or package.origin is None:
        pytest.skip("needs open_clip")
    spec = importlib.util.spec_from_file_location("open_clip_loss", Path(package.origin).with_name("loss.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # the package itself imports torchvision
    generator = torch.Generator().manual_seed(0)
    images, texts = (normalize(torch.randn(6, DIM, generator=generator, dtype=torch.float64)) for _ in range(2))
    loss, pairs = SigLIP(scale=7.0, bias=-4.0).double(), torch.arange(6)

    def theirs(vectors, _):
        return module.SigLipLoss()(normalize(vectors), texts, loss.log_scale.exp(), loss.bias)

    found = gradient_of(loss, images, pairs, ref_emb=texts, ref_labels=pairs)
    of_parameters = [one.grad for one in loss.parameters()]
    loss.zero_grad()
    assert_close(found, gradient_of(theirs, images))
    assert_close(of_parameters, [one.grad for one in loss.parameters()])


def test_a_query_with_one_positive_and_one_negative_counts():
    query, references, labels = torch.eye(2).double()[:1], torch.eye(2).double(), torch.tensor([0, 1])
    memory = {"ref_emb": references, "ref_labels": labels}
    expected = math.log1p(math.exp(-2 * 0.5)) / 2 + math.log1p(math.exp(-50 * 0.5)) / 50
    assert MultiSimilarity()(query, labels[:1], **memory).item() == pytest.approx(expected)
    assert MultiSimilarityLoss()(query, labels[:1], **memory) == 0, "the package takes two pairs for none"


def test_virtual_examples_are_not_normalized_again():
    embeddings, labels = batch("equal classes")
    seen = []

    class Watched(MultiSimilarity):
        def compute(self, batch):
            seen.append(batch)
            return super().compute(batch)

    found = SimilarityMixup(Watched())(embeddings, labels)
    (virtual,) = seen
    assert virtual.queries.norm(dim=1).min() < 0.99
    lists = list(zip(virtual.scores.tolist(), virtual.fine_level().tolist(), strict=True))
    assert found.item() == pytest.approx(slow(MultiSimilarity, lists, 1), rel=1e-10)
