"""The result of `ranks`, and what an implementation of it looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

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


def second_derivative_error(name: str) -> NotImplementedError:
    """The error that the backward of a backward raises."""
    return NotImplementedError(
        f"ranks has no second derivative with using={name!r}, because backward keeps no graph of the pairs; call "
        f"ranks(..., using='definition') for one, which needs queries × items² memory."
    )
