"""What ranks are, as the paper writes them. Plain torch, queries × items² memory: the truth the others are tested against."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from suprank.ranking.steps import SupStep, heaviside

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from torch import Tensor

    from suprank.ranking.steps import Step


class Ranks(NamedTuple):
    """rank⁺, rank⁻ and (where relevance was given) H-rank⁺ of every item for every query, `[queries, items]`.

    Ranks are those of positives. An item that is not one is never retrieved: its rank⁺ is 0, its rank⁻ is ∞ and its
    H-rank⁺ is 0, so that it adds nothing to any measure and to any gradient.
    """

    plus: Tensor
    minus: Tensor
    hierarchical: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """rank(k) = rank⁺(k) + rank⁻(k) (eq:definition_rank)."""
        return self.plus + self.minus


class Implementation(Protocol):
    """A way to compute `Ranks`; all give the numbers of `suprank.ranking.definition`."""

    def __call__(
        self,
        scores: Float[Tensor, "queries items"],
        level: Shaped[Tensor, "queries items"],
        relevance: Float[Tensor, "queries items"] | None = None,
        *,
        plus: Step = ...,
        minus: Step = ...,
    ) -> Ranks: ...


def definition(
    scores: Float[Tensor, "queries items"],
    level: Shaped[Tensor, "queries items"],
    relevance: Float[Tensor, "queries items"] | None = None,
    *,
    plus: Step = heaviside,
    minus: Step = SupStep(),
) -> Ranks:
    """Ranks by their definition (eq:definition_rank, eq:rank_minus, eq:hierarchical_rank); see `ranks`."""
    gap = scores[:, None, :] - scores[:, :, None]  # [query, k, j]
    positive = level > 0
    listed = (level >= 0)[:, None, :]
    others = ~torch.eye(scores.shape[1], dtype=torch.bool, device=scores.device)
    lower = level[:, None, :] < level[:, :, None]

    rank_plus = 1 + (plus(gap) * (listed & others & ~lower)).sum(-1)
    rank_minus = (minus(gap) * (listed & lower)).sum(-1)
    hierarchical = None
    if relevance is not None:
        relevance = relevance.to(scores.dtype)
        closest = torch.minimum(relevance[:, None, :], relevance[:, :, None])
        h_rank = relevance + (closest * plus(gap) * (positive[:, None, :] & others)).sum(-1)
        hierarchical = h_rank.where(positive, 0)
    return Ranks(rank_plus.where(positive, 0), rank_minus.where(positive, torch.inf), hierarchical)
