"""The Triton kernels behind `batch`: unit vectors, levels, relevance, measures of ranks, the mean over queries.

A program owns a row, or a tile of one, and adds in one order, so that two runs agree bit by bit.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def unit(vectors, out, norms, dim, tiny, BLOCK: tl.constexpr):
    """v / ‖v‖ and ‖v‖ of a row, at least `tiny`; squares in float64, where they neither vanish nor overflow."""
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([BLOCK], tl.float64)
    for start in range(0, dim, BLOCK):
        at = start + tl.arange(0, BLOCK)
        own = tl.load(vectors + row * dim + at, mask=at < dim, other=0.0).to(tl.float64)
        squares += own * own
    length = tl.sqrt(tl.sum(squares, 0)).to(tl.float32)
    norm = tl.where(length < tiny, tiny, length)  # a NaN stays
    tl.store(norms + row, norm)
    for start in range(0, dim, BLOCK):
        at = start + tl.arange(0, BLOCK)
        own = tl.load(vectors + row * dim + at, mask=at < dim, other=0.0)
        tl.store(out + row * dim + at, own / norm, mask=at < dim)


@triton.jit
def unit_gradient(grad, units, norms, out, dim, shortest, BLOCK: tl.constexpr):
    """(g − u·(g·u)) / ‖v‖ of a row, 0 where ‖v‖ is `shortest` or less."""
    row = tl.program_id(0).to(tl.int64)
    along = tl.zeros([BLOCK], tl.float32)
    for start in range(0, dim, BLOCK):
        at = start + tl.arange(0, BLOCK)
        own = tl.load(units + row * dim + at, mask=at < dim, other=0.0)
        along += own * tl.load(grad + row * dim + at, mask=at < dim, other=0.0)
    projected = tl.sum(along, 0)
    norm = tl.load(norms + row)
    for start in range(0, dim, BLOCK):
        at = start + tl.arange(0, BLOCK)
        own = tl.load(units + row * dim + at, mask=at < dim, other=0.0)
        across = tl.load(grad + row * dim + at, mask=at < dim, other=0.0) - own * projected
        tl.store(out + row * dim + at, tl.where(norm <= shortest, 0.0, across / norm), mask=at < dim)


@triton.jit
def levels(
    labels, ref_labels, is_self, level, items, stride, column_stride, ref_stride, ref_column_stride,
    DEPTH: tl.constexpr, FINE: tl.constexpr, DIAGONAL: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The depth that a query's labels share with an item's, or (FINE) whether they share all; −1 where it is the query."""
    query = tl.program_id(0).to(tl.int64)
    item = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = item < items
    same = inside
    shared = tl.zeros([BLOCK], tl.int8)
    for step in tl.static_range(DEPTH):
        column = DEPTH - 1 - step
        label = tl.load(labels + query * stride + column * column_stride)
        other = tl.load(ref_labels + item * ref_stride + column * ref_column_stride, mask=inside, other=-1)
        same = same & (other == label) & (label >= 0)
        shared += same.to(tl.int8)
    if FINE:
        shared = same.to(tl.int8)
    if DIAGONAL:
        shared = tl.where(item == query, -1, shared).to(tl.int8)
    if MASKED:
        own = tl.load(is_self + query * items + item, mask=inside, other=0)
        shared = tl.where(own != 0, -1, shared).to(tl.int8)
    tl.store(level + query * items + item, shared, mask=inside)


@triton.jit
def relevance(level, weights, out, items, SLOTS: tl.constexpr, CUMULATIVE: tl.constexpr, BLOCK: tl.constexpr):
    """weights[l] / |Ω^(l)| for the items of level l, or (CUMULATIVE) Σ_{p ≤ l} weights[p] / |Ω^{+,p}|; 0 below level 1."""
    query = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    counts = tl.zeros([SLOTS], tl.float32)
    for start in range(0, items, BLOCK):
        item = start + tl.arange(0, BLOCK)
        own = tl.load(level + query * items + item, mask=item < items, other=-1)
        counts += tl.sum((own[None, :] == slot[:, None]).to(tl.float32), 1)
    if CUMULATIVE:
        counts = tl.sum(tl.where(slot[None, :] >= slot[:, None], counts[None, :], 0.0), 1)
    share = tl.where(slot > 0, tl.load(weights + slot) / tl.maximum(counts, 1.0), 0.0)
    if CUMULATIVE:
        share = tl.sum(tl.where(slot[None, :] <= slot[:, None], share[None, :], 0.0), 1)
    for start in range(0, items, BLOCK):
        item = start + tl.arange(0, BLOCK)
        own = tl.load(level + query * items + item, mask=item < items, other=-1)
        value = tl.sum(tl.where(own[None, :] == slot[:, None], share[:, None], 0.0), 0)
        tl.store(out + query * items + item, value, mask=item < items)


@triton.jit
def ratio(plus, minus, h_rank, relevance, value, weight, items, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    """AP, or (WEIGHTED) H-AP, of a query, NaN without positives; and the number or the relevance of its positives."""
    query = tl.program_id(0).to(tl.int64)
    summed = tl.zeros([BLOCK], tl.float32)
    weights = tl.zeros([BLOCK], tl.float32)
    for start in range(0, items, BLOCK):
        item = start + tl.arange(0, BLOCK)
        at = query * items + item
        rank_plus = tl.load(plus + at, mask=item < items, other=0.0)
        total = rank_plus + tl.load(minus + at, mask=item < items, other=1.0)
        if WEIGHTED:
            summed += tl.load(h_rank + at, mask=item < items, other=0.0) / total
            weights += tl.where(rank_plus > 0, tl.load(relevance + at, mask=item < items, other=0.0), 0.0)
        else:
            summed += rank_plus / total
            weights += (rank_plus > 0).to(tl.float32)
    divisor = tl.sum(weights, 0)
    safe = tl.where(divisor > 0, divisor, 1.0)
    tl.store(value + query, tl.where(divisor > 0, tl.sum(summed, 0) / safe, float("nan")))
    tl.store(weight + query, divisor)


@triton.jit
def ratio_gradient(
    grad, weight, plus, minus, h_rank, grad_plus, grad_minus, grad_h, items,
    WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of `ratio` with respect to rank⁻ and (SMOOTH) to rank⁺ and H-rank⁺."""
    query = tl.program_id(0).to(tl.int64)
    item = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = item < items
    at = query * items + item
    divisor = tl.load(weight + query)
    share = tl.where(divisor > 0, tl.load(grad + query) / tl.where(divisor > 0, divisor, 1.0), 0.0)
    rank_plus = tl.load(plus + at, mask=inside, other=0.0)
    total = rank_plus + tl.load(minus + at, mask=inside, other=1.0)
    slope = share / total
    if WEIGHTED:
        along = -slope * (tl.load(h_rank + at, mask=inside, other=0.0) / total)
    else:
        along = -slope * (rank_plus / total)
    tl.store(grad_minus + at, along, mask=inside)
    if SMOOTH:
        if WEIGHTED:
            tl.store(grad_plus + at, along, mask=inside)
            tl.store(grad_h + at, slope, mask=inside)
        else:
            tl.store(grad_plus + at, along + slope, mask=inside)


@triton.jit
def _rank(plus, minus, at, inside):
    """rank⁺ + rank⁻, ∞ for what is no positive."""
    return tl.load(plus + at, mask=inside, other=0.0) + tl.load(minus + at, mask=inside, other=float("inf"))


@triton.jit
def recall(plus, minus, level, ks, value, weight, items, rate, number, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    """The mean over `number` cut-offs k, in a table with 0 for none, of Σ σ((k − rank)·rate) / min(|Ω⁺|, k); and |Ω⁺|."""
    query = tl.program_id(0).to(tl.int64)
    k = tl.load(ks + tl.arange(0, SLOTS))
    summed = tl.zeros([SLOTS], tl.float32)
    counts = tl.zeros([BLOCK], tl.float32)
    for start in range(0, items, BLOCK):
        item = start + tl.arange(0, BLOCK)
        rank = _rank(plus, minus, query * items + item, item < items)
        summed += tl.sum(tl.sigmoid((k[:, None] - rank[None, :]) * rate), 1)
        counts += (rank < float("inf")).to(tl.float32)
    count = tl.sum(counts, 0)
    found = tl.sum(tl.where(k > 0, summed / tl.maximum(tl.minimum(k, count), 1.0), 0.0), 0) / number
    tl.store(value + query, tl.where(count > 0, found, float("nan")))
    tl.store(weight + query, count)


@triton.jit
def recall_gradient(
    grad, weight, plus, minus, level, ks, out, items, rate, number, SLOTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The gradient of `recall` with respect to the rank."""
    query = tl.program_id(0).to(tl.int64)
    item = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rank = _rank(plus, minus, query * items + item, item < items)
    k = tl.load(ks + tl.arange(0, SLOTS))
    count = tl.load(weight + query)
    share = tl.where(k > 0, tl.load(grad + query) / tl.maximum(tl.minimum(k, count), 1.0), 0.0)
    sigmoid = tl.sigmoid((k[:, None] - rank[None, :]) * rate)
    slope = tl.sum(share[:, None] * sigmoid * (1.0 - sigmoid), 0) * (-rate / number)
    tl.store(out + query * items + item, slope, mask=item < items)


@triton.jit
def ndcg(plus, minus, level, prefix, value, weight, items, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    """Σ (2^l − 1) / log2(1 + rank) over the ideal one, and that: `prefix` has Σ_{i ≤ n} 1 / log2(1 + i) at n."""
    query = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    summed = tl.zeros([BLOCK], tl.float32)
    counts = tl.zeros([SLOTS], tl.int32)
    for start in range(0, items, BLOCK):
        item = start + tl.arange(0, BLOCK)
        at = query * items + item
        own = tl.load(level + at, mask=item < items, other=0).to(tl.int32)
        rank = _rank(plus, minus, at, item < items)
        summed += tl.where(own > 0, (tl.exp2(own.to(tl.float32)) - 1.0) / tl.log2(1.0 + rank), 0.0)
        counts += tl.sum((own[None, :] >= slot[:, None]).to(tl.int32), 1)
    worth = tl.where(slot > 0, tl.exp2(slot.to(tl.float32) - 1.0), 0.0)  # of a place, more than at the level before
    ideal = tl.sum(worth * tl.load(prefix + tl.where(slot > 0, counts, 0)), 0)
    found = tl.sum(summed, 0) / tl.where(ideal > 0, ideal, 1.0)
    tl.store(value + query, tl.where(ideal > 0, found, float("nan")))
    tl.store(weight + query, ideal)


@triton.jit
def ndcg_gradient(grad, weight, plus, minus, level, prefix, out, items, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient of `ndcg` with respect to the rank."""
    query = tl.program_id(0).to(tl.int64)
    item = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = query * items + item
    own = tl.load(level + at, mask=item < items, other=0).to(tl.float32)
    rank = _rank(plus, minus, at, item < items)
    ideal = tl.load(weight + query)
    share = tl.where(ideal > 0, tl.load(grad + query) / tl.where(ideal > 0, ideal, 1.0), 0.0)
    discount = tl.log2(1.0 + rank)
    slope = (tl.exp2(own) - 1.0) / (discount * discount * (1.0 + rank)) * (-share * LOG2_E)
    tl.store(out + at, tl.where(own > 0, slope, 0.0), mask=item < items)


@triton.jit
def mean(value, weight, loss, skipped, share, queries, COMPLEMENT: tl.constexpr, BLOCK: tl.constexpr):
    """The mean of value, or of 1 − value, over the queries of weight above 0; how many have none; the slope for the others."""
    summed = tl.zeros([BLOCK], tl.float64)
    counts = tl.zeros([BLOCK], tl.int32)
    for start in range(0, queries, BLOCK):
        query = start + tl.arange(0, BLOCK)
        ranked = tl.load(weight + query, mask=query < queries, other=0) > 0
        one = tl.load(value + query, mask=query < queries, other=0.0)
        if COMPLEMENT:
            one = 1.0 - one
        summed += tl.where(ranked, one, 0.0).to(tl.float64)
        counts += ranked.to(tl.int32)
    count = tl.sum(counts, 0)
    divisor = tl.maximum(count, 1)
    tl.store(loss, (tl.sum(summed, 0) / divisor).to(tl.float32))
    tl.store(skipped, (queries - count).to(tl.int64))
    slope = 1.0 / divisor.to(tl.float32)
    if COMPLEMENT:
        slope = -slope
    tl.store(share, slope)


@triton.jit
def mean_gradient(grad, weight, share, out, queries, BLOCK: tl.constexpr):
    """The gradient of `mean` with respect to the values."""
    query = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ranked = tl.load(weight + query, mask=query < queries, other=0) > 0
    tl.store(out + query, tl.where(ranked, tl.load(grad) * tl.load(share), 0.0), mask=query < queries)
