"""Exact ranks without a pair: sort each query's items once, then count from running totals, N log N."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import pad

from suprank.ranking.ranks.result import Ranks
from suprank.ranking.steps import Heaviside, heaviside

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from torch import Tensor

    from suprank.ranking.steps import Step

MOST_LEVELS = 32
"""Each level costs a pass over the scores; with more of them than this, pairs are cheaper."""

_FREE_BITS = 29  # of the mantissa of a float64 that holds a float32


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
    found = _exact_ranks(scores.detach(), level, levels)
    # rank⁻ with a gradient of zeros, as all implementations have it: a training step must not depend on which one is chosen.
    return found._replace(minus=found.minus.where(torch.ones_like(level, dtype=torch.bool), scores))


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
    group = level.clamp(min=0).long()
    weight = relevance.new_zeros(len(level), depth + 1).scatter_(1, group, relevance)  # of one of the items of each level
    if ((weight.gather(1, group) != relevance) & (level > 0)).any():
        return None
    weight[:, 0] = 0
    return Levels(depth, weight)


def sort_falling(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Scores by decreasing value, and their indices.

    A float32 leaves 29 bits of a float64 free. With the index in them, numpy's vectorized sort of numbers takes a third of the
    time of torch's sort on a CPU.
    """
    if scores.device.type != "cpu" or scores.dtype != torch.float32 or scores.shape[1] >= 1 << _FREE_BITS or not scores.numel():
        return scores.sort(-1, descending=True)
    if not all(bound.isfinite() for bound in torch.aminmax(scores)):  # an index would turn ∞ into NaN
        return scores.sort(-1, descending=True)
    packed = scores.neg().double().view(torch.int64)
    packed |= torch.arange(scores.shape[1], device=scores.device)
    packed.view(torch.float64).numpy().sort(-1)
    ranking = packed & ((1 << _FREE_BITS) - 1)
    packed ^= ranking
    return packed.view(torch.float64).float().neg_(), ranking


def _exact_ranks(scores: Tensor, level: Tensor, levels: Levels) -> Ranks:
    """Ranks under Heaviside steps: at each k, the items of every level that score s_k or more.

    The item k itself is among them, and stands for the 1 of rank⁺ and the rel(k) of H-rank⁺.
    """
    falling, ranking = sort_falling(scores)
    sorted_level = level.gather(1, ranking)
    number = torch.searchsorted(falling.neg(), scores.neg().contiguous(), right=True)
    depth, weight = levels
    rank_plus, rank_minus, hierarchical = (torch.zeros_like(scores) for _ in range(3))
    weight = scores.new_zeros(len(scores), depth + 1) if weight is None else weight.to(scores.dtype)
    own_weight = weight.gather(1, level.clamp(min=0).long())
    for current in range(depth + 1):
        count = pad((sorted_level == current).cumsum(-1, dtype=torch.int32), (1, 0)).gather(1, number)
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
