"""One kernel each for what takes several operations in torch: unit vectors, levels, relevance, measures of ranks, the mean.

At a batch of 256 a GPU computes a loss faster than the host can launch its operations, so that their number is its time. Each
function here stands for the plain one of its name (`seam.with_kernels`), and leaves to it what the kernels cannot do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from suprank.ranking.gpu import batch_kernels
from suprank.ranking.ranks.definition import Ranks
from suprank.ranking.seam import by_kernels

Plain = Callable[..., Any]
"""The plain function that a function here stands for."""

_DEEPEST = 15  # levels: a tile of `relevance` has a row for each
_MOST_KS = 16  # cut-offs: a tile of `recall` has a row for each
_ROW = 1024  # items that a program reads at once
_prefixes: dict[tuple[int, torch.device], Tensor] = {}
_tables: dict[tuple[tuple[float, ...], torch.device], Tensor] = {}


def _launch(kernel: str, grid: tuple[int, ...], device: torch.device, *arguments: Any, **constants: Any) -> None:
    launch = getattr(batch_kernels, kernel)[grid]
    if device.type != "cuda" or device.index == torch.cuda.current_device():  # entering a device takes time
        launch(*arguments, **constants)
    else:
        with torch.cuda.device(device):
            launch(*arguments, **constants)


@by_kernels
def unit(plain: Plain, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """v / ‖v‖ and ‖v‖ `[rows, 1]` of float32 vectors, without a graph."""
    vectors = vectors.contiguous()
    rows, dim = vectors.shape
    out, norm = torch.empty_like(vectors), vectors.new_empty(rows, 1)
    tiny = torch.finfo(torch.float32).tiny
    _launch("unit", (rows,), out.device, vectors, out, norm, dim, tiny, BLOCK=_block(dim))
    return out, norm


@by_kernels
def unit_gradient(plain: Plain, grad: Tensor, unit: Tensor, norm: Tensor, shortest: float) -> Tensor:
    """The gradient with respect to v of a function of v / ‖v‖, 0 for vectors of length `shortest` or less."""
    if torch.is_grad_enabled():  # for a second derivative
        return plain(grad, unit, norm, shortest)
    rows, dim = unit.shape
    out = torch.empty_like(unit)
    _launch("unit_gradient", (rows,), out.device, grad.contiguous(), unit, norm, out, dim, shortest, BLOCK=_block(dim))
    return out


@by_kernels
def listed_level(
    plain: Plain,
    labels: Tensor,
    ref_labels: Tensor,
    *,
    fine: bool = False,
    is_self: Tensor | None = None,
    within_batch: bool = False,
) -> Tensor:
    """The levels of labels `[N, L]` in int64; sets are left to torch."""
    if labels.ndim == 3 or ref_labels.ndim == 3 or not (labels.numel() and ref_labels.numel()):
        return plain(labels, ref_labels, fine=fine, is_self=is_self, within_batch=within_batch)
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


@by_kernels
def shared_weights(plain: Plain, level: Tensor, weights: tuple[float, ...], *, cumulative: bool, dtype: torch.dtype) -> Tensor:
    """w_l / |Ω^(l)| in float32, or Σ_{p ≤ l} w_p / |Ω^{+,p}| if `cumulative`."""
    if dtype != torch.float32 or not _holds(level, len(weights)):
        return plain(level, weights, cumulative=cumulative, dtype=dtype)
    queries, items = level.shape
    out = torch.empty(queries, items, dtype=torch.float32, device=level.device)
    slots = _slots(len(weights) + 1)
    table = _table((0.0, *weights, *(0.0,) * (slots - 1 - len(weights))), level.device)
    _launch(
        "relevance", (queries,), out.device, level.contiguous(), table, out, items,
        SLOTS=slots, CUMULATIVE=cumulative, BLOCK=_block(items, 512),
    )  # fmt: skip
    return out


def _holds(level: Tensor, depth: int) -> bool:
    """Whether a tile has room for so many levels."""
    return depth <= _DEEPEST and level.ndim == 2 and bool(level.numel())


@by_kernels
def ap_and_weight(plain: Plain, ranks: Ranks, level: Tensor) -> tuple[Tensor, Tensor]:
    """AP of each query, and the number of its positives."""
    return _Measured.apply(partial(_ratio, None), _ratio_gradient, _plain_ratio, ranks.plus, ranks.minus, None)


@by_kernels
def hap_and_weight(plain: Plain, ranks: Ranks, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """H-AP of each query, and the relevance of its positives."""
    return _Measured.apply(partial(_ratio, relevance), _ratio_gradient, _plain_ratio, *ranks)


@by_kernels
def recall_and_weight(plain: Plain, ranks: Ranks, level: Tensor, ks: tuple[int, ...], rank_tau: float) -> tuple[Tensor, Tensor]:
    """The mean over `ks` of R@k under σ(t/τ*), and the number of each query's positives."""
    if len(ks) > _MOST_KS:
        return plain(ranks, level, ks, rank_tau)
    slots = _slots(len(ks))
    table = _table(tuple(map(float, ks)) + (0.0,) * (slots - len(ks)), level.device)
    forward = partial(_of_rank, "recall", table, (1 / rank_tau, float(len(ks))), slots)
    again = partial(_plain_measure, plain, ks, rank_tau)
    return _Measured.apply(forward, partial(_of_rank_gradient, *forward.args), again, ranks.plus, ranks.minus, level)


@by_kernels
def ndcg_and_weight(
    plain: Plain, ranks: Ranks, level: Tensor, depth: int, k: int | None, rank_tau: float
) -> tuple[Tensor, Tensor]:
    """NDCG of levels up to `depth`, and its ideal; NDCG@k is left to torch."""
    if k is not None or not _holds(level, depth):
        return plain(ranks, level, depth, k, rank_tau)
    forward = partial(_of_rank, "ndcg", _prefix(level.shape[1], level.device), (), _slots(depth + 1))
    again = partial(_plain_measure, plain, depth, None, rank_tau)
    return _Measured.apply(forward, partial(_of_rank_gradient, *forward.args), again, ranks.plus, ranks.minus, level)


@by_kernels
def mean_over_queries(plain: Plain, value: Tensor, weight: Tensor, *, complement: bool = False) -> tuple[Tensor, Tensor]:
    """The mean of the values, or of 1 − value, over the queries of weight above 0, and how many queries are left out."""
    weight = weight.view(torch.int8) if weight.dtype == torch.bool else weight
    return _Measured.apply(partial(_mean, complement), _mean_gradient, partial(_plain_mean, plain, complement), value, weight)


class _Measured(torch.autograd.Function):
    """A value, and a second result without a gradient, by kernels. A second derivative is that of `again`, in plain torch.

    forward(*inputs) → (value, second result), saved
    backward(grad, needed, *inputs, *saved) → the gradients of the inputs
    again(*inputs, *saved) → the value
    """

    @staticmethod
    def forward(
        ctx: Any,
        forward: Callable[..., tuple[tuple[Tensor, Tensor], Sequence[Tensor]]],
        backward: Callable[..., Sequence[Tensor | None]],
        again: Callable[..., Tensor],
        *inputs: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        results, saved = forward(*inputs)
        ctx.functions, ctx.number = (backward, again), len(inputs)
        ctx.save_for_backward(*inputs, *saved)
        ctx.mark_non_differentiable(results[1])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        (backward, again), needed = ctx.functions, ctx.needs_input_grad[3:]
        if grad is None:
            return (None,) * (3 + ctx.number)
        if not torch.is_grad_enabled():
            return None, None, None, *backward(grad, needed, *ctx.saved_tensors)
        wanted = [one for one, is_needed in zip(ctx.saved_tensors, needed, strict=False) if is_needed]
        slopes = iter(torch.autograd.grad(again(*ctx.saved_tensors), wanted, grad, create_graph=True))
        return None, None, None, *(next(slopes) if is_needed else None for is_needed in needed)


def _ratio(relevance: Tensor | None, plus: Tensor, minus: Tensor, h_rank: Tensor | None) -> Any:
    plus, minus = plus.contiguous(), minus.contiguous()
    queries, items = plus.shape
    value, weight = plus.new_empty(queries), plus.new_empty(queries)  # no views: results may be changed in place
    _launch(
        "ratio", (queries,), plus.device, plus, minus, plus if h_rank is None else h_rank.contiguous(),
        plus if relevance is None else relevance.contiguous(), value, weight, items,
        WEIGHTED=h_rank is not None, BLOCK=_block(items),
    )  # fmt: skip
    return (value, weight), (weight,)


def _ratio_gradient(
    grad: Tensor, needed: Sequence[bool], plus: Tensor, minus: Tensor, h_rank: Tensor | None, weight: Tensor
) -> tuple[Tensor | None, ...]:
    plus, minus = plus.contiguous(), minus.contiguous()
    smooth = needed[0] or needed[2]
    queries, items = plus.shape
    grad_minus = torch.empty_like(minus)
    grad_plus = torch.empty_like(plus) if smooth else None
    grad_h = torch.empty_like(plus) if smooth and h_rank is not None else None
    block = _block(items)
    _launch(
        "ratio_gradient", (queries, -(-items // block)), plus.device, grad.contiguous(), weight, plus, minus,
        plus if h_rank is None else h_rank.contiguous(), plus if grad_plus is None else grad_plus, grad_minus,
        plus if grad_h is None else grad_h, items, WEIGHTED=h_rank is not None, SMOOTH=smooth, BLOCK=block,
    )  # fmt: skip
    return grad_plus, grad_minus, grad_h


def _plain_ratio(plus: Tensor, minus: Tensor, h_rank: Tensor | None, weight: Tensor) -> Tensor:
    """AP or H-AP, given its divisor, so that no relevance need be saved; 0 for a query without positives."""
    return ((plus if h_rank is None else h_rank) / (plus + minus)).sum(-1) / weight.where(weight > 0, 1)


def _of_rank(
    kernel: str, table: Tensor, numbers: tuple[float, ...], slots: int, plus: Tensor, minus: Tensor, level: Tensor
) -> Any:
    """A measure of rank⁺ + rank⁻ by the kernel of this name."""
    queries, items = plus.shape
    value, weight = plus.new_empty(queries), plus.new_empty(queries)
    _launch(
        kernel, (queries,), plus.device, plus.contiguous(), minus.contiguous(), level.contiguous(), table, value, weight, items,
        *numbers, SLOTS=slots, BLOCK=_block(items, 512),
    )  # fmt: skip
    return (value, weight), (weight,)


def _of_rank_gradient(
    kernel: str,
    table: Tensor,
    numbers: tuple[float, ...],
    slots: int,
    grad: Tensor,
    needed: Sequence[bool],
    plus: Tensor,
    minus: Tensor,
    level: Tensor,
    weight: Tensor,
) -> tuple[Tensor | None, ...]:
    queries, items = plus.shape
    block = _block(items, 512)
    out = torch.empty_like(plus)
    _launch(
        f"{kernel}_gradient", (queries, -(-items // block)), plus.device, grad.contiguous(), weight, plus.contiguous(),
        minus.contiguous(), level.contiguous(), table, out, items, *numbers, SLOTS=slots, BLOCK=block,
    )  # fmt: skip
    return out if needed[0] else None, out, None


def _plain_measure(plain: Plain, *options_and_tensors: Any) -> Tensor:
    """A measure of rank⁺ + rank⁻ in plain torch."""
    *options, plus, minus, level, _ = options_and_tensors
    return plain(Ranks(plus, minus), level, *options)[0]


def _mean(complement: bool, value: Tensor, weight: Tensor) -> Any:
    mean, share = value.new_empty(()), value.new_empty(())
    skipped = torch.empty((), dtype=torch.int64, device=value.device)
    _launch(
        "mean", (1,), value.device, value.contiguous(), weight.contiguous(), mean, skipped, share, len(value),
        COMPLEMENT=complement, BLOCK=_block(len(value)),
    )  # fmt: skip
    return (mean, skipped), (share,)  # the share has the sign of the slope


def _mean_gradient(
    grad: Tensor, needed: Sequence[bool], value: Tensor, weight: Tensor, share: Tensor
) -> tuple[Tensor | None, ...]:
    out = torch.empty(len(weight), dtype=share.dtype, device=share.device)
    block = _block(len(weight))
    grid = (-(-len(weight) // block),)
    _launch("mean_gradient", grid, out.device, grad, weight.contiguous(), share, out, len(weight), BLOCK=block)
    return out, None


def _plain_mean(plain: Plain, complement: bool, value: Tensor, weight: Tensor, _: Tensor) -> Tensor:
    return plain(value, weight, complement=complement)[0]


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
