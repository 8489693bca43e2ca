"""The measures that rank losses optimize: AP, R@k, H-AP, NDCG and MRR of a batch, given a way to rank it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from suprank.losses.score_batch import ScoreBatch
from suprank.ranking import (
    Ranks,
    Sigmoid,
    average_precision_at,
    ndcg,
    tree_relevance,
    weighted_ap_relevance,
)
from suprank.ranking.measures import ap_and_weight, hap_and_weight, ndcg_and_weight, recall_and_weight
from suprank.ranking.relevance import check_decay, check_level_weights

if TYPE_CHECKING:
    from torch import Tensor

    from suprank.losses.score_batch import RankingBatch


class RankFunction(Protocol):
    """Ranks the items of a batch under the steps of a loss, given their levels and, for H-rank⁺, their relevance."""

    def __call__(self, level: Tensor, relevance: Tensor | None = None) -> Ranks: ...


class RankMeasure(Protocol):
    """A measure of ranks. It returns the value of every query, and what that was divided by: 0 for one without positives.

    It is given a `RetrievalBatch`, or a `ScoreBatch` by `from_scores`, and may read what both have: `scores`, `relevance`,
    `depth`, `level()` and `fine_level()`.
    """

    def __call__(self, batch: RankingBatch, ranks: RankFunction, *, include_self: bool) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class APMeasure:
    """AP, positives being the items of the query's fine class; with `k` AP@k, whose cut is a sigmoid of `rank_tau`."""

    k: int | None = None
    rank_tau: float = 1.0

    def __post_init__(self) -> None:
        _check_cut(self.k, self.rank_tau)

    def __call__(self, batch: RankingBatch, ranks: RankFunction, *, include_self: bool) -> tuple[Tensor, Tensor]:
        level = batch.fine_level(include_self=include_self)
        ranked = ranks(level)
        if self.k is None:
            return ap_and_weight(ranked, level)
        positive = level > 0
        return average_precision_at(ranked, positive, self.k, step=Sigmoid(self.rank_tau)), positive.sum(-1)


@dataclass(frozen=True)
class RecallMeasure:
    """The mean over `ks` of R@k with a sigmoid of temperature `rank_tau` in place of the cut at k."""

    ks: tuple[int, ...] = (1, 2, 4, 8, 16)
    rank_tau: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "ks", tuple(self.ks))
        if not self.ks or min(self.ks) < 1:
            raise ValueError(f"ks={self.ks} must be one or more cut-offs from 1 on; the authors use (1, 2, 4, 8, 16).")
        _check_rank_tau(self.rank_tau)

    def __call__(self, batch: RankingBatch, ranks: RankFunction, *, include_self: bool) -> tuple[Tensor, Tensor]:
        level = batch.fine_level(include_self=include_self)
        return recall_and_weight(ranks(level), level, self.ks, self.rank_tau)


@dataclass(frozen=True)
class HAPMeasure:
    """H-AP. The relevance is eq:hierarchy_relevance with `decay`, or Property 1's with `weights`, finest level first."""

    decay: float = 1.0
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_decay(self.decay)
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(self.weights))
            check_level_weights(self.weights)

    def __call__(self, batch: RankingBatch, ranks: RankFunction, *, include_self: bool) -> tuple[Tensor, Tensor]:
        level = batch.level(include_self=include_self)
        relevance = self._relevance(batch, level)
        return hap_and_weight(ranks(level, relevance), relevance)

    def _relevance(self, batch: RankingBatch, level: Tensor) -> Tensor:
        if batch.relevance is not None:
            if self.weights is not None or self.decay != type(self).decay:
                given = f"decay={self.decay}" if self.weights is None else f"weights={self.weights}"
                raise ValueError(f"{given} makes a relevance of levels, but a relevance was given; give one of the two.")
            return level.clamp(min=0)
        if self.weights is None:
            return tree_relevance(level, self.decay, depth=batch.depth, dtype=batch.scores.dtype)
        _check_weights(self.weights, batch)
        return weighted_ap_relevance(level, self.weights, dtype=batch.scores.dtype)


def _check_weights(weights: tuple[float, ...], batch: RankingBatch) -> None:
    """Raise unless there is one weight for each level. Levels without labels may be fewer in a batch than in others."""
    if isinstance(batch, ScoreBatch):
        level = batch.grades
        batch.checks.add(level, lambda: len(weights) - 1 - level.max(), partial(_check_deepest, weights, level))
    elif len(weights) != batch.depth:
        raise ValueError(
            f"weights={weights} are {len(weights)}, but labels have {batch.depth} level(s); "
            f"give one weight for each level, finest first."
        )


def _check_deepest(weights: tuple[float, ...], level: Tensor) -> None:
    if int(level.max()) > len(weights):
        raise ValueError(
            f"weights={weights} are {len(weights)}, but relevance reaches level {int(level.max())}; "
            f"give one weight for each level, finest first."
        )


@dataclass(frozen=True)
class NDCGMeasure:
    """NDCG with the gain 2^l − 1, or a user's relevance as the gain; with `k` NDCG@k, whose cut is a sigmoid of `rank_tau`."""

    k: int | None = None
    rank_tau: float = 1.0

    def __post_init__(self) -> None:
        _check_cut(self.k, self.rank_tau)

    def __call__(self, batch: RankingBatch, ranks: RankFunction, *, include_self: bool) -> tuple[Tensor, Tensor]:
        level = batch.level(include_self=include_self)
        ranked = ranks(level)
        if batch.relevance is not None:
            gain = level.clamp(min=0)
            return ndcg(ranked, gain, k=self.k, step=Sigmoid(self.rank_tau)), gain.sum(-1)
        return ndcg_and_weight(ranked, level, batch.depth, self.k, self.rank_tau)


@dataclass(frozen=True)
class MRRMeasure:
    """The reciprocal rank of the first positive of the query's fine class."""

    def __call__(self, batch: RankingBatch, ranks: RankFunction, *, include_self: bool) -> tuple[Tensor, Tensor]:
        level = batch.fine_level(include_self=include_self)
        return 1 / ranks(level).total.amin(-1), (level > 0).sum(-1)


def _check_cut(k: int | None, rank_tau: float) -> None:
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise ValueError(f"k={k!r} must be a whole number from 1 on; leave it out for a measure of the full ranking.")
    _check_rank_tau(rank_tau)


def _check_rank_tau(rank_tau: float) -> None:
    if not 0 < rank_tau < math.inf:
        raise ValueError(f"rank_tau={rank_tau} must be a finite number above 0; the authors' code has 1.")
