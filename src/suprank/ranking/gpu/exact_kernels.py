"""The Triton kernels behind `fused`: no score is sorted but the positives', and every sum has one owner.

Programs of one query run side by side (its number is the grid's second), so that they share what they read of it. Counts
are added up by atomic additions of whole numbers, whose order does not matter, and `sum_positives` has one program for each
segment of a query's positives, which adds in one order: two runs agree bit by bit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def take(scores, item, into, first, items, wanted, scores_stride, item_stride, into_stride, BLOCK: tl.constexpr):
    """into[q, i] = scores[q, item[i] − first], and −∞ in its stead; the items of a row are all different."""
    query = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    listed = i < wanted
    at = tl.load(item + query * item_stride + i, mask=listed, other=-1)
    here = listed & (at >= 0)
    at = at - first
    here = here & (at >= 0) & (at < items)
    source = scores + query * scores_stride + at
    value = tl.load(source, mask=here, other=0.0)
    tl.store(into + query * into_stride + i, value, mask=here)
    tl.store(source, tl.full([BLOCK], float("-inf"), tl.float32), mask=here)


@triton.jit
def count_few(
    scores, thresholds, counts, items, positives, scores_stride, thresholds_stride, counts_stride, BLOCK: tl.constexpr
):
    """counts[q, i] += the number of this block's scores that reach threshold i, compared one threshold after the other."""
    query = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores + query * scores_stride + j, mask=j < items, other=float("-inf"))
    for i in range(0, positives):
        threshold = tl.load(thresholds + query * thresholds_stride + i)
        reaching = tl.sum((score >= threshold).to(tl.int32), 0)
        if reaching > 0:
            tl.atomic_add(counts + query * counts_stride + i, reaching, sem="relaxed")


@triton.jit
def fill_gaps(
    scores,
    thresholds,
    gaps,
    items,
    positives,
    scores_stride,
    thresholds_stride,
    gaps_stride,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """gaps[q, i] += the number of this block's scores between threshold i and the one before, found by halving."""
    query = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores + query * scores_stride + j, mask=j < items, other=float("-inf"))
    row = thresholds + query * thresholds_stride
    above = tl.zeros([BLOCK], tl.int32)  # the thresholds above the score, one bit of their number after the other
    for step in tl.static_range(STEPS):
        further = above + (1 << (STEPS - 1 - step))
        inside = further <= positives
        threshold = tl.load(row + further - 1, mask=inside, other=float("-inf"))
        above = tl.where(inside & (threshold > score), further, above)
    counted = (above < positives) & (score > float("-inf"))
    tl.atomic_add(gaps + query * gaps_stride + above, tl.full([BLOCK], 1, tl.int32), mask=counted, sem="relaxed")


@triton.jit
def settle(falling, level, unsettled, positives, stride, PARITY: tl.constexpr, BLOCK: tl.constexpr):
    """Swap the levels of neighbors of equal score that stand the wrong way round; pairs begin at every second positive."""
    query = tl.program_id(1).to(tl.int64)
    i = 2 * (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) + PARITY
    inside = i + 1 < positives
    row = query * stride + i
    left = tl.load(level + row, mask=inside, other=0)
    right = tl.load(level + row + 1, mask=inside, other=0)
    equal = tl.load(falling + row, mask=inside, other=0.0) == tl.load(falling + row + 1, mask=inside, other=0.0)
    wrong = inside & equal & (left > right)
    tl.store(level + row, right, mask=wrong)
    tl.store(level + row + 1, left, mask=wrong)
    if tl.max(wrong.to(tl.int32), 0) > 0:
        tl.store(unsettled, 1)


@triton.jit
def count_levels(level, counts, positives, stride, depth, DEPTH: tl.constexpr, SEGMENT: tl.constexpr, BLOCK: tl.constexpr):
    """counts[q, segment, l − 1] = how many of the segment's positives have level l."""
    query = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, DEPTH)
    begin = tl.program_id(1) * SEGMENT
    number = tl.zeros([DEPTH], tl.int32)
    for start in range(begin, min(begin + SEGMENT, positives), BLOCK):
        i = start + tl.arange(0, BLOCK)
        own = tl.load(level + query * stride + i, mask=i < positives, other=0).to(tl.int32)
        number += tl.sum((own[:, None] == column[None, :] + 1).to(tl.int32), 0)
    out = counts + (query * tl.num_programs(1) + tl.program_id(1)) * depth + column
    tl.store(out, number, mask=column < depth)


@triton.jit
def sum_positives(
    level,
    place,
    sizes,
    relevance,
    before,
    harmonic,
    by_level,
    by_query,
    queries,
    stride,
    depth,
    DEPTH: tl.constexpr,
    SEGMENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sums over a segment of one query's positives, in their order, with the number of each level seen so far."""
    query = tl.program_id(0).to(tl.int64)
    segment = query * tl.num_programs(1) + tl.program_id(1)
    begin = tl.program_id(1) * SEGMENT
    column = tl.arange(0, DEPTH)
    known = column < depth
    size = tl.load(sizes + query * depth + column, mask=known, other=0)
    deeper = tl.load(sizes + query * depth + column + 1, mask=column + 1 < depth, other=0)
    weight = tl.load(relevance + query * depth + column, mask=known, other=0.0)
    harmonic_size = tl.load(harmonic + size)
    total = tl.load(sizes + query * depth)
    harmonic_total = tl.load(harmonic + total)
    seen = tl.load(before + segment * depth + column, mask=known, other=0)
    precision = tl.zeros([DEPTH], tl.float64)
    precision_in_r = tl.zeros([DEPTH], tl.float64)
    found_in_r = tl.zeros([DEPTH], tl.int32)
    intersection = tl.zeros([DEPTH], tl.float64)
    first = tl.full([DEPTH], 2147483647, tl.int32)
    discount = tl.zeros([DEPTH], tl.float64)
    hierarchical = tl.zeros([BLOCK], tl.float64)
    graded = tl.zeros([BLOCK], tl.float64)
    for start in range(begin, min(begin + SEGMENT, total), BLOCK):
        i = start + tl.arange(0, BLOCK)
        listed = i < total
        own = tl.load(level + query * stride + i, mask=listed, other=0).to(tl.int32)
        at = tl.load(place + query * stride + i, mask=listed, other=1)
        is_own = own[:, None] == column[None, :] + 1
        member = own[:, None] > column[None, :]
        count = tl.cumsum(is_own.to(tl.int32), 0) + seen[None, :]
        reaching = tl.cumsum(count, 1, reverse=True)  # of this level or deeper
        inverse = 1.0 / at.to(tl.float64)
        share = tl.where(member, reaching.to(tl.float64) * inverse[:, None], 0.0)
        within = member & (at[:, None] <= size[None, :])
        harmonic_at = tl.load(harmonic + at - 1, mask=listed & (at <= total), other=0.0)
        precision += tl.sum(share, 0)
        precision_in_r += tl.sum(tl.where(within, share, 0.0), 0)
        found_in_r += tl.sum(within.to(tl.int32), 0)
        intersection += tl.sum(tl.where(within, harmonic_size[None, :] - harmonic_at[:, None], 0.0), 0)
        first = tl.minimum(first, tl.min(tl.where(member, at[:, None], 2147483647), 0))
        discount += tl.sum(tl.where(member, (1.0 / tl.log2(1.0 + at.to(tl.float64)))[:, None], 0.0), 0)
        own_weight = tl.sum(tl.where(is_own, weight[None, :], 0.0), 1)
        shared = tl.minimum(own_weight[:, None], weight[None, :])
        h_rank = tl.sum(count.to(tl.float64) * shared, 1)
        hierarchical += tl.where(listed, h_rank * inverse, 0.0)
        ideal = tl.sum(tl.where(is_own, count + deeper[None, :], 0), 1)
        both = tl.maximum(at, ideal)
        counted = listed & (both <= total)
        harmonic_both = tl.load(harmonic + both - 1, mask=counted, other=0.0)
        graded += tl.where(counted, harmonic_total - harmonic_both, 0.0)
        seen += tl.sum(is_own.to(tl.int32), 0)
    out = by_level + segment * depth + column
    rows = (queries + query * 0) * tl.num_programs(1)  # in 64 bits
    plane = rows * depth
    tl.store(out, precision, mask=known)
    tl.store(out + plane, precision_in_r, mask=known)
    tl.store(out + 2 * plane, found_in_r.to(tl.float64), mask=known)
    tl.store(out + 3 * plane, intersection, mask=known)
    none = first == 2147483647
    tl.store(out + 4 * plane, tl.where(none, float("inf"), first.to(tl.float64)), mask=known)
    tl.store(out + 5 * plane, discount, mask=known)
    tl.store(by_query + segment, tl.sum(hierarchical, 0))
    tl.store(by_query + rows + segment, tl.sum(graded, 0))


@triton.jit
def sum_top(
    level,
    place,
    relevance,
    ks,
    at_level,
    at_query,
    queries,
    positives,
    stride,
    depth,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sums over the first k items of one query, for one k."""
    query = tl.program_id(0).to(tl.int64)
    k = tl.load(ks + tl.program_id(1))
    column = tl.arange(0, DEPTH)
    known = column < depth
    weight = tl.load(relevance + query * depth + column, mask=known, other=0.0)
    seen = tl.zeros([DEPTH], tl.int32)
    found = tl.zeros([DEPTH], tl.int32)
    precision = tl.zeros([DEPTH], tl.float64)
    discount = tl.zeros([DEPTH], tl.float64)
    reciprocal = tl.zeros([DEPTH], tl.float64)
    total = tl.zeros([BLOCK], tl.float64)
    at_k = tl.zeros([BLOCK], tl.float64)
    for start in range(0, min(positives, k), BLOCK):
        i = start + tl.arange(0, BLOCK)
        listed = i < positives
        own = tl.load(level + query * stride + i, mask=listed, other=0).to(tl.int32)
        at = tl.load(place + query * stride + i, mask=listed, other=1)
        is_own = own[:, None] == column[None, :] + 1
        within = (own[:, None] > column[None, :]) & (at[:, None] <= k)
        count = tl.cumsum(is_own.to(tl.int32), 0) + seen[None, :]
        reaching = tl.cumsum(count, 1, reverse=True)
        place_at = at.to(tl.float64)
        share = reaching.to(tl.float64) / place_at[:, None]
        found += tl.sum(within.to(tl.int32), 0)
        precision += tl.sum(tl.where(within, share, 0.0), 0)
        discount += tl.sum(tl.where(within, (1.0 / tl.log2(1.0 + place_at))[:, None], 0.0), 0)
        reciprocal = tl.maximum(reciprocal, tl.max(tl.where(within, (1.0 / place_at)[:, None], 0.0), 0))
        own_weight = tl.sum(tl.where(is_own, weight[None, :], 0.0), 1)
        total += tl.where(at <= k, own_weight, 0.0)
        h_rank = tl.sum(count.to(tl.float64) * tl.minimum(own_weight[:, None], weight[None, :]), 1)
        is_kth = (at == k) & (own_weight > 0)
        at_k += tl.where(is_kth, h_rank / (k * tl.where(is_kth, own_weight, 1.0)), 0.0)
        seen += tl.sum(is_own.to(tl.int32), 0)
    row = query * tl.num_programs(1) + tl.program_id(1)
    rows = (queries + query * 0) * tl.num_programs(1)
    tl.store(at_level + row * depth + column, found.to(tl.float64), mask=known)
    tl.store(at_level + (rows + row) * depth + column, precision, mask=known)
    tl.store(at_level + (2 * rows + row) * depth + column, discount, mask=known)
    tl.store(at_level + (3 * rows + row) * depth + column, reciprocal, mask=known)
    tl.store(at_query + row, tl.sum(total, 0))
    hierarchical = tl.sum(at_k, 0)
    positives_found = tl.sum(tl.where(column == 0, found, 0), 0)
    tl.store(at_query + rows + row, tl.where(hierarchical > 0, hierarchical, positives_found.to(tl.float64) / k))
