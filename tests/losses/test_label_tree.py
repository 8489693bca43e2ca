"""Label columns that are reversed, or no tree: a loss says so once, and is otherwise what it was."""

import warnings

import pytest
import torch

from suprank.losses import LabelTreeWarning, PairCalibration, ProxySoftmax, SupHAP, happier, skip_value_checks
from tests.losses.batches import COMPOSITIONS, DIM, batch, build

TREE = torch.tensor([[0, 0], [0, 0], [1, 0], [2, 1], [2, 1], [3, 1]])
EMBEDDINGS = torch.randn(6, DIM, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
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
    monkeypatch.setattr("suprank.losses.batch.classes_with_two_parents", lambda *columns: looks.append(1) or columns[0][:0])
    for _ in range(50):
        loss(EMBEDDINGS, TREE)
    assert len(looks) == 10, "a GPU is made to wait by the first batches only"


def test_a_loss_without_labels_and_one_with_proxies_are_looked_at_too():
    SupHAP()(EMBEDDINGS, relevance=torch.rand(6, 6))
    with pytest.warns(LabelTreeWarning, match="labels of ProxySoftmax"):
        ProxySoftmax(4, DIM)(EMBEDDINGS, TREE.flip(1))
