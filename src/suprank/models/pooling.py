"""Places → one vector: the poolings, all on `[batch, places, channels]`, whether the places are of a map or tokens.

They are computed in float32 whatever the features are in: a power of 3 overflows float16 from 41 on.
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
    """The mean over places."""

    def forward(self, places: Float[Tensor, "batch places channels"]) -> Float[Tensor, "batch channels"]:
        return places.float().mean(1)


class Maximum(nn.Module):
    """The largest value of each channel."""

    def forward(self, places: Float[Tensor, "batch places channels"]) -> Float[Tensor, "batch channels"]:
        return places.float().amax(1)


class AverageAndMaximum(nn.Module):
    """The sum of the mean and the maximum."""

    def forward(self, places: Float[Tensor, "batch places channels"]) -> Float[Tensor, "batch channels"]:
        return places.float().mean(1) + places.float().amax(1)


class GeM(nn.Module):
    """Generalized mean: ( mean over places of max(x, ε)^p )^(1/p), ε = 1e-6 (Radenović et al., 2018).

    p = 1 is the mean of what is positive, p → ∞ the maximum. Negative values, as transformers have, count as ε. Values are
    divided by the largest of their channel before the power and multiplied by it after, which changes nothing but the range of
    numbers: no overflow at any p.
    """

    p: Tensor

    def __init__(self, power: float = 3.0, *, learnable: bool = True):
        super().__init__()
        if learnable:
            self.p = nn.Parameter(torch.tensor(float(power)))
        else:
            self.register_buffer("p", torch.tensor(float(power)))

    def forward(self, places: Float[Tensor, "batch places channels"]) -> Float[Tensor, "batch channels"]:
        p = self.p.float()
        values = places.float().clamp(min=EPS)
        largest = values.detach().amax(1, keepdim=True)
        return (values / largest).pow(p).mean(1).pow(1 / p) * largest.squeeze(1)


POOLINGS: dict[str, Callable[[EmbedderConfig], nn.Module]] = {
    "avg": lambda config: Average(),
    "max": lambda config: Maximum(),
    "avg+max": lambda config: AverageAndMaximum(),
    "gem": lambda config: GeM(config.gem_power),
    "gem-fixed": lambda config: GeM(config.gem_power, learnable=False),
}
