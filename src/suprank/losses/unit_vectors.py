"""Embeddings of unit length and their scores, with as few operations as possible: at small batches their number is the time."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from suprank.ranking.seam import with_kernels

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

_SHORTEST = 1e-12  # length below which an embedding gets no gradient; torch's own normalize has this bound too
_PLAIN_LENGTHS = 1e-15, 1e15  # between these, squares neither vanish nor overflow in float32


class _SelfScores(torch.autograd.Function):
    """V·Vᵀ in the precision of V. Backward adds its two products in place: one operation less, and no third matrix.

    On a CPU, where a product takes long, it multiplies once, with G + Gᵀ.
    """

    @staticmethod
    def forward(ctx: Any, unit: Tensor) -> Tensor:
        ctx.save_for_backward(unit)
        return unit @ unit.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (unit,) = ctx.saved_tensors
        with without_autocast(unit):
            if unit.device.type == "cpu":
                return (grad + grad.T) @ unit
            return (grad @ unit).addmm_(grad.T, unit)


def self_scores(unit: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows rows"]:
    """The scores of unit vectors among each other, in their precision."""
    with without_autocast(unit):
        return _SelfScores.apply(unit)


def without_autocast(values: Tensor) -> AbstractContextManager[Any]:
    """Within this context products of matrices keep their precision. Where autocast is off, that takes no time."""
    device = values.device.type
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


class UnitVectors(torch.autograd.Function):
    """v / ‖v‖ and ‖v‖. Backward takes five operations where autograd's takes a dozen, which dominate at small batches."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> tuple[Tensor, Tensor]:
        vectors, norm = unit(vectors)
        ctx.save_for_backward(vectors, norm)  # both are outputs, so that backward can be differentiated
        ctx.set_materialize_grads(False)
        return vectors, norm

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_norm: Tensor | None) -> Tensor | None:
        vectors, norm = ctx.saved_tensors
        gradient = None if grad is None else unit_gradient(grad, vectors, norm, _SHORTEST)
        if grad_norm is not None:
            gradient = grad_norm * vectors if gradient is None else torch.addcmul(gradient, grad_norm, vectors)
        return gradient


@with_kernels
def unit(vectors: Float[Tensor, "rows dim"]) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows 1"]]:
    """v / ‖v‖ and ‖v‖, right also where squares would vanish (1e-30) or overflow (1e30) in float32, as in `evaluate`.

    Below the smallest normal number (1.2e-38 in float32) a vector counts as the zero vector, which `evaluate` refuses. Squares
    are summed in float64, which a GPU does as fast, and a CPU only where it must: there it takes eight times as long.
    """
    norm = None
    if vectors.device.type == "cpu" and not torch.compiler.is_compiling():  # reading a value costs nothing here
        norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        shortest, longest = torch.aminmax(norm)
        if not (_PLAIN_LENGTHS[0] < shortest and longest < _PLAIN_LENGTHS[1]):
            norm = None
    if norm is None:
        norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64).to(vectors.dtype)
    return vectors / norm.clamp(min=torch.finfo(norm.dtype).tiny), norm


@with_kernels
def unit_gradient(
    grad: Float[Tensor, "rows dim"], unit: Float[Tensor, "rows dim"], norm: Float[Tensor, "rows 1"], shortest: float
) -> Float[Tensor, "rows dim"]:
    """The gradient with respect to v of a function of v / ‖v‖. A vector of almost no length gets none: 1/‖v‖ would explode."""
    along = (grad * unit).sum(-1, keepdim=True)
    return torch.addcmul(grad, unit, along, value=-1) / torch.threshold(norm, shortest, torch.inf)


def unit_vectors_and_lengths(
    vectors: Float[Tensor, "rows dim"],
) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows 1"]]:
    """`unit_vectors`, and the lengths that they had."""
    unit, norm = UnitVectors.apply(vectors)
    return unit, norm


def unit_vectors(vectors: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
    """Normalize vectors of float32 or float64 of any length; a zero vector stays as it is, without a gradient."""
    return UnitVectors.apply(vectors)[0]
