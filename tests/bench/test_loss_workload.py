import pytest
import torch
from bench import LossWorkload

from suprank.ranking import common_level


def test_a_batch_of_256_has_64_fine_16_middle_and_4_coarse_classes():
    labels = LossWorkload(256).inputs(torch.device("cpu")).labels
    assert [len(labels[:, level].unique()) for level in range(3)] == [64, 16, 4]
    level = common_level(labels)
    assert ((level > 0).sum(-1) == 64).all()  # a quarter of the batch, the query included
    assert ((level == 3).sum(-1) == 4).all()


def test_a_query_has_about_5000_positives_in_a_memory_of_60000_and_4_of_its_fine_class():
    inputs = LossWorkload(8, 60_000).inputs(torch.device("cpu"))
    level = common_level(inputs.labels, inputs.ref_labels)
    positives = (level > 0).sum(-1)
    assert positives.min() > 4900
    assert positives.max() < 5100
    assert ((level == 3).sum(-1) == 4).all()


def test_inputs_are_the_same_at_every_call():
    first, again = (LossWorkload(16, 48).inputs(torch.device("cpu")) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("sizes", [(10,), (0,), (-4,), (16, 50), (0, 48)])
def test_sizes_without_whole_classes_are_refused(sizes):
    with pytest.raises(ValueError, match=r"multiple of 4.*try"):
        LossWorkload(*sizes)
