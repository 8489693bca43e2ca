"""Choose how the exact order is computed."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, cast

from suprank.ranking.exact import plain

if TYPE_CHECKING:
    import torch

    from suprank.ranking.exact.result import Ordering

COMPILE_FROM = 2**24
"""Work from which numba pays on a CPU, a score being 1. It takes 0.6 s to load, and ten to compile on its first use ever."""

POSITIVE_WORK = 16
"""Work of a positive: under plain torch, its sums at two levels take about as long as 16 scores (0.5 µs)."""

OrderingName = Literal["plain", "compiled", "fused"]
"""The ways to compute the exact order: plain torch, numba on a CPU, Triton on a GPU."""

_NEEDS: dict[OrderingName, str] = {"compiled": "numba", "fused": "triton"}


def choose_ordering(
    device: torch.device, scores: int, using: Ordering | OrderingName | None = None, *, positives: float = 0
) -> Ordering:
    """The fastest way to order so many scores: Triton's on CUDA, numba's on a CPU where it is installed, else plain torch.

    `positives` is how many of the scores are those of positives, if their ranks are needed.
    `using` names one instead ("plain", "compiled" or "fused"), or is one.
    """
    if using is not None:
        return _named(using) if isinstance(using, str) else using
    if device.type == "cuda" and find_spec("triton"):
        return _named("fused")
    work = scores + POSITIVE_WORK * positives
    if device.type == "cpu" and work >= COMPILE_FROM and find_spec("numba") and find_spec("threadpoolctl"):
        try:
            return _named("compiled")
        except ImportError as error:  # numba refuses a numpy newer than it knows
            warnings.warn(f"numba is installed but cannot be used, so evaluation takes longer: {error}", stacklevel=2)
    return cast("Ordering", plain)


def _named(name: str) -> Ordering:
    if name == "plain":
        return cast("Ordering", plain)
    if name not in _NEEDS:
        raise ValueError(f"using={name!r} is not a way to order; choose from 'plain', {', '.join(map(repr, _NEEDS))}.")
    if not find_spec(_NEEDS[name]):
        raise ModuleNotFoundError(
            f"using={name!r} needs {_NEEDS[name]}, which is not installed; leave `using` out, or use 'plain'.",
            name=_NEEDS[name],
        )
    module = "suprank.ranking.gpu.exact" if name == "fused" else f"suprank.ranking.exact.{name}"
    return cast("Ordering", import_module(module))
