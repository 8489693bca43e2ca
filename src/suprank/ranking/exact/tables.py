"""Sums that depend on a place alone, looked up instead of added again for every query."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def harmonic(upto: int, device: torch.device) -> Tensor:
    """Hm(n) = Σ_{i=1..n} 1/i for n = 0..upto at least, in float64."""
    return _tables(_rounded(upto), device)[0]


def discount(upto: int, device: torch.device) -> Tensor:
    """1 / log2(1 + n) for n = 0..upto at least, in float64; the entry 0, which is no place, is 0."""
    return _tables(_rounded(upto), device)[1]


def ideal_discount(upto: int, device: torch.device) -> Tensor:
    """Σ_{i=1..n} 1 / log2(1 + i) for n = 0..upto at least, in float64."""
    return _tables(_rounded(upto), device)[2]


def _rounded(upto: int) -> int:
    """The next power of two, so that lists of about one length share their tables."""
    return 1 << max(10, int(upto).bit_length())


@lru_cache(maxsize=4)
def _tables(size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    place = torch.arange(size + 1, dtype=torch.float64, device="cpu")
    inverse = 1 / place
    inverse[0] = 0
    discounts = 1 / torch.log2(1 + place)
    discounts[0] = 0
    return inverse.cumsum(0).to(device), discounts.to(device), discounts.cumsum(0).to(device)
