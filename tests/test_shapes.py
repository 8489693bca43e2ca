"""The shape checks themselves: that they are on, what they refuse, and what they leave to the library."""

import pytest
import torch

from suprank.losses import SupHAP
from suprank.ranking import average_precision, definition, heaviside, ranks, tree_relevance
from tests import shapes
from tests.shapes import WrongShape

pytestmark = pytest.mark.skipif(not shapes.available, reason="jaxtyping or beartype is missing, or SUPRANK_CHECK_SHAPES=0")

SCORES = torch.tensor([[0.9, 0.8, 0.7], [0.1, 0.2, 0.3]])
LEVEL = torch.tensor([[0, 1, 2], [1, 0, 2]])


def test_the_right_shapes_pass():
    found = ranks(SCORES, LEVEL, tree_relevance(LEVEL, decay=1), minus=heaviside)
    assert average_precision(found, LEVEL > 0).shape == (2,)


def test_positives_of_another_number_of_queries_are_refused():
    found = ranks(SCORES, LEVEL, minus=heaviside)
    with pytest.raises(WrongShape, match="average_precision"):
        average_precision(found, LEVEL[:1] > 0)  # broadcasts, and would give a value
    with pytest.raises(WrongShape, match="positive"):
        average_precision(found, LEVEL[0] > 0)


def test_what_the_library_refuses_by_itself_is_left_to_it():
    with pytest.raises(ValueError, match="level has shape"):
        ranks(SCORES, LEVEL[:, :2])
    with pytest.raises(ValueError, match="labels has 2 rows for 4 embeddings"):
        SupHAP()(torch.eye(4), torch.tensor([0, 1]))


def test_optional_labels_may_have_any_number_of_levels():
    embeddings = torch.eye(4)
    for labels in (torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0]])):
        assert SupHAP()(embeddings, labels).isfinite()


def test_a_compiler_sees_the_plain_functions():
    compiled = torch.compile(
        lambda scores, level: ranks(scores, level, using=definition).minus, backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(SCORES, LEVEL), ranks(SCORES, LEVEL).minus)
