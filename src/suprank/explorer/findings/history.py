"""What a run measured while it trained, from metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.explorer.source import Source

RATE = "learning rate/"


@dataclass(frozen=True, eq=False)
class Curve:
    """Values by step and by epoch (with a fraction), in the order of steps; NaN where a value was not finite."""

    steps: NDArray[np.int64]
    epochs: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class History:
    """Losses (`loss` first), learning rates by group, and metrics of this test set by key; other values."""

    losses: dict[str, Curve]
    rates: dict[str, Curve]
    metrics: dict[str, Curve]
    others: dict[str, Curve]


NOT_LOSSES = ("images per second", "broken images replaced", "gradient norm", "queries_without_positives", "triplets")
"""How values of a step are called that are no losses, or how their names end where there is one for each level."""


def history(source: Source) -> History | None:
    """The curves of a run; None for a folder of embeddings, and of a run that has written nothing."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for line in source.curves or ():
        for name, value in line.items():
            if name not in ("step", "epoch", "time") and (value is None or isinstance(value, int | float)):
                number = float("nan") if value is None else float(value)
                found.setdefault(name, []).append((line["step"], float(line.get("epoch") or 0), number))
    if not found:
        return None
    curves = {name: _curve(rows) for name, rows in found.items()}
    sets = [source.test, *(source.recipe or {}).get("data", {}).get("tests", {}), "test"]
    metrics = {name.removeprefix(f"{source.test}/"): one for name, one in curves.items() if name.startswith(f"{source.test}/")}
    rates = {name.removeprefix(RATE): one for name, one in curves.items() if name.startswith(RATE)}
    judged = [name for name in curves if name.startswith((RATE, *(f"{one}/" for one in sets)))]
    rest = {name: one for name, one in curves.items() if name not in judged}
    losses = {name: one for name, one in rest.items() if not name.endswith(NOT_LOSSES) and "/" not in name}
    first = {"loss": losses.pop("loss")} if "loss" in losses else {}
    others = {name: one for name, one in rest.items() if name not in losses and name not in first}
    return History({**first, **losses}, rates, metrics, others)


def _curve(rows: list[tuple[int, float, float]]) -> Curve:
    steps, epochs, values = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
    return Curve(np.array(steps, np.int64), np.array(epochs), np.array(values))
