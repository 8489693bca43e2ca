"""The optimizers of the network and of the proxies. Their learning rates are a function of the position in training."""

from __future__ import annotations

from math import cos, pi
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from suprank.training.config import OptimizerConfig, ScheduleConfig


def learning_rate(config: ScheduleConfig, base_lr: float, position: float, epochs: int, step: float) -> float:
    """The learning rate of the step that begins after `position` epochs and takes `step` of one.

    In the first `warmup_epochs` it rises linearly, and reaches `base_lr` with their last step. Then

        cosine    m + (base_lr − m)·(1 + cos π·t) / 2,    m = min(min_lr, base_lr), t the share of the other epochs that is over
        steps     base_lr · gamma^(milestones reached)
    """
    if position < config.warmup_epochs:
        return base_lr * min((position + step) / config.warmup_epochs, 1.0)
    if config.schedule == "cosine":
        share = (position - config.warmup_epochs) / max(epochs - config.warmup_epochs, step)
        min_lr = min(config.min_lr, base_lr)
        return min_lr + (base_lr - min_lr) * (1 + cos(pi * share)) / 2
    if config.schedule == "steps":
        return base_lr * config.gamma ** sum(position >= milestone for milestone in config.milestones)
    return base_lr


def network_optimizer(config: OptimizerConfig, groups: Mapping[str, Sequence[nn.Parameter]]) -> Optimizer:
    """One optimizer for the backbone and the head, with a parameter group for each that has parameters."""
    base_lr = {"backbone": config.lr, "head": config.lr if config.head_lr is None else config.head_lr}
    return _optimizer(config, [(name, list(members), base_lr[name]) for name, members in groups.items() if members])


def proxies_optimizer(config: ScheduleConfig, parameters: Sequence[nn.Parameter]) -> Optimizer | None:
    """The optimizer of the loss's own parameters; None if it has none."""
    return _optimizer(config, [("proxies", list(parameters), config.lr)]) if parameters else None


def set_learning_rates(
    optimizer: Optimizer, config: ScheduleConfig, position: float, epochs: int, step: float
) -> dict[str, float]:
    """Set the learning rate of every parameter group for a step (see `learning_rate`), and return the rates by group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(config, group["base_lr"], position, epochs, step)
    return {group["name"]: group["lr"] for group in optimizer.param_groups}


def _optimizer(config: ScheduleConfig, groups: list[tuple[str, list[nn.Parameter], float]]) -> Optimizer:
    members = [{"params": members, "lr": lr, "base_lr": lr, "name": name} for name, members, lr in groups]
    if config.name == "sgd":
        nesterov = config.momentum > 0
        return torch.optim.SGD(members, momentum=config.momentum, nesterov=nesterov, weight_decay=config.weight_decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.name]
    return kind(members, weight_decay=config.weight_decay)
