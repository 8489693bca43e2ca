"""Ranks on a GPU: Triton kernels that write nothing larger than queries × items, behind an operator torch.compile accepts."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from suprank.ranking.ranks import kernels
from suprank.ranking.ranks.result import Ranks, second_derivative_error
from suprank.ranking.recording import is_recording
from suprank.ranking.steps import Heaviside, Sigmoid, SupStep, heaviside

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

    from suprank.ranking.steps import Step

SATURATED = 25.0
"""σ(−25) = 1.4e−11: from τ times this on, a sigmoid counts as 0 or 1. A million such items change a rank by 1e−5."""

SORT_FROM = 256
"""Positives a query (on average) from which its items are sorted by score, so that tiles can be skipped.

With 511 of them it was even on random embeddings and 1.5 times as fast on clustered ones (`benchmarks/kernels.py skipping`).
"""

# Tiles, by whether the lists are sorted: the best of `python benchmarks/kernels.py tiles` on one H200.
FORWARD = {False: {"BLOCK_K": 8, "BLOCK_J": 64, "num_warps": 2}, True: {"BLOCK_K": 32, "BLOCK_J": 32, "num_warps": 4}}
BACKWARD = {False: {"BLOCK_K": 4, "BLOCK_J": 256, "num_warps": 2}, True: {"BLOCK_K": 4, "BLOCK_J": 256, "num_warps": 4}}
_PROGRAMS = 16384  # forward programs to spread the positives over
_SORTED_AT_ONCE = 2**24  # scores; sorting them takes about 30 bytes each


def fused(
    scores: Float[Tensor, "queries items"],
    level: Shaped[Tensor, "queries items"],
    relevance: Float[Tensor, "queries items"] | None = None,
    *,
    plus: Step = heaviside,
    minus: Step = SupStep(),
) -> Ranks:
    """Ranks as in `definition`, for float32 scores and the steps that `runs_fused` accepts.

    Two runs give the same bits. Where a query has many positives on average, its items are sorted by score first and
    most of the work is skipped; finding that out waits for the device once, which CUDA graphs forbid: under capture and
    under torch.compile nothing is sorted. There is no second derivative.
    """
    if not runs_fused(scores, plus, minus):
        raise ValueError(
            f"fused ranks need float32 scores and steps out of (heaviside | Sigmoid, heaviside | Sigmoid | SupStep), not "
            f"{scores.dtype} with {plus} and {minus}; leave `using` out, and an implementation that fits is chosen."
        )
    if not (level.dtype.is_signed or level.dtype.is_floating_point):
        level = level.to(torch.int32)  # the kernels mark what is out of the list by −1
    weights = None if relevance is None else relevance.detach().to(scores.dtype).contiguous()
    results = _FusedRanks.apply(scores.contiguous(), level.contiguous(), weights, *_encoded(plus, minus))
    return Ranks(results[0], results[1], None if relevance is None else results[2])


def runs_fused(scores: Tensor, plus: Step, minus: Step) -> bool:
    """Whether the kernels know these steps and this dtype (they are float32 throughout)."""
    return (
        scores.dtype == torch.float32
        and isinstance(plus, Heaviside | Sigmoid)
        and isinstance(minus, Heaviside | Sigmoid | SupStep)
    )


def _encoded(plus: Step, minus: Step) -> tuple[list[bool], list[float]]:
    """(SMOOTH, SUP, SHARED) and (1/τ⁺, 1/τ⁻, ρ, δ, jump, height, reach); a sigmoid is an H⁻ that ends in a flat line at 1."""
    plus_tau = plus.tau if isinstance(plus, Sigmoid) else math.inf
    reach = SATURATED * plus_tau if isinstance(plus, Sigmoid) else 0.0
    minus_tau, line = math.inf, [0.0, 0.0, 0.0, 0.0]
    if isinstance(minus, SupStep):
        minus_tau, line = minus.tau, [minus.rho, minus.delta, minus.jump, minus.height]
    elif isinstance(minus, Sigmoid):
        minus_tau, line = minus.tau, [0.0, SATURATED * minus.tau, 0.0, 1.0]
    reach = reach if math.isinf(minus_tau) else max(reach, SATURATED * minus_tau)
    kinds = [not plus.flat, not minus.flat, plus_tau == minus_tau and not plus.flat]
    return kinds, [1 / plus_tau, 1 / minus_tau, *line, reach]


class _FusedRanks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, level: Tensor, relevance: Tensor | None, kinds: list[bool], numbers: list[float]
    ) -> tuple[Tensor, ...]:
        ctx.sort = kinds[1] and _many_positives(level)
        outputs = torch.ops.suprank.ranks(scores, level, relevance, kinds, numbers, ctx.needs_input_grad[0], ctx.sort)
        results = 2 if relevance is None else 3
        ctx.save_for_backward(scores, level, relevance, *outputs[results:])
        ctx.set_materialize_grads(False)
        ctx.kinds, ctx.numbers = kinds, numbers
        if not kinds[0]:
            ctx.mark_non_differentiable(*outputs[:results:2])  # rank⁺ and H-rank⁺ under Heaviside
        return tuple(outputs[:results])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_plus, grad_minus, *grad_h = grads
        scores, level, relevance, *saved = ctx.saved_tensors
        known = [grad_plus, grad_minus, *(grad_h or [None]), scores, level, relevance]
        return _FusedGradient.apply(ctx.kinds, ctx.numbers, *known, saved, ctx.sort), None, None, None, None


class _FusedGradient(torch.autograd.Function):
    """The gradient with respect to scores, as a function of its own only to refuse being differentiated again."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        return torch.ops.suprank.ranks_gradient(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise second_derivative_error("fused")


# Two operators, opaque to torch.compile, which needs to know only the shapes. Plain `Library` definitions, as the autograd
# functions above already say how to differentiate them. Everything they return lies on the device of the scores: of one tensor
# on the host, torch.compile's CUDA graphs would keep the whole list, and then refuse it.

_library = torch.library.Library("suprank", "FRAGMENT")
_library.define(
    "ranks(Tensor scores, Tensor level, Tensor? relevance, bool[] kinds, float[] numbers, bool sloped, bool sort) -> Tensor[]"
)
_library.define(
    "ranks_gradient(bool[] kinds, float[] numbers, Tensor? grad_plus, Tensor? grad_minus, Tensor? grad_h, Tensor scores, "
    "Tensor level, Tensor? relevance, Tensor[] saved, bool sort) -> Tensor"
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
    scores: Tensor, level: Tensor, relevance: Tensor | None, kinds: list[bool], numbers: list[float], sloped: bool, sort: bool
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
                level, order, order, counts, rank_plus, rank_minus, h_rank, items, RANKED=False, WEIGHTED=weighted, BLOCK=block
            )
            spans = _sort(scores, level, order, counts, numbers, block) if sort else counts
            spread = max(1, min(triton.cdiv(items, FORWARD[sort]["BLOCK_K"]), triton.cdiv(_PROGRAMS, queries)))
            kernels.forward[(queries, spread)](
                scores, level, relevance if weighted else scores, order, counts, spans, rank_plus, rank_minus, h_rank,
                *_slopes(outputs[len(results) : -2], kinds, weighted, scores), items, *numbers[:-1],
                SMOOTH=kinds[0], SUP=kinds[1], SHARED=kinds[2], WEIGHTED=weighted, SLOPED=sloped,
                SORTED=sort, FAST=_has_ptx(scores), **FORWARD[sort],
            )  # fmt: skip
    return outputs


def _many_positives(level: Tensor) -> bool:
    """Whether sorting pays. The answer waits for the device, so it is not asked for where it must be no."""
    queries, items = level.shape
    if items <= SORT_FROM or not level.numel() or is_recording(level):
        return False
    return int((level > 0).sum()) >= SORT_FROM * queries


def _sort(scores: Tensor, level: Tensor, order: Tensor, counts: Tensor, numbers: list[float], block: int) -> Tensor:
    """The partition again, both of its lists by decreasing score, and the spans that `forward` walks over in them."""
    queries, items = scores.shape
    rows = max(1, _SORTED_AT_ONCE // items)
    for start in range(0, queries, rows):
        part = slice(start, start + rows)
        ranking = scores[part].argsort(dim=-1, descending=True, stable=True)
        kernels.partition[(len(ranking),)](
            level[part], ranking, order[part], counts[part], scores, scores, scores, items,
            RANKED=True, WEIGHTED=False, BLOCK=block,
        )  # fmt: skip
    tile = FORWARD[True]
    blocks = triton.cdiv(items, tile["BLOCK_K"])
    spans = counts.new_empty((queries, blocks, 4))
    delta, reach = numbers[3], numbers[6]
    kernels.spans[(queries, triton.cdiv(blocks, 128))](
        scores, order, counts, spans, items, delta, reach, items.bit_length(),
        BLOCK_K=tile["BLOCK_K"], BLOCK_J=tile["BLOCK_J"], BLOCK=128,
    )  # fmt: skip
    return spans


def _ranks_gradient(
    kinds: list[bool], numbers: list[float], grad_plus: Tensor | None, grad_minus: Tensor | None, grad_h: Tensor | None,
    scores: Tensor, level: Tensor, relevance: Tensor | None, saved: list[Tensor], sort: bool,
) -> Tensor:  # fmt: skip
    queries, items = scores.shape
    *slopes, order, counts = saved
    gradient = torch.zeros_like(scores) if sort else torch.empty_like(scores)
    smooth, sup, shared = kinds
    weighted = relevance is not None
    grads = [scores if grad is None else grad.contiguous() for grad in (grad_plus, grad_minus, grad_h)]
    if scores.numel():
        with _on_device_of(scores):
            kernels.backward[(queries, triton.cdiv(items, BACKWARD[sort]["BLOCK_J"]))](
                scores, level, relevance if weighted else scores, order, counts,
                *_slopes(slopes, kinds, weighted, scores), *grads, gradient, items, *numbers, items.bit_length(),
                TO_PLUS=smooth and grad_plus is not None, TO_MINUS=sup and grad_minus is not None,
                TO_H=smooth and weighted and grad_h is not None, SHARED=shared, SORTED=sort,
                FAST=_has_ptx(scores), **BACKWARD[sort],
            )  # fmt: skip
    return gradient


def _fake_ranks(
    scores: Tensor, level: Tensor, relevance: Tensor | None, kinds: list[bool], numbers: list[float], sloped: bool, sort: bool
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
