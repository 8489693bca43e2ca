"""Exact ranks without a pair: sort each query's items once, then count from running totals, N log N."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from suprank.ranking.ranks.result import Ranks
from suprank.ranking.steps import Heaviside, heaviside

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped
    from torch import Tensor

    from suprank.ranking.steps import Step

MOST_LEVELS = 32
"""Each level costs a pass over the scores; with more of them than this, pairs are cheaper."""


def sorting(
    scores: Float[Tensor, "queries items"],
    level: Shaped[Tensor, "queries items"],
    relevance: Float[Tensor, "queries items"] | None = None,
    *,
    plus: Step = heaviside,
    minus: Step = heaviside,
) -> Ranks:
    """Ranks as in `definition`, for Heaviside steps, integer levels and a relevance that depends on the level alone.

    That is how `tree_relevance` and `weighted_ap_relevance` make it: within a query, items of one level weigh the same.
    """
    if not (isinstance(plus, Heaviside) and isinstance(minus, Heaviside)):
        raise ValueError(
            f"sorting counts exact ranks, so both steps must be heaviside, not {plus} and {minus}; leave `using` out."
        )
    levels = levels_to_count(level, relevance)
    if levels is None:
        raise ValueError(
            f"sorting needs integer levels up to {MOST_LEVELS} and one relevance for each level of a query; leave `using` out."
        )
    return exact_ranks(SortedItems.from_scores(scores.detach(), level), level, levels)


class Levels(NamedTuple):
    """The deepest level, and the relevance that each level 0..depth of each query has, `[queries, depth + 1]`, if any."""

    depth: int
    weight: Tensor | None

    def take(self, rows: slice) -> Levels:
        """The levels of some queries."""
        return self if self.weight is None else self._replace(weight=self.weight[rows])


def levels_to_count(level: Tensor, relevance: Tensor | None) -> Levels | None:
    """The levels, if they are integers, few enough to go through one by one, and each of one relevance; else None."""
    if level.dtype.is_floating_point:
        return None
    depth = max(0, int(level.max())) if level.numel() else 0
    if depth > MOST_LEVELS:
        return None
    if relevance is None:
        return Levels(depth, None)
    columns = [relevance.new_zeros(len(level))]
    for current in range(1, depth + 1):
        members = level == current
        highest = relevance.where(members, 0).amax(-1)
        if (members & (relevance != highest[:, None])).any():
            return None
        columns.append(highest)
    return Levels(depth, torch.stack(columns, -1))


class SortedItems(NamedTuple):
    """Each query's items by decreasing score, to count and add up the first so many of a level."""

    scores: Tensor
    ascending: Tensor  # −scores in that order, for searchsorted
    ranking: Tensor
    level: Tensor

    @classmethod
    def from_scores(cls, scores: Tensor, level: Tensor) -> SortedItems:
        falling, ranking = scores.sort(-1, descending=True)
        return cls(scores, falling.neg(), ranking, level.gather(1, ranking))

    def count_at_or_above(self, threshold: Tensor, *, strictly: bool = False) -> Int[Tensor, "queries items"]:
        """How many items of the query score `threshold` or more (`strictly`: more)."""
        return torch.searchsorted(self.ascending, threshold.neg().contiguous(), right=not strictly)

    def counts(self, current: int, number: Tensor) -> Int[Tensor, "queries items"]:
        """How many of the first `number` items have level `current`."""
        return _cumulative(self.level == current, torch.int32).gather(1, number)

    def totals(self, values: Tensor, current: int, number: Tensor) -> Float[Tensor, "queries items"]:
        """Σ values (given in sorted order) over those of the first `number` items that have level `current`, in float64."""
        return _cumulative(values.where(self.level == current, 0), torch.float64).gather(1, number)


def _cumulative(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Totals of the first 0, 1, 2, … values of each row."""
    return torch.nn.functional.pad(values.cumsum(-1, dtype=dtype), (1, 0))


def exact_ranks(sorted_items: SortedItems, level: Tensor, levels: Levels) -> Ranks:
    """Ranks under Heaviside steps: at each k, the items of every level that score s_k or more.

    The item k itself is among them, and stands for the 1 of rank⁺ and the rel(k) of H-rank⁺.
    """
    scores, (depth, weight) = sorted_items.scores, levels
    number = sorted_items.count_at_or_above(scores)
    rank_plus, rank_minus = torch.zeros_like(scores), torch.zeros_like(scores)
    weight = scores.new_zeros(len(scores), depth + 1) if weight is None else weight.to(scores.dtype)
    own_weight = weight.gather(1, level.clamp(min=0).long())
    hierarchical = torch.zeros_like(scores)
    for current in range(depth + 1):
        count = sorted_items.counts(current, number)
        lower = current < level
        rank_plus += count.where(~lower, 0)
        rank_minus += count.where(lower, 0)
        if levels.weight is not None:
            hierarchical += count * torch.minimum(own_weight, weight[:, current, None])
    positive = level > 0
    return Ranks(
        rank_plus.where(positive, 0),
        rank_minus.where(positive, torch.inf),
        None if levels.weight is None else hierarchical.where(positive, 0),
    )
