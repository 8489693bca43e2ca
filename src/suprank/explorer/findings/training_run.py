"""The logged curves of a training run."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.files.atomic import own_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import RetrievalData


class Curve(NamedTuple):
    """Values over (fractional) epochs, in the order of steps; NaN for a value that was not finite."""

    epochs: NDArray[np.float64]
    values: NDArray[np.float64]


class History(NamedTuple):
    """The loss of the batches, None if it was not logged, and the metrics of this test set by key."""

    loss: Curve | None
    metrics: dict[str, Curve]


def training_history(data: RetrievalData) -> History | None:
    """The logged curves of a run; None for a folder of embeddings, or for a run that has logged nothing."""
    lines = sorted(read_log(data), key=lambda line: line["step"])
    names = dict.fromkeys(name for line in lines for name in line if name not in ("step", "epoch", "time"))
    if not names:
        return None
    of_test = f"{data.origin.test}/"
    metrics = {name.removeprefix(of_test): _curve(lines, name) for name in names if name.startswith(of_test)}
    return History(_curve(lines, "loss") if "loss" in names else None, metrics)


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


def _curve(lines: list[dict[str, Any]], name: str) -> Curve:
    logged = [(line.get("epoch") or 0, line[name]) for line in lines if isinstance(line.get(name, ""), int | float | None)]
    epochs, values = np.array(logged, float).reshape(-1, 2).T  # None becomes NaN
    return Curve(epochs, values)
