"""`ScoreBatch`: lists of items with given scores and relevance, for losses of scores that are no cosines of embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from suprank.losses.batch import RetrievalBatch
from suprank.ranking.reading import Checks, Reading, may_read
from suprank.ranking.relevance import IGNORED

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Integer, Shaped
    from torch import Tensor

MOST_LEVELS = 15
"""Deepest level of a list: the kernels on a GPU hold so many, and 2¹⁵ − 1 is a large gain."""

COSINE_TOLERANCE = 1e-3
"""By how much rounding may take a cosine beyond ±1: half precision does so by 1e−3."""


@dataclass(frozen=True)
class ScoreBatch:
    """Lists of scored items, one for each query: what a rank loss reads of a `RetrievalBatch`, without embeddings and labels.

    `grades` are levels in int8, or relevance in the dtype of the scores; `IGNORED` marks padding, whose score is 0. `depth` is
    the deepest level, or `MOST_LEVELS` where reading that would wait for a GPU. Build a batch with `from_scores`, which checks
    its arguments.
    """

    scores: Tensor
    grades: Tensor
    depth: int
    checks: Checks = field(default_factory=Checks, repr=False, compare=False)

    @classmethod
    def from_scores(
        cls,
        scores: Float[Tensor, "queries items"],
        relevance: Shaped[Tensor, "queries items"],
        mask: Bool[Tensor, "queries items"] | None = None,
        *,
        cosines: bool = False,
        checks: Checks | None = None,
    ) -> ScoreBatch:
        """Check the arguments of `RetrievalLoss.from_scores`. Scores in half precision are ranked in float32.

        `cosines` says that scores must be between −1 and 1. `checks` collects the checks of values, which else run at once.
        """
        checks = checks or Checks()
        if not isinstance(scores, torch.Tensor) or scores.ndim != 2 or not scores.dtype.is_floating_point:
            last = isinstance(scores, torch.Tensor) and scores.ndim == 3 and scores.shape[2] == 1
            advice = " Give scores.squeeze(-1)." if last else ""
            raise ValueError(f"scores is {_describe(scores)}, but must be a floating-point tensor [queries, items].{advice}")
        if scores.numel() == 0:
            raise ValueError(f"scores has shape {tuple(scores.shape)}: there is nothing to rank; skip empty batches.")
        if not isinstance(relevance, torch.Tensor) or relevance.shape != scores.shape or relevance.dtype.is_complex:
            raise ValueError(
                f"relevance is {_describe(relevance)}, but must be a tensor of the shape of scores, {tuple(scores.shape)}: "
                f"integers are levels, floats are relevance, 0 is a negative and {IGNORED} takes an item out of the list."
            )
        if mask is not None:
            check_mask(mask, scores)
        scores = scores.float() if scores.element_size() < 4 else scores
        relevance = relevance.detach().to(scores.device)
        mask = None if mask is None else mask.to(scores.device)
        if relevance.dtype.is_floating_point:
            grades, depth = _relevance(relevance.to(scores.dtype), mask, checks), 1
        else:
            grades = _levels(relevance, mask, checks)
            depth = _depth(grades)
        scores = scores.masked_fill(grades < 0, 0)  # padding may hold NaN or infinity
        checks.add(scores, lambda: scores.detach().sum() * 0, partial(_check_finite, "scores", scores))
        if cosines:
            checks.add(scores, lambda: COSINE_TOLERANCE - scores.detach().abs().max(), partial(_check_cosines, scores))
        return cls(scores, grades, depth, checks)

    @property
    def relevance(self) -> Tensor | None:
        """The relevance, `IGNORED` for padding; None where levels were given."""
        return self.grades if self.grades.dtype.is_floating_point else None

    def level(self, *, include_self: bool = False) -> Shaped[Tensor, "queries items"]:
        """The level of each item, or the relevance in its place. No item is the query itself, so that nothing is left out."""
        return self.grades

    def fine_level(self, *, include_self: bool = False) -> Integer[Tensor, "queries items"]:
        """Binary levels: 1 for items of any level or relevance above 0, 0 for negatives, `IGNORED` for padding."""
        return self.grades.sign().to(torch.int8)


RankingBatch = RetrievalBatch | ScoreBatch
"""What a measure of ranks is given. Of either it may read `scores`, `relevance`, `depth`, `level()` and `fine_level()`."""


def check_mask(mask: Bool[Tensor, "queries items"], scores: Float[Tensor, "queries items"]) -> None:
    """Raise unless the mask says for each score whether there is an item."""
    if not isinstance(mask, torch.Tensor) or mask.shape != scores.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"mask is {_describe(mask)}, but must be a tensor of truth values of the shape of scores, "
            f"{tuple(scores.shape)}: True where there is an item, False for padding."
        )


def _levels(relevance: Tensor, mask: Tensor | None, checks: Checks) -> Tensor:
    """Levels in int8, `IGNORED` for padding."""
    if relevance.dtype == torch.bool:
        level = relevance.to(torch.int8)
    else:
        whole = relevance.to(torch.int64)  # of any integers; from here on padding may hold any number
        whole = whole if mask is None else whole.masked_fill(~mask, IGNORED)
        checks.add(whole, lambda: MOST_LEVELS - 1 - whole.max(), partial(_check_levels, whole))
        level = whole.clamp(IGNORED, MOST_LEVELS).to(torch.int8)
    return level if mask is None else level.masked_fill(~mask, IGNORED)


def _relevance(relevance: Tensor, mask: Tensor | None, checks: Checks) -> Tensor:
    """Relevance, `IGNORED` for padding."""
    relevance = relevance.masked_fill(relevance < 0 if mask is None else ~mask | (relevance < 0), IGNORED)
    checks.add(relevance, lambda: relevance.sum() * 0, partial(_check_finite, "relevance", relevance))
    return relevance


def _depth(level: Tensor) -> int:
    """A bound of the levels that nothing waits for."""
    if level.device.type == "cpu" and may_read(Reading.TO_CHOOSE):
        return max(1, int(level.max()))
    return MOST_LEVELS


def _check_levels(level: Tensor) -> None:
    deepest = int(level.max())
    if deepest > MOST_LEVELS:
        raise ValueError(
            f"relevance holds level {deepest}, but integers are levels from 0 to {MOST_LEVELS}, with the gain 2^level − 1 in "
            f"NDCG; give counts and other relevance as floats: relevance.float()."
        )


def _check_finite(name: str, values: Tensor) -> None:
    for row, column in (~values.isfinite()).nonzero()[:1].tolist():
        raise ValueError(
            f"{name}[{row}, {column}] is {values[row, column].item()}, but must be finite; "
            f"give a mask that is False for padding."
        )


def _check_cosines(scores: Tensor) -> None:
    for row, column in (scores.abs() > 1 + COSINE_TOLERANCE).nonzero()[:1].tolist():
        raise ValueError(
            f"scores[{row}, {column}] is {scores[row, column].item()}, but this loss takes cosines, from −1 to 1; use "
            f"SupAP or SmoothAP, which take any scores."
        )


def _describe(values: object) -> str:
    return (
        f"{values.dtype} of shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else f"a {type(values).__name__}"
    )
