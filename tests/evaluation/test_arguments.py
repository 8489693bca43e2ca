"""Labels that are no tree are refused by name; `test_evaluate.py` has the other arguments."""

import numpy as np
import pytest
import torch

from suprank.evaluation import evaluate
from suprank.evaluation.torchmetrics_adapter import RetrievalMetrics
from suprank.files.labels import check_tree


@pytest.mark.parametrize(
    "labels", [[[0, 0], [1, 0], [2, 1]], [[-1, 0], [-1, 1], [-1, -1], [0, 0]], [[7], [7]], [[0, 0, 0], [-1, 0, 0]]]
)
def test_trees_are_accepted(labels):
    assert check_tree([np.array(labels)], list("abc")[: len(labels[0])]) is None, "nothing is raised"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1, 0], [1, 2]], "row 0: a 1 stands under b 0, and under 2 in row 1, but labels must form a tree; name the levels"),
        ([[2**60, 0], [2**60, 2]], "row 0: a 1152921504606846976 stands under b 0, and under 2 in row 1"),
        ([[5, 1, 0], [6, 1, 1]], "b 1 stands under c 0, and under 1 in row 1"),
        ([[0, 0], [4, -1], [4, -1]], r"row 1: there is a label of a, but none of b, .* \(and 1 other rows\)"),
        ([[-1, 3, -1]], "row 0: there is a label of b, but none of c"),
        ([[4, -1, 0]], "row 0: b is blank between two labels; fill it in, or let fill_gaps"),
        ([[[0, 1], [0, -1]], [[0, -1], [1, -1]]], "row 0: a 0 has no parent, because its 2 rows have no b in common"),
    ],
)
def test_what_is_no_tree_is_refused_by_name(labels, message):
    with pytest.raises(ValueError, match=message):
        check_tree([np.array(labels)], list("abc")[: len(labels[0])])


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
