"""Which of the ways to find places to take."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from suprank.ranking.exact import plain

if TYPE_CHECKING:
    import torch

    from suprank.ranking.exact.result import Ordering

COMPILE_FROM = 2**24
"""Scores from which numba pays on a CPU: its first use compiles for some seconds, in which plain torch is done with fewer."""


def ordering_for(device: torch.device, scores: int) -> Ordering:
    """The fastest way to judge so many scores: Triton's on CUDA, numba's on a CPU where it is installed, else plain torch."""
    if device.type == "cuda" and find_spec("triton"):
        from suprank.ranking.exact import fused

        return cast("Ordering", fused)
    if device.type == "cpu" and scores >= COMPILE_FROM and find_spec("numba") and find_spec("threadpoolctl"):
        try:
            from suprank.ranking.exact import compiled
        except ImportError as error:  # numba refuses a numpy newer than it knows
            warnings.warn(f"numba is installed but cannot be used, so evaluation takes longer: {error}", stacklevel=2)
        else:
            return cast("Ordering", compiled)
    return cast("Ordering", plain)
