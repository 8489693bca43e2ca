"""Where a fast way to compute something takes the place of the plain one: the only place that knows of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from suprank.ranking.steps import Step

P = ParamSpec("P")
R = TypeVar("R")
Grads = Sequence[Tensor | None]
Saved = Sequence[Any]

DEVICES = {"cuda"} if torch.version.cuda is not None and find_spec("triton") is not None else set()
"""The kinds of devices whose tensors the kernels take: a CUDA build of torch brings Triton along, except on Windows."""

transforming = torch._C._are_functorch_transforms_active
"""Whether torch.func transforms what is computed now: then all must be plain operations. torch.compile cannot trace this."""

_KERNELS: dict[str, Callable[..., Any]] = {}


def with_kernels(plain: Callable[P, R], *, compiled: bool = False) -> Callable[P, R]:
    """Compute what `plain` says by the function of its name in `suprank.ranking.gpu`, where kernels take its first argument.

    They take integers and float32 on a GPU. Under torch.compile, which fuses plain operations itself, they are left out, unless
    they are `compiled` too: made of operators that it accepts. torch.func transforms plain operations only.
    """

    @wraps(plain)
    def chosen(*arguments: P.args, **options: P.kwargs) -> R:
        values: Any = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
        taken = values.device.type in DEVICES and (values.dtype == torch.float32 or not values.dtype.is_floating_point)
        if taken and (compiled if torch.compiler.is_compiling() else not transforming()):
            return _KERNELS[plain.__name__](plain, *arguments, **options)
        return plain(*arguments, **options)

    return chosen


def by_kernels(fast: Callable[..., R]) -> Callable[..., R]:
    """Let this function stand for the plain one of its name. It is given that one first, for what its kernels cannot do."""
    _KERNELS[fast.__name__] = fast
    return fast


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
        plus: Step,
        minus: Step,
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
        ctx: Any, algorithm: Algorithm, options: tuple[Any, ...], plus: Step, minus: Step, number: int, *tensors: Any
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
