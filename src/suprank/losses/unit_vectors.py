"""Embeddings of unit length and their scores, with as few operations as possible: at small batches their number is the time."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from suprank.ranking.fused_batch import fused_unit, fused_unit_gradient, runs_kernels

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

_SHORTEST = 1e-12  # length below which an embedding gets no gradient; torch's own normalize has this bound too
_PLAIN_LENGTHS = 1e-15, 1e15  # between these, squares neither vanish nor overflow in float32


class _SelfScores(torch.autograd.Function):
    """V·Vᵀ in the precision of V. Backward adds its two products in place: one operation less, and no third matrix."""

    @staticmethod
    def forward(ctx: Any, unit: Tensor) -> Tensor:
        ctx.save_for_backward(unit)
        return unit @ unit.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (unit,) = ctx.saved_tensors
        with without_autocast(unit):
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


class _UnitVectors(torch.autograd.Function):
    """v / ‖v‖ and ‖v‖. Backward takes five operations where autograd's takes a dozen, which dominate at small batches."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> tuple[Tensor, Tensor]:
        if runs_kernels(vectors):
            unit, norm = fused_unit(vectors)
        else:
            norm = _lengths(vectors)
            unit = vectors / norm.clamp(min=torch.finfo(norm.dtype).tiny)
        ctx.save_for_backward(unit, norm)  # both are outputs, so that backward can be differentiated
        ctx.set_materialize_grads(False)
        return unit, norm

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_norm: Tensor | None) -> Tensor | None:
        unit, norm = ctx.saved_tensors
        gradient = None
        for_second_derivative = torch.is_grad_enabled()
        if grad is not None and runs_kernels(grad) and not for_second_derivative:
            gradient = fused_unit_gradient(grad, unit, norm, _SHORTEST)
        elif grad is not None:
            along = (grad * unit).sum(-1, keepdim=True)
            # A vector of almost no length gets no gradient, where 1/length would make it explode.
            gradient = torch.addcmul(grad, unit, along, value=-1) / torch.threshold(norm, _SHORTEST, torch.inf)
        if grad_norm is not None:
            gradient = grad_norm * unit if gradient is None else torch.addcmul(gradient, grad_norm, unit)
        return gradient


def _lengths(vectors: Tensor) -> Tensor:
    """L2 norms `[rows, 1]`, right also where squares would vanish (1e-30) or overflow (1e30) in float32, as in `evaluate`.

    Below the smallest normal number (1.2e-38 in float32) a vector counts as the zero vector, which `evaluate` refuses. Squares
    are summed in float64, which a GPU does as fast, and a CPU only where it must: there it takes eight times as long.
    """
    if vectors.device.type == "cpu" and not torch.compiler.is_compiling():  # reading a value costs nothing here
        norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        shortest, longest = torch.aminmax(norm)
        if _PLAIN_LENGTHS[0] < shortest and longest < _PLAIN_LENGTHS[1]:
            return norm
    return torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64).to(vectors.dtype)


def unit_vectors_and_lengths(
    vectors: Float[Tensor, "rows dim"],
) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows 1"]]:
    """`unit_vectors`, and the lengths that they had."""
    unit, norm = _UnitVectors.apply(vectors)
    return unit, norm


def unit_vectors(vectors: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
    """Normalize vectors of float32 or float64 of any length; a zero vector stays as it is, without a gradient."""
    return _UnitVectors.apply(vectors)[0]
