"""Ranks in bounded memory on any device: (positive, item) pairs only, a block at a time, computed again in backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from suprank.ranking.ranks.definition import Ranks
from suprank.ranking.seam import Algorithm, Ranked
from suprank.ranking.steps import SupStep, heaviside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float, Shaped
    from torch import Tensor

    from suprank.ranking.seam import Grads, Saved
    from suprank.ranking.steps import Step

BUDGET = 32 * 2**20
"""Default bytes for the temporaries of one block."""


def chunked(
    scores: Float[Tensor, "queries items"],
    level: Shaped[Tensor, "queries items"],
    relevance: Float[Tensor, "queries items"] | None = None,
    *,
    plus: Step = heaviside,
    minus: Step = SupStep(),
    budget: int = BUDGET,
) -> Ranks:
    """Ranks as in `definition`, with temporaries of at most `budget` bytes (one positive's row of items at least).

    Backward computes the pairs again, with the steps' own `derivative`. There is no second derivative: asking for
    one raises, and `ranks(..., using="definition")` has it.
    """
    relevance = None if relevance is None else relevance.to(scores.dtype)
    return Ranks(*Ranked.apply(_CHUNKED, (budget,), plus, minus, scores, level, relevance))


class _Pairs(NamedTuple):
    """The items of one block of positives: tensors `[positives in the block, items]`."""

    gap: Tensor
    lower: Tensor
    upper: Tensor
    closest: Tensor | None  # min(rel_j, rel_k) over j ∈ Ω⁺ \ {k}, 0 elsewhere


def _blocks(
    scores: Tensor, level: Tensor, relevance: Tensor | None, query: Tensor, item: Tensor, budget: int
) -> Iterator[tuple[slice, _Pairs]]:
    # About eight tensors of the scores' type, the levels and three masks are alive at once at the worst moment.
    row = scores.shape[1] * (8 * scores.element_size() + level.element_size() + 3)
    rows = max(1, budget // max(row, 1))
    for start in range(0, len(query), rows):
        block = slice(start, start + rows)
        q, k = query[block], item[block]
        row_level, k_level = level[q], level[q, k][:, None]
        gap = scores[q] - scores[q, k][:, None]
        lower = row_level < k_level
        upper = ~lower
        upper[torch.arange(len(q), device=q.device), k] = False
        lower &= row_level >= 0
        closest = None
        if relevance is not None:
            closest = torch.minimum(relevance[q], relevance[q, k][:, None])
            closest = closest.where(upper | (lower & (row_level > 0)), 0)
        yield block, _Pairs(gap, lower, upper, closest)


def _chunked_ranks(
    scores: Tensor, level: Tensor, relevance: Tensor | None, plus: Step, minus: Step, budget: int, *, sloped: bool
) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    query, item = (level > 0).nonzero(as_tuple=True)
    ranks = [torch.zeros_like(scores), torch.full_like(scores, torch.inf)]
    if relevance is not None:
        ranks.append(torch.zeros_like(scores))
    for block, pairs in _blocks(scores, level, relevance, query, item, budget):
        at = query[block], item[block]
        step = plus(pairs.gap)
        ranks[0][at] = 1 + (step * pairs.upper).sum(-1)
        ranks[1][at] = (minus(pairs.gap) * pairs.lower).sum(-1)
        if relevance is not None and pairs.closest is not None:
            ranks[2][at] = relevance[at] + (step * pairs.closest).sum(-1)
    return ranks, (query, item)


def _chunked_gradient(
    grads: Grads, scores: Tensor, level: Tensor, relevance: Tensor | None, plus: Step, minus: Step, budget: int, *, saved: Saved
) -> Tensor:
    to_plus, to_minus, to_hierarchical = [*grads, None][:3]
    query, item = saved
    gradient = torch.zeros_like(scores)
    for block, pairs in _blocks(scores, level, relevance, query, item, budget):
        q, k = query[block], item[block]
        slope = torch.zeros_like(pairs.gap)
        if to_minus is not None and not minus.flat:
            slope += minus.derivative(pairs.gap) * pairs.lower * to_minus[q, k][:, None]
        if not plus.flat:
            weight = torch.zeros_like(pairs.gap)
            if to_plus is not None:
                weight += pairs.upper * to_plus[q, k][:, None]
            if to_hierarchical is not None and pairs.closest is not None:
                weight += pairs.closest * to_hierarchical[q, k][:, None]
            slope += plus.derivative(pairs.gap) * weight
        gradient.index_add_(0, q, slope)
        gradient[q, k] -= slope.sum(-1)
    return gradient


_CHUNKED = Algorithm("chunked", _chunked_ranks, _chunked_gradient)
