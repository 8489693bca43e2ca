"""Places by sorting and searching, and their sums, in plain torch, for any device: what the others are tested against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from suprank.ranking.exact.result import Places, RankingSums, Top, TopSums
from suprank.ranking.exact.tables import discount, harmonic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Integer
    from torch import Tensor

_POSITIVES_AT_ONCE = 2**16  # whose sums are computed together: some twenty arrays of 0.5 MiB each


def take(
    scores: Float[Tensor, "queries items"], item: Integer[Tensor, "..."], first: int, into: Float[Tensor, "queries wanted"]
) -> None:
    """Take the wanted items out of the rows: their scores go `into` the result, and −∞ stays behind."""
    at = item - first
    here = (item >= 0) & (at >= 0) & (at < scores.shape[1])
    if item.ndim == 1:
        at = at[here]
        into[:, here] = scores[:, at]
        scores[:, at] = -torch.inf
        return
    safe = at.where(here, 0)
    into.copy_(scores.gather(1, safe).where(here, into))
    # One extra column takes what is not wanted here, since a scatter writes somewhere in every row.
    hidden = torch.zeros(len(scores), scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
    hidden.scatter_(1, at.where(here, scores.shape[1]), True)
    scores.masked_fill_(hidden[:, :-1], -torch.inf)


def sort_positives(
    scores: Float[Tensor, "queries positives"], level: Integer[Tensor, "queries positives"]
) -> tuple[Float[Tensor, "queries positives"], Integer[Tensor, "queries positives"]]:
    """Positives by score descending, on equal scores the lower level first. Padding has level 0 and score −∞."""
    by_level = level.sort(stable=True, dim=-1).indices
    falling, by_score = scores.gather(1, by_level).sort(stable=True, dim=-1, descending=True)
    return falling, level.gather(1, by_level).gather(1, by_score)


def count_at_or_above(
    thresholds: Float[Tensor, "queries positives"], scores: Float[Tensor, "queries items"]
) -> Integer[Tensor, "queries positives"]:
    """How many of the query's scores are equal to each threshold or above it: one sort of the scores, then a search."""
    if scores.is_cuda:
        rising = scores.sort(-1).values
    else:
        # numpy sorts values without carrying indices along, four times as fast as torch on a CPU.
        copied = scores.numpy().copy()
        copied.sort(axis=-1)
        rising = torch.from_numpy(copied)
    return scores.shape[1] - torch.searchsorted(rising, thresholds.contiguous(), out_int32=True)


def ranking_sums(
    places: Places, sizes: Integer[Tensor, "queries depth"], relevance: Float[Tensor, "queries depth"]
) -> RankingSums:
    """The sums over the full ranking, some queries at a time."""
    queries = max(1, _POSITIVES_AT_ONCE // max(1, places.level.shape[1]))
    parts = zip(*(values.split(queries) for values in (*places, sizes, relevance)), strict=True)
    sums = [_ranking_sums(Places(level, place), *rest) for level, place, *rest in parts]
    return RankingSums._make(torch.cat(column) for column in zip(*sums, strict=True))


def _ranking_sums(places: Places, sizes: Tensor, relevance: Tensor) -> RankingSums:
    """The sums of these queries, level by level.

    Two of them need an explanation. SI(n) counts min(items of level l among the first n, such items in the ideal first n) at
    every level; the i-th item of a level adds to it from n = max(its place, its ideal place) on, and so adds
    Hm(N) − Hm(max − 1) to Σ_{n ≤ N} SI(n), Hm being the harmonic numbers. H-rank⁺ comes from `Places.graded_ranks`.
    """
    depth = sizes.shape[1]
    device = sizes.device
    length = max(int(sizes.max()) if sizes.numel() else 0, 1)
    hm = harmonic(length, device)
    discounts = _discounts(places)
    columns: list[tuple[Tensor, ...]] = []
    graded_intersection = torch.zeros(len(sizes), dtype=torch.float64, device=device)
    total = sizes[:, :1]
    for current in range(1, depth + 1):
        members = places.level >= current
        ranks = places.ranks(current)
        number = sizes[:, current - 1, None]
        precision = ranks.plus / ranks.total
        within = members & (places.place <= number)
        si = (hm[number.long()] - hm[(places.place.long() - 1).clamp(0, length)]).where(within, 0)
        columns.append(
            (
                _row_sums(precision),
                _row_sums(precision.where(within, 0)),
                within.sum(-1, dtype=torch.float64),
                _row_sums(si),
                _first_place(ranks.total),
                _row_sums(discounts.where(members, 0)),
            )
        )
        exactly = places.level == current
        deeper = sizes[:, current, None] if current < depth else torch.zeros_like(total)
        ideal_place = deeper + exactly.cumsum(-1, dtype=torch.int32)
        both = torch.maximum(places.place, ideal_place)
        counted = exactly & (both <= total)
        graded_intersection += _row_sums((hm[total.long()] - hm[(both.long() - 1).clamp(0, length)]).where(counted, 0))
    graded = places.graded_ranks(relevance)
    assert graded.hierarchical is not None
    by_level = [torch.stack(column, -1) for column in zip(*columns, strict=True)]
    by_query = [_row_sums(graded.hierarchical / graded.total), graded_intersection]
    return RankingSums._make([*by_level, *by_query])


def top_sums(places: Places, relevance: Float[Tensor, "queries depth"], ks: Sequence[int]) -> TopSums:
    """The sums over the first k items, for each k."""
    most = max(ks, default=0)
    first = Places(places.level[:, :most], places.place[:, :most])  # a positive's place is never before its own number
    levels = [first.ranks(current) for current in range(1, relevance.shape[1] + 1)]
    graded, own = first.graded_ranks(relevance), first.relevances(relevance)
    assert graded.hierarchical is not None
    discounts = _discounts(first)
    first_places = torch.stack([_first_place(ranks.total) for ranks in levels], -1)
    counts, precision, discounted, reciprocal, weight, hierarchical = [], [], [], [], [], []
    for k in ks:
        within = [ranks.total <= k for ranks in levels]
        counts.append(torch.stack([top.sum(-1, dtype=torch.float64) for top in within], -1))
        shares = [(ranks.plus / ranks.total).where(top, 0) for ranks, top in zip(levels, within, strict=True)]
        precision.append(torch.stack([_row_sums(share) for share in shares], -1))
        discounted.append(torch.stack([_row_sums(discounts.where(top, 0)) for top in within], -1))
        reciprocal.append((first_places <= k) / first_places)
        weight.append(_row_sums(own.where(graded.total <= k, 0)))
        at_k = (graded.total == k) & (own > 0)
        share_at_k = (graded.hierarchical / (k * own.where(at_k, 1))).where(at_k, 0).sum(-1)
        hierarchical.append(share_at_k.where(at_k.any(-1), counts[-1][:, 0] / k))
    if not ks:
        none = relevance.new_zeros(len(relevance), 0, dtype=torch.float64)
        empty = none[..., None].expand(-1, -1, relevance.shape[1])
        return TopSums(empty, empty, empty, empty, none, none)
    parts = (counts, precision, discounted, reciprocal, weight, hierarchical)
    return TopSums(*(torch.stack(part, 1) for part in parts))


def top(scores: Float[Tensor, "queries items"], k: int, first: int = 0, best: Top | None = None) -> Top:
    """The k highest of the scores and of the best so far; of equal scores, items of lower numbers come first."""
    new = _top(scores, k)
    new = Top(new.scores, new.item + first)
    if best is None:
        return new
    # Earlier items have lower numbers, and a stable sort keeps them before their equals.
    values, order = torch.cat([best.scores, new.scores], 1).sort(dim=1, descending=True, stable=True)
    return Top(values[:, :k], torch.cat([best.item, new.item], 1).gather(1, order[:, :k]))


def _top(scores: Float[Tensor, "queries items"], k: int) -> Top:
    items = scores.shape[1]
    candidates = scores.topk(min(k + 1, items), dim=1)
    by_item = candidates.indices[:, :k].sort(dim=1)
    values, order = candidates.values[:, :k].gather(1, by_item.indices).sort(dim=1, descending=True, stable=True)
    best = Top(values, by_item.values.gather(1, order))
    if items > k:
        # `topk` takes any of the items of equal scores; where it had to leave some out, the row is sorted instead.
        straddling = (candidates.values[:, k] == candidates.values[:, k - 1]) & (candidates.values[:, k] > -torch.inf)
        for rows in straddling.nonzero()[:, 0].split(64):
            whole = scores[rows].sort(dim=1, descending=True, stable=True)
            best.scores[rows], best.item[rows] = whole.values[:, :k], whole.indices[:, :k]
    return best


def _discounts(places: Places) -> Float[Tensor, "queries positives"]:
    """1 / log2(1 + place) of each listed positive, 0 in the padding. Looked up, it is the same number on every device."""
    place = places.place.where(places.level > 0, 0)  # which can lie far beyond the last positive's index
    return discount(max(int(place.max()) if place.numel() else 0, 1), place.device)[place.long()]


def _first_place(total: Float[Tensor, "queries positives"]) -> Float[Tensor, " queries"]:
    return total.amin(-1) if total.shape[-1] else total.new_full((len(total),), torch.inf)


def _row_sums(terms: Float[Tensor, "queries positives"]) -> Float[Tensor, " queries"]:
    """The sum of each row in the order of its terms, so that padding after them, which depends on the block, changes no bit."""
    return terms.cumsum(-1)[:, -1] if terms.shape[1] else terms.sum(-1)
