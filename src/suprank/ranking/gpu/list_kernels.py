"""Triton kernels that survey, sort out and count the items of each query: what `grid` needs beside the grid's own.

A query's items are in a list by decreasing score; those that are IGNORED come last.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

SLOTS = tl.constexpr(16)  # of the relevance of a query's levels


@triton.jit
def survey(
    scores, level, relevance, facts, counts, ends, by_level, items, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The facts of each query: range of the scores, positives, deepest level, and whether it is irregular.

    Irregular is a score that is not finite, and a relevance that differs within a level. Also the numbers of listed items and
    of positives, the highest and the lowest score, and the relevance of each level.
    """
    query = tl.program_id(0)
    row = query.to(tl.int64) * items
    lane = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    highest = tl.full((BLOCK,), -math.inf, tl.float32)
    lowest = tl.full((BLOCK,), math.inf, tl.float32)
    deepest = tl.zeros((BLOCK,), tl.int32)
    count = tl.zeros((BLOCK,), tl.int32)
    positives = tl.zeros((BLOCK,), tl.int32)
    odd = tl.zeros((BLOCK,), tl.int32)
    most = tl.full((SLOTS,), -1.0, tl.float32)
    least = tl.full((SLOTS,), math.inf, tl.float32)
    for start in range(0, items, BLOCK):
        j = start + lane
        inside = j < items
        own = tl.load(level + row + j, mask=inside, other=-1).to(tl.int32)
        s = tl.load(scores + row + j, mask=inside, other=0.0)
        here = own >= 0
        count += here.to(tl.int32)
        positives += (own > 0).to(tl.int32)
        deepest = tl.maximum(deepest, own)
        finite = (s - s) == 0.0
        odd = odd | (here & (finite == 0)).to(tl.int32)
        highest = tl.where(here & finite, tl.maximum(highest, s), highest)
        lowest = tl.where(here & finite, tl.minimum(lowest, s), lowest)
        if WEIGHTED:
            rel = tl.load(relevance + row + j, mask=inside, other=0.0)
            member = (own[:, None] == slot[None, :]) & (slot[None, :] > 0)
            most = tl.maximum(most, tl.max(tl.where(member, rel[:, None], -1.0), 0))
            least = tl.minimum(least, tl.min(tl.where(member, rel[:, None], math.inf), 0))
    total = tl.sum(count, 0)
    top = tl.max(highest, 0)
    bottom = tl.min(lowest, 0)
    spread = top.to(tl.float64) - bottom.to(tl.float64)
    differs = tl.max(odd, 0)
    if WEIGHTED:
        differs = tl.maximum(differs, tl.max(((most >= 0.0) & (most != least)).to(tl.int32), 0))
        tl.store(by_level + query * SLOTS + slot, tl.maximum(most, 0.0))
    tl.store(counts + 2 * query, total)
    tl.store(counts + 2 * query + 1, tl.sum(positives, 0))
    tl.store(ends + 2 * query, top)
    tl.store(ends + 2 * query + 1, bottom)
    tl.store(facts + 4 * query, tl.where(spread > 0.0, spread, 0.0))
    tl.store(facts + 4 * query + 1, tl.sum(positives, 0).to(tl.float64))
    tl.store(facts + 4 * query + 2, tl.max(deepest, 0).to(tl.float64))
    tl.store(facts + 4 * query + 3, differs.to(tl.float64))


@triton.jit
def arrange(
    level, order, sorted_level, slots, words, items, depth, bits,
    IN_WORD: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From the places of the sorted items: the level of every item in the list, and the positions of the positives.

    `words` count, up to every item, those of a level below 1, 2, …: several counts in a word.
    """
    query = tl.program_id(0)
    row = query.to(tl.int64) * items
    lane = tl.arange(0, BLOCK)
    found = query * 0
    for word in tl.static_range(WORDS):
        before = tl.zeros((), tl.int64)
        for start in range(0, items, BLOCK):
            p = start + lane
            inside = p < items
            if word == 0:
                j = tl.load(order + row + p, mask=inside, other=0)
                own = tl.load(level + row + j, mask=inside, other=-1).to(tl.int32)
                tl.store(sorted_level + row + p, own.to(tl.int8), mask=inside)
                positive = (own > 0).to(tl.int32)
                tl.store(slots + row + found + tl.cumsum(positive, 0) - 1, p, mask=own > 0)
                found += tl.sum(positive, 0)
            else:
                own = tl.load(sorted_level + row + p, mask=inside, other=-1).to(tl.int32)
            packed = tl.zeros((BLOCK,), tl.int64)
            for i in tl.static_range(IN_WORD):
                current = word * IN_WORD + i + 1
                below = (own >= 0) & (own < current) & (current <= depth)
                packed += below.to(tl.int64) << (bits * i)
            tl.store(words + row * WORDS + word * items + p, before + tl.cumsum(packed, 0), mask=inside)
            before += tl.sum(packed, 0)


@triton.jit
def rearrange(
    scores, level, grad, order, sorted_scores, sorted_level, s_scores, s_level, s_weight, items, s_items, BLOCK: tl.constexpr
):  # fmt: skip
    """From the order that forward found: the list again, and the list of positives with the gradient of their ranks."""
    row = tl.program_id(0).to(tl.int64) * items
    lane = tl.arange(0, BLOCK)
    found = tl.program_id(0) * 0
    for start in range(0, items, BLOCK):
        p = start + lane
        inside = p < items
        j = tl.load(order + row + p, mask=inside, other=0)
        own = tl.load(level + row + j, mask=inside, other=-1).to(tl.int8)
        s = tl.load(scores + row + j, mask=inside, other=0.0)
        tl.store(sorted_scores + row + p, s, mask=inside)
        tl.store(sorted_level + row + p, own, mask=inside)
        positive = inside & (own > 0)
        slot = tl.program_id(0).to(tl.int64) * s_items + found + tl.cumsum(positive.to(tl.int32), 0) - 1
        tl.store(s_scores + slot, s, mask=positive)
        tl.store(s_level + slot, own, mask=positive)
        tl.store(s_weight + slot, tl.load(grad + row + j, mask=positive, other=0.0), mask=positive)
        found += tl.sum(positive.to(tl.int32), 0)


@triton.jit
def _end_of_tie(scores, p, s, count, held):
    """The position after the last item of the same score: in steps that double, then in halves."""
    low = p + 1
    step = tl.full(p.shape, 1, tl.int32)
    seeking = held & (low < count)
    while tl.max(seeking.to(tl.int32), 0) > 0:
        equal = tl.load(scores + low + step - 1, mask=seeking & (low + step <= count), other=-math.inf) == s
        low = tl.where(seeking & equal, low + step, low)
        step = tl.where(equal, step * 2, step // 2)
        seeking = seeking & (step > 0) & (low < count)
    return low


@triton.jit
def exact(
    scores, level, slots, order, words, counts, by_level, rank_plus, rank_minus, h_rank, items, bits,
    WEIGHTED: tl.constexpr, DEPTH: tl.constexpr, IN_WORD: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Ranks of the positives under Heaviside's step."""
    query = tl.program_id(0)
    row = query.to(tl.int64) * items
    count = tl.load(counts + 2 * query)
    slot = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    held = slot < tl.load(counts + 2 * query + 1)
    p = tl.load(slots + row + slot, mask=held, other=0).to(tl.int32)
    own = tl.load(level + row + p, mask=held, other=0).to(tl.int32)
    s = tl.load(scores + row + p, mask=held, other=0.0)
    end = _end_of_tie(scores + row, p, s, count, held)
    mask = (tl.full((BLOCK,), 1, tl.int64) << bits) - 1
    lower = tl.zeros((BLOCK,), tl.int64)
    h = tl.zeros((BLOCK,), tl.float32)
    if WEIGHTED:
        rel = tl.load(by_level + query * SLOTS + own, mask=held, other=0.0)
        below = tl.zeros((BLOCK,), tl.int64)
    for current in tl.static_range(1, DEPTH + 2):
        if current <= DEPTH:
            packed = tl.load(words + row * WORDS + (current - 1) // IN_WORD * items + end - 1, mask=held, other=0)
            up_to = (packed >> (bits * ((current - 1) % IN_WORD))) & mask
            lower = tl.where(own == current, up_to, lower)
        else:
            up_to = end.to(tl.int64)
        if WEIGHTED:
            if current > 1:
                h += (up_to - below).to(tl.float32) * tl.minimum(rel, tl.load(by_level + query * SLOTS + current - 1))
            below = up_to
    j = tl.load(order + row + p, mask=held, other=0)
    tl.store(rank_plus + row + j, (end - lower).to(tl.float32), mask=held)
    tl.store(rank_minus + row + j, lower.to(tl.float32), mask=held)
    if WEIGHTED:
        tl.store(h_rank + row + j, h, mask=held)
