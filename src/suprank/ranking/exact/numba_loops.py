"""The loops behind `compiled`, compiled by numba: only positives are sorted, and other scores are put in the gaps between them.

Functions ending in `_rows` work on the queries from `begin` to `end`, so that threads can share the queries. They run without
Python's lock. They stay without annotations: numba reads the types off the arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the function at its first call, and cache the result on disk where a folder is writable."""
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's is writable, as in a read-only container
        return numba.njit(nogil=True, error_model="numpy")(function)


_DIGIT = 11  # bits sorted by in one pass: 2048 counters stay in the first-level cache
_BUCKETS_PER_POSITIVE = 12  # the more, the rarer two positives share a bucket and the more memory a query touches
_MOST_BUCKETS = 65536
_STRIP = 1024  # scores handled between two stages, few enough to stay in the first-level cache
_FEW = 8  # so many thresholds are compared one by one, which vectorizes


@_compiled
def take_rows(begin, end, scores, item, first, into):
    shared = len(item) == 1
    for query in range(begin, end):
        wanted = item[0] if shared else item[query]
        for i in range(len(wanted)):
            at = wanted[i] - first
            if wanted[i] >= 0 and 0 <= at < scores.shape[1]:
                into[query, i] = scores[query, at]
                scores[query, at] = -np.inf


@_compiled
def top_rows(begin, end, scores, values, items):
    number, k = scores.shape[1], values.shape[1]
    # Candidates, in the order of items: the k best so far, and what exceeded the k-th of these since.
    room = min(number, max(4 * k, 512))
    score, item = np.empty(room, np.float32), np.empty(room, np.int64)
    for query in range(begin, end):
        row = scores[query]
        count, threshold = 0, np.float32(-np.inf)
        for i in range(number):
            if row[i] > threshold or count < k:
                score[count] = row[i]
                item[count] = i
                count += 1
                if count == room and room > k:
                    threshold = _keep_best(score, item, count, k)
                    count = k
        if count > k:
            _keep_best(score, item, count, k)
        order = np.argsort(-score[:k], kind="mergesort")  # stable: equal scores stay in the order of items
        values[query] = score[order]
        items[query] = item[order]


@_compiled
def _keep_best(score, item, count, k):
    """Move the k best candidates to the front, of equal ones the first, without changing their order; return the k-th score."""
    kth = np.partition(score[:count], count - k)[count - k]
    equal = k
    for i in range(count):
        equal -= score[i] > kth
    kept = 0
    for i in range(count):
        if score[i] > kth or (score[i] == kth and equal > 0):
            equal -= score[i] == kth
            score[kept] = score[i]
            item[kept] = item[i]
            kept += 1
    return kth


@_compiled
def sort_rows(begin, end, scores, level, falling, levels):
    number = scores.shape[1]
    key, spare_key = np.empty(number, np.uint32), np.empty(number, np.uint32)
    tag, spare_tag = np.empty(number, np.int8), np.empty(number, np.int8)
    for query in range(begin, end):
        tag[:] = level[query]
        _sort(scores[query], tag, key, spare_key, spare_tag, falling[query])
        levels[query] = tag


@_compiled
def count_rows(begin, end, thresholds, scores, counts):
    number = thresholds.shape[1]
    buckets = _number_of_buckets(number, scores.shape[1])
    above = np.empty(buckets, np.int32)
    falling, gap = np.empty(number + 1, np.float32), np.empty(number + 1, np.int32)
    slot, late = np.empty(_STRIP, np.int32), np.empty(_STRIP + 1, np.int32)
    for query in range(begin, end):
        valid = number
        while valid and thresholds[query, valid - 1] == -np.inf:
            valid -= 1
        falling[:valid] = thresholds[query, :valid]
        falling[valid] = -np.inf
        _count(falling, valid, scores[query], above[:buckets], gap, slot, late, counts[query])
        counts[query, valid:] = scores.shape[1]


@_compiled
def sum_rows(begin, end, level, place, sizes, relevance, harmonic, discount, ks, by_level, by_query, at_level, at_query):
    number, depth = level.shape[1], sizes.shape[1]
    seen = np.empty(depth + 1, np.int64)
    for query in range(begin, end):
        _add_positives(
            level[query], place[query], number, sizes[query], relevance[query], harmonic, discount, ks, seen,
            by_level[:, query], by_query[:, query], at_level[:, query], at_query[:, query],
        )  # fmt: skip


@_compiled
def one_pass_rows(
    begin, end, scores, start, stop, ignored, sizes, relevance, harmonic, discount, ks, by_level, by_query, at_level, at_query
):
    depth = sizes.shape[1]
    most = 0
    for query in range(begin, end):
        most = max(most, stop[query, 0] - start[query, 0])
    buckets = _number_of_buckets(most, scores.shape[1])
    above = np.empty(buckets, np.int32)
    key, spare_key = np.empty(most, np.uint32), np.empty(most, np.uint32)
    tag, spare_tag = np.empty(most, np.int8), np.empty(most, np.int8)
    taken, falling = np.empty(most, np.float32), np.empty(most + 1, np.float32)
    gap, place = np.empty(most + 1, np.int32), np.empty(most, np.int32)
    slot, late = np.empty(_STRIP, np.int32), np.empty(_STRIP + 1, np.int32)
    seen = np.empty(depth + 1, np.int64)
    for query in range(begin, end):
        first, last = start[query, 0], stop[query, 0]
        number = last - first
        row = scores[query]
        for current in range(depth):
            tag[start[query, current] - first : stop[query, current] - first] = current + 1
        for i in range(ignored.shape[1]):
            item = ignored[query, i]
            if item >= 0:
                row[item] = -np.inf
                if first <= item < last:
                    tag[item - first] = 0
        taken[:number] = row[first:last]
        row[first:last] = -np.inf
        _sort(taken[:number], tag[:number], key[:number], spare_key[:number], spare_tag[:number], falling[:number])
        valid = number
        while valid and tag[valid - 1] == 0:
            valid -= 1
        falling[valid] = -np.inf
        _count(falling, valid, row, above, gap, slot, late, place)
        for i in range(valid):
            place[i] += i + 1
        _add_positives(
            tag, place, valid, sizes[query], relevance[query], harmonic, discount, ks, seen,
            by_level[:, query], by_query[:, query], at_level[:, query], at_query[:, query],
        )  # fmt: skip


@_compiled
def _sort(scores, tag, key, spare_key, spare_tag, falling):
    """Sort the tags by score descending, then by tag, and write the scores in that order; stable, digit by digit."""
    bits = (scores + np.float32(0)).view(np.uint32)  # + 0 turns −0 into +0, which are one score but two bit patterns
    for i in range(len(key)):
        key[i] = _falling_bits(bits[i])
    # From the least telling digit on: the tag, then the score.
    _sort_by_tag(key, tag, spare_key, spare_tag)
    _sort_by_digit(spare_key, spare_tag, key, tag, 0)
    _sort_by_digit(key, tag, spare_key, spare_tag, _DIGIT)
    _sort_by_digit(spare_key, spare_tag, key, tag, 2 * _DIGIT)
    for i in range(len(key)):
        bits[i] = _falling_bits(key[i])
    falling[:] = bits.view(np.float32)


@_compiled
def _falling_bits(bits):
    """An unsigned number that falls as the float with these bits rises; its own inverse."""
    return bits if bits >> np.uint32(31) else ~bits & np.uint32(0x7FFFFFFF)


@_compiled
def _sort_by_tag(key, tag, sorted_key, sorted_tag):
    start = np.zeros(129, np.int64)
    for i in range(len(key)):
        start[tag[i] + 1] += 1
    for i in range(128):
        start[i + 1] += start[i]
    for i in range(len(key)):
        at = start[tag[i]]
        start[tag[i]] = at + 1
        sorted_key[at] = key[i]
        sorted_tag[at] = tag[i]


@_compiled
def _sort_by_digit(key, tag, sorted_key, sorted_tag, shift):
    start = np.zeros((1 << _DIGIT) + 1, np.int64)
    mask = np.uint32((1 << _DIGIT) - 1)
    for i in range(len(key)):
        start[np.int64((key[i] >> np.uint32(shift)) & mask) + 1] += 1
    for i in range(1 << _DIGIT):
        start[i + 1] += start[i]
    for i in range(len(key)):
        digit = np.int64((key[i] >> np.uint32(shift)) & mask)
        at = start[digit]
        start[digit] = at + 1
        sorted_key[at] = key[i]
        sorted_tag[at] = tag[i]


@_compiled
def _number_of_buckets(thresholds, scores):
    """Enough to tell thresholds apart, but not many more than there are scores to look up: each is filled for every query."""
    buckets = 1024
    while buckets < min(_BUCKETS_PER_POSITIVE * thresholds, 2 * scores, _MOST_BUCKETS):
        buckets *= 2
    return buckets


@_compiled
def _count(falling, valid, scores, above, gap, slot, late, counts):
    """counts[i] = the number of scores that reach falling[i], for the first `valid` thresholds; falling[valid] is −∞."""
    if valid <= _FEW:
        for i in range(valid):
            threshold, number = falling[i], 0
            for j in range(len(scores)):
                number += scores[j] >= threshold
            counts[i] = number
    else:
        _fill_gaps(falling, valid, scores, above, gap, slot, late)
        total = 0
        for i in range(valid):
            total += gap[i]
            counts[i] = total


@_compiled
def _fill_gaps(falling, valid, scores, above, gap, slot, late):
    """gap[i] = the number of scores in [falling[i], falling[i − 1]).

    The range of the thresholds is cut into buckets of one width, by a product that never falls as the score rises.
    A score's bucket says how many thresholds are in higher buckets; those in its own are compared one after the
    other, or, where many share a bucket, halved.
    """
    buckets = len(above)
    half, one, top = np.float32(0.5), np.float32(1), np.float32(buckets - 1)
    # Halves, as the difference of two floats can be beyond the floats.
    lowest, highest = half * falling[valid - 1], half * falling[0]
    scale = np.float32(buckets - 2) / (highest - lowest) if highest > lowest else np.float32(0)
    if not scale < np.float32(1e30):  # nearly equal thresholds: all in one bucket
        scale = np.float32(0)
    above[:] = 0
    for i in range(valid):
        above[np.int32(min((half * falling[i] - lowest) * scale + one, top))] += 1
    total, most = 0, 0
    for bucket in range(buckets - 1, -1, -1):
        within = above[bucket]
        above[bucket] = total
        total += within
        most = max(most, within)
    gap[: valid + 1] = 0
    for begin in range(0, len(scores), _STRIP):
        strip = scores[begin : begin + _STRIP]
        for i in range(len(strip)):
            height = (half * strip[i] - lowest) * scale + one
            height = height if height > np.float32(0) else np.float32(0)
            slot[i] = np.int32(height if height < top else top)
        # Written without branches, as which way they go is up to chance; the scores that must move on are listed.
        moving = 0
        for i in range(len(strip)):
            at = above[slot[i]]
            slot[i] = at
            late[moving] = i
            moving += falling[at] > strip[i]
        for j in range(moving):
            i = late[j]
            at, score = slot[i] + 1, strip[i]
            if most <= 16:
                while falling[at] > score:
                    at += 1
            else:
                end = valid
                while at < end:
                    middle = (at + end) >> 1
                    if falling[middle] > score:
                        at = middle + 1
                    else:
                        end = middle
            slot[i] = at
        for i in range(len(strip)):
            gap[slot[i]] += 1


@_compiled
def _add_positives(
    level, place, number, sizes, relevance, harmonic, discount, ks, seen, by_level, by_query, at_level, at_query
):
    """Add up one query: `by_level` and `by_query` over its whole ranking, `at_level` and `at_query` over the first k items."""
    depth = len(sizes)
    seen[:] = 0
    total = sizes[0]
    furthest = 0
    for i in range(len(ks)):
        furthest = max(furthest, ks[i])
    by_level[4, :] = np.inf
    for i in range(number):
        own = np.int64(level[i])
        if own <= 0:
            continue
        seen[own] += 1
        at = np.int64(place[i])
        own_relevance = relevance[own - 1]
        reaching, h_rank = 0, 0.0
        for current in range(depth, 0, -1):
            reaching += seen[current]
            h_rank += seen[current] * min(own_relevance, relevance[current - 1])
            if current <= own:
                size = sizes[current - 1]
                precision = reaching / at
                by_level[0, current - 1] += precision
                if at <= size:
                    by_level[1, current - 1] += precision
                    by_level[2, current - 1] += 1
                    by_level[3, current - 1] += harmonic[size] - harmonic[at - 1]
                if at < by_level[4, current - 1]:
                    by_level[4, current - 1] = at
                if at <= furthest:
                    for k in range(len(ks)):
                        if at <= ks[k]:
                            at_level[0, k, current - 1] += 1
                            at_level[1, k, current - 1] += precision
        by_level[5, own - 1] += discount[at]
        by_query[0] += h_rank / at
        both = max(at, seen[own] + (sizes[own] if own < depth else 0))
        if both <= total:
            by_query[1] += harmonic[total] - harmonic[both - 1]
        if at <= furthest:
            for k in range(len(ks)):
                if at <= ks[k]:
                    at_level[2, k, own - 1] += discount[at]
                    at_query[0, k] += own_relevance
                if at == ks[k]:
                    at_query[1, k] = h_rank / (at * own_relevance) if own_relevance > 0 else -1.0
    # The discounts were added to each positive's own level only: a sum for every positive and level takes a sixth longer.
    for current in range(depth - 1, 0, -1):
        by_level[5, current - 1] += by_level[5, current]
        for k in range(len(ks)):
            at_level[2, k, current - 1] += at_level[2, k, current]
    for k in range(len(ks)):
        for current in range(depth):
            if by_level[4, current] <= ks[k]:
                at_level[3, k, current] = 1 / by_level[4, current]
        # No positive at place k: the share of positives in the top k.
        if at_query[1, k] <= 0:
            at_query[1, k] = at_level[0, k, 0] / ks[k]
