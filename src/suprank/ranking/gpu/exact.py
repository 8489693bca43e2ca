"""Places and their sums on a GPU: the positives are sorted, every other score finds its gap between them by halving."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton

from suprank.ranking.exact import plain
from suprank.ranking.exact.result import Places, RankingSums, Top, TopSums
from suprank.ranking.exact.tables import harmonic
from suprank.ranking.gpu import exact_kernels as kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Integer
    from torch import Tensor

FEW = 16
"""So many thresholds are compared one by one: the scores between few thresholds would all be added to a few counters."""
_BLOCK = 1024
_SWAPS = 3  # rounds of swapping; where the last still swaps, as where most scores are equal, levels are sorted after all
_BLOCK_SUMMED = 128  # positives that a program adds up at a time
_SEGMENT = 4096  # positives that a program adds up: with one program a query, a few hundred queries would not fill the chip


def take(
    scores: Float[Tensor, "queries items"], item: Integer[Tensor, "..."], first: int, into: Float[Tensor, "queries wanted"]
) -> None:
    """Take the wanted items out of the rows: their scores go `into` the result, and −∞ stays behind."""
    item = item.contiguous()
    queries, wanted = into.shape
    if queries and wanted:
        kernels.take[(triton.cdiv(wanted, _BLOCK), queries)](
            scores,
            item,
            into,
            first,
            scores.shape[1],
            wanted,
            scores.stride(0),
            0 if item.ndim == 1 else wanted,
            into.stride(0),
            BLOCK=_BLOCK,
        )


def sort_positives(
    scores: Float[Tensor, "queries positives"], level: Integer[Tensor, "queries positives"]
) -> tuple[Float[Tensor, "queries positives"], Integer[Tensor, "queries positives"]]:
    """Positives by score descending, on equal scores the lower level first. Padding has level 0 and score −∞."""
    falling, order = scores.sort(dim=-1, descending=True)
    levels = level.gather(1, order)
    queries, positives = levels.shape
    if positives < 2 or not queries:
        return falling, levels
    # Among many thousand scores some are equal, most often two or three: their levels are put right by swapping neighbors.
    # Whether the last round still had to swap is the one thing that the device is waited for.
    unsettled = torch.zeros(_SWAPS, dtype=torch.int32, device=scores.device)
    grid = (triton.cdiv(positives // 2, _BLOCK), queries)
    for flag in unsettled:
        for parity in (0, 1):
            kernels.settle[grid](falling, levels, flag, positives, positives, PARITY=parity, BLOCK=_BLOCK)
    return plain.sort_positives(scores, level) if unsettled[-1].item() else (falling, levels)


def count_at_or_above(
    thresholds: Float[Tensor, "queries positives"], scores: Float[Tensor, "queries items"]
) -> Integer[Tensor, "queries positives"]:
    """How many of the query's scores are equal to each threshold or above it; thresholds descend along the row."""
    queries, positives = thresholds.shape
    items = scores.shape[1]
    counts = torch.zeros(thresholds.shape, dtype=torch.int32, device=scores.device)
    if not (queries and positives and items):
        return counts
    thresholds = thresholds.contiguous()
    grid = (triton.cdiv(items, _BLOCK), queries)
    sizes = (items, positives, scores.stride(0), positives, positives)
    if positives <= FEW:
        kernels.count_few[grid](scores, thresholds, counts, *sizes, BLOCK=_BLOCK)
        return counts
    kernels.fill_gaps[grid](scores, thresholds, counts, *sizes, STEPS=positives.bit_length(), BLOCK=_BLOCK)
    return counts.cumsum(1, dtype=torch.int32)


def ranking_sums(
    places: Places, sizes: Integer[Tensor, "queries depth"], relevance: Float[Tensor, "queries depth"]
) -> RankingSums:
    """The sums over the full ranking, a program for every few thousand positives of a query."""
    queries, depth = sizes.shape
    device, width = sizes.device, places.place.shape[1]
    segments = max(1, triton.cdiv(width, _SEGMENT))
    by_level = torch.zeros(6, queries, segments, depth, dtype=torch.float64, device=device)
    by_query = torch.zeros(2, queries, segments, dtype=torch.float64, device=device)
    by_level[4] = torch.inf
    if queries and width:
        level, place = places.level.contiguous(), places.place.contiguous()
        shape = {
            "DEPTH": max(2, triton.next_power_of_2(depth)),
            "SEGMENT": _SEGMENT,
            "BLOCK": min(_BLOCK_SUMMED, max(16, triton.next_power_of_2(width))),
        }
        seen = torch.zeros(queries, segments, depth, dtype=torch.int32, device=device)
        if segments > 1:
            kernels.count_levels[(queries, segments)](level, seen, width, width, depth, **shape)
            seen = seen.cumsum(1, dtype=torch.int32) - seen
        kernels.sum_positives[(queries, segments)](
            level,
            place,
            sizes.int().contiguous(),
            relevance.double().contiguous(),
            seen,
            harmonic(width, device),
            by_level,
            by_query,
            queries,
            width,
            depth,
            **shape,
        )
    sums, first = by_level.sum(2), by_level[4].amin(1)
    return RankingSums._make([*sums[:4], first, sums[5], *by_query.sum(2)])


def top_sums(places: Places, relevance: Float[Tensor, "queries depth"], ks: Sequence[int]) -> TopSums:
    """The sums over the first k items, a program for each query and k."""
    queries, depth = relevance.shape
    device, most = relevance.device, max(ks, default=0)
    at_level = torch.zeros(4, queries, len(ks), depth, dtype=torch.float64, device=device)
    at_query = torch.zeros(2, queries, len(ks), dtype=torch.float64, device=device)
    level, place = places.level[:, :most].contiguous(), places.place[:, :most].contiguous()
    if level.numel():
        kernels.sum_top[(queries, len(ks))](
            level,
            place,
            relevance.double().contiguous(),
            _numbers(tuple(ks), device),
            at_level,
            at_query,
            queries,
            level.shape[1],
            level.shape[1],
            depth,
            DEPTH=max(2, triton.next_power_of_2(depth)),
            BLOCK=min(128, max(16, triton.next_power_of_2(level.shape[1]))),
        )
    return TopSums._make([*at_level, *at_query])


@lru_cache(maxsize=16)
def _numbers(ks: tuple[int, ...], device: torch.device) -> Tensor:
    """The ks on the device, copied there once: a copy waits for what the device is doing."""
    return torch.tensor(ks, dtype=torch.int32, device=device)


def top(scores: Float[Tensor, "queries items"], k: int, first: int = 0, best: Top | None = None) -> Top:
    """The k highest scores of each row, by torch's own selection."""
    return plain.top(scores, k, first, best)
