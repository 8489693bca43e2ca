"""One kernel each for what takes several operations in torch: unit vectors, levels, relevance, measures of ranks, the mean.

At a batch of 256 a GPU computes a loss faster than the host can launch its operations, so that their number is its time. Each
function here has a plain one of the same meaning, which calls it, or stands beside its call, where `runs_kernels`. Under
torch.compile the plain ones are taken, which it fuses itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

PlainMeasure = Callable[[Tensor], Tensor]
"""A measure of every query as a function of rank⁺ + rank⁻, in plain torch."""

_AVAILABLE = torch.version.cuda is not None and find_spec("triton") is not None
_DEEPEST = 15  # levels: a tile of `relevance` has a row for each
_ROW = 1024  # items that a program reads at once
_prefixes: dict[tuple[int, torch.device], Tensor] = {}
_tables: dict[tuple[tuple[float, ...], torch.device], Tensor] = {}


def runs_kernels(values: Tensor) -> bool:
    """Whether the kernels take this tensor: on a GPU with Triton, float32 if it holds floats, and not under torch.compile."""
    suits = values.dtype == torch.float32 or not values.dtype.is_floating_point
    return suits and _has_kernels(values) and not torch.compiler.is_compiling()


def _has_kernels(values: Tensor) -> bool:
    return _AVAILABLE and values.is_cuda


def _launch(kernel: str, grid: tuple[int, ...], device: torch.device, *arguments: Any, **constants: Any) -> None:
    launch = getattr(_kernels(), kernel)[grid]
    if device.type != "cuda" or device.index == torch.cuda.current_device():  # entering a device takes time
        launch(*arguments, **constants)
    else:
        with torch.cuda.device(device):
            launch(*arguments, **constants)


@cache
def _kernels() -> ModuleType:
    return import_module("suprank.ranking.batch_kernels")  # imports Triton


def fused_unit(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """v / ‖v‖ and ‖v‖ `[rows, 1]` of float32 vectors, without a graph."""
    vectors = vectors.contiguous()
    rows, dim = vectors.shape
    out, norm = torch.empty_like(vectors), vectors.new_empty(rows, 1)
    tiny = torch.finfo(torch.float32).tiny
    _launch("unit", (rows,), out.device, vectors, out, norm, dim, tiny, BLOCK=_block(dim))
    return out, norm


def fused_unit_gradient(grad: Tensor, unit: Tensor, norm: Tensor, shortest: float) -> Tensor:
    """The gradient with respect to v of a function of v / ‖v‖, 0 for vectors of length `shortest` or less."""
    rows, dim = unit.shape
    out = torch.empty_like(unit)
    _launch("unit_gradient", (rows,), out.device, grad.contiguous(), unit, norm, out, dim, shortest, BLOCK=_block(dim))
    return out


def fused_levels(labels: Tensor, ref_labels: Tensor, *, fine: bool, is_self: Tensor | None, within_batch: bool) -> Tensor:
    """The levels of `listed_level`, for labels `[N, L]` in int64."""
    queries, items = len(labels), len(ref_labels)
    level = torch.empty(queries, items, dtype=torch.int8, device=labels.device)
    block = _block(items)
    masked = is_self is not None
    _launch(
        "levels", (queries, -(-items // block)), level.device,
        labels, ref_labels, level if is_self is None else is_self.contiguous().view(torch.int8), level, items,
        *labels.stride(), *ref_labels.stride(),
        DEPTH=labels.shape[1], FINE=fine, DIAGONAL=within_batch and not masked, MASKED=masked, BLOCK=block,
    )  # fmt: skip
    return level


def runs_relevance(level: Tensor, depth: int) -> bool:
    """Whether `fused_relevance` takes these levels."""
    return depth <= _DEEPEST and level.ndim == 2 and bool(level.numel()) and runs_kernels(level)


def fused_relevance(level: Tensor, weights: tuple[float, ...], *, cumulative: bool) -> Tensor:
    """w_l / |Ω^(l)| in float32, or Σ_{p ≤ l} w_p / |Ω^{+,p}| if `cumulative`; `weights` are w_1, w_2, …, coarsest first."""
    queries, items = level.shape
    out = torch.empty(queries, items, dtype=torch.float32, device=level.device)
    slots = _slots(len(weights) + 1)
    table = _table((0.0, *weights, *(0.0,) * (slots - 1 - len(weights))), level.device)
    _launch(
        "relevance", (queries,), out.device, level.contiguous(), table, out, items,
        SLOTS=slots, CUMULATIVE=cumulative, BLOCK=_block(items, 512),
    )  # fmt: skip
    return out


def fused_ratio(plus: Tensor, minus: Tensor, h_rank: Tensor | None = None, relevance: Tensor | None = None) -> Any:
    """AP of ranks, or H-AP if H-rank⁺ and relevance are given, and the number or the relevance of each query's positives."""
    return _Ratio.apply(plus, minus, h_rank, relevance)


def fused_mean(value: Tensor, weight: Tensor, *, complement: bool) -> Any:
    """The mean of the values, or of 1 − value, over the queries of weight above 0, and how many queries are left out."""
    return _Mean.apply(value, weight.view(torch.int8) if weight.dtype == torch.bool else weight, complement)


def fused_recall(plus: Tensor, minus: Tensor, ks: tuple[int, ...], tau: float, plain: PlainMeasure) -> Any:
    """The mean over `ks` of R@k under σ(t/τ), and the number of each query's positives."""
    slots = _slots(len(ks))
    table = _table(tuple(map(float, ks)) + (0.0,) * (slots - len(ks)), plus.device)
    return _OfRank.apply(plus, minus, plus, "recall", table, (1 / tau, float(len(ks))), slots, plain)


def fused_ndcg(plus: Tensor, minus: Tensor, level: Tensor, depth: int, plain: PlainMeasure) -> Any:
    """NDCG of levels up to `depth`, and its ideal."""
    return _OfRank.apply(plus, minus, level, "ndcg", _prefix(plus.shape[1], plus.device), (), _slots(depth + 1), plain)


class _OfRank(torch.autograd.Function):
    """A measure of rank⁺ + rank⁻ by the kernel of its name, and by `plain` where a second derivative is asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        plus: Tensor,
        minus: Tensor,
        level: Tensor,
        kernel: str,
        table: Tensor,
        numbers: tuple[float, ...],
        slots: int,
        plain: PlainMeasure,
    ) -> tuple[Tensor, Tensor]:
        plus, minus, level = plus.contiguous(), minus.contiguous(), level.contiguous()
        queries, items = plus.shape
        value, weight = plus.new_empty(queries), plus.new_empty(queries)
        ctx.kernel, ctx.table, ctx.numbers, ctx.slots, ctx.plain = kernel, table, numbers, slots, plain
        _launch(
            kernel, (queries,), plus.device, plus, minus, level, table, value, weight, items, *numbers,
            SLOTS=slots, BLOCK=_block(items, 512),
        )  # fmt: skip
        ctx.save_for_backward(plus, minus, level, weight)
        ctx.mark_non_differentiable(weight)
        ctx.set_materialize_grads(False)
        return value, weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        plus, minus, level, weight = ctx.saved_tensors
        if grad is None:
            return (None,) * 8
        if torch.is_grad_enabled():
            total = plus + minus
            value = ctx.plain(total).where(weight > 0, 0)
            (slope,) = torch.autograd.grad(value, total, grad, create_graph=True)
            return slope, slope, *(None,) * 6
        queries, items = plus.shape
        block = _block(items, 512)
        out = torch.empty_like(plus)
        _launch(
            f"{ctx.kernel}_gradient", (queries, -(-items // block)), plus.device, grad.contiguous(), weight, plus, minus, level,
            ctx.table, out, items, *ctx.numbers, SLOTS=ctx.slots, BLOCK=block,
        )  # fmt: skip
        return out if ctx.needs_input_grad[0] else None, out, *(None,) * 6


class _Ratio(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plus: Tensor, minus: Tensor, h_rank: Tensor | None, relevance: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        plus, minus = plus.contiguous(), minus.contiguous()
        queries, items = plus.shape
        value, weight = plus.new_empty(queries), plus.new_empty(queries)  # no views: results may be changed in place
        weighted = h_rank is not None
        h_rank = plus if h_rank is None else h_rank.contiguous()
        relevance = plus if relevance is None else relevance.contiguous()
        _launch(
            "ratio", (queries,), plus.device, plus, minus, h_rank, relevance, value, weight, items,
            WEIGHTED=weighted, BLOCK=_block(items),
        )  # fmt: skip
        ctx.save_for_backward(plus, minus, h_rank if weighted else None, weight)
        ctx.mark_non_differentiable(weight)
        ctx.set_materialize_grads(False)
        return value, weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None
        plus, minus, h_rank, weight = ctx.saved_tensors
        smooth = ctx.needs_input_grad[0] or ctx.needs_input_grad[2]
        if torch.is_grad_enabled():  # for a second derivative
            slope = (grad / weight).where(weight > 0, 0)[:, None] / (plus + minus)
            along = -slope * ((plus if h_rank is None else h_rank) / (plus + minus))
            return along + slope if h_rank is None else along, along, None if h_rank is None else slope, None
        queries, items = plus.shape
        grad_minus = torch.empty_like(minus)
        grad_plus = torch.empty_like(plus) if smooth else None
        grad_h = torch.empty_like(plus) if smooth and h_rank is not None else None
        block = _block(items)
        _launch(
            "ratio_gradient", (queries, -(-items // block)), plus.device, grad.contiguous(), weight, plus, minus,
            plus if h_rank is None else h_rank, plus if grad_plus is None else grad_plus, grad_minus,
            plus if grad_h is None else grad_h, items, WEIGHTED=h_rank is not None, SMOOTH=smooth, BLOCK=block,
        )  # fmt: skip
        return grad_plus, grad_minus, grad_h, None


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor, complement: bool) -> tuple[Tensor, Tensor]:
        loss, share = value.new_empty(()), value.new_empty(())
        skipped = torch.empty((), dtype=torch.int64, device=value.device)
        weight = weight.contiguous()
        _launch(
            "mean", (1,), value.device, value.contiguous(), weight, loss, skipped, share, len(value),
            COMPLEMENT=complement, BLOCK=_block(len(value)),
        )  # fmt: skip
        ctx.save_for_backward(weight, share)  # the share has the sign of the slope
        ctx.mark_non_differentiable(skipped)
        ctx.set_materialize_grads(False)
        return loss, skipped

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, None, None]:
        weight, share = ctx.saved_tensors
        if grad is None:
            return None, None, None
        if torch.is_grad_enabled():
            return (grad * share).expand(len(weight)).where(weight > 0, 0), None, None
        out = torch.empty(len(weight), dtype=share.dtype, device=share.device)
        block = _block(len(weight))
        _launch("mean_gradient", (-(-len(weight) // block),), out.device, grad, weight, share, out, len(weight), BLOCK=block)
        return out, None, None


def _block(size: int, most: int = _ROW) -> int:
    """The power of two that covers `size`, at most `most`, so that few variants are compiled."""
    return max(16, min(most, 1 << (size - 1).bit_length()))


def _slots(size: int) -> int:
    """The power of two that covers `size`, 2 at least."""
    return max(2, 1 << (size - 1).bit_length())


def _prefix(items: int, device: torch.device) -> Tensor:
    """Σ_{i ≤ n} 1 / log2(1 + i) for n = 0..`items` at least. Sizes are powers of two, and kept: a CUDA graph may read them."""
    size = _slots(items + 1)
    if (size, device) not in _prefixes:
        with torch.inference_mode(False), torch.no_grad():
            places = torch.arange(1, size, dtype=torch.float64, device=device)
            sums = torch.nn.functional.pad(torch.log2(1 + places).reciprocal().cumsum(0), (1, 0))
            _prefixes[size, device] = sums.float()
    return _prefixes[size, device]


def _table(weights: tuple[float, ...], device: torch.device) -> Tensor:
    """The weights on the device, copied there once: a CUDA graph cannot record a copy from the host."""
    if (weights, device) not in _tables:
        with torch.inference_mode(False):
            _tables[weights, device] = torch.tensor(weights, dtype=torch.float32, device=device)
    return _tables[weights, device]
