"""One process alone is a world of one; several are in test_distributed.py."""

import torch

from suprank.training import distributed


def test_one_process_averages_with_nobody():
    own = torch.randn(3, 2)
    assert distributed.world_size() == 1
    before = own.clone()
    distributed.average([own])
    distributed.broadcast_from_first([own])
    assert torch.equal(own, before)
    assert distributed.all_max([0, 1, 1], torch.device("cpu")) == [0, 1, 1]
