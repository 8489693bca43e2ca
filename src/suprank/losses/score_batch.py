"""`ScoreBatch`: lists of items with given scores and relevance, for losses of scores that are no cosines of embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from suprank.losses.value_checks import check_values
from suprank.ranking.relevance import IGNORED

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Integer, Shaped
    from torch import Tensor

DEEPEST = 127
"""Levels are int8, one byte a pair."""


@dataclass(frozen=True)
class ScoreBatch:
    """Lists of scored items, one for each query: what a rank loss reads of a `RetrievalBatch`, without embeddings and labels.

    `grades` are levels in int8, or relevance in the dtype of the scores; `IGNORED` marks padding. `depth` bounds the levels.
    Build a batch with `from_scores`, which checks its arguments.
    """

    scores: Tensor
    grades: Tensor
    depth: int

    @classmethod
    def from_scores(
        cls,
        scores: Float[Tensor, "queries items"],
        relevance: Shaped[Tensor, "queries items"],
        mask: Bool[Tensor, "queries items"] | None = None,
    ) -> ScoreBatch:
        """Check the arguments of `RankLoss.from_scores`. Scores in half precision are ranked in float32."""
        if not isinstance(scores, torch.Tensor) or scores.ndim != 2 or not scores.dtype.is_floating_point:
            raise ValueError(f"scores is {_describe(scores)}, but must be a floating-point tensor [queries, items].")
        if scores.numel() == 0:
            raise ValueError(f"scores has shape {tuple(scores.shape)}: there is nothing to rank; skip empty batches.")
        if not isinstance(relevance, torch.Tensor) or relevance.shape != scores.shape or relevance.dtype.is_complex:
            raise ValueError(
                f"relevance is {_describe(relevance)}, but must be a tensor of the shape of scores, {tuple(scores.shape)}: "
                f"integers are levels, floats are relevance, 0 is a negative and {IGNORED} takes an item out of the list."
            )
        scores = scores.float() if scores.element_size() < 4 else scores
        if mask is not None:
            if not isinstance(mask, torch.Tensor) or mask.shape != scores.shape or mask.dtype != torch.bool:
                raise ValueError(
                    f"mask is {_describe(mask)}, but must be a tensor of truth values of the shape of scores, "
                    f"{tuple(scores.shape)}: True where there is an item, False for padding."
                )
            mask = mask.to(scores.device)
        relevance = relevance.detach().to(scores.device)
        graded = relevance.dtype.is_floating_point
        grades = relevance.to(scores.dtype) if graded else _levels(relevance)
        if mask is not None:
            grades = grades.masked_fill(~mask, IGNORED)
        if graded:
            check_values(grades, lambda: grades.sum() * 0, lambda: _check_finite("relevance", grades))
        scores = scores.masked_fill(grades < 0, 0)  # padding may hold NaN or infinity
        check_values(scores, lambda: scores.detach().sum() * 0, lambda: _check_finite("scores", scores))
        return cls(scores, grades, 1 if graded else max(1, int(grades.max())))

    @property
    def relevance(self) -> Tensor | None:
        """The relevance, `IGNORED` for padding; None where levels were given."""
        return self.grades if self.grades.dtype.is_floating_point else None

    def level(self, *, include_self: bool = False) -> Shaped[Tensor, "queries items"]:
        """The level of each item, or the relevance in its place. No item is the query itself."""
        return self.grades

    def fine_level(self, *, include_self: bool = False) -> Integer[Tensor, "queries items"]:
        """Binary levels: 1 for items of any level or relevance above 0, 0 for negatives."""
        return self.grades.sign().to(torch.int8)


def _levels(relevance: Tensor) -> Tensor:
    if relevance.dtype != torch.bool:
        check_values(relevance, lambda: DEEPEST - 1 - relevance.max(), lambda: _check_levels(relevance))
    return relevance.to(torch.int8).clamp(min=IGNORED)


def _check_levels(level: Tensor) -> None:
    if int(level.max()) > DEEPEST:
        raise ValueError(
            f"relevance holds level {int(level.max())}, but integers are levels from 0 to {DEEPEST}; give relevance as floats: "
            f"relevance.float()."
        )


def _check_finite(name: str, values: Tensor) -> None:
    for row, column in (~values.isfinite()).nonzero()[:1].tolist():
        raise ValueError(
            f"{name}[{row}, {column}] is {values[row, column].item()}, but must be finite; "
            f"give a mask that is False for padding."
        )


def _describe(values: object) -> str:
    return (
        f"{values.dtype} of shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else f"a {type(values).__name__}"
    )
