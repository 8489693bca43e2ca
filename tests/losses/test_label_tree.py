"""Label columns that are reversed, or no tree, and batches without positives: a loss says so once, and is what it was."""

import warnings

import pytest
import torch

from suprank.losses import (
    DistanceWeightedTriplet,
    FastAP,
    LabelTreeWarning,
    NoPositivesWarning,
    PairCalibration,
    ProxySoftmax,
    SupAP,
    SupHAP,
    SupNDCG,
    TripletSemiHard,
    collection_loss,
    happier,
    skip_value_checks,
)
from tests.losses.batches import COMPOSITIONS, DIM, batch, build

TREE = torch.tensor([[0, 0], [0, 0], [1, 0], [2, 1], [2, 1], [3, 1]])
EMBEDDINGS = torch.randn(6, DIM, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", NoPositivesWarning)
        yield


@pytest.mark.parametrize("name", ["SupAP", "PairCalibration", "ProxySoftmax", "HAPPIER", "ΣTL", "mixed SupAP", "CosFace"])
def test_reversed_columns_are_named_once(name):
    loss = build(name, TREE)
    with pytest.warns(LabelTreeWarning) as seen:
        loss(EMBEDDINGS, TREE.flip(1))
    (warning,) = seen
    assert "column 1 is finer than column 0: class 0 of column 0 holds classes 0 and 1 of column 1" in str(warning.message)
    assert "labels.flip(1)" in str(warning.message)
    assert type(loss).__name__ in str(warning.message)
    loss(EMBEDDINGS, TREE.flip(1))  # once is enough


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([[0, 0], [0, 1], [1, 0], [1, 1]], "class 0 of column 0 stands under 0 and 1 of column 1 (2 such class(es))"),
        ([[0, 0, 0], [1, 0, 1], [2, 1, 1], [3, 1, 0]], "class 0 of column 1 stands under 0 and 1 of column 2"),
        ([[0, 0, 0], [1, 0, 1], [2, 1, 2], [3, 1, 3]], "column 2 is finer than column 1"),
        ([[0, 0], [0, 0], [1, -1], [1, -1]], "class 1 of column 0 has no parent: column 1 is −1"),
    ],
)
def test_columns_that_are_no_tree_are_named(labels, says):
    with pytest.warns(LabelTreeWarning) as seen:
        SupHAP()(EMBEDDINGS[:4], torch.tensor(labels))
    assert says in str(seen[0].message)


def test_references_are_looked_at_together_with_queries():
    with pytest.warns(LabelTreeWarning, match=r"class 2 of column 0 stands under 0 and 1"):
        SupHAP()(EMBEDDINGS, TREE, ref_emb=EMBEDDINGS[:2], ref_labels=torch.tensor([[2, 0], [1, 0]]))


@pytest.mark.parametrize("composition", [name for name in COMPOSITIONS if name != "a fine id under two parents"])
def test_trees_and_flat_labels_are_taken_without_a_word(composition):
    for loss in (SupHAP(), happier(decomposability=PairCalibration())):
        loss(*batch(composition))


def test_a_fault_of_a_later_batch_is_found_among_the_first():
    loss = SupHAP()
    for _ in range(4):
        loss(EMBEDDINGS, TREE)
    with pytest.warns(LabelTreeWarning):
        loss(EMBEDDINGS, TREE.flip(1))


def test_nothing_is_looked_at_where_values_are_not(monkeypatch):
    with skip_value_checks():
        SupHAP()(EMBEDDINGS, TREE.flip(1))
    loss, looks = SupHAP(), []
    monkeypatch.setattr("suprank.losses.base.label_tree_error", looks.append)
    for _ in range(50):
        loss(EMBEDDINGS, TREE)
    assert len(looks) == 10, "a GPU is made to wait by the first batches only"


def test_a_loss_without_labels_and_one_with_proxies_are_looked_at_too():
    SupHAP()(EMBEDDINGS, relevance=torch.rand(6, 6))
    with pytest.warns(LabelTreeWarning, match="labels of ProxySoftmax"):
        ProxySoftmax(4, DIM)(EMBEDDINGS, TREE.flip(1))


ONE_HOT = torch.eye(3, dtype=torch.long)[torch.tensor([0, 0, 1, 1, 2, 2])]


def test_one_hot_labels_are_no_levels():
    for call in (SupHAP(), lambda *batch: collection_loss(SupAP(), *batch)):
        with pytest.raises(ValueError, match=r"\(6, 3\) hold one 1 in each row.*look one-hot.*labels.argmax\(1\)"):
            call(EMBEDDINGS, ONE_HOT)
    SupHAP()(EMBEDDINGS, ONE_HOT[[0, 0, 0, 2, 2, 2]])  # a tree of three levels, whose columns are equally fine
    for labels in (ONE_HOT[:, :2], ONE_HOT + ONE_HOT.roll(1, 1)):
        with pytest.warns(LabelTreeWarning):
            SupHAP()(EMBEDDINGS, labels)


ALONE = torch.tensor([0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("make", [SupAP, FastAP, TripletSemiHard, DistanceWeightedTriplet, lambda: happier(6, DIM)])
def test_each_loss_warns_once_of_batches_without_any_positive(make):
    for loss in (make(), make()):
        with pytest.warns(NoPositivesWarning, match="none of 6 queries has a positive.*BalancedBatchSampler") as warned:
            [loss(EMBEDDINGS, ALONE) for _ in range(3)]
        assert len(warned) == 1


def test_lists_without_any_positive_are_warned_of_and_those_with_one_are_not():
    loss, scores = SupNDCG(), torch.rand(2, 4)
    loss.from_scores(scores, torch.eye(2, 4))
    with pytest.warns(NoPositivesWarning, match="SupNDCG: none of 2 queries"):
        loss.from_scores(scores, torch.zeros(2, 4))


def test_a_batch_without_positives_is_not_looked_at_where_values_are_not_or_after_the_first():
    trusting, compiled, old = SupAP(), SupAP(using="definition"), SupAP()
    with skip_value_checks():
        trusting(EMBEDDINGS, ALONE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.compile warns of itself
        torch.compile(compiled, backend="eager", fullgraph=True)(EMBEDDINGS, ALONE)
    for _ in range(10):
        old(EMBEDDINGS, ALONE // 2)
    warnings.simplefilter("error")
    old(EMBEDDINGS, ALONE)
    assert [loss._batches_checked["positives"] for loss in (trusting, compiled, old)] == [0, 0, 10]
