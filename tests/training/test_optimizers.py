"""Learning rates by hand, and beside torch's schedulers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from suprank.training.config import OptimizerConfig, ProxiesConfig, ScheduleConfig
from suprank.training.optimizers import learning_rate, network_optimizer, proxies_optimizer, set_learning_rates


def parameters(*sizes):
    return [nn.Parameter(torch.ones(size)) for size in sizes]


@pytest.mark.parametrize(
    ("position", "expected"), [(0, 0.4), (2.5, 0.2 * (1 + math.cos(math.pi / 4))), (5, 0.2), (7.5, 0.0585786), (10, 0.0)]
)
def test_a_cosine_falls_from_the_highest_rate_to_none(position, expected):
    assert learning_rate(ScheduleConfig(lr=1.0), 0.4, position, 10, 0.1) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("highest", "expected"), [(0.4, [0.4, 0.25, 0.1]), (0.1, [0.1] * 3), (0.05, [0.05] * 3), (0, [0] * 3)])
def test_a_cosine_ends_at_its_floor_and_a_smaller_rate_stays(highest, expected):
    config = ScheduleConfig(lr=1.0, min_lr=0.1)
    assert [learning_rate(config, highest, position, 10, 0.1) for position in (0, 5, 10)] == pytest.approx(expected)


def test_steps_multiply_the_rate_from_each_milestone_on():
    config = ScheduleConfig(lr=1.0, schedule="steps", milestones=(2, 5.5), gamma=0.1)
    positions = [0, 1.99, 2, 5.25, 5.5, 9.9]
    assert [learning_rate(config, 3.0, position, 10, 0.1) for position in positions] == pytest.approx(
        [3, 3, 0.3, 0.3, 0.03, 0.03]
    )


@pytest.mark.parametrize("schedule", [{"schedule": "constant"}, {}, {"schedule": "steps", "milestones": [50]}])
def test_warm_up_begins_with_a_share_of_a_step_and_ends_at_the_highest_rate(schedule):
    config = ScheduleConfig(lr=1.0, warmup_epochs=0.5, **schedule)
    positions = [0, 0.1, 0.2, 0.3, 0.4, 0.5]  # ten steps an epoch
    found = [learning_rate(config, 2.0, position, 10, 0.1) for position in positions]
    assert found == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0, 2.0])


def test_a_cosine_after_warm_up_has_the_remaining_epochs_for_itself():
    config = ScheduleConfig(lr=1.0, warmup_epochs=2)
    assert [learning_rate(config, 1.0, position, 10, 0.1) for position in (2, 6, 10)] == pytest.approx([1, 0.5, 0])


def test_warm_up_may_be_all_there_is():
    config = ScheduleConfig(lr=1.0, warmup_epochs=3)
    assert [learning_rate(config, 1.0, position, 3, 0.5) for position in (0, 1, 2.5)] == pytest.approx([1 / 6, 0.5, 1])
    assert learning_rate(config, 1.0, 3, 3, 0.5) == 1


@given(
    epochs=st.integers(1, 20),
    steps=st.integers(1, 7),
    warmup_epochs=st.floats(0, 25),
    min_lr=st.floats(0, 2),
    schedule=st.sampled_from([{}, {"schedule": "constant"}, {"schedule": "steps", "milestones": (1, 3), "gamma": 0.5}]),
)
def test_rates_are_between_nothing_and_the_highest_and_never_rise_after_warm_up(epochs, steps, warmup_epochs, min_lr, schedule):
    settings = schedule or {"min_lr": min_lr}
    config = ScheduleConfig(lr=1.0, warmup_epochs=warmup_epochs, **settings)
    positions = [epoch + step / steps for epoch in range(epochs) for step in range(steps)]
    found = [learning_rate(config, 1.0, position, epochs, 1 / steps) for position in positions]
    assert all(0 < value <= 1 for value in found)
    after = [value for position, value in zip(positions, found, strict=True) if position >= warmup_epochs]
    assert after == sorted(after, reverse=True)
    before = [value for position, value in zip(positions, found, strict=True) if position < warmup_epochs]
    assert before == sorted(before)


def test_a_cosine_agrees_with_torch_at_every_epoch():
    optimizer = torch.optim.SGD(parameters(1), lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8, eta_min=0.02)
    config = ScheduleConfig(lr=0.3, min_lr=0.02)
    for epoch in range(9):
        assert learning_rate(config, 0.3, epoch, 8, 0.1) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-6)
        optimizer.step()
        scheduler.step()


def test_steps_agree_with_torch_at_every_epoch():
    optimizer = torch.optim.SGD(parameters(1), lr=0.3)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5, 6], gamma=0.3)
    config = ScheduleConfig(lr=0.3, schedule="steps", milestones=(2, 5, 6))
    for epoch in range(9):
        assert learning_rate(config, 0.3, epoch, 9, 0.1) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()


def test_backbone_and_head_have_rates_of_their_own_by_name():
    config = OptimizerConfig(lr=0.1, head_lr=0.5, min_lr=0.2)
    optimizer = network_optimizer(config, {"backbone": parameters(2, 3), "head": parameters(4)})
    assert set_learning_rates(optimizer, config, 0, 10, 0.1) == {"backbone": 0.1, "head": 0.5}
    assert set_learning_rates(optimizer, config, 5, 10, 0.1) == pytest.approx({"backbone": 0.1, "head": 0.35})
    assert {group["name"]: group["lr"] for group in optimizer.param_groups} == pytest.approx({"backbone": 0.1, "head": 0.35})
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 1]
    assert set_learning_rates(optimizer, config, 0, 10, 0.1) == {"backbone": 0.1, "head": 0.5}, "rates have no memory"


def test_the_head_learns_as_fast_as_the_backbone_unless_told_otherwise():
    config = OptimizerConfig(lr=0.1)
    optimizer = network_optimizer(config, {"backbone": parameters(2), "head": parameters(4)})
    assert set_learning_rates(optimizer, config, 0, 10, 0.1) == {"backbone": 0.1, "head": 0.1}
    still = OptimizerConfig(lr=0.1, head_lr=0.0)
    assert (
        set_learning_rates(network_optimizer(still, {"backbone": parameters(2), "head": parameters(4)}), still, 0, 10, 0.1)[
            "head"
        ]
        == 0
    )


def test_a_network_without_a_head_has_one_group():
    optimizer = network_optimizer(OptimizerConfig(), {"backbone": parameters(2), "head": []})
    assert [group["name"] for group in optimizer.param_groups] == ["backbone"]


def test_proxies_have_an_optimizer_if_there_are_any():
    config = ProxiesConfig(lr=0.3, name="sgd", schedule="constant")
    optimizer = proxies_optimizer(config, parameters(2))
    assert isinstance(optimizer, torch.optim.SGD)
    assert set_learning_rates(optimizer, config, 0, 10, 0.1) == {"proxies": 0.3}
    assert proxies_optimizer(config, []) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"name": "adam", "weight_decay": 0.1}, lambda members: torch.optim.Adam(members, lr=0.1, weight_decay=0.1)),
        ({"name": "adamw", "weight_decay": 0.1}, lambda members: torch.optim.AdamW(members, lr=0.1, weight_decay=0.1)),
        ({"name": "adamw"}, lambda members: torch.optim.AdamW(members, lr=0.1, weight_decay=0)),
        (
            {"name": "sgd", "momentum": 0.8, "weight_decay": 0.1},
            lambda members: torch.optim.SGD(members, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.1),
        ),
        ({"name": "sgd", "momentum": 0.0}, lambda members: torch.optim.SGD(members, lr=0.1)),
    ],
)
def test_optimizers_are_torchs_with_the_settings_of_the_recipe(settings, expected):
    ours, theirs = parameters(3), parameters(3)
    config = OptimizerConfig(lr=0.1, schedule="constant", **settings)
    one, other = network_optimizer(config, {"backbone": ours, "head": []}), expected(theirs)
    for step in range(4):
        set_learning_rates(one, config, step, 4, 1)
        for members, optimizer in ((ours, one), (theirs, other)):
            (members[0] ** 2 * torch.tensor([1.0, -2.0, 3.0])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(ours[0], theirs[0])
