"""Scores of a block of queries → where its positives rank, the sums over these ranks, or its best items."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from suprank.evaluation.metrics import QuerySums
from suprank.evaluation.positives import LabelPositives
from suprank.ranking.exact import OnePassOrdering, Places, Top

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from suprank.evaluation.metrics import MetricSettings
    from suprank.evaluation.positives import PositiveItems, SetPositives
    from suprank.evaluation.search import ScoreBlock, Search


def sums_over_ranking(
    block: ScoreBlock, positives: LabelPositives | SetPositives, settings: MetricSettings, ks: Sequence[int]
) -> QuerySums:
    """The sums over the full ranking of every query of the block."""
    rows = torch.from_numpy(block.rows).to(block.search.device)
    sizes, excluded = positives.sizes(rows)
    relevance, ordering = settings.relevance(sizes), block.search.ordering
    arranged = block.search.order is not None
    if arranged and isinstance(positives, LabelPositives) and isinstance(ordering, OnePassOrdering):
        ((_, scores),) = block
        start, end = positives.start[rows], positives.end[rows]

        def one_pass(share: slice) -> QuerySums:
            labels = start[share], end[share], excluded[share], sizes[share], relevance[share]
            return QuerySums(sizes[share], *ordering.one_pass_sums(scores[share], *labels, ks))

        return QuerySums.concatenate(block.search.share_rows(one_pass, len(rows)))
    places = rank_positives(block, positives.items_of(block.rows))
    return QuerySums(sizes, ordering.ranking_sums(places, sizes, relevance), ordering.top_sums(places, relevance, ks))


def sums_over_top(
    block: ScoreBlock, positives: LabelPositives | SetPositives, settings: MetricSettings, ks: Sequence[int]
) -> tuple[QuerySums, Tensor]:
    """The sums over the top k of every query of the block, and for which queries they are unknown.

    They are unknown where the items at places k and k + 1 have equal scores.
    """
    rows = torch.from_numpy(block.rows).to(block.search.device)
    (sizes, excluded), most = positives.sizes(rows), max(ks)
    best = top_items(block, excluded, most + 1)
    level = positives.levels(rows, best.item)
    ordering = block.search.ordering
    _, ordered = ordering.sort_positives(best.scores[:, :most].contiguous(), level[:, :most].contiguous())
    numbers = torch.arange(1, ordered.shape[1] + 1, dtype=torch.int32, device=ordered.device)
    top = ordering.top_sums(Places(ordered, numbers.expand_as(ordered)), settings.relevance(sizes), ks)
    unknown = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    if best.scores.shape[1] > most:
        unknown = (best.scores[:, most] == best.scores[:, most - 1]) & (best.item[:, most] >= 0)
    return QuerySums(sizes, None, top), unknown


def rank_positives(block: ScoreBlock, positives: PositiveItems) -> Places:
    """The places of the positives among all items that are not excluded, in the total order of evaluation."""
    ordering = block.search.ordering
    scores = torch.full(positives.level.shape, -torch.inf, device=positives.level.device)
    for first, piece in block:
        ordering.take(piece, positives.item, first, scores)
    scores.masked_fill_(positives.level == 0, -torch.inf)
    falling, level = ordering.sort_positives(scores, positives.level)
    place = torch.arange(1, level.shape[1] + 1, dtype=torch.int32, device=level.device).repeat(len(level), 1)
    for first, piece in block:
        if not block.in_memory:
            ordering.take(piece, positives.item, first, scores)
        remove_excluded(block.search, piece, positives.excluded, first)
        place += ordering.count_at_or_above(falling, piece)
    return Places(level, place)


def top_items(block: ScoreBlock, excluded: Tensor, k: int) -> Top:
    """The k items of the highest scores, in their order; of equal scores, the items of lower numbers come first."""
    best: Top | None = None
    ordering = block.search.ordering

    def merged(scores: Tensor, first: int, best: Top | None, share: slice) -> Top:
        return ordering.top(scores[share], k, first, None if best is None else Top(best.scores[share], best.item[share]))

    for first, piece in block:
        remove_excluded(block.search, piece, excluded, first)
        tops = block.search.share_rows(partial(merged, piece, first, best), len(piece))
        best = Top._make(map(torch.cat, zip(*tops, strict=True)))
    assert best is not None
    return Top(best.scores, best.item.where(best.scores > -torch.inf, -1))


def remove_excluded(search: Search, scores: Tensor, excluded: Tensor, first: int) -> None:
    """Set the scores of excluded items to −∞; `first` is the number of the item in column 0."""
    if excluded.shape[1]:
        search.ordering.take(scores, excluded, first, torch.empty(excluded.shape, device=scores.device))
