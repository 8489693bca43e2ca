"""Labels that are no tree are refused by name; `test_evaluate.py` has the other arguments."""

import pytest
import torch

from suprank.evaluation import evaluate
from suprank.evaluation.arguments import check_tree
from suprank.evaluation.torchmetrics_adapter import RetrievalMetrics


@pytest.mark.parametrize(
    "labels", [[[0, 0], [1, 0], [2, 1]], [[-1, 0], [-1, 1], [-1, -1], [0, 0]], [[7], [7]], [[0, 0, 0], [-1, 0, 0]]]
)
def test_trees_are_accepted(labels):
    assert check_tree(torch.tensor(labels), ["a", "b", "c"]) is None, "nothing is raised"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1, 0], [1, 2]], r"a=1 stands under b 0 and 2 \(1 such label"),
        ([[1, 0], [1, 2], [3, 0], [3, 1]], r"a=1 stands under b 0 and 2 \(2 such label"),
        ([[1, p] for p in range(5)], r"a=1 stands under b 0 and 1 and 2 and more \(1 such"),
        ([[5, 1, 0], [6, 1, 1]], "b=1 stands under c 0 and 1"),
        ([[4, -1], [4, -1]], r"a=4 has no parent: its b is -1 in 2 row\(s\)"),
        ([[-1, 3, -1]], "b=3 has no parent: its c is -1"),
        ([[4, -1, 0]], "a=4 has no parent: its b is -1"),
    ],
)
def test_what_is_no_tree_is_refused_by_name(labels, message):
    with pytest.raises(ValueError, match=message):
        check_tree(torch.tensor(labels), ["a", "b", "c"])


def test_columns_in_the_wrong_order_are_named():
    with pytest.raises(ValueError, match=r"a=0 stands under b 0 and 1 .*; b looks finer than a: give the columns finest first"):
        check_tree(torch.tensor([[0, 0], [0, 1], [1, 2]]), ["a", "b"])


def test_one_hot_labels_are_refused_with_the_way_out():
    labels = torch.eye(4, dtype=torch.int64)[torch.tensor([0, 1, 2, 3, 1, 2])]
    embeddings = torch.randn(6, 3)
    metric = RetrievalMetrics()
    metric.update(embeddings, labels)
    for call in (lambda: evaluate(embeddings, labels.int()), metric.compute):
        with pytest.raises(ValueError, match=r"labels of shape \(6, 4\) hold one 1 in each row.*labels.argmax\(1\)"):
            call()
    with pytest.raises(ValueError, match=r"1 to 127 levels.*one-hot labels become numbers by labels.argmax\(1\)"):
        evaluate(embeddings, torch.zeros(6, 128, dtype=torch.int64))
    with pytest.raises(TypeError, match="bool"):
        evaluate(embeddings, labels.bool())
