"""Matrix products in float32 whose entries depend on their two vectors alone, not on where these stand in the matrix."""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

TILE = 64
"""Rows and columns of a product come in whole tiles. The edge of a product is computed by other code, which adds in another
order: two copies of an image would score differently, depending on where they stand in the gallery."""


def write_product(queries: Tensor, items: Tensor, out: Tensor) -> None:
    """Write queries · itemsᵀ to `out`; the numbers of rows must be multiples of `TILE`."""
    if queries.device.type == "cpu":
        _cpu_product(queries.shape[1])(queries, items, out)
    else:
        _torch_product(queries, items, out)


def round_up(number: int, tile: int) -> int:
    """The next multiple of `tile`."""
    return -(-number // tile) * tile


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply in float32 whatever precision the caller has set: tf32 makes ties and swaps near neighbors."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _numpy_product(queries: Tensor, items: Tensor, out: Tensor) -> None:
    np.matmul(queries.numpy(), items.numpy().T, out=out.numpy())


def _torch_product(queries: Tensor, items: Tensor, out: Tensor) -> None:
    with full_precision():
        torch.mm(queries, items.T, out=out)


@lru_cache
def _cpu_product(dim: int) -> Callable[[Tensor, Tensor, Tensor], None]:
    """numpy's product, which we measured to be twice as fast as torch's, unless it scores copies of a vector differently.

    Whole tiles prevent that with numpy's BLAS (OpenBLAS) on processors with AVX-512, but not on all others, so we try it.
    """
    pairs = torch.randn(16, 2, 1, dim, generator=torch.Generator().manual_seed(0))
    for multiply in (_numpy_product, _torch_product):
        different = 0
        for (one, other), tiles in zip(pairs, [1] * 12 + [9] * 4, strict=True):
            scores = torch.empty(TILE, tiles * TILE)
            multiply(one.repeat(TILE, 1), other.repeat(tiles * TILE, 1), scores)
            different += int((scores != scores[0, 0]).sum())
        if not different:
            return multiply
    return _numpy_product
