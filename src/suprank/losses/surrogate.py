"""Surrogate losses: 1 − measure of ranks under a smooth step, averaged over queries (eq:optimizing_M)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from suprank.losses.base import MeasureLoss
from suprank.ranking import (
    Sigmoid,
    Step,
    SupStep,
    average_precision,
    exponential_gain,
    heaviside,
    hierarchical_average_precision,
    ideal_dcg,
    ndcg,
    ranks,
    recall_at,
    tree_relevance,
    weighted_ap_relevance,
)

if TYPE_CHECKING:
    from torch import Tensor

    from suprank.losses.batch import RetrievalBatch
    from suprank.ranking import Implementation, Ranks


@dataclass(eq=False, kw_only=True)
class RankLoss(MeasureLoss):
    """1 − the mean of a measure of ranks over the queries that have positives. `using` names an implementation of `ranks`."""

    using: Implementation | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps()  # they refuse bad values: better here than in the first step

    def steps(self) -> tuple[Step, Step]:
        """The steps of rank⁺ and rank⁻."""
        raise NotImplementedError

    def ranks(self, batch: RetrievalBatch, level: Tensor, relevance: Tensor | None = None) -> Ranks:
        """Ranks under the loss's steps."""
        plus, minus = self.steps()
        return ranks(batch.scores, level, relevance, plus=plus, minus=minus, using=self.using)


@dataclass(eq=False, kw_only=True)
class _Sup(RankLoss):
    """SupRank: rank⁺ exact, rank⁻ under H⁻ (eq:h_minus). The loss bounds 1 − measure when the step bounds Heaviside's."""

    tau: float = 0.01
    rho: float = 100.0
    delta: float = 0.05
    jump: float = 0.5
    value_at_delta: float | None = None

    def steps(self) -> tuple[Step, Step]:
        return heaviside, SupStep(self.tau, self.rho, self.delta, self.jump, self.value_at_delta)


@dataclass(eq=False, kw_only=True)
class _Smooth(RankLoss):
    """Sigmoid ranks, as in Smooth-AP: both sums are smooth, and the loss bounds nothing."""

    tau: float = 0.01

    def steps(self) -> tuple[Step, Step]:
        return Sigmoid(self.tau), Sigmoid(self.tau)


@dataclass(eq=False, kw_only=True)
class _AP(RankLoss):
    def measured(self, batch: RetrievalBatch) -> tuple[Tensor, Tensor]:
        level = batch.fine(include_self=self.include_self)
        found = self.ranks(batch, level)
        positive = level > 0
        return average_precision(found, positive), positive.sum(-1)


@dataclass(eq=False, kw_only=True)
class _Recall(RankLoss):
    ks: tuple[int, ...] = (1, 2, 4, 8, 16)
    rank_tau: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ks = tuple(self.ks)
        if not self.ks or min(self.ks) < 1:
            raise ValueError(f"ks={self.ks} must be one or more cut-offs from 1 on; the authors use (1, 2, 4, 8, 16).")
        if not 0 < self.rank_tau < math.inf:
            raise ValueError(f"rank_tau={self.rank_tau} must be a finite number above 0; the paper uses 1.")

    def measured(self, batch: RetrievalBatch) -> tuple[Tensor, Tensor]:
        level = batch.fine(include_self=self.include_self)
        found = self.ranks(batch, level)
        positive = level > 0
        recalls = [recall_at(found, positive, k, step=Sigmoid(self.rank_tau)) for k in self.ks]
        return torch.stack(recalls).mean(0), positive.sum(-1)


@dataclass(eq=False, kw_only=True)
class _HAP(RankLoss):
    decay: float = 1.0
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nothing = torch.zeros(1, 1, dtype=torch.int8)
        tree_relevance(nothing, self.decay)  # they refuse bad values: better here than in the first step
        if self.weights is not None:
            self.weights = tuple(self.weights)
            weighted_ap_relevance(nothing, self.weights)

    def measured(self, batch: RetrievalBatch) -> tuple[Tensor, Tensor]:
        level = batch.level(include_self=self.include_self)
        if batch.relevance is not None:
            relevance = level.clamp(min=0)
        elif self.weights is not None:
            if len(self.weights) != batch.depth:
                raise ValueError(
                    f"weights={self.weights} are {len(self.weights)}, but labels have {batch.depth} level(s); "
                    f"give one weight for each level, coarsest first."
                )
            relevance = weighted_ap_relevance(level, self.weights, dtype=batch.scores.dtype)
        else:
            relevance = tree_relevance(level, self.decay, depth=batch.depth, dtype=batch.scores.dtype)
        found = self.ranks(batch, level, relevance)
        return hierarchical_average_precision(found, relevance), relevance.sum(-1)


@dataclass(eq=False, kw_only=True)
class _NDCG(RankLoss):
    def measured(self, batch: RetrievalBatch) -> tuple[Tensor, Tensor]:
        level = batch.level(include_self=self.include_self)
        found = self.ranks(batch, level)
        if batch.relevance is not None:
            gain = level.clamp(min=0)
            return ndcg(found, gain), gain.sum(-1)
        gain = exponential_gain(level, dtype=batch.scores.dtype)
        ideal = ideal_dcg(level, batch.depth, dtype=batch.scores.dtype)
        return ndcg(found, gain, ideal), ideal


@dataclass(eq=False, kw_only=True)
class SupAP(_AP, _Sup):
    """L_Sup-AP = 1 − mean_i 1/|Ω⁺| Σ_{k∈Ω⁺} rank⁺(k) / (rank⁺(k) + rank⁻ₛ(k))   (eq:SupAP), positives of the fine class."""


@dataclass(eq=False, kw_only=True)
class SmoothAP(_AP, _Smooth):
    """Smooth-AP: 1 − AP with σ(t/τ) in both rank sums, for any class sizes; gradients flow through rank⁺ too."""


@dataclass(eq=False, kw_only=True)
class SupRecall(_Recall, _Sup):
    """L_Sup-R@K = mean_{k∈K} [1 − 1/min(|Ω⁺|, k) Σ_{p∈Ω⁺} σ((k − rank(p)) / τ*)]   (eq:def_recall_loss), τ* = `rank_tau`.

    The second sigmoid makes it no bound of 1 − TR@k, and the sum may pass min(|Ω⁺|, k): values can be below 0.
    """


@dataclass(eq=False, kw_only=True)
class SmoothRecall(_Recall, _Smooth):
    """Smooth-R@k: as `SupRecall`, with σ(t/τ) in both rank sums."""


@dataclass(eq=False, kw_only=True)
class SupHAP(_HAP, _Sup):
    """L_Sup-H-AP = 1 − mean_i 1/Σ rel(k) Σ_{k∈Ω⁺} H-rank⁺(k) / (rank⁺(k) + rank⁻ₛ(k))   (sec:happier).

    Relevance is eq:hierarchy_relevance with `decay` (above 1: HAPPIER_F), or with `weights` (coarsest level first)
    Property 1's, which makes this a surrogate of Σ w_l·AP^(l).
    """


@dataclass(eq=False, kw_only=True)
class SmoothHAP(_HAP, _Smooth):
    """Smooth-H-AP: as `SupHAP`, with σ(t/τ) in all three rank sums."""


@dataclass(eq=False, kw_only=True)
class SupNDCG(_NDCG, _Sup):
    """L_Sup-NDCG = 1 − mean_i DCG_s/iDCG with gain 2^l − 1 (sec:ndcg); a user's relevance is taken as the gain itself."""


@dataclass(eq=False, kw_only=True)
class SmoothNDCG(_NDCG, _Smooth):
    """Smooth-NDCG: as `SupNDCG`, with σ(t/τ) in both rank sums."""
