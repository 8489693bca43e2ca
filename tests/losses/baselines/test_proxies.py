"""Losses of proxies: by hand, in loops, beside pytorch-metric-learning, and the laws that tie them to the softmax."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning.losses import ArcFaceLoss, CosFaceLoss, ProxyAnchorLoss, ProxyNCALoss

from suprank.losses import CSL, ArcFace, CosFace, ProxyAnchor, ProxyNCA, ProxySoftmax
from tests import reference
from tests.losses.batches import COMPOSITIONS, DIM, batch, gradient_of, with_a_class
from tests.ranking.random_rankings import SOME

TREE = torch.tensor([[0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 2, 1], [4, 2, 1]])  # of the composition "three levels"
CLASSES = len(TREE)


def cosines(embeddings, proxies):
    return [[reference.cosine(embedding, proxy) for proxy in proxies.tolist()] for embedding in embeddings.tolist()]


def log_sum_exp(values):
    highest = max(values, default=-math.inf)
    return highest + math.log(sum(math.exp(value - highest) for value in values)) if values else -math.inf


def slow_proxy_nca(embeddings, classes, proxies, scale):
    def unit(vector):
        length = math.sqrt(sum(x * x for x in vector))
        return [x / length for x in vector]

    total = 0.0
    for embedding, own in zip(embeddings.tolist(), classes, strict=True):
        logits = [
            -sum((scale * x - scale * y) ** 2 for x, y in zip(unit(embedding), unit(proxy), strict=True))
            for proxy in proxies.tolist()
        ]
        total += log_sum_exp(logits) - logits[own]
    return total / len(classes)


def slow_arcface(embeddings, classes, proxies, margin, scale):
    total = 0.0
    for row, own in zip(cosines(embeddings, proxies), classes, strict=True):
        angle = math.acos(row[own])
        turned = math.cos(angle + margin) if angle + margin <= math.pi else math.cos(angle) - margin * math.sin(margin)
        logits = [scale * (turned if z == own else cosine) for z, cosine in enumerate(row)]
        total += log_sum_exp(logits) - logits[own]
    return total / len(classes)


def slow_csl(embeddings, classes, proxies, tree, margins, scale):
    total = 0.0
    for level, margin in enumerate(margins):
        for row, own in zip(cosines(embeddings, proxies), classes, strict=True):
            others = [scale * cosine for z, cosine in enumerate(row) if tree[z][level:] != tree[own][level:]]
            excess = log_sum_exp(others) - scale * row[own] + scale * margin
            total += math.log1p(math.exp(excess)) if excess < 30 else excess
    return total / len(classes)


def gradients(loss, embeddings, labels, proxies):
    leaf = embeddings.clone().requires_grad_()
    value = loss(leaf, labels)
    value.backward()
    return value.detach(), leaf.grad, proxies.grad


# ProxyNCA++


def test_nca_by_hand():
    loss = ProxyNCA(2, 2, scale=3.0)
    loss.proxies.data = torch.tensor([[2.0, 0.0], [0.0, 0.1]])
    found = loss(torch.tensor([[5.0, 0.0]]), torch.tensor([0]))  # on its proxy, at a squared distance of 2 from the other
    assert found.item() == pytest.approx(math.log(1 + math.exp(-9 * 2)), abs=1e-7)
    assert loss(torch.tensor([[5.0, 0.0]]), torch.tensor([1])).item() == pytest.approx(9 * 2)


@pytest.mark.parametrize("scale", [0.7, 3.0])
@pytest.mark.parametrize("composition", ["unequal classes", "three levels", "one image"])
def test_nca_equals_its_definition_by_distances(composition, scale):
    embeddings, labels = batch(composition)
    loss = ProxyNCA(5, DIM, scale=scale).double()
    classes = labels.reshape(len(labels), -1)[:, 0].tolist()
    expected = slow_proxy_nca(embeddings, classes, loss.proxies, scale)
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-12)


def test_nca_equals_pytorch_metric_learnings_with_the_square_of_the_scale():
    embeddings, labels = batch("unequal classes")
    ours, theirs = ProxyNCA(3, DIM, scale=3.0).double(), ProxyNCALoss(3, DIM, softmax_scale=9.0).double()
    theirs.proxies.data = ours.proxies.data.clone()
    for found, expected in zip(
        gradients(ours, embeddings, labels, ours.proxies), gradients(theirs, embeddings, labels, theirs.proxies), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_nca_proxies_start_at_an_eighth_of_a_normal():
    torch.manual_seed(0)
    proxies = ProxyNCA(1000, 32).proxies
    assert proxies.std().item() == pytest.approx(1 / 8, rel=0.02)
    assert proxies.abs().max() > 0.5, "no uniform distribution within ±1/√32 reaches as far"


@pytest.mark.parametrize(
    "loss",
    [
        ProxyNCA(CLASSES, DIM, scale=2.0),
        CSL(torch.arange(CLASSES), DIM, margins=(0.0,), scale=8.0),
        CosFace(CLASSES, DIM, margin=0.0, scale=8.0),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_without_a_margin_it_is_the_softmax_at_its_temperature(loss):
    embeddings, labels = batch("three levels")
    softmax = ProxySoftmax(CLASSES, DIM, temperature=1 / 8)
    softmax.proxies.data = loss.proxies.detach().clone()
    assert loss(embeddings, labels).item() == pytest.approx(softmax(embeddings, labels).item(), rel=1e-6)


# ArcFace


def test_arcface_by_hand():
    degrees = math.radians(60)
    loss = ArcFace(2, 2, margin=math.radians(30), scale=4.0).double()
    loss.proxies.data = torch.tensor([[1.0, 0.0], [0.0, 3.0]]).double()
    embedding = 7 * torch.tensor([[math.cos(degrees), math.sin(degrees)]]).double()
    # 60° from its own proxy, which the margin makes 90°, and 30° from the other.
    expected = math.log(1 + math.exp(4 * math.cos(math.radians(30))))
    assert loss(embedding, torch.tensor([0])).item() == pytest.approx(expected)


def test_beyond_the_last_angle_the_cosine_goes_on_falling():
    margin = 0.5
    loss = ArcFace(2, 2, margin=margin, scale=1.0).double()
    loss.proxies.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()

    def logit(angle):
        """Of the first class; the second has sin(angle)."""
        embedding = torch.tensor([[math.cos(angle), math.sin(angle)]]).double()
        return math.sin(angle) - math.log(math.expm1(loss(embedding, torch.tensor([0])).item()))

    assert logit(2.0) == pytest.approx(math.cos(2.5))
    assert logit(math.pi - margin - 1e-6) == pytest.approx(-1)
    assert logit(3.0) == pytest.approx(math.cos(3.0) - margin * math.sin(margin))
    falling = [logit(angle) for angle in torch.linspace(0.01, 3.13, 50).tolist()]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize(("margin", "scale"), [(0.3, 30.0), (1.5, 5.0), (0.0, 64.0)])
@pytest.mark.parametrize("composition", ["unequal classes", "three levels", "one image"])
def test_arcface_equals_its_definition_by_angles(composition, margin, scale):
    embeddings, labels = batch(composition)
    loss = ArcFace(5, DIM, margin=margin, scale=scale).double()
    classes = labels.reshape(len(labels), -1)[:, 0].tolist()
    expected = slow_arcface(embeddings, classes, loss.proxies, margin, scale)
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-10)


def test_arcface_equals_pytorch_metric_learnings_away_from_the_proxies():
    embeddings, labels = batch("unequal classes")
    ours, theirs = ArcFace(3, DIM).double(), ArcFaceLoss(3, DIM, margin=math.degrees(0.3), scale=30.0).double()
    theirs.W.data = ours.proxies.data.T.clone()
    value, gradient, slope = gradients(ours, embeddings, labels, ours.proxies)
    expected, their_gradient, their_slope = gradients(theirs, embeddings, labels, theirs.W)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, their_gradient)
    torch.testing.assert_close(slope, their_slope.T)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_embedding_on_its_proxy_or_opposite_has_finite_gradients(dtype, sign):
    loss = ArcFace(4, 16).to(dtype)
    embeddings = torch.cat([sign * loss.proxies.detach()[:3], torch.eye(16, dtype=dtype)[:1]])
    loss.proxies.data[3] = sign * embeddings[3]
    value, gradient, slope = gradients(loss, embeddings, torch.arange(4), loss.proxies)
    assert value.isfinite()
    assert gradient.isfinite().all()
    assert slope.isfinite().all()
    if sign > 0:
        theirs = ArcFaceLoss(4, 16, margin=math.degrees(0.3), scale=30.0).to(dtype)
        theirs.W.data = loss.proxies.data.T.clone()
        assert gradients(theirs, embeddings, torch.arange(4), theirs.W)[1].isnan().any(), "no reason left to have our own"


@SOME
@given(st.floats(0, 1.5), st.floats(0.5, 64))
def test_a_margin_never_lowers_the_loss_and_none_is_the_softmax(margin, scale):
    embeddings, labels = batch("three levels")
    softmax = ProxySoftmax(5, DIM, temperature=1 / scale).double()
    plain, turned = ArcFace(5, DIM, margin=0.0, scale=scale).double(), ArcFace(5, DIM, margin=margin, scale=scale).double()
    for loss in (plain, turned):
        loss.load_state_dict(softmax.state_dict())
    assert plain(embeddings, labels).item() == pytest.approx(softmax(embeddings, labels).item(), rel=1e-9)
    assert turned(embeddings, labels) >= plain(embeddings, labels) - 1e-12


# CSL


def test_csl_by_hand_with_two_classes_of_one_parent():
    loss = CSL(torch.tensor([[0, 0], [1, 0]]), 2, scale=2.0, margins=(0.25, 0.45)).double()
    loss.proxies.data = torch.tensor([[3.0, 0.0], [0.0, 0.5]]).double()
    embeddings, labels = torch.tensor([[1.0, 0.0], [0.6, 0.8]]).double(), torch.tensor([0, 1])
    # Of level 0 each has the other proxy as its negative; at level 1 there is one class, and nothing to tell apart.
    expected = (math.log1p(math.exp(0 - 2 + 0.5)) + math.log1p(math.exp(1.2 - 1.6 + 0.5))) / 2
    assert loss(embeddings, labels).item() == pytest.approx(expected)


def test_csl_by_hand_with_two_parents():
    loss = CSL(torch.tensor([[0, 0], [1, 0], [2, 1]]), 3, scale=1.0, margins=(0.1, 0.2)).double()
    loss.proxies.data = torch.eye(3).double()
    embedding = torch.tensor([[0.6, 0.8, 0.0]]).double()
    fine = math.log1p((math.exp(0.8) + math.exp(0)) * math.exp(-0.6 + 0.1))
    coarse = math.log1p(math.exp(0) * math.exp(-0.6 + 0.2))  # the sibling is no negative, and no positive either
    assert loss(embedding, torch.tensor([0])).item() == pytest.approx(fine + coarse)


@pytest.mark.parametrize("scale", [1.0, 32.0])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_csl_equals_its_definition_in_loops(levels, scale):
    embeddings, labels = batch("three levels")
    tree = TREE[:, :levels]
    loss = CSL(tree, DIM, scale=scale).double()
    expected = slow_csl(embeddings, labels[:, 0].tolist(), loss.proxies, tree.tolist(), loss.margins, scale)
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-10)
    assert torch.equal(loss(embeddings, labels[:, 0]), loss(embeddings, labels)), "the fine class is all it needs"


def test_a_coarse_id_under_two_parents_is_two_classes():
    tree = torch.tensor([[0, 0, 0], [1, 0, 0], [2, 0, 1], [3, 1, 1]])
    unlike = torch.tensor([[0, 0, 0], [1, 0, 0], [2, 1, 1], [3, 2, 1]])
    embeddings, labels = batch("singletons only")
    loss, other = CSL(tree, DIM), CSL(unlike, DIM)
    other.proxies.data = loss.proxies.data
    assert torch.equal(loss(embeddings, labels), other(embeddings, labels))


def test_a_level_without_negatives_has_finite_gradients():
    embeddings, labels = batch("three levels")
    rooted = torch.cat([TREE, torch.zeros(CLASSES, 1, dtype=torch.int64)], 1)
    with_root, without = (
        CSL(rooted, DIM, margins=(0.1, 0.2, 0.3, 0.4)).double(),
        CSL(TREE, DIM, margins=(0.1, 0.2, 0.3)).double(),
    )
    without.proxies.data = with_root.proxies.data.clone()
    found = gradients(with_root, embeddings, labels, with_root.proxies)
    for one, other in zip(found, gradients(without, embeddings, labels, without.proxies), strict=True):
        torch.testing.assert_close(one, other)
    alone = CSL(torch.tensor([0]), DIM)
    value, gradient, slope = gradients(alone, embeddings, torch.zeros(8, dtype=torch.int64), alone.proxies)
    assert value == 0
    assert not gradient.any()
    assert not slope.any()


@pytest.mark.parametrize(
    ("levels", "margins"),
    [
        (1, (0.25,)),
        (2, (0.25, 0.45)),
        (3, (0.25, 0.35, 0.45)),
        (5, (0.25, 0.3, 0.35, 0.4, 0.45)),
        (7, (0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75)),
    ],
)
def test_the_margins_of_csl_are_the_authors(levels, margins):
    assert CSL(torch.arange(4)[:, None].expand(4, levels), DIM).margins == margins


def test_the_tree_is_saved_and_not_trained():
    loss = CSL(TREE, DIM)
    assert list(loss.state_dict()) == ["proxies", "class_labels"]
    assert [name for name, _ in loss.named_parameters()] == ["proxies"]
    assert loss.half().class_labels.dtype == torch.int64
    given = TREE.clone()
    loss = CSL(given, DIM)
    given += 1
    assert torch.equal(loss.class_labels, TREE), "what is done to the labels afterwards is of no account"


# All


# CosFace and ProxyAnchor


def soft_sum(values):
    """log(1 + Σ exp)."""
    highest = max([0.0, *values])
    return highest + math.log(sum(math.exp(value - highest) for value in [0.0, *values]))


def slow_proxy_anchor(embeddings, classes, proxies, margin=0.1, scale=32.0):
    positive, negative = [], []
    for own, proxy in enumerate(proxies):
        pairs = [(reference.cosine(embedding, proxy), one) for embedding, one in zip(embeddings, classes, strict=True)]
        if own in classes:
            positive.append(soft_sum([-scale * (score - margin) for score, one in pairs if one == own]))
        negative.append(soft_sum([scale * (score + margin) for score, one in pairs if one != own]))
    return sum(positive) / max(1, len(positive)) + sum(negative) / len(proxies)


def slow_cosface(embeddings, classes, proxies, margin=0.35, scale=64.0):
    total = 0.0
    for embedding, own in zip(embeddings, classes, strict=True):
        logits = [scale * (reference.cosine(embedding, proxy) - margin * (z == own)) for z, proxy in enumerate(proxies)]
        total += soft_sum([logit - logits[own] for z, logit in enumerate(logits) if z != own])
    return total / len(classes)


MARGINS = {CosFace: (slow_cosface, CosFaceLoss, "W"), ProxyAnchor: (slow_proxy_anchor, ProxyAnchorLoss, "proxies")}
by_kind = pytest.mark.parametrize("kind", MARGINS, ids=lambda kind: kind.__name__)


def test_proxy_anchor_by_hand():
    loss = ProxyAnchor(2, 2, margin=0.1, scale=2.0).double()
    loss.proxies.data.copy_(torch.tensor([[2.0, 0.0], [0.0, 0.5]]))
    found = loss(torch.tensor([[0.6, 0.8]]).double(), torch.tensor([0]))
    # One proxy has an image, at 0.6; for the other that image is a negative, at 0.8, of two proxies in all.
    expected = math.log1p(math.exp(-2 * (0.6 - 0.1))) + math.log1p(math.exp(2 * (0.8 + 0.1))) / 2
    assert found.item() == pytest.approx(expected)


def test_cosface_by_hand():
    loss = CosFace(2, 2, margin=0.25, scale=4.0).double()
    loss.proxies.data.copy_(torch.tensor([[2.0, 0.0], [0.0, 0.5]]))
    found = loss(torch.tensor([[0.6, 0.8]]).double(), torch.tensor([0]))
    assert found.item() == pytest.approx(math.log1p(math.exp(4 * (0.8 - 0.6 + 0.25))))


@pytest.mark.parametrize("given", [{}, {"margin": 0.2, "scale": 7.0}], ids=str)
@pytest.mark.parametrize("composition", [name for name in COMPOSITIONS if name != "ids far apart"])
@by_kind
def test_proxies_with_margins_equal_the_equation(kind, composition, given):
    embeddings, labels = batch(composition)
    loss = kind(6, DIM, **given).double()
    known, classes = with_a_class(embeddings, labels)
    expected = MARGINS[kind][0](known.tolist(), classes, loss.proxies.tolist(), **given) if classes else 0.0
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-10)


@by_kind
def test_value_and_gradients_are_pytorch_metric_learnings(kind):
    _, package, name = MARGINS[kind]
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 4e-6)):
        embeddings, labels = batch("unequal classes", dtype=dtype)
        ours, theirs = kind(6, DIM).to(dtype), package(6, DIM).to(dtype)
        weight = getattr(theirs, name)
        weight.data.copy_(ours.proxies.data.T if kind is CosFace else ours.proxies.data)
        (value, slope), (expected, slopes) = gradient_of(ours, embeddings, labels), gradient_of(theirs, embeddings, labels)
        torch.testing.assert_close(value, expected, rtol=tolerance, atol=0)
        torch.testing.assert_close(slope, slopes, rtol=1e-4, atol=10 * tolerance)
        torch.testing.assert_close(
            ours.proxies.grad, weight.grad.T if kind is CosFace else weight.grad, rtol=1e-4, atol=10 * tolerance
        )


@by_kind
def test_an_embedding_on_its_proxy_has_finite_gradients(kind):
    loss = kind(6, DIM)
    value, slope = gradient_of(loss, loss.proxies.detach(), torch.arange(6))
    assert value.isfinite()
    assert slope.isfinite().all()
    assert loss.proxies.grad.isfinite().all()
