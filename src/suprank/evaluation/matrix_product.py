"""Matrix products in float32 whose entries depend on their two vectors alone, not on where these stand in the matrix."""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

TILE = 64
"""Rows and columns of a product come in whole tiles. The edge of a product is computed by other code, which adds in another
order: two copies of an image would score differently, depending on where they stand in the gallery."""


def product(queries: Tensor, items: Tensor, out: Tensor) -> Tensor:
    """queries · itemsᵀ, in `out` or, if the library that multiplies takes no such argument, in memory of its own.

    The numbers of rows must be multiples of `TILE`.
    """
    multiply = _cpu_product(queries.shape[1]) if queries.device.type == "cpu" else _torch_product
    return multiply(queries, items, out)


def write_product(queries: Tensor, items: Tensor, out: Tensor) -> None:
    """Write `product` to `out`."""
    found = product(queries, items, out)
    if found is not out:
        np.copyto(out.numpy(), found.numpy())  # numpy's operations stay in the calling thread


def round_up(number: int, tile: int) -> int:
    """The next multiple of `tile`."""
    return -(-number // tile) * tile


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply in float32 whatever precision the caller has set: tf32 makes ties and swaps near neighbors."""
    products: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    if not all(hasattr(product, "fp32_precision") for product in products):  # torch before 2.9
        with _highest_matmul_precision():
            yield
        return
    # Asking for torch's one setting for all devices would fail if the caller has set one of these two.
    reduced = [(product, product.fp32_precision) for product in products if product.fp32_precision not in ("none", "ieee")]
    for product, _ in reduced:
        product.fp32_precision = "ieee"
    try:
        yield
    finally:
        for product, before in reduced:
            product.fp32_precision = before


@contextmanager
def _highest_matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _numpy_product(queries: Tensor, items: Tensor, out: Tensor) -> Tensor:
    np.matmul(queries.numpy(), items.numpy().T, out=out.numpy())
    return out


def _onednn_product(queries: Tensor, items: Tensor, out: Tensor) -> Tensor:
    with full_precision():
        return torch.ops.mkldnn._linear_pointwise(queries, items, None, "none", [], "")


def _torch_product(queries: Tensor, items: Tensor, out: Tensor) -> Tensor:
    with full_precision():
        return torch.mm(queries, items.T, out=out)


@lru_cache
def _cpu_product(dim: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The first of these products that scores copies of a vector alike, in products of any size.

    numpy's (OpenBLAS) does so on processors for which it has AVX-512 code, which leaves out AMD's. There oneDNN, which torch
    brings along, has such code: on an AMD EPYC (Zen 5) it computes 250 GFLOP/s on one core, numpy 135, and torch.mm (MKL) 110.
    """
    for multiply in (_numpy_product, _onednn_product, _torch_product):
        if _scores_copies_alike(multiply, dim):
            return multiply
    return _numpy_product


def _scores_copies_alike(multiply: Callable[[Tensor, Tensor, Tensor], Tensor], dim: int) -> bool:
    for one, other in torch.randn(16, 2, 1, dim, generator=torch.Generator().manual_seed(0)):
        found = []
        for tiles in (1, 9):
            try:
                product = multiply(one.repeat(TILE, 1), other.repeat(tiles * TILE, 1), torch.empty(TILE, tiles * TILE))
            except (AttributeError, RuntimeError):  # a torch without oneDNN, or with another signature
                return False
            found.append(product)
        if any((scores != found[0][0, 0]).any() for scores in found):
            return False
    return True
