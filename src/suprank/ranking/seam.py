"""Where a fast way to compute something takes the place of the plain one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Algorithm:
    """A way to compute ranks and their gradient, as two functions of tensors. `Ranks(*Ranked.apply(algorithm, ...))` uses it.

        forward(scores, level, relevance, plus, minus, *options, sloped) → [rank⁺, rank⁻, H-rank⁺ if relevance is given], saved
        backward(grads, scores, level, relevance, plus, minus, *options, saved) → the gradient with respect to scores

    `sloped` says whether scores have a gradient, `saved` are tensors for the backward pass, and `grads` the gradients of the
    ranks, None for one that nothing depends on.
    """

    name: str
    forward: Callable[..., tuple[Sequence[Tensor], Sequence[Tensor | None]]]
    backward: Callable[..., Tensor]


class Ranked(torch.autograd.Function):
    """The ranks that an algorithm computes. Under an exact step rank⁺ and H-rank⁺ have no gradient, and rank⁻ one of zeros."""

    @staticmethod
    def forward(
        ctx: Any,
        algorithm: Algorithm,
        options: tuple[Any, ...],
        plus: Any,
        minus: Any,
        scores: Tensor,
        level: Tensor,
        relevance: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ranks, saved = algorithm.forward(scores, level, relevance, plus, minus, *options, sloped=ctx.needs_input_grad[4])
        ctx.save_for_backward(scores, level, relevance, *saved)
        ctx.constants = algorithm, options, plus, minus
        ctx.set_materialize_grads(False)
        if plus.flat:
            ctx.mark_non_differentiable(*ranks[::2])
        return tuple(ranks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, None, None, _Gradient.apply(*ctx.constants, len(grads), *grads, *ctx.saved_tensors), None, None


class _Gradient(torch.autograd.Function):
    """The gradient with respect to scores, as a function of its own only to refuse being differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, algorithm: Algorithm, options: tuple[Any, ...], plus: Any, minus: Any, number: int, *tensors: Any
    ) -> Tensor:
        grads, (scores, level, relevance, *saved) = tensors[:number], tensors[number:]
        ctx.name = algorithm.name
        if plus.flat and minus.flat:
            return torch.zeros_like(scores)
        return algorithm.backward(grads, scores, level, relevance, plus, minus, *options, saved=saved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError(
            f"ranks has no second derivative with using={ctx.name!r}, because backward keeps no graph of the pairs; call "
            f"ranks(..., using='definition') for one, which needs queries × items² memory."
        )
