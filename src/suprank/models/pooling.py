"""Poolings of `[batch, positions, channels]` to one vector; positions are the places of a map, or tokens.

They are computed in float32 whatever the features' type is: a power of 3 overflows float16 from 41 on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

    from suprank.models.config import EmbedderConfig

EPS = 1e-6


class Average(nn.Module):
    """The mean over positions."""

    def forward(self, positions: Float[Tensor, "batch positions channels"]) -> Float[Tensor, "batch channels"]:
        return positions.float().mean(1)


class Maximum(nn.Module):
    """The largest value of each channel."""

    def forward(self, positions: Float[Tensor, "batch positions channels"]) -> Float[Tensor, "batch channels"]:
        return positions.float().amax(1)


class AverageAndMaximum(nn.Module):
    """The sum of the mean and the maximum."""

    def forward(self, positions: Float[Tensor, "batch positions channels"]) -> Float[Tensor, "batch channels"]:
        return positions.float().mean(1) + positions.float().amax(1)


class GeM(nn.Module):
    """Generalized mean: ( mean over positions of max(x, ε)^p )^(1/p), ε = 1e-6 (Radenović et al., 2018).

    p = 1 is the mean of the positive parts, p → ∞ the maximum. Negative values, which transformers have, count as ε. Values are
    divided by the largest of their channel before the power and multiplied by it after, which changes only the range of
    the numbers: nothing overflows at any p.
    """

    p: Tensor

    def __init__(self, power: float = 3.0, *, learnable: bool = True):
        super().__init__()
        if learnable:
            self.p = nn.Parameter(torch.tensor(float(power)))
        else:
            self.register_buffer("p", torch.tensor(float(power)))

    def forward(self, positions: Float[Tensor, "batch positions channels"]) -> Float[Tensor, "batch channels"]:
        p = self.p.float()
        values = positions.float().clamp(min=EPS)
        largest = values.detach().amax(1, keepdim=True)
        return (values / largest).pow(p).mean(1).pow(1 / p) * largest.squeeze(1)


POOLINGS: dict[str, Callable[[EmbedderConfig], nn.Module]] = {
    "avg": lambda config: Average(),
    "max": lambda config: Maximum(),
    "avg+max": lambda config: AverageAndMaximum(),
    "gem": lambda config: GeM(config.gem_power),
    "gem-fixed": lambda config: GeM(config.gem_power, learnable=False),
}
