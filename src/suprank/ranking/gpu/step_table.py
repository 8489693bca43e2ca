"""A smooth step between bins of scores, as polynomials: the numbers that the Triton kernels of the grid need.

The bins divide δ evenly. A positive k in one bin then has the items on H⁻'s line in all bins from one on, the items on its
sigmoid in all bins below, and only the bin between them is cut in two. So between two bins the step is one smooth function.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.polynomial import chebyshev

from suprank.ranking.steps import Sigmoid, SupStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]

TERMS = 8
WIDEST = 1.67
"""Width of a bin at most, in τ: with 8 terms a sigmoid between two bins is right to 7e−7 of its value, its slope to 3e−6."""

SATURATED = 26.0
"""In τ: σ(−26) = 5e−12, so that a million items beyond it change a sum by 5e−6."""


class StepTable(NamedTuple):
    """A smooth step between bins of one width, as polynomials of the coordinates of source and target."""

    bins_per_score: float  # 1/width
    above: int  # sources so many bins above a target are cut in two by δ, and those further above are on the line
    near: Tensor  # [bins from `above` on down, terms of the source, terms of the value and of the slope at the target]
    cut: Tensor  # [terms, 2 · terms], fewer of them: what an item beyond δ has more than on the sigmoid
    numbers: Tensor  # for the kernels, in float64: 1/width, width, ρ, the line's height at a gap of 0, δ

    def bins(self, score_range: float) -> int:
        """How many bins the scores of a list need. The kernels find an item's bin by the same product."""
        return int(score_range * self.bins_per_score) + 1


@lru_cache(maxsize=64)  # not all of them, as τ may change at every step of a training run
def step_table(step: Sigmoid | SupStep, device: torch.device) -> StepTable:
    """The table of a step.

    Sources below a target and up to `above` bins above it are on the sigmoid, those further above on the line
    ρ(t − δ) + height − jump: the jump at 0 is counted elsewhere. For a sigmoid the line is 1.
    """
    rho, delta, height = (step.rho, step.delta, step.height - step.jump) if isinstance(step, SupStep) else (0.0, 0.0, 1.0)
    tau, inverse, above = step.tau, bins_per_score(step), bins_above(step)
    width = 1 / inverse

    def sigmoid(gap: NDArray[np.float64]) -> NDArray[np.float64]:
        return 1 / (1 + np.exp(-gap / tau))

    def slope(gap: NDArray[np.float64]) -> NDArray[np.float64]:
        return sigmoid(gap) * sigmoid(-gap) / tau

    def both(value: Function, derivative: Function, apart: int, terms: int = TERMS) -> NDArray[np.float64]:
        return np.concatenate([_polynomial(one, apart, width, terms) for one in (value, derivative)], axis=1)

    lowest = -math.ceil(SATURATED * tau * inverse)
    near = np.stack([both(sigmoid, slope, apart) for apart in range(above, lowest - 1, -1)])
    terms = 6 if delta * inverse * WIDEST >= 4 else TERMS
    cut = both(lambda gap: rho * (gap - delta) + height - sigmoid(gap), lambda gap: rho - slope(gap), above, terms)
    numbers = [inverse, width, rho, height - rho * delta, delta]
    return StepTable(
        inverse,
        above,
        torch.tensor(near, dtype=torch.float32, device=device),
        torch.tensor(cut, dtype=torch.float32, device=device),
        torch.tensor(numbers, dtype=torch.float64, device=device),
    )


def bins_per_score(step: Sigmoid | SupStep) -> float:
    """1 over the width of the bins: the widest that the terms can do, and such that they divide δ evenly."""
    above = bins_above(step)
    return above / step.delta if isinstance(step, SupStep) and above else 1 / (WIDEST * step.tau)


def bins_above(step: Sigmoid | SupStep) -> int:
    """How many bins above a target δ is; for a sigmoid, the bins up to where it is 1."""
    return math.ceil((step.delta if isinstance(step, SupStep) else SATURATED * step.tau) / (WIDEST * step.tau))


def _polynomial(function: Function, apart: int, width: float, terms: int) -> NDArray[np.float64]:
    """Coefficients [terms of the source's coordinate, terms of the target's] of a function of the gap between two bins."""
    nodes = chebyshev.chebpts1(terms)
    to_coefficients = np.linalg.inv(np.vander(nodes, increasing=True))
    gap = width * (apart + (nodes[None, :] - nodes[:, None]) / 2)
    return np.asarray(to_coefficients @ function(gap) @ to_coefficients.T)
