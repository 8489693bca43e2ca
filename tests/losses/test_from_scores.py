"""`from_scores`: losses of given scores and relevance, beside other packages, equations in loops, and calls with embeddings."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, label_ranking_average_precision_score, ndcg_score

from suprank.losses import (
    BlackBoxAP,
    Circle,
    Combined,
    FastAP,
    MultiSimilarity,
    PairCalibration,
    ProxySoftmax,
    RankLoss,
    ReplayedLoss,
    RetrievalBatch,
    SimilarityMixup,
    SmoothAP,
    SmoothHAP,
    SmoothMRR,
    SmoothNDCG,
    SoftBinAP,
    SupAP,
    SupHAP,
    SupMRR,
    SupNDCG,
    roadmap,
    scaled_step,
    skip_value_checks,
    suggest_tau,
)
from suprank.losses.replay import refusing_to_wait
from suprank.losses.score_batch import MOST_LEVELS, ScoreBatch
from suprank.losses.surrogate import APMeasure, MRRMeasure, NDCGMeasure
from suprank.ranking import heaviside
from tests import reference
from tests.losses import batches
from tests.losses.batches import batch, slow_loss_of_lists
from tests.losses.test_replay import Again

SUP = batches.SUP | {"SupMRR": SupMRR}
RANK_LOSSES = batches.RANK_LOSSES | {"SupMRR": SupMRR, "SmoothMRR": SmoothMRR}
BINARY = {"SupAP", "SupRecall", "SupMRR", "SmoothAP", "SmoothRecall", "SmoothMRR"}
ALL = {
    **{name: make() for name, make in RANK_LOSSES.items()},
    "SupNDCG@3": SupNDCG(k=3),
    "SmoothAP@3": SmoothAP(k=3, rank_tau=0.5),
    "SupHAP of weights": SupHAP(weights=(0.5, 0.3, 0.2)),
    "BlackBoxAP": BlackBoxAP(margin=0.0),
    "FastAP": FastAP(),
    "SoftBinAP": SoftBinAP(),
    "ROADMAP of pairs": Combined(SupAP(), PairCalibration()),
}
OF_FLOATS = [name for name in ALL if name != "SupHAP of weights"]  # weights are of levels
every_loss = pytest.mark.parametrize("name", ALL)
every_rank_loss = pytest.mark.parametrize("name", RANK_LOSSES)


def lists(seed=0, queries=4, items=9, depth=3):
    """Scores between −1 and 1, levels, and a mask that leaves a few items out."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.rand(queries, items, generator=generator, dtype=torch.float64) - 1
    level = torch.randint(0, depth + 1, (queries, items), generator=generator)
    return scores, level, torch.rand(queries, items, generator=generator) < 0.8


def slopes(loss, scores, *arguments):
    """The value, and the gradient with respect to the scores."""
    leaf = scores.detach().clone().requires_grad_()
    value = loss.from_scores(leaf, *arguments)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


def exact(measure):
    """A loss under exact steps: 1 − the metric."""
    return RankLoss(measure, minus=heaviside)


# By hand


def test_smooth_ndcg_of_a_list_by_hand():
    scores, grades = torch.tensor([[0.2, 0.5, 0.1]], dtype=torch.float64), torch.tensor([[2, 0, 1]])
    first = 1 + reference.sigmoid(3) + reference.sigmoid(-1)
    last = 1 + reference.sigmoid(1) + reference.sigmoid(4)
    dcg = 3 / math.log2(1 + first) + 1 / math.log2(1 + last)
    ideal = 3 + 1 / math.log2(3)
    assert SmoothNDCG(tau=0.1).from_scores(scores, grades).item() == pytest.approx(1 - dcg / ideal, rel=1e-12)
    gains = grades.double()  # floats are the gain itself
    dcg = 2 / math.log2(1 + first) + 1 / math.log2(1 + last)
    ideal = 2 + 1 / math.log2(3)
    assert SmoothNDCG(tau=0.1).from_scores(scores, gains).item() == pytest.approx(1 - dcg / ideal, rel=1e-12)


def test_sup_ap_of_logits_by_hand():
    scores = torch.tensor([[7.0, 9.0, 4.0], [1.0, 0.0, 5.0], [0.0, 1.0, 2.0]], dtype=torch.float64)
    relevant = torch.tensor([[True, False, False], [False, True, False], [False, False, False]])
    mask = torch.tensor([[True, True, True], [True, True, False], [True, True, True]])
    step = scaled_step(0.5)
    assert step == {"tau": 0.5, "rho": 2.0, "delta": 2.5}
    # The positive of the first list is 2 below one negative and 3 above another; that of the second is 1 below its only one.
    errors = [reference.sigmoid(4) + 0.5 + reference.sigmoid(-6), reference.sigmoid(2) + 0.5]
    expected = 1 - sum(1 / (1 + error) for error in errors) / 2
    loss = SupAP(**step)
    assert loss.from_scores(scores, relevant, mask).item() == pytest.approx(expected, rel=1e-12)
    assert loss.log["queries_without_positives"].item() == 1


def test_ndcg_at_two_by_hand():
    scores, grades = torch.tensor([[4.0, 3.0, 2.0, 1.0]], dtype=torch.float64), torch.tensor([[0, 1, 0, 2]])
    exact_ndcg = (1 / math.log2(3)) / (3 + 1 / math.log2(3))  # the item of level 2 has rank 4
    assert exact(NDCGMeasure(k=2, rank_tau=1e-3)).from_scores(scores, grades).item() == pytest.approx(1 - exact_ndcg)
    cut = [reference.sigmoid((2.5 - place) / 0.5) for place in range(1, 5)]
    dcg = cut[1] / math.log2(3) + 3 * cut[3] / math.log2(5)
    ideal = 3 * cut[0] + cut[1] / math.log2(3)
    found = SupNDCG(k=2, rank_tau=0.5, tau=1e-4, rho=0.0, delta=0.05, jump=0.0, value_at_delta=1.0).from_scores(scores, grades)
    assert found.item() == pytest.approx(1 - dcg / ideal, rel=1e-9)


def test_ap_at_two_by_hand():
    scores, relevant = torch.tensor([[4.0, 3.0, 2.0, 1.0]], dtype=torch.float64), torch.tensor([[0, 1, 0, 1]])
    assert exact(APMeasure(k=2, rank_tau=1e-3)).from_scores(scores, relevant).item() == pytest.approx(1 - 0.5 / 2)
    cut = [reference.sigmoid((2.5 - place) / 0.5) for place in range(1, 5)]
    found = exact(APMeasure(k=2, rank_tau=0.5)).from_scores(scores, relevant)
    assert found.item() == pytest.approx(1 - (cut[1] / 2 + cut[3] / 2) / (cut[0] + cut[1]), rel=1e-12)


# Other packages


@pytest.mark.parametrize("k", [None, 1, 3, 20])
def test_exact_ndcg_is_scikit_learns(k):
    scores, level, _ = lists(1, queries=6, items=8)
    gain = torch.exp2(level.double()) - 1
    expected = 1 - ndcg_score(gain.numpy(), scores.numpy(), k=k)
    loss = exact(NDCGMeasure(k=k, rank_tau=1e-3))
    assert loss.from_scores(scores, level).item() == pytest.approx(expected, rel=1e-12)
    assert loss.from_scores(scores, gain).item() == pytest.approx(expected, rel=1e-12)


def test_exact_ap_and_mrr_are_scikit_learns():
    scores, level, _ = lists(2, queries=6, items=8)
    relevant = level > 1
    found = exact(APMeasure()).from_scores(scores, relevant).item()
    assert found == pytest.approx(1 - label_ranking_average_precision_score(relevant.numpy(), scores.numpy()), rel=1e-12)
    assert found == pytest.approx(1 - average_precision_score(relevant.numpy(), scores.numpy(), average="samples"), rel=1e-12)
    one = torch.nn.functional.one_hot(level.argmax(-1), 8)  # of one positive, the precision is the reciprocal rank
    expected = 1 - label_ranking_average_precision_score(one.numpy(), scores.numpy())
    assert exact(MRRMeasure()).from_scores(scores, one).item() == pytest.approx(expected, rel=1e-12)


def approx_ndcg(scores, level, mask, alpha):
    """ApproxNDCG (Qin et al. 2010, eq. 9 to 13; allRank's `approxNDCGLoss`): 1 − the mean over lists, in loops of NumPy."""
    values = []
    for own_scores, own_level, own_mask in zip(scores.numpy(), level.numpy(), mask.numpy(), strict=True):
        s, gain = own_scores[own_mask], 2.0 ** own_level[own_mask] - 1
        if not gain.any():
            continue
        position = 1 + (1 / (1 + np.exp(alpha * (s[:, None] - s[None, :])))).sum(1) - 0.5  # without σ(0) of an item itself
        ideal = (np.sort(gain)[::-1] / np.log2(1 + np.arange(1, len(s) + 1))).sum()
        values.append((gain / np.log2(1 + position)).sum() / ideal)
    return 1 - np.mean(values)


@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_smooth_ndcg_is_approx_ndcg(alpha):
    scores, level, mask = lists(3, queries=5, items=12)
    level[2] = 0
    loss = SmoothNDCG(tau=1 / alpha)
    found = loss.from_scores(5 * scores, level, mask)
    assert found.item() == pytest.approx(approx_ndcg(5 * scores, level, mask, alpha), rel=1e-12)
    assert loss.log["queries_without_positives"].item() == 1


# Our own definitions


@every_rank_loss
def test_a_rank_loss_of_lists_is_its_equation_in_loops(name):
    scores, level, mask = lists(4)
    graded = level if name not in BINARY else level.clamp(max=1)
    marked = graded.where(mask, -1)
    expected = slow_loss_of_lists(name, list(zip(scores.tolist(), marked.tolist(), strict=True)), 1 if name in BINARY else 3)
    for arguments in ((graded, mask), (marked,), (marked.where(mask, -1000),)):
        assert RANK_LOSSES[name]().from_scores(scores, *arguments).item() == pytest.approx(expected, rel=1e-9)


@every_loss
def test_cosines_and_levels_of_a_batch_give_the_loss_of_its_embeddings(name):
    embeddings, labels = batch("three levels")
    given = RetrievalBatch.from_embeddings(embeddings.requires_grad_(), labels)
    graded = name in ("SupHAP", "SmoothHAP", "SupNDCG", "SmoothNDCG", "SupNDCG@3", "SupHAP of weights")
    level = given.level() if graded else given.fine_level()
    loss = ALL[name]
    values = loss(embeddings, labels), loss.from_scores(given.scores, level)
    torch.testing.assert_close(values[1], values[0])
    first, second = (torch.autograd.grad(value, embeddings, retain_graph=True)[0] for value in values)
    assert first.any()
    torch.testing.assert_close(second, first)


def test_a_relevance_of_floats_is_that_of_a_call():
    embeddings, _ = batch("three levels")
    scores = RetrievalBatch.from_embeddings(embeddings, relevance=torch.zeros(8, 8)).scores
    relevance = torch.rand(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).where(scores < 0.5, 0)
    relevance.fill_diagonal_(-1)
    for name in OF_FLOATS:
        torch.testing.assert_close(ALL[name].from_scores(scores, relevance), ALL[name](embeddings, relevance=relevance))


@pytest.mark.parametrize("name", ["SupAP", "SupNDCG", "SupMRR"])
def test_a_sup_loss_bounds_its_metric_on_any_scores(name):
    measure = {"SupAP": APMeasure(), "SupNDCG": NDCGMeasure(), "SupMRR": MRRMeasure()}[name]
    for seed in range(20):
        scores, level, mask = lists(seed)
        loss = SUP[name](**scaled_step(suggest_tau(10 * scores, mask))).from_scores(10 * scores, level, mask)
        assert loss >= exact(measure).from_scores(scores, level, mask)


def test_a_perfect_ranking_has_no_loss_at_k_and_none_is_below_zero():
    level = torch.tensor([[3, 2, 2, 1, 1, 1, 0, 0]])
    falling = torch.arange(8.0, 0, -1, dtype=torch.float64)[None]
    for measure in (NDCGMeasure(k=2), NDCGMeasure(k=5, rank_tau=3.0), APMeasure(k=2), APMeasure(k=7, rank_tau=0.1)):
        loss = exact(measure)
        assert loss.from_scores(falling, level).item() == pytest.approx(0, abs=1e-12)
        for seed in range(10):
            order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
            assert loss.from_scores(falling[:, order], level) > -1e-12


def test_k_directs_the_gradient_to_the_top():
    scores = torch.arange(40.0, 0, -1, dtype=torch.float64)[None] / 10
    level = torch.zeros(1, 40, dtype=torch.int64)
    level[0, [4, 30]] = 1
    _, everywhere = slopes(SmoothNDCG(tau=0.1), scores, level)
    _, at_the_top = slopes(SmoothNDCG(tau=0.1, k=3), scores, level)
    assert everywhere[0, 30] < -1e-4
    assert abs(at_the_top[0, 30]) < 1e-9 < 1e-4 < -at_the_top[0, 4]


# Laws


@settings(max_examples=25)
@given(st.integers(0, 2**20), st.sampled_from(list(ALL)), st.sampled_from([0.0, 7.5, -1e30, torch.inf, -torch.inf, torch.nan]))
def test_padding_changes_nothing_and_gets_no_gradient_whatever_it_holds(seed, name, garbage):
    scores, level, _ = lists(seed, items=5)
    loss = ALL[name]
    value, gradient = slopes(loss, scores, level)
    padded = torch.cat([scores, torch.full((4, 3), garbage, dtype=torch.float64)], 1)
    mask = torch.arange(8).expand(4, 8) < 5
    relevance = torch.cat([level, torch.full((4, 3), 100)], 1)
    found, slope = slopes(loss, padded, relevance, mask)
    torch.testing.assert_close(found, value)
    torch.testing.assert_close(slope[:, :5], gradient)
    assert torch.equal(slope[:, 5:], torch.zeros(4, 3, dtype=torch.float64))
    if name not in OF_FLOATS:
        return
    floats = torch.cat([level.double(), torch.full((4, 3), garbage, dtype=torch.float64)], 1)
    expected, at_items = slopes(loss, scores, level.double())
    found, slope = slopes(loss, padded, floats, mask)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(slope[:, :5], at_items)
    assert not slope[:, 5:].any()


@settings(max_examples=25)
@given(st.integers(0, 2**20), st.sampled_from([name for name in ALL if name != "BlackBoxAP"]))
def test_the_order_of_items_and_of_queries_is_irrelevant(seed, name):
    scores, level, mask = lists(seed)
    generator = torch.Generator().manual_seed(seed)
    items, queries = torch.randperm(9, generator=generator), torch.randperm(4, generator=generator)
    value, gradient = slopes(ALL[name], scores, level, mask)
    found, slope = slopes(ALL[name], *(one[queries][:, items] for one in (scores, level, mask)))
    torch.testing.assert_close(found, value)
    torch.testing.assert_close(slope, gradient[queries][:, items])


@settings(max_examples=25)
@given(st.integers(0, 2**20), st.sampled_from([*RANK_LOSSES, "SupNDCG@3", "SmoothAP@3", "BlackBoxAP"]))
def test_a_constant_added_to_the_scores_of_a_query_changes_nothing(seed, name):
    scores, level, mask = lists(seed)
    constant = torch.tensor([[0.0], [1.0], [-64.0], [1024.0]])
    torch.testing.assert_close(slopes(ALL[name], scores + constant, level, mask), slopes(ALL[name], scores, level, mask))


@settings(max_examples=25)
@given(st.integers(0, 2**20), st.sampled_from(list(RANK_LOSSES)), st.sampled_from([0.01, 0.5, 100.0]))
def test_scores_and_tau_scaled_together_give_the_same_loss(seed, name, scale):
    scores, level, mask = lists(seed)
    make = RANK_LOSSES[name]
    small, large = (
        (make(**scaled_step(0.02)), make(**scaled_step(scale * 0.02)))
        if name in SUP
        else (make(tau=0.02), make(tau=scale * 0.02))
    )
    value, gradient = slopes(small, scores, level, mask)
    found, slope = slopes(large, scale * scores, level, mask)
    torch.testing.assert_close(found, value)
    torch.testing.assert_close(slope * scale, gradient)


@pytest.mark.parametrize("make", [partial(SmoothAP, tau=0.3, k=3, rank_tau=0.8), partial(SupNDCG, k=3, **scaled_step(0.3))])
@pytest.mark.parametrize("using", ["chunked", "definition"])
def test_gradients_are_those_of_finite_differences(make, using):
    """Of losses that are cut at k; test_contract.py has the others."""
    loss = make(using=using)
    scores, level, mask = lists(6, items=6)
    assert torch.autograd.gradcheck(lambda scores: loss.from_scores(scores, level, mask), scores.requires_grad_())


@pytest.mark.parametrize("make", [SmoothHAP, SupHAP, SmoothNDCG, SupNDCG, lambda **using: SupNDCG(k=4, **using)])
def test_implementations_agree_on_graded_lists(make):
    scores, level, mask = lists(7, items=40)
    wide = 30 * scores  # of a span that needs a larger τ, and a grid of its own
    options = {"tau": 0.3} if make in (SmoothHAP, SmoothNDCG) else scaled_step(0.3)
    expected = slopes(make(using="definition", **options), wide, level, mask)
    for using in ("chunked", "gridded", None):
        torch.testing.assert_close(slopes(make(using=using, **options), wide, level, mask), expected)
    relevance = level + 0.25 * scores.abs()  # floats have no levels, nor a grid
    expected = slopes(make(using="definition", **options), wide, relevance, mask)
    for using in ("chunked", None):
        torch.testing.assert_close(slopes(make(using=using, **options), wide, relevance, mask), expected)


# Kinds of input


@every_loss
def test_queries_without_positives_and_without_items_are_left_out(name):
    scores, level, mask = lists(8)
    level, mask = level.clone(), mask.clone()
    level[1], mask[2] = 0, False
    loss = ALL[name]
    value, gradient = slopes(loss, scores, level, mask)
    assert gradient.isfinite().all()
    if name != "ROADMAP of pairs":  # which pushes the negatives of any query down
        kept = [0, 3]
        expected, at_kept = slopes(loss, scores[kept], level[kept], mask[kept])
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradient[kept], at_kept)
        assert not gradient[[1, 2]].any()
        nothing, slope = slopes(loss, scores, torch.zeros_like(level))
        assert nothing.item() == 0
        assert not slope.any()
        assert loss.log["queries_without_positives"].item() == 4


@every_loss
def test_precisions_dtypes_and_strides_agree(name):
    scores, level, mask = lists(9)
    loss = ALL[name]
    value, gradient = slopes(loss, scores.float(), level, mask)
    assert value.dtype == torch.float32
    for grades in (level.int(), level.to(torch.uint8), level.to(torch.int8), level.to(torch.uint16)):
        assert torch.equal(slopes(loss, scores.float(), grades, mask)[1], gradient)
    strided = [one.T.contiguous().T for one in (scores.float(), level, mask)]
    torch.testing.assert_close(slopes(loss, *strided), (value, gradient))
    half = scores.half()
    expected, slope = slopes(loss, half.float(), level, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, at_half = slopes(loss, half, level, mask)
    assert found.dtype == torch.float32
    assert at_half.dtype == torch.float16
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(at_half, slope.half(), rtol=1e-2, atol=1e-3)


def test_truth_values_are_levels_and_relevance_gets_no_gradient():
    scores, level, mask = lists(10)
    for loss in ALL.values():
        binary = slopes(loss, scores, level > 1, mask)
        torch.testing.assert_close(binary, slopes(loss, scores, (level > 1).long(), mask))
    relevance = level.double().requires_grad_()
    value = SmoothNDCG().from_scores(scores.requires_grad_(), relevance, mask)
    value.backward()
    assert relevance.grad is None


def test_scores_far_from_cosines_have_finite_gradients():
    scores, level, mask = lists(11)
    for scale in (1e-6, 1e4, 1e30):
        for name in RANK_LOSSES:
            for dtype in (torch.float32, torch.float64):
                value, gradient = slopes(RANK_LOSSES[name](), (scale * scores).to(dtype), level, mask)
                assert value.isfinite(), (name, scale)
                assert gradient.isfinite().all(), (name, scale)


def test_a_list_may_hold_one_item():
    assert SupAP().from_scores(torch.tensor([[3.0]]), torch.tensor([[1]])).item() == 0
    assert SupNDCG(k=10).from_scores(torch.tensor([[3.0]]), torch.tensor([[1]])).item() == pytest.approx(0)


# Recorded


@pytest.mark.filterwarnings("default")  # torch.compile warns of itself
def test_from_scores_compiles_in_one_graph():
    loss = Combined(SupNDCG(k=3, using="definition"), PairCalibration())
    torch.compiler.reset()
    compiled = torch.compile(loss.from_scores, backend="eager", fullgraph=True)
    for seed in range(2):
        scores, level, mask = lists(seed)
        leaf = scores.clone().requires_grad_()
        value = compiled(leaf, level, mask)
        torch.testing.assert_close((value.detach(), torch.autograd.grad(value, leaf)[0]), slopes(loss, scores, level, mask))


def test_a_recorded_loss_of_scores_is_replayed():
    loss, recorder = Combined(SmoothNDCG(using="definition"), PairCalibration()), Again()
    replayed = ReplayedLoss(loss, recorder=recorder)
    for seed in range(5):
        scores, level, mask = lists(seed)
        torch.testing.assert_close(slopes(replayed, scores, level, mask), slopes(loss, scores, level, mask))
        log = {name: part.item() for name, part in replayed.log.items()}
        loss.from_scores(scores, level, mask)
        assert log == pytest.approx({name: part.item() for name, part in loss.log.items()})
        slopes(replayed, scores, level)  # another signature, and recording
    assert (recorder.recordings, recorder.replays) == (2, 6)


def test_nothing_is_read_where_checks_are_skipped():
    """On the device `meta` tensors have no values, so that a read would raise, as it would wait on a GPU."""
    scores, level, mask = (one.to("meta") for one in lists())
    losses = [make(using="definition") for make in (*RANK_LOSSES.values(), partial(SupNDCG, k=3), partial(SupAP, k=3))]
    for loss in (*losses, SupHAP(weights=(0.5, 0.3, 0.2), using="definition"), PairCalibration()):
        with skip_value_checks():
            assert loss.from_scores(scores, level, mask).device.type == "meta"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_loss
def test_on_a_gpu_the_loss_is_that_of_a_cpu_and_nothing_waits(name):
    given = [one.float() if one.dtype == torch.float64 else one for one in lists(13)]
    expected = slopes(ALL[name], *given)
    on_gpu = [one.cuda() for one in given]
    found = slopes(ALL[name], *on_gpu)  # kernels are compiled
    with skip_value_checks(), refusing_to_wait():
        again = slopes(ALL[name], *on_gpu)
    for one in (found, again):
        torch.testing.assert_close([part.cpu() for part in one], list(expected), rtol=1e-4, atol=1e-5)
    bad = on_gpu[0].clone()
    bad[1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"scores\[1, 2\] is nan"):
        ALL[name].from_scores(bad, on_gpu[1])
    with pytest.raises(ValueError, match="relevance holds level 16"):
        ALL[name].from_scores(on_gpu[0], on_gpu[1] + 13)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("default")  # torch.compile warns of itself
def test_on_a_gpu_a_loss_of_scores_is_replayed_and_compiled():
    loss = Combined(SupNDCG(k=3), PairCalibration()).cuda()
    torch.compiler.reset()
    replayed, compiled = ReplayedLoss(loss), torch.compile(loss.from_scores, fullgraph=True)
    for seed in range(5):
        scores, level, mask = (one.cuda() for one in lists(seed))
        wanted = slopes(loss, scores.float(), level, mask)
        torch.testing.assert_close(slopes(replayed, scores.float(), level, mask), wanted, rtol=1e-4, atol=1e-5)
        leaf = scores.float().requires_grad_()
        value = compiled(leaf, level, mask)
        found = value.detach(), torch.autograd.grad(value, leaf)[0]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_levels_that_cannot_be_read_are_bounded():
    scores, level, mask = lists(12)
    read = ScoreBatch.from_scores(scores, level, mask)
    bounded = ScoreBatch(read.scores, read.grades, MOST_LEVELS)  # as on a GPU
    assert read.depth == 3
    for loss in ALL.values():
        torch.testing.assert_close(loss.compute_lists(bounded), loss.compute_lists(read))


# Refusals


SCORES, GRADES = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.int64)
NAN = torch.tensor([[0.0, 1.0, 2.0], [0.0, torch.nan, 1.0]])


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ((SCORES[0], GRADES), ["scores is torch.float32 of shape (3,)", "[queries, items]"]),
        ((GRADES, GRADES), ["scores is torch.int64", "floating-point"]),
        ((GRADES[..., None].double(), GRADES), ["[queries, items]", "Give scores.squeeze(-1)"]),
        (([[1.0]], GRADES), ["scores is a list"]),
        ((torch.zeros(0, 3), GRADES[:0]), ["shape (0, 3)", "skip empty batches"]),
        ((SCORES, GRADES[0]), ["relevance is torch.int64 of shape (3,)", "(2, 3)", "integers are levels"]),
        ((SCORES, [[1, 0, 0]]), ["relevance is a list"]),
        ((SCORES, 16 * GRADES), ["relevance holds level 16", "0 to 15", "relevance.float()"]),
        ((SCORES, NAN), ["relevance[1, 1] is nan", "mask that is False for padding"]),
        ((NAN, GRADES), ["scores[1, 1] is nan", "mask that is False for padding"]),
        ((NAN / 0, GRADES), ["scores[0, 0] is nan"]),
        ((SCORES, GRADES, GRADES), ["mask is torch.int64", "truth values", "False for padding"]),
        ((SCORES, GRADES, GRADES[0] > 0), ["mask is torch.bool of shape (3,)"]),
    ],
)
def test_bad_lists_are_refused_in_the_words_of_the_caller(arguments, fragments):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        SmoothNDCG().from_scores(*arguments)
    assert all(fragment in str(raised.value) for fragment in fragments), str(raised.value)


def test_losses_with_bins_or_margins_take_only_cosines():
    scores, level, mask = lists()
    for loss in (FastAP(), SoftBinAP(), Circle(), MultiSimilarity(), Combined(FastAP(), PairCalibration())):
        with pytest.raises(ValueError, match=r"scores\[0, 0\] is .* takes cosines, from −1 to 1; use SupAP or SmoothAP"):
            loss.from_scores(scores + 3, level)
        loss.from_scores(scores.where(mask, 3.0), level, mask)
        loss.from_scores(torch.full((1, 2), 1.0005), GRADES[:1, :2])


def test_losses_of_embeddings_say_what_to_use():
    for loss in (ProxySoftmax(3, 4), roadmap(3, 4)):
        with pytest.raises(TypeError, match=r"ProxySoftmax reads embeddings.* SmoothNDCG.*SupAP\(\), PairCalibration"):
            loss.from_scores(SCORES, GRADES)
    with pytest.raises(TypeError, match="SimilarityMixup reads embeddings or labels"):
        SimilarityMixup(SupAP()).from_scores(SCORES, GRADES)


def test_weights_must_reach_the_deepest_level():
    scores, level, _ = lists()
    with pytest.raises(ValueError, match="weights=.* are 2, but relevance reaches level 3; give one weight for each level"):
        SupHAP(weights=(0.5, 0.5)).from_scores(scores, level)
    SupHAP(weights=(0.5, 0.3, 0.2)).from_scores(scores, level.clamp(max=1))  # a batch without the finest levels


@pytest.mark.parametrize("k", [0, -1, 2.5, True])
def test_k_is_a_whole_number_from_1_on(k):
    for make in (SupAP, SmoothAP, SupNDCG, SmoothNDCG):
        with pytest.raises(ValueError, match="whole number from 1 on"):
            make(k=k)
    loss = SupNDCG(k=5)
    loss.k = 7
    assert loss.measure == NDCGMeasure(k=7)


# τ


def test_suggest_tau_is_a_share_of_the_median_spread():
    scores = torch.tensor([[0.0, 2.0, torch.nan], [0.0, 0.0, 0.0], [-8.0, 8.0, 0.0], [1.0, torch.inf, 3.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 0, 1]]).bool()
    assert suggest_tau(scores, mask) == pytest.approx(1 / 16)  # of 1, 8 and 1; the list of equal scores does not count
    assert suggest_tau(1000 * scores, mask) == pytest.approx(1000 / 16)


def test_suggest_tau_is_near_the_papers_for_cosines_of_a_trained_model():
    # As after training with Sup-AP on CUB: cosines of a query with unseen birds have a standard deviation of 0.16.
    cosines = 0.2 + 0.16 * torch.randn(50, 400, generator=torch.Generator().manual_seed(0))
    assert suggest_tau(cosines) == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SCORES,), "scores of every query are equal.*choose tau yourself"),
        ((NAN,), "NaN or infinity; give a mask"),
        ((GRADES,), "floating-point tensor"),
        ((SCORES, GRADES), "mask is torch.int64"),
        ((SCORES, [[True]]), "mask is a list, but must be a tensor"),
    ],
)
def test_scores_without_a_spread_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        suggest_tau(*arguments)


def test_the_scaled_step_of_the_papers_tau_is_the_default():
    assert SupAP(**scaled_step(0.01)).minus == SupAP().minus
    assert SupMRR(**scaled_step(0.2)).rho == pytest.approx(5)
    for tau in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="suggest_tau"):
            scaled_step(tau)
