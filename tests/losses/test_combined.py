"""(1 − λ)·surrogate + λ·decomposability: the sum, its parts in the log, and nothing computed twice."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

from suprank.losses import (
    Combined,
    PairCalibration,
    ProxySoftmax,
    QueryMean,
    RankLoss,
    RetrievalLoss,
    SumOverLevels,
    SupAP,
    SupHAP,
    SupNDCG,
    SupRecall,
    collection_loss,
    happier,
    roadmap,
    rod_ndcg,
    rod_recall,
)
from tests.losses.batches import DIM, Products, batch, build, gradient_of

PAPERS: dict[str, tuple[Callable[..., Combined], type[RankLoss]]] = {
    "ROADMAP": (roadmap, SupAP),
    "ROD-R@k": (rod_recall, SupRecall),
    "HAPPIER": (happier, SupHAP),
    "ROD-NDCG": (rod_ndcg, SupNDCG),
}


roadmap_of_pairs = partial(roadmap, decomposability=PairCalibration())


def both_decomposability_losses():
    return [PairCalibration(), ProxySoftmax(10, DIM).to(torch.float64)]


@pytest.mark.parametrize("weight", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("name", PAPERS)
def test_each_combination_takes_either_decomposability_loss(name, weight):
    make, surrogate = PAPERS[name]
    embeddings, labels = batch("three levels")
    for decomposability in both_decomposability_losses():
        loss = make(decomposability=decomposability, decomposability_weight=weight)
        assert isinstance(loss.surrogate, surrogate)
        rank, calibration = surrogate()(embeddings, labels), decomposability(embeddings, labels)
        assert loss(embeddings, labels).item() == pytest.approx(((1 - weight) * rank + weight * calibration).item())


@pytest.mark.parametrize("name", PAPERS)
def test_given_classes_and_a_size_the_decomposability_loss_is_proxies_as_in_the_recipes(name):
    make, _ = PAPERS[name]
    loss = make(5, DIM)
    assert isinstance(loss.decomposability, ProxySoftmax)
    assert loss.decomposability.proxies.shape == (5, DIM)
    assert loss.decomposability.temperature == ProxySoftmax(5, DIM).temperature
    assert loss.decomposability_weight == 0.1
    assert isinstance(make(num_classes=5, embedding_size=DIM).decomposability, ProxySoftmax)
    assert rod_recall(5, DIM).surrogate.ks == (1, 2, 4, 8, 16)


@pytest.mark.parametrize("name", PAPERS)
def test_a_combination_without_or_with_two_decomposability_losses_says_both_ways(name):
    make, _ = PAPERS[name]
    function = make.__name__
    both_ways = rf"for its ProxySoftmax, which the recipes train; .* {function}\(decomposability=PairCalibration\(\)\)"
    for arguments, missing in (((), "num_classes and embedding_size"), ((5,), "embedding_size"), ((None, DIM), "num_classes")):
        with pytest.raises(ValueError, match=f"{function} needs {missing} {both_ways}"):
            make(*arguments)
    with pytest.raises(ValueError, match="decomposability=PairCalibration and num_classes and.*one or the other"):
        make(5, DIM, decomposability=PairCalibration())
    with pytest.raises(TypeError, match=rf"num_classes is a PairCalibration; .*{function}\(decomposability=...\)"):
        make(PairCalibration())


def test_options_reach_the_surrogate():
    embeddings, labels = batch("three levels")
    alone = {"decomposability": PairCalibration(), "decomposability_weight": 0.0}
    pairs = [
        (roadmap(**alone, tau=0.1, using="chunked"), SupAP(tau=0.1, using="chunked")),
        (rod_recall(**alone, ks=(3,), rank_tau=0.4, rho=5.0), SupRecall(ks=(3,), rank_tau=0.4, rho=5.0)),
        (happier(**alone, decay=5.0, include_self=True), SupHAP(decay=5.0, include_self=True)),
        (happier(**alone, weights=(1.0, 2.0, 3.0)), SupHAP(weights=(1.0, 2.0, 3.0))),
        (rod_ndcg(**alone, value_at_delta=1.44), SupNDCG(value_at_delta=1.44)),
    ]
    for combined, surrogate in pairs:
        assert combined(embeddings, labels).item() == pytest.approx(surrogate(embeddings, labels).item(), rel=1e-12)
        assert repr(combined.surrogate) == repr(surrogate)


def test_the_log_holds_the_parts_detached():
    embeddings, labels = batch("singletons and a pair")
    embeddings.requires_grad_()
    loss = roadmap_of_pairs()
    value = loss(embeddings, labels)
    assert set(loss.log) == {"SupAP", "PairCalibration", "loss", "queries_without_positives"}
    assert not any(part.requires_grad for part in loss.log.values())
    assert loss.log["loss"].item() == value.item()
    assert loss.log["SupAP"].item() == SupAP()(embeddings, labels).item()
    assert loss.log["PairCalibration"].item() == PairCalibration()(embeddings, labels).item()
    assert loss.log["queries_without_positives"].item() == 3


def test_the_log_is_that_of_the_last_call():
    loss = roadmap_of_pairs()
    loss(*batch("singletons only"))
    assert loss.log["queries_without_positives"].item() == 4
    loss(*batch("one class only"))
    assert loss.log["queries_without_positives"].item() == 0


def test_parts_that_log_under_one_name_both_reach_the_log():
    embeddings, labels = batch("three levels")
    parts = [Combined(SupNDCG(), PairCalibration()), Combined(SupAP(), PairCalibration())]
    loss = Combined(Combined(*parts, 0.5), SupAP(), 0.5)
    loss(embeddings, labels)
    log = {name: value.item() for name, value in loss.log.items()}
    alone = [part(embeddings, labels).item() for part in parts]
    assert [log["surrogate Combined"], log["decomposability Combined"]] == alone
    assert log["Combined"] == pytest.approx(sum(alone) / 2)
    assert log["surrogate SupAP"] == log["decomposability SupAP"] == SupAP()(embeddings, labels).item()
    assert log["surrogate queries_without_positives"] == 0  # of SupNDCG
    assert log["decomposability queries_without_positives"] == 2


class Infinite(RetrievalLoss):
    def means(self, batch):
        return [QueryMean(-(batch.scores - batch.scores).sum(-1).log())]


def test_a_part_without_weight_adds_nothing_even_if_it_is_infinite():
    embeddings, labels = batch("three levels")
    expected = gradient_of(SupAP(), embeddings, labels)
    for loss in (Combined(SupAP(), Infinite(), 0.0), Combined(Infinite(), SupAP(), 1.0)):
        assert loss(embeddings, labels).isfinite()
        assert loss.log["Infinite"].isinf()
        for one, other in zip(gradient_of(loss, embeddings, labels), expected, strict=True):
            assert torch.equal(one, other)
        torch.testing.assert_close(collection_loss(loss, embeddings, labels, chunk=3), expected[0])
    levels = SumOverLevels([SupAP(), Infinite(), SupAP()], weights=[1.0, 0.0, 0.0])
    assert torch.equal(gradient_of(levels, embeddings, labels)[1], expected[1])
    torch.testing.assert_close(collection_loss(levels, embeddings, labels, chunk=3), expected[0])


class HalfPrecision(RetrievalLoss):
    def compute(self, batch):
        return batch.scores.mean().bfloat16()


def test_losses_of_two_precisions_add_up_in_the_higher_one():
    embeddings, labels = torch.randn(8, 4), torch.arange(8) // 2
    for parts in ((SupAP(), HalfPrecision()), (HalfPrecision(), SupAP())):
        total = Combined(*parts, 0.25)(embeddings, labels)
        first, second = (part(embeddings, labels).float() for part in parts)
        assert total.dtype == torch.float32
        torch.testing.assert_close(total, 0.75 * first + 0.25 * second)


@pytest.mark.parametrize(("name", "products"), [("ROD-R@k", 1), ("ROADMAP", 2), ("HAPPIER", 2)])
def test_scores_are_computed_once(name, products):
    embeddings, labels = batch("three levels", dtype=torch.float32)
    with Products() as counted:
        build(name)(embeddings, labels)
    assert counted.count == products  # proxies are a second product, of another matrix
