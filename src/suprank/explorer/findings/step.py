"""The step that a run's loss replaces the Heaviside function by, and its derivative, to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from suprank.ranking import Sigmoid, SupStep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

BOUNDED = ("roadmap", "rod-recall", "happier", "rod-ndcg")
"""Losses of the paper that combine a bound with a decomposability loss; the others that have H⁻ begin with `sup-`."""


@dataclass(frozen=True, eq=False)
class StepCurve:
    """A step by the gap t = s_j − s_k, and its derivative. `jumps` are the gaps at which it is not continuous."""

    gap: NDArray[np.float64]
    value: NDArray[np.float64]
    derivative: NDArray[np.float64]
    jumps: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class StepFinding:
    """Which loss, its parameters, H⁻ (None for a loss that has only sigmoids) and the sigmoid of the same τ beside it.

    `bounds` tells whether H⁻ is a bound of the Heaviside step everywhere, so that the loss bounds its metric.
    """

    loss: str
    parameters: dict[str, float | None]
    bound: StepCurve | None
    sigmoid: StepCurve
    bounds: bool


def step(recipe: Mapping[str, Any] | None, points: int = 601) -> StepFinding | None:
    """The step of a recipe's loss; None without a recipe, and for a loss that ranks by no step, such as a proxy loss.

    The grid reaches beyond δ on both sides, and holds 0 and δ and the numbers next to them, so that jumps are drawn upright.
    """
    loss = dict((recipe or {}).get("loss", {}))
    name = str(loss.get("name", ""))
    bounded = name in BOUNDED or name.startswith("sup-")
    if not bounded and not name.startswith("smooth-"):
        return None
    tau = float(loss.get("tau", SupStep.tau))
    sigmoid = Sigmoid(tau)
    if not bounded:
        return StepFinding(name, {"tau": tau}, None, _curve(sigmoid, _grid(6 * tau, points), ()), False)
    given = {entry: loss[entry] for entry in ("rho", "delta", "jump", "value_at_delta") if loss.get(entry) is not None}
    bound = SupStep(tau=tau, **given)
    grid = _grid(max(2 * bound.delta, 6 * tau), points, 0.0, bound.delta)
    above = np.nextafter(bound.delta, np.inf)
    drop = abs(float(bound(torch.tensor(above)) - bound(torch.tensor(bound.delta, dtype=torch.float64)))) > 1e-9
    jumps = (*((0.0,) if bound.jump else ()), *((bound.delta,) if drop else ()))
    parameters = {
        "tau": tau,
        "rho": bound.rho,
        "delta": bound.delta,
        "jump": bound.jump,
        "value_at_delta": bound.value_at_delta,
    }
    return StepFinding(name, parameters, _curve(bound, grid, jumps), _curve(sigmoid, grid, ()), bound.bounds_heaviside)


def _grid(reach: float, points: int, *corners: float) -> NDArray[np.float64]:
    beside = [side for corner in corners for side in (np.nextafter(corner, -np.inf), corner, np.nextafter(corner, np.inf))]
    return np.unique(np.concatenate([np.linspace(-reach, reach, points), beside]))


def _curve(step: Sigmoid | SupStep, grid: NDArray[np.float64], jumps: tuple[float, ...]) -> StepCurve:
    gap = torch.from_numpy(grid)
    return StepCurve(grid, step(gap).numpy(), step.derivative(gap).numpy(), jumps)
