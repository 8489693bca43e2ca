"""Ranks on a GPU: Triton kernels that write nothing larger than queries × items, behind an operator torch.compile accepts."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from suprank.ranking.gpu import pair_kernels as kernels
from suprank.ranking.ranks.definition import Ranks
from suprank.ranking.ranks.dispatch import IMPLEMENTATIONS
from suprank.ranking.seam import Algorithm, Ranked
from suprank.ranking.steps import Heaviside, Sigmoid, SupStep, heaviside

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

    from suprank.ranking.seam import Grads, Saved
    from suprank.ranking.steps import Step

SATURATED = 25.0
"""1 − σ(25) = 1.4e−11: from τ times this on, a sigmoid counts as 1. A million such items change a rank by 1e−5."""

# Tiles: the best of `python benchmarks/kernels.py tiles` on one H200.
FORWARD = {"BLOCK_K": 8, "BLOCK_J": 64, "num_warps": 2}
BACKWARD = {"BLOCK_K": 4, "BLOCK_J": 256, "num_warps": 2}
_COMPILED = isinstance(kernels.forward, triton.JITFunction)  # not run by Triton's interpreter, which is for tests
_PROGRAMS = 16384  # forward programs to spread the positives over


def fused(
    scores: Float[Tensor, "queries items"],
    level: Shaped[Tensor, "queries items"],
    relevance: Float[Tensor, "queries items"] | None = None,
    *,
    plus: Step = heaviside,
    minus: Step = SupStep(),
) -> Ranks:
    """Ranks as in `definition`, for float32 scores and the steps that `runs_fused` accepts.

    Two runs give the same bits. There is no second derivative.
    """
    if not runs_fused(scores, plus, minus):
        raise ValueError(
            f"fused ranks need float32 scores and steps out of (heaviside | Sigmoid, heaviside | Sigmoid | SupStep), not "
            f"{scores.dtype} with {plus} and {minus}; leave `using` out, and an implementation that fits is chosen."
        )
    if scores.device.type == "cpu" and _COMPILED:
        raise ValueError("fused ranks need a GPU, and the scores are on the CPU; leave `using` out, or use 'gridded'.")
    if not (level.dtype.is_signed or level.dtype.is_floating_point):
        level = level.to(torch.int32)  # the kernels mark what is out of the list by −1
    weights = None if relevance is None else relevance.detach().to(scores.dtype).contiguous()
    return Ranks(*Ranked.apply(_FUSED, _encoded(plus, minus), plus, minus, scores.contiguous(), level.contiguous(), weights))


IMPLEMENTATIONS["fused"] = fused


def runs_fused(scores: Tensor, plus: Step, minus: Step) -> bool:
    """Whether the kernels know these steps and this dtype (they are float32 throughout)."""
    return (
        scores.dtype == torch.float32
        and isinstance(plus, Heaviside | Sigmoid)
        and isinstance(minus, Heaviside | Sigmoid | SupStep)
    )


def _encoded(plus: Step, minus: Step) -> tuple[list[bool], list[float]]:
    """(SMOOTH, SUP, SHARED) and (1/τ⁺, 1/τ⁻, ρ, δ, jump, height); a sigmoid is an H⁻ that ends in a flat line at 1."""
    plus_tau = plus.tau if isinstance(plus, Sigmoid) else math.inf
    minus_tau, line = math.inf, [0.0, 0.0, 0.0, 0.0]
    if isinstance(minus, SupStep):
        minus_tau, line = minus.tau, [minus.rho, minus.delta, minus.jump, minus.height]
    elif isinstance(minus, Sigmoid):
        minus_tau, line = minus.tau, [0.0, SATURATED * minus.tau, 0.0, 1.0]
    kinds = [not plus.flat, not minus.flat, plus_tau == minus_tau and not plus.flat]
    return kinds, [1 / plus_tau, 1 / minus_tau, *line]


def _fused_ranks(
    scores: Tensor, level: Tensor, relevance: Tensor | None, plus: Step, minus: Step, *encoded: Any, sloped: bool
) -> tuple[list[Tensor], Saved]:
    outputs = torch.ops.suprank.ranks(scores, level, relevance, *encoded, sloped)
    results = 2 if relevance is None else 3
    return outputs[:results], outputs[results:]


def _fused_gradient(
    grads: Grads, scores: Tensor, level: Tensor, relevance: Tensor | None, plus: Step, minus: Step, *encoded: Any, saved: Saved
) -> Tensor:
    known = [*grads, *(None,) * (3 - len(grads)), scores, level, relevance]
    return torch.ops.suprank.ranks_gradient(*encoded, *known, saved)


_FUSED = Algorithm("fused", _fused_ranks, _fused_gradient)

# Two operators, opaque to torch.compile, which needs to know only the shapes. Plain `Library` definitions, as `Ranked` already
# says how to differentiate them. Everything they return lies on the device of the scores: of one tensor
# on the host, torch.compile's CUDA graphs would keep the whole list, and then refuse it.

_library = torch.library.Library("suprank", "FRAGMENT")
_library.define("ranks(Tensor scores, Tensor level, Tensor? relevance, bool[] kinds, float[] numbers, bool sloped) -> Tensor[]")
_library.define(
    "ranks_gradient(bool[] kinds, float[] numbers, Tensor? grad_plus, Tensor? grad_minus, Tensor? grad_h, Tensor scores, "
    "Tensor level, Tensor? relevance, Tensor[] saved) -> Tensor"
)


def _outputs(scores: Tensor, kinds: list[bool], weighted: bool, sloped: bool) -> list[Tensor]:
    """rank⁺, rank⁻, H-rank⁺ if weighted; slopes of those that have one; the partition and its counts."""
    smooth, sup, _ = kinds
    slopes = sloped * (smooth + sup + (smooth and weighted))
    return [
        *(torch.empty_like(scores) for _ in range(2 + weighted + slopes)),
        scores.new_empty(scores.shape, dtype=torch.int32),
        scores.new_empty((scores.shape[0], 2), dtype=torch.int32),
    ]


def _slopes(slopes: list[Tensor], kinds: list[bool], weighted: bool, absent: Tensor) -> list[Tensor]:
    """The slopes of rank⁺, rank⁻ and H-rank⁺, each in its place, `absent` for those that were not computed."""
    smooth, sup, _ = kinds
    waiting = iter(slopes)
    return [next(waiting, absent) if wanted else absent for wanted in (smooth, sup, smooth and weighted)]


def _ranks(
    scores: Tensor, level: Tensor, relevance: Tensor | None, kinds: list[bool], numbers: list[float], sloped: bool
) -> list[Tensor]:
    queries, items = scores.shape
    weighted = relevance is not None
    outputs = _outputs(scores, kinds, weighted, sloped)
    results, (order, counts) = outputs[: 2 + weighted], outputs[-2:]
    rank_plus, rank_minus, h_rank = results if weighted else (*results, scores)
    if scores.numel():
        with _on_device_of(scores):
            block = min(2048, triton.next_power_of_2(items))
            kernels.partition[(queries,)](
                level, order, counts, rank_plus, rank_minus, h_rank, items, WEIGHTED=weighted, BLOCK=block
            )
            spread = max(1, min(triton.cdiv(items, FORWARD["BLOCK_K"]), triton.cdiv(_PROGRAMS, queries)))
            kernels.forward[(queries, spread)](
                scores, level, relevance if weighted else scores, order, counts, rank_plus, rank_minus, h_rank,
                *_slopes(outputs[len(results) : -2], kinds, weighted, scores), items, *numbers,
                SMOOTH=kinds[0], SUP=kinds[1], SHARED=kinds[2], WEIGHTED=weighted, SLOPED=sloped,
                FAST=_has_ptx(scores), **FORWARD,
            )  # fmt: skip
    return outputs


def _ranks_gradient(
    kinds: list[bool], numbers: list[float], grad_plus: Tensor | None, grad_minus: Tensor | None, grad_h: Tensor | None,
    scores: Tensor, level: Tensor, relevance: Tensor | None, saved: list[Tensor],
) -> Tensor:  # fmt: skip
    queries, items = scores.shape
    *slopes, order, counts = saved
    gradient = torch.empty_like(scores)
    smooth, sup, shared = kinds
    weighted = relevance is not None
    grads = [scores if grad is None else grad.contiguous() for grad in (grad_plus, grad_minus, grad_h)]
    if scores.numel():
        with _on_device_of(scores):
            kernels.backward[(queries, triton.cdiv(items, BACKWARD["BLOCK_J"]))](
                scores, level, relevance if weighted else scores, order, counts,
                *_slopes(slopes, kinds, weighted, scores), *grads, gradient, items, *numbers,
                TO_PLUS=smooth and grad_plus is not None, TO_MINUS=sup and grad_minus is not None,
                TO_H=smooth and weighted and grad_h is not None, SHARED=shared,
                FAST=_has_ptx(scores), **BACKWARD,
            )  # fmt: skip
    return gradient


def _fake_ranks(
    scores: Tensor, level: Tensor, relevance: Tensor | None, kinds: list[bool], numbers: list[float], sloped: bool
) -> list[Tensor]:
    return _outputs(scores, kinds, relevance is not None, sloped)


def _fake_gradient(*arguments: Any) -> Tensor:
    return torch.empty_like(arguments[5])


for _name, _real, _fake in (("ranks", _ranks, _fake_ranks), ("ranks_gradient", _ranks_gradient, _fake_gradient)):
    _library.impl(_name, _real, "CUDA")
    _library.impl(_name, _real, "CPU")  # Triton's interpreter: tests only
    torch.library.register_fake(f"suprank::{_name}", _fake, lib=_library)


def _has_ptx(scores: Tensor) -> bool:
    return scores.is_cuda and torch.version.hip is None


def _on_device_of(scores: Tensor) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(scores.device) if scores.is_cuda else contextlib.nullcontext()
