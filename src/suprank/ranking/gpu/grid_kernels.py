"""Triton kernels that sum smooth steps on a grid, for `grid`.

A sum goes over sources at targets: over all items at the positives in forward, and over the positives at all items in
backward. Each query's sources are in a list by decreasing score. In backward that list is REVERSED, read from its other end
with scores and levels negated: what a positive counts among the items above it becomes what an item gives to the positives
below it, so that one set of kernels serves both ways.

Bins of equal width go from the highest score down, and an item has a coordinate ξ from −1 to 1 in its bin. What a source j
adds at a target i, so many bins below, is a polynomial in ξ_j and ξ_i: see `step_table`.

    spread    Σ ξ_j^a over the sources of each bin, and over those of a bin up to every TILE-th item
    connect   from these, the coefficients of the sum as a polynomial in ξ_i, for each bin of targets
    read      the sum at each target; in the one bin that δ cuts in two, from the sums up to a TILE and the few pairs left

Every number has one owner that adds in one order, so that two runs agree bit by bit. Programs are mostly of one warp: sums and
scans within it need no shared memory.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from suprank.ranking.gpu.list_kernels import SLOTS

PLUS, MINUS, HIERARCHICAL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def _score(scores, p, count, mask, REVERSED: tl.constexpr):
    if REVERSED:
        return -tl.load(scores + count - 1 - p, mask=mask, other=0.0)
    else:
        return tl.load(scores + p, mask=mask, other=0.0)


@triton.jit
def _level(level, p, count, mask, flip, REVERSED: tl.constexpr):
    """The level, or `flip` less it; −1 where the mask is False."""
    if REVERSED:
        return tl.where(mask, flip - tl.load(level + count - 1 - p, mask=mask, other=0).to(tl.int32), -1)
    else:
        return tl.load(level + p, mask=mask, other=-1).to(tl.int32)


@triton.jit
def _weight(weight, p, count, mask, REVERSED: tl.constexpr):
    """What an item counts as a source: 1, or the gradient of its rank."""
    if REVERSED:
        return tl.load(weight + count - 1 - p, mask=mask, other=0.0)
    else:
        return tl.where(mask, 1.0, 0.0)


@triton.jit
def _top(ends, query, REVERSED: tl.constexpr):
    """The score that the bins start from."""
    if REVERSED:
        return -tl.load(ends + 2 * query + 1).to(tl.float64)
    else:
        return tl.load(ends + 2 * query).to(tl.float64)


@triton.jit
def edges(scores, counts, ends, starts, numbers, s_items, bins, search, REVERSED: tl.constexpr, BLOCK: tl.constexpr):
    """The position of the first source of every bin, and one past the last."""
    query = tl.program_id(0)
    row = scores + query.to(tl.int64) * s_items
    count = tl.load(counts + 2 * query + (1 if REVERSED else 0))
    inverse = tl.load(numbers)
    top = _top(ends, query, REVERSED)
    edge = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    high = edge * 0 + count
    low = edge * 0
    for _ in range(0, search):
        middle = (low + high) // 2
        seeking = low < high
        place = (top - _score(row, middle, count, seeking, REVERSED).to(tl.float64)) * inverse
        above = place < edge.to(tl.float64)
        low = tl.where(seeking & above, middle + 1, low)
        high = tl.where(seeking & (above == 0), middle, high)
    low = tl.where(edge >= bins, count, low)
    tl.store(starts + query.to(tl.int64) * (bins + 1) + edge, low, mask=edge <= bins)


@triton.jit
def spread(
    scores, level, weight, counts, ends, by_level, starts, moments, running, numbers, s_items, bins, tiles, depth, flip,
    KIND: tl.constexpr, REVERSED: tl.constexpr, CUT: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Σ ξ^a over the sources of one bin that targets of each level count; CUT of the terms also up to every TILE-th source."""
    query = tl.program_id(0)
    bin = tl.program_id(1)
    row = query.to(tl.int64) * s_items
    count = tl.load(counts + 2 * query + (1 if REVERSED else 0))
    edge = starts + query.to(tl.int64) * (bins + 1) + bin
    first = tl.load(edge)
    last = tl.load(edge + 1)
    inverse = tl.load(numbers)
    top = _top(ends, query, REVERSED)
    lane = tl.arange(0, BLOCK)
    column = tl.arange(0, COLUMNS)
    term = tl.arange(0, TERMS)
    sums = tl.zeros((TERMS, COLUMNS), tl.float32)
    for base in range(first // TILE * TILE, last, BLOCK):
        p = base + lane
        inside = (p >= first) & (p < last)
        place = (top - _score(scores + row, p, count, inside, REVERSED).to(tl.float64)) * inverse
        coordinate = tl.where(inside, ((place - bin) * 2 - 1).to(tl.float32), 0.0)
        own = _level(level + row, p, count, inside, flip, REVERSED)
        w = _weight(weight + row, p, count, inside, REVERSED)
        if KIND == MINUS:
            power = tl.where((own[:, None] >= 0) & (own[:, None] <= column[None, :]), w[:, None], 0.0)
        elif KIND == PLUS:
            power = tl.where(own[:, None] > column[None, :], w[:, None], 0.0)
        else:
            source = flip - own if REVERSED else own
            target = flip - 1 - column if REVERSED else column + 1
            rel = tl.load(by_level + query * SLOTS + source, mask=inside & (source > 0), other=0.0)
            to = tl.load(by_level + query * SLOTS + target, mask=column < depth, other=0.0)
            power = w[:, None] * tl.minimum(rel[:, None], to[None, :])
        for a in tl.static_range(TERMS):
            by_tile = tl.sum(tl.reshape(power, (BLOCK // TILE, TILE, COLUMNS)), 1)
            if a < CUT:
                before = tl.sum(tl.where(term[:, None] == a, sums, 0.0), 0)
                tile = base // TILE + 1 + tl.arange(0, BLOCK // TILE)
                at = ((query.to(tl.int64) * tiles + tile)[:, None] * depth + column[None, :]) * TERMS + a
                whole = (tile * TILE > first) & (tile * TILE <= last)
                up_to = before[None, :] + tl.cumsum(by_tile, 0)
                tl.store(running + at, up_to, mask=whole[:, None] & (column[None, :] < depth))
            sums += tl.where(term[:, None] == a, tl.sum(by_tile, 0)[None, :], 0.0)
            power = power * coordinate[:, None]
    at = ((query.to(tl.int64) * depth + column)[None, :] * bins + bin) * TERMS + term[:, None]
    tl.store(moments + at, sums, mask=(column[None, :] < depth) & (term[:, None] < TERMS))


@triton.jit
def connect(
    moments, coefficients, near, numbers, rows, bins, above, taps, TERMS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The coefficients of the sum and of its slope in every bin of targets, by a table of the bins nearby.

    Sources more than `above` bins above a target are on a line; those too far below add nothing. `numbers` are 1/width, width,
    and the line's slope and its height at a gap of 0.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    held = row < rows
    start = row.to(tl.int64) * bins * TERMS
    width = tl.load(numbers + 1)
    rho = tl.load(numbers + 2)
    height = tl.load(numbers + 3)
    entry = tl.arange(0, BLOCK)
    out = tl.arange(0, 2 * TERMS)
    count = tl.zeros((ROWS,), tl.float64)
    places = tl.zeros((ROWS,), tl.float64)  # Σ of the places of the sources on the line
    for bin in range(0, bins):
        source = bin - above - 1
        if source >= 0:
            m_0 = tl.load(moments + start + source * TERMS, mask=held, other=0.0).to(tl.float64)
            m_1 = tl.load(moments + start + source * TERMS + 1, mask=held, other=0.0).to(tl.float64)
            count += m_0
            places += m_0 * (source + 0.5) + m_1 * 0.5
        total = tl.zeros((ROWS, 2 * TERMS), tl.float32)
        for chunk in range(0, taps * TERMS, BLOCK):
            at = (bin - above) * TERMS + chunk + entry
            known = (at >= 0) & (at < bins * TERMS) & (chunk + entry < taps * TERMS)
            m = tl.load(moments + start[:, None] + at[None, :], mask=held[:, None] & known[None, :], other=0.0)
            t = tl.load(near + (chunk + entry)[:, None] * (2 * TERMS) + out[None, :], mask=known[:, None], other=0.0)
            total += tl.dot(m, t, input_precision="ieee")
        constant = (height * count + rho * width * (count * (bin + 0.5) - places)).to(tl.float32)
        linear = (rho * width * 0.5 * count).to(tl.float32)
        slope = (rho * count).to(tl.float32)
        total += tl.where(out[None, :] == 0, constant[:, None], 0.0)
        total += tl.where(out[None, :] == 1, linear[:, None], 0.0)
        total += tl.where(out[None, :] == TERMS, slope[:, None], 0.0)
        to = coefficients + (start[:, None] + bin * TERMS) * 2 + out[None, :]
        tl.store(to, total, mask=held[:, None])


@triton.jit
def read(
    t_scores, t_level, order, slots, s_scores, s_level, s_weight, counts, ends, by_level, starts, running, coefficients,
    cut, numbers, grad, slopes, values, items, s_items, bins, tiles, depth, flip, above, rate, rho, delta, rest, jump,
    KIND: tl.constexpr, REVERSED: tl.constexpr, CUT: tl.constexpr, FIRST: tl.constexpr, TERMS: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum at every target, and its slope.

    Forward, the targets are positives, and get `values` and `slopes`. REVERSED, they are all items, and `values` is their
    gradient, from which goes what moving an item takes as a positive: `grad` of its rank times its slope.
    """
    query = tl.program_id(0)
    row = query.to(tl.int64) * items
    s_row = query.to(tl.int64) * s_items
    count = tl.load(counts + 2 * query + (1 if REVERSED else 0))
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if REVERSED:
        p = i
        inside = i < tl.load(counts + 2 * query)
        z = -tl.load(t_scores + row + p, mask=inside, other=0.0)
        level = tl.load(t_level + row + p, mask=inside, other=0).to(tl.int32)
        own = flip - level
        target = inside & (own >= 1) & (own <= depth)
    else:
        inside = i < tl.load(counts + 2 * query + 1)
        p = tl.load(slots + row + i, mask=inside, other=0).to(tl.int32)
        z = tl.load(t_scores + row + p, mask=inside, other=0.0)
        own = tl.load(t_level + row + p, mask=inside, other=1).to(tl.int32)
        target = inside
    column = tl.where(target, own - 1, 0)
    z_64 = z.to(tl.float64)
    place = tl.where(inside, (_top(ends, query, REVERSED) - z_64) * tl.load(numbers), 0.0)
    bin = tl.minimum(place.to(tl.int32), bins - 1)
    coordinate = ((place - bin) * 2 - 1).to(tl.float32)

    value = tl.zeros((BLOCK,), tl.float32)
    slope = tl.zeros((BLOCK,), tl.float32)
    at = coefficients + ((query.to(tl.int64) * depth + column) * bins + bin) * (2 * TERMS)
    for a in tl.static_range(TERMS):
        if not REVERSED:
            value = value * coordinate + tl.load(at + (TERMS - 1 - a), mask=target, other=0.0)
        slope = slope * coordinate + tl.load(at + (2 * TERMS - 1 - a), mask=target, other=0.0)

    if CUT > 0:
        gap = tl.load(numbers + 4)
        at_cut = target & (bin >= above)
        edge = starts + query.to(tl.int64) * (bins + 1) + bin - above
        first = tl.load(edge, mask=at_cut, other=0)
        low = first
        high = tl.load(edge + 1, mask=at_cut, other=0)
        while tl.max(high - low, 0) > 0:
            middle = (low + high) // 2
            seeking = low < high
            beyond = _score(s_scores + s_row, middle, count, seeking, REVERSED).to(tl.float64) - z_64 > gap
            low = tl.where(seeking & beyond, middle + 1, low)
            high = tl.where(seeking & (beyond == 0), middle, high)
        tile = low // TILE
        summed = at_cut & (tile * TILE > first)
        at_tile = running + ((query.to(tl.int64) * tiles + tile) * depth + column) * TERMS
        for a in tl.static_range(CUT):
            moment = tl.load(at_tile + a, mask=summed, other=0.0)
            v = tl.zeros((BLOCK,), tl.float32)
            d = tl.zeros((BLOCK,), tl.float32)
            for b in tl.static_range(CUT):
                if not REVERSED:
                    v = v * coordinate + tl.load(cut + a * (2 * CUT) + (CUT - 1 - b))
                d = d * coordinate + tl.load(cut + a * (2 * CUT) + (2 * CUT - 1 - b))
            value += moment * v
            slope += moment * d
        begin = tl.where(summed, tile * TILE, first)
        for k in range(0, tl.max(low - begin, 0)):
            here = begin + k < low
            t = _score(s_scores + s_row, begin + k, count, here, REVERSED) - z
            source = _level(s_level + s_row, begin + k, count, here, flip, REVERSED)
            w = _weight(s_weight + s_row, begin + k, count, here & (source >= 0) & (source < own), REVERSED)
            fading = tl.exp2(tl.maximum(t, 0.0) * (rate * -LOG2_E))
            sigmoid = 1.0 / (1.0 + fading)
            if not REVERSED:
                value += w * (rho * (t - delta) + rest + fading * sigmoid)
            slope += w * (rho - rate * fading * sigmoid * sigmoid)

    j = tl.load(order + row + p, mask=inside, other=0)
    if REVERSED:
        positive = inside & (level > 0)
        slope -= tl.load(grad + row + j, mask=positive, other=0.0) * tl.load(slopes + row + j, mask=positive, other=0.0)
        if not FIRST:
            slope += tl.load(values + row + j, mask=inside, other=0.0)
        tl.store(values + row + j, slope, mask=inside)
    else:
        if KIND == MINUS:
            value += jump * tl.load(values + row + j, mask=target, other=0.0)
        elif KIND == PLUS:  # the item itself is in the sum, as ½
            value += 0.5
        else:
            value += 0.5 * tl.load(by_level + query * SLOTS + own, mask=target, other=0.0)
        tl.store(values + row + j, value, mask=target)
        tl.store(slopes + row + j, slope, mask=target)
