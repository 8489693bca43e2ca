"""The contrastive losses of XBM and IRT_R: by hand, against loops, and beside pytorch-metric-learning's."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from suprank.losses import KoLeo, RetrievalBatch, SimilarityMixup
from suprank.losses.baselines.pairs import ContrastiveKoLeo, ContrastiveXBM
from tests.losses.batches import COMPOSITIONS, DIM, batch, gradient_of, on_a_circle


def slow(batch, margin=0.5):
    total = 0.0
    for row, kinds in zip(batch.scores.tolist(), batch.fine_level().tolist(), strict=True):
        for score, kind in zip(row, kinds, strict=True):
            if kind == 1 and score < 1 - 1e-5:
                total += 1 - score
            if kind == 0 and score > margin:
                total += score
    return total / len(batch.scores)


def test_points_on_a_circle_by_hand():
    embeddings, labels = on_a_circle(0, 60, 90), torch.tensor([0, 0, 1])
    # Queries 0 and 1 each have their mate at 0.5. Of the negatives, cos 90° is below the margin, and cos 30° is above it:
    # for query 1 and for query 2, which has no positive and counts all the same.
    expected = (0.5 + (0.5 + math.cos(math.radians(30))) + math.cos(math.radians(30))) / 3
    assert ContrastiveXBM()(embeddings, labels).item() == pytest.approx(expected)
    assert ContrastiveXBM(margin=0.9)(embeddings, labels).item() == pytest.approx(1 / 3)


def test_both_inequalities_are_strict_and_copies_cost_nothing():
    strangers, labels = torch.tensor([[1.0, 0.0], [3.0, 4.0]], dtype=torch.float64), torch.tensor([0, 1])
    assert RetrievalBatch.from_embeddings(strangers, labels).scores[0, 1] == 0.6
    assert ContrastiveXBM(margin=0.6)(strangers, labels) == 0
    below = math.nextafter(0.6, 0)
    assert ContrastiveXBM(margin=below)(strangers, labels).item() == 0.6, "the whole score, and not its excess"
    for degrees, expected in [(0, 0), (0.2, 0), (0.3, 1 - math.cos(math.radians(0.3)))]:  # 1 − cos: 0, 6e-6, 1.4e-5
        found = ContrastiveXBM()(on_a_circle(0, degrees), torch.tensor([4, 4]))
        assert found.item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_the_loss_equals_its_equation_on_any_batch(composition, margin):
    embeddings, labels = batch(composition)
    value, gradient = gradient_of(ContrastiveXBM(margin=margin), embeddings, labels)
    assert value.item() == pytest.approx(slow(RetrievalBatch.from_embeddings(embeddings, labels), margin), rel=1e-12, abs=1e-15)
    assert gradient.isfinite().all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("references", [False, True], ids=["within", "references"])
def test_pytorch_metric_learnings_hinge_lacks_the_margin_of_each_violating_pair_and_has_the_same_gradient(margin, references):
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import ContrastiveLoss
    from pytorch_metric_learning.reducers import SumReducer

    generator = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(20, 4, generator=generator), torch.arange(20) % 6
    options = {}
    if references:
        options = {"ref_emb": torch.randn(30, 4, generator=generator), "ref_labels": torch.arange(30) % 6}
    theirs = ContrastiveLoss(pos_margin=1, neg_margin=margin, distance=CosineSimilarity(), reducer=SumReducer())
    hinges, slope = gradient_of(theirs, embeddings, labels, **options)
    seen = RetrievalBatch.from_embeddings(embeddings, labels, **options)
    violating = ((seen.fine_level() == 0) & (seen.scores > margin)).sum()
    assert violating > 20
    value, gradient = gradient_of(ContrastiveXBM(margin=margin), embeddings, labels, **options)
    torch.testing.assert_close(value, (hinges + margin * violating) / 20)
    torch.testing.assert_close(gradient, slope / 20, rtol=1e-4, atol=1e-6)


def test_a_query_that_is_not_named_costs_nothing_and_items_are_summed():
    embeddings, labels = batch("unequal classes")
    position = torch.arange(len(labels))
    within = ContrastiveXBM()(embeddings, labels)
    unnamed = ContrastiveXBM()(embeddings, labels, ref_emb=embeddings, ref_labels=labels)
    assert unnamed.item() == pytest.approx(within.item()), "at 1, where the threshold leaves it out"
    twice = ContrastiveXBM()(
        embeddings, labels, ref_emb=embeddings.repeat(2, 1), ref_labels=labels.repeat(2), self_index=position
    )
    assert twice.item() == pytest.approx(2 * within.item()), "sums over items, not means"


# IRT_R


def slow_koleo(embeddings):
    unit = [[x / math.hypot(*row) for x in row] for row in embeddings.tolist()]
    if len(unit) == 1:
        return 0.0
    nearest = [min(math.dist(one, other) for j, other in enumerate(unit) if j != i) for i, one in enumerate(unit)]
    return -sum(math.log(distance + 1e-8) for distance in nearest) / len(nearest)


def test_the_entropy_of_points_on_a_circle_by_hand():
    embeddings, labels = on_a_circle(0, 60, 180), torch.tensor([0, 1, 2])
    # The nearest are 60°, 60° and 120° away: chords of 1, 1 and √3. No negative is above the margin of 0.6.
    loss = ContrastiveKoLeo(margin=0.6, entropy_weight=0.7)
    assert loss(embeddings, labels).item() == pytest.approx(-0.7 * math.log(math.sqrt(3)) / 3)
    assert loss.log["KoLeo"].item() == pytest.approx(-math.log(3) / 6)
    assert loss.log["pairs"].item() == 0
    # Two opposite points cannot be farther apart.
    assert loss(on_a_circle(0, 180), torch.tensor([0, 1])).item() == pytest.approx(-0.7 * math.log(2))
    assert loss(on_a_circle(0), torch.tensor([0])).item() == 0


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_irt_r_is_the_pairs_and_the_entropy_on_any_batch(composition):
    embeddings, labels = batch(composition)
    value, gradient = gradient_of(ContrastiveKoLeo(), embeddings, labels)
    expected = slow(RetrievalBatch.from_embeddings(embeddings, labels)) + 0.7 * slow_koleo(embeddings)
    assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert gradient.isfinite().all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_gradient_of_irt_r_is_that_of_pytorch_metric_learnings_contrastive_loss_and_of_the_nearest_distances():
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import ContrastiveLoss
    from pytorch_metric_learning.reducers import SumReducer

    generator = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(20, 4, generator=generator, dtype=torch.float64), torch.arange(20) % 6
    contrastive = ContrastiveLoss(pos_margin=1, neg_margin=0.5, distance=CosineSimilarity(), reducer=SumReducer())

    def theirs(embeddings, labels):
        unit = torch.nn.functional.normalize(embeddings)
        distances = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist") + 9 * torch.eye(20)
        return contrastive(embeddings, labels) / 20 - 0.7 * distances.amin(1).log().mean()

    _, expected = gradient_of(theirs, embeddings, labels)
    _, gradient = gradient_of(ContrastiveKoLeo(), embeddings, labels)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)


def test_the_entropy_spreads_a_batch_and_looks_at_no_references():
    generator = torch.Generator().manual_seed(0)
    near = torch.ones(8, 3, dtype=torch.float64) + 0.01 * torch.randn(8, 3, generator=generator, dtype=torch.float64)
    labels, memory = torch.zeros(8, dtype=torch.int64), near.repeat(3, 1)
    loss = ContrastiveKoLeo()
    _, gradient = gradient_of(ContrastiveKoLeo(entropy_weight=1.0), near, labels)
    _, pulled = gradient_of(ContrastiveXBM(), near, labels)
    spread = near - 1e-5 * (gradient - pulled)
    assert slow_koleo(spread) < slow_koleo(near)
    against = {"ref_emb": memory, "ref_labels": labels.repeat(3)}
    within, entropy = loss(near, labels), loss.log["KoLeo"]
    assert loss(near, labels, **against) != within
    assert torch.equal(loss.log["KoLeo"], entropy)


def test_copies_are_pushed_nowhere():
    value, gradient = gradient_of(ContrastiveKoLeo(), torch.ones(3, DIM, dtype=torch.float64), torch.tensor([0, 0, 0]))
    assert value.item() == pytest.approx(-0.7 * math.log(1e-8))
    assert gradient.eq(0).all()


def test_the_nearest_neighbors_of_virtual_examples_are_nearest_by_distance():
    vectors = normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    torch.manual_seed(0)
    found = SimilarityMixup(KoLeo())(vectors, torch.arange(9) // 3)
    pairs = [(x, z) for x in range(9) for z in range(x + 1, 9) if x // 3 == z // 3]
    torch.manual_seed(0)
    shares = torch.rand(len(pairs)).tolist()
    mixed = [a * vectors[x] + (1 - a) * vectors[z] for a, (x, z) in zip(shares, pairs, strict=True)]
    examples = [*zip(vectors, [{x} for x in range(9)], strict=True), *zip(mixed, map(set, pairs), strict=True)]
    nearest = [min((v - w).norm().item() for w, others in examples if not images & others) for v, images in examples]
    assert found.item() == pytest.approx(-sum(map(math.log, nearest)) / len(examples))
