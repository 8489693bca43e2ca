"""The Triton kernels behind `fused`.

`partition` lists each query's positives at the front of a row and its negatives at the back. `forward` gives one program a few
positives k of one query and walks over that query's items j; along with each rank it adds up the steps' slopes, which are all
that backward needs on the side of k. `backward` gives one program a few items j and walks over the positives k. Every result
has one owner that adds in one order, so two runs agree bit by bit.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

FAR = tl.constexpr(1e30)  # a score so far away that every step is 0 there
LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def _sigmoid(gap, rate, FAST: tl.constexpr):
    """σ(gap·rate) = 1 / (1 + 2^(−gap·rate·log₂e)): two special-function instructions where the chip is NVIDIA's."""
    x = gap * (rate * -LOG2_E)
    if FAST:
        return tl.inline_asm_elementwise(
            "{ .reg .f32 e; ex2.approx.ftz.f32 e, $1; add.f32 e, e, 0f3F800000; rcp.approx.ftz.f32 $0, e; }",
            "=f,f",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        return 1.0 / (1.0 + tl.exp2(tl.minimum(x, 126.0)))


@triton.jit
def _curve(gap, sigmoid, rate, rho, delta, jump, height):
    """H⁻ and its slope over `rate`, given σ(gap·rate)."""
    inside = gap <= delta
    value = tl.where(inside, sigmoid + tl.where(gap >= 0, jump, 0.0), rho * gap + (height - rho * delta))
    return value, tl.where(inside, sigmoid - sigmoid * sigmoid, rho / rate)


@triton.jit
def partition(level, order, counts, rank_plus, rank_minus, h_rank, items, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    """Positives from the front of `order`, negatives from its back, ignored items nowhere; `Ranks` of what is no positive."""
    query = tl.program_id(0)
    row = query.to(tl.int64) * items
    positives = 0
    negatives = 0
    for start in range(0, items, BLOCK):
        j = start + tl.arange(0, BLOCK)
        here = j < items
        current = tl.load(level + row + j, mask=here, other=-1)
        positive = (current > 0).to(tl.int32)
        negative = (current == 0).to(tl.int32)
        front = positives + tl.cumsum(positive, 0) - 1
        back = items - negatives - tl.cumsum(negative, 0)
        tl.store(order + row + tl.where(positive > 0, front, back), j, mask=positive + negative > 0)
        zero = tl.zeros((BLOCK,), tl.float32)
        tl.store(rank_plus + row + j, zero, mask=here)
        tl.store(rank_minus + row + j, zero + float("inf"), mask=here)
        if WEIGHTED:
            tl.store(h_rank + row + j, zero, mask=here)
        positives += tl.sum(positive, 0)
        negatives += tl.sum(negative, 0)
    tl.store(counts + 2 * query, positives)
    tl.store(counts + 2 * query + 1, negatives)


@triton.jit
def forward(
    scores, level, relevance, order, counts,
    rank_plus, rank_minus, h_rank, slope_plus, slope_minus, slope_h, items,
    plus_rate, minus_rate, rho, delta, jump, height,
    SMOOTH: tl.constexpr, SUP: tl.constexpr, SHARED: tl.constexpr, WEIGHTED: tl.constexpr, SLOPED: tl.constexpr,
    FAST: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Sums over all items j, for BLOCK_K positives k of one query at a time.

    SMOOTH: rank⁺ and H-rank⁺ under a sigmoid, else Heaviside. SUP: rank⁻ under H⁻ (of which the sigmoid is a case), else
    Heaviside. SHARED: both sigmoids are the same one. Each walk fetches the next tile while it works on this one.
    """
    query = tl.program_id(0)
    row = query.to(tl.int64) * items
    positives = tl.load(counts + 2 * query)
    negatives = tl.load(counts + 2 * query + 1)
    tile = tl.arange(0, BLOCK_J)
    for block in range(tl.program_id(1) * BLOCK_K, positives, tl.num_programs(1) * BLOCK_K):
        slot = block + tl.arange(0, BLOCK_K)
        held = slot < positives
        k = tl.load(order + row + slot, mask=held, other=0)
        s = tl.load(scores + row + k)
        s_k = s[:, None]
        level_k = tl.load(level + row + k)[:, None]
        if WEIGHTED:
            rel_k = tl.load(relevance + row + k)[:, None]

        plus = tl.zeros((BLOCK_K, BLOCK_J), tl.float32)
        minus = tl.zeros((BLOCK_K, BLOCK_J), tl.float32)
        weighted = tl.zeros((BLOCK_K, BLOCK_J), tl.float32)
        d_plus = tl.zeros((BLOCK_K, BLOCK_J), tl.float32)
        d_minus = tl.zeros((BLOCK_K, BLOCK_J), tl.float32)
        d_weighted = tl.zeros((BLOCK_K, BLOCK_J), tl.float32)

        next_j = tl.load(order + row + tile, mask=tile < positives, other=0)
        for start in range(0, positives, BLOCK_J):
            j = next_j
            listed = start + tile < positives
            next_j = tl.load(order + row + start + BLOCK_J + tile, mask=start + BLOCK_J + tile < positives, other=0)
            gap = tl.where(listed, tl.load(scores + row + j), -FAR)[None, :] - s_k
            lower = tl.load(level + row + j)[None, :] < level_k
            if SMOOTH:
                step = _sigmoid(gap, plus_rate, FAST)
                slope = step - step * step
            else:
                step = tl.where(gap >= 0, 1.0, 0.0)
            plus += tl.where(lower, 0.0, step)
            if SLOPED and SMOOTH:
                d_plus += tl.where(lower, 0.0, slope)
            if WEIGHTED:
                closest = tl.minimum(tl.load(relevance + row + j)[None, :], rel_k)
                weighted += closest * step
                if SLOPED and SMOOTH:
                    d_weighted += closest * slope
            if SUP:
                if SHARED:
                    sigmoid = step
                else:
                    sigmoid = _sigmoid(gap, minus_rate, FAST)
                value, below = _curve(gap, sigmoid, minus_rate, rho, delta, jump, height)
                minus += tl.where(lower, value, 0.0)
                if SLOPED:
                    d_minus += tl.where(lower, below, 0.0)
            else:
                minus += tl.where(lower & (gap >= 0), 1.0, 0.0)

        first = items - negatives
        next_s = tl.load(scores + row + tl.load(order + row + first + tile, mask=first + tile < items, other=0))
        next_j = tl.load(order + row + first + BLOCK_J + tile, mask=first + BLOCK_J + tile < items, other=0)
        for start in range(first, items, BLOCK_J):
            gap = tl.where(start + tile < items, next_s, -FAR)[None, :] - s_k
            next_s = tl.load(scores + row + next_j)
            next_j = tl.load(order + row + start + 2 * BLOCK_J + tile, mask=start + 2 * BLOCK_J + tile < items, other=0)
            if SUP:
                value, below = _curve(gap, _sigmoid(gap, minus_rate, FAST), minus_rate, rho, delta, jump, height)
                minus += value
                if SLOPED:
                    d_minus += below
            else:
                minus += tl.where(gap >= 0, 1.0, 0.0)

        # The self pair is in the sums: a gap of 0, worth 1 under Heaviside as in 1 + Σ_{j≠k}, but ½ under the sigmoid.
        own = 0.5 if SMOOTH else 0.0
        tl.store(rank_plus + row + k, own + tl.sum(plus, 1), mask=held)
        tl.store(rank_minus + row + k, tl.sum(minus, 1), mask=held)
        if WEIGHTED:
            tl.store(h_rank + row + k, own * tl.load(relevance + row + k) + tl.sum(weighted, 1), mask=held)
        if SLOPED and SMOOTH:
            tl.store(slope_plus + row + k, tl.sum(d_plus, 1) * plus_rate, mask=held)
            if WEIGHTED:
                tl.store(slope_h + row + k, tl.sum(d_weighted, 1) * plus_rate, mask=held)
        if SLOPED and SUP:
            tl.store(slope_minus + row + k, tl.sum(d_minus, 1) * minus_rate, mask=held)


@triton.jit
def backward(
    scores, level, relevance, order, counts, slope_plus, slope_minus, slope_h,
    grad_plus, grad_minus, grad_h, gradient, items,
    plus_rate, minus_rate, rho, delta, jump, height,
    TO_PLUS: tl.constexpr, TO_MINUS: tl.constexpr, TO_H: tl.constexpr, SHARED: tl.constexpr,
    FAST: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """∂/∂s_j: what j adds to the ranks of every positive k, less what moving j as a k takes from its own rank."""
    query = tl.program_id(0)
    row = query.to(tl.int64) * items
    positives = tl.load(counts + 2 * query)
    j = tl.program_id(1) * BLOCK_J + tl.arange(0, BLOCK_J)
    inside = j < items
    level_j = tl.load(level + row + j, mask=inside, other=-1)
    listed = inside & (level_j >= 0)
    s_j = tl.where(listed, tl.load(scores + row + j, mask=inside, other=0.0), -FAR)
    positive_j = inside & (level_j > 0)
    if TO_H:
        rel_j = tl.where(positive_j, tl.load(relevance + row + j, mask=inside, other=0.0), 0.0)

    total = tl.zeros((BLOCK_K, BLOCK_J), tl.float32)
    for start in range(0, positives, BLOCK_K):
        slot = start + tl.arange(0, BLOCK_K)
        held = slot < positives
        k = tl.load(order + row + slot, mask=held, other=0)
        gap = s_j[None, :] - tl.load(scores + row + k)[:, None]
        lower = level_j[None, :] < tl.load(level + row + k)[:, None]
        if TO_MINUS:
            g = tl.where(held, tl.load(grad_minus + row + k), 0.0)[:, None]
            sigmoid = _sigmoid(gap, minus_rate, FAST)
            _, slope = _curve(gap, sigmoid, minus_rate, rho, delta, jump, height)
            total += tl.where(lower, g, 0.0) * slope
        if TO_PLUS or TO_H:
            if not (TO_MINUS and SHARED):
                sigmoid = _sigmoid(gap, plus_rate, FAST)
            weight = tl.zeros((BLOCK_K, BLOCK_J), tl.float32)
            if TO_PLUS:
                g = tl.where(held, tl.load(grad_plus + row + k), 0.0)[:, None]
                weight += tl.where(lower, 0.0, g)
            if TO_H:
                g = tl.where(held, tl.load(grad_h + row + k), 0.0)[:, None]
                weight += tl.minimum(rel_j[None, :], tl.load(relevance + row + k)[:, None]) * g
            total += weight * (sigmoid - sigmoid * sigmoid) * (plus_rate / minus_rate if TO_MINUS else 1.0)
    change = tl.sum(total, 0) * (minus_rate if TO_MINUS else plus_rate)
    if TO_MINUS:
        own = tl.load(grad_minus + row + j, mask=positive_j, other=0.0)
        change -= own * tl.load(slope_minus + row + j, mask=positive_j, other=0.0)
    if TO_PLUS:
        own = tl.load(grad_plus + row + j, mask=positive_j, other=0.0)
        change -= own * tl.load(slope_plus + row + j, mask=positive_j, other=0.0)
    if TO_H:
        own = tl.load(grad_h + row + j, mask=positive_j, other=0.0)
        change -= own * tl.load(slope_h + row + j, mask=positive_j, other=0.0)
    tl.store(gradient + row + j, tl.where(listed, change, 0.0), mask=inside)
