"""Optimizers of the network and of the proxies; their rates are a function of where training stands, and have no state."""

from __future__ import annotations

from math import cos, pi
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from suprank.training.config import OptimizerConfig, ScheduleConfig


def rate(config: ScheduleConfig, highest: float, position: float, epochs: int, step: float) -> float:
    """Learning rate of the step that begins after `position` epochs and takes `step` of one, when it is `highest` at most.

    In the first `warmup` epochs it rises in a straight line, and is `highest` with the last step of them. Then

        cosine    f + (highest − f)·(1 + cos π·t) / 2,    f = min(floor, highest), t the share of the other epochs that is over
        steps     highest · factor^(milestones reached)
    """
    if position < config.warmup:
        return highest * min((position + step) / config.warmup, 1.0)
    if config.schedule == "cosine":
        share = (position - config.warmup) / max(epochs - config.warmup, step)
        floor = min(config.floor, highest)
        return floor + (highest - floor) * (1 + cos(pi * share)) / 2
    if config.schedule == "steps":
        return highest * config.factor ** sum(position >= milestone for milestone in config.milestones)
    return highest


def network_optimizer(config: OptimizerConfig, groups: Mapping[str, Sequence[nn.Parameter]]) -> Optimizer:
    """One optimizer for backbone and head, a group of parameters each (those that have any)."""
    highest = {"backbone": config.lr, "head": config.lr if config.head_lr is None else config.head_lr}
    return _optimizer(config, [(name, list(members), highest[name]) for name, members in groups.items() if members])


def proxies_optimizer(config: ScheduleConfig, parameters: Sequence[nn.Parameter]) -> Optimizer | None:
    """The optimizer of a loss's own parameters; None where it has none."""
    return _optimizer(config, [("proxies", list(parameters), config.lr)]) if parameters else None


def set_rates(optimizer: Optimizer, config: ScheduleConfig, position: float, epochs: int, step: float) -> dict[str, float]:
    """Set the learning rate of every group for a step (see `rate`); the rates by name."""
    for group in optimizer.param_groups:
        group["lr"] = rate(config, group["highest"], position, epochs, step)
    return {group["name"]: group["lr"] for group in optimizer.param_groups}


def _optimizer(config: ScheduleConfig, groups: list[tuple[str, list[nn.Parameter], float]]) -> Optimizer:
    members = [{"params": members, "lr": lr, "highest": lr, "name": name} for name, members, lr in groups]
    if config.name == "sgd":
        nesterov = config.momentum > 0
        return torch.optim.SGD(members, momentum=config.momentum, nesterov=nesterov, weight_decay=config.weight_decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.name]
    return kind(members, weight_decay=config.weight_decay)
