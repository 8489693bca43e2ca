"""The logged curves of a training run, and the step function of its loss."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.files.atomic import own_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.ranking import Sigmoid, SupStep


RATE = "learning rate/"


@dataclass(frozen=True, eq=False)
class Curve:
    """Values by step and (fractional) epoch, in the order of steps; NaN for a value that was not finite."""

    steps: NDArray[np.int64]
    epochs: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class History:
    """Losses (`loss` first), learning rates by parameter group, metrics of this test set by key, and other values."""

    losses: dict[str, Curve]
    rates: dict[str, Curve]
    metrics: dict[str, Curve]
    others: dict[str, Curve]


NOT_LOSSES = (
    "images per second",
    "broken images replaced",
    "gradient norm",
    "gradient norm of proxies",
    "queries_without_positives",
    "triplets",
)
"""Names of logged values that are not losses, or the endings of such names if there is one per level."""


def training_history(data: RetrievalData) -> History | None:
    """The logged curves of a run; None for a folder of embeddings, or for a run that has logged nothing."""
    rows_by_name: dict[str, list[tuple[int, float, float]]] = {}
    for line in read_log(data):
        for name, value in line.items():
            if name not in ("step", "epoch", "time") and (value is None or isinstance(value, int | float)):
                number = float("nan") if value is None else float(value)
                rows_by_name.setdefault(name, []).append((line["step"], float(line.get("epoch") or 0), number))
    if not rows_by_name:
        return None
    curves = {name: _logged_curve(rows) for name, rows in rows_by_name.items()}
    test = data.origin.test
    tests = [test, *(data.origin.recipe or {}).get("data", {}).get("tests", {}), "test"]
    metrics = {name.removeprefix(f"{test}/"): curve for name, curve in curves.items() if name.startswith(f"{test}/")}
    rates = {name.removeprefix(RATE): curve for name, curve in curves.items() if name.startswith(RATE)}
    known = [name for name in curves if name.startswith((RATE, *(f"{test}/" for test in tests)))]
    rest = {name: curve for name, curve in curves.items() if name not in known}
    losses = {name: curve for name, curve in rest.items() if not name.endswith(NOT_LOSSES) and "/" not in name}
    first = {"loss": losses.pop("loss")} if "loss" in losses else {}
    others = {name: curve for name, curve in rest.items() if name not in losses and name not in first}
    return History({**first, **losses}, rates, metrics, others)


def read_log(data: RetrievalData) -> list[dict[str, Any]]:
    """The complete lines of a run's metrics.jsonl; the last one may be half written. None for what is no run."""
    origin = data.origin
    file = own_file(origin.place / "metrics.jsonl") if origin.recipe is not None and origin.place is not None else None
    lines = []
    for line in file.read_bytes().splitlines() if file is not None and file.is_file() else ():
        with suppress(ValueError):
            entries = json.loads(line)
            if isinstance(entries, dict) and isinstance(entries.get("step"), int):
                lines.append(entries)
    return lines


def _logged_curve(rows: list[tuple[int, float, float]]) -> Curve:
    steps, epochs, values = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
    return Curve(np.array(steps, np.int64), np.array(epochs), np.array(values))


BOUNDED = ("roadmap", "rod-recall", "happier", "rod-ndcg")
"""Losses of the paper that combine an upper bound with a decomposability loss; other losses with H⁻ start with `sup-`."""


@dataclass(frozen=True, eq=False)
class StepCurve:
    """A step function of the gap t = s_j − s_k and its derivative; it is discontinuous at the gaps `jumps`."""

    gap: NDArray[np.float64]
    value: NDArray[np.float64]
    derivative: NDArray[np.float64]
    jumps: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class LossStep:
    """A loss, its parameters, its H⁻ (None for a loss with only sigmoids), and the sigmoid with the same τ.

    `is_bound` says whether H⁻ is at least the Heaviside step everywhere, so that the loss bounds its metric.
    """

    loss: str
    parameters: dict[str, float | None]
    upper_bound: StepCurve | None
    sigmoid: StepCurve
    is_bound: bool


def loss_step(recipe: Mapping[str, Any] | None, points: int = 601) -> LossStep | None:
    """The step function of a recipe's loss; None without a recipe, or for a loss without a step, such as a proxy loss.

    The grid extends past δ on both sides and contains 0, δ and the floats next to them, so that jumps are drawn vertically.
    """
    loss = dict((recipe or {}).get("loss", {}))
    name = str(loss.get("name", ""))
    bounded = name in BOUNDED or name.startswith("sup-")
    if not bounded and not name.startswith("smooth-"):
        return None
    import torch  # when it is used: the explorer page opens without it

    from suprank.ranking import Sigmoid, SupStep

    tau = float(loss.get("tau", SupStep.tau))
    sigmoid = Sigmoid(tau)
    if not bounded:
        return LossStep(name, {"tau": tau}, None, _step_curve(sigmoid, _grid(6 * tau, points), ()), False)
    arguments = {key: loss[key] for key in ("rho", "delta", "jump", "value_at_delta") if loss.get(key) is not None}
    bound = SupStep(tau=tau, **arguments)
    grid = _grid(max(2 * bound.delta, 6 * tau), points, 0.0, bound.delta)
    above = np.nextafter(bound.delta, np.inf)
    jumps_at_delta = abs(float(bound(torch.tensor(above)) - bound(torch.tensor(bound.delta, dtype=torch.float64)))) > 1e-9
    jumps = (*((0.0,) if bound.jump else ()), *((bound.delta,) if jumps_at_delta else ()))
    parameters = {
        "tau": tau,
        "rho": bound.rho,
        "delta": bound.delta,
        "jump": bound.jump,
        "value_at_delta": bound.value_at_delta,
    }
    return LossStep(name, parameters, _step_curve(bound, grid, jumps), _step_curve(sigmoid, grid, ()), bound.bounds_heaviside)


def _grid(reach: float, points: int, *corners: float) -> NDArray[np.float64]:
    around = [gap for corner in corners for gap in (np.nextafter(corner, -np.inf), corner, np.nextafter(corner, np.inf))]
    return np.unique(np.concatenate([np.linspace(-reach, reach, points), around]))


def _step_curve(step: Sigmoid | SupStep, grid: NDArray[np.float64], jumps: tuple[float, ...]) -> StepCurve:
    import torch

    gap = torch.from_numpy(grid)
    return StepCurve(grid, step(gap).numpy(), step.derivative(gap).numpy(), jumps)
