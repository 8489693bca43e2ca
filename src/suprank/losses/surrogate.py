"""Rank losses: 1 − a measure of ranks under smooth steps (eq:optimizing_M). A loss has a measure and two steps.

The measures are AP, R@k, H-AP, NDCG and MRR of a batch, given a way to rank it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from suprank.losses.base import MeasureLoss
from suprank.losses.score_batch import ScoreBatch
from suprank.ranking import (
    Ranks,
    Sigmoid,
    SupStep,
    average_precision_at,
    heaviside,
    ndcg,
    ranks,
    tree_relevance,
    weighted_ap_relevance,
)
from suprank.ranking.hyper_parameters import as_tuple, is_number, is_whole
from suprank.ranking.measures import ap_and_weight, hap_and_weight, ndcg_and_weight, recall_and_weight
from suprank.ranking.ranks import resolve_implementation
from suprank.ranking.relevance import check_decay, check_level_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from suprank.losses.score_batch import RankingBatch
    from suprank.ranking import Implementation, ImplementationName, Step

_PARTS = ("measure", "minus", "plus")
_DEEPEST_GAIN = 100  # levels: 2^28 items of the deepest have a sum of gains below the largest float32


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
        object.__setattr__(self, "ks", as_tuple(self.ks))
        if not self.ks or not all(is_whole(k) and k >= 1 for k in self.ks):
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
            object.__setattr__(self, "weights", as_tuple(self.weights))
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
        if batch.depth > _DEEPEST_GAIN:
            raise ValueError(
                f"labels have {batch.depth} levels, but the gain 2^level − 1 of NDCG overflows float32 beyond {_DEEPEST_GAIN}; "
                f"use SupHAP, or give relevance, which is taken as the gain."
            )
        return ndcg_and_weight(ranked, level, batch.depth, self.k, self.rank_tau)


@dataclass(frozen=True)
class MRRMeasure:
    """The reciprocal rank of the first positive of the query's fine class."""

    def __call__(self, batch: RankingBatch, ranks: RankFunction, *, include_self: bool) -> tuple[Tensor, Tensor]:
        level = batch.fine_level(include_self=include_self)
        return 1 / ranks(level).total.amin(-1), (level > 0).sum(-1)


def _check_cut(k: int | None, rank_tau: float) -> None:
    if k is not None and not (is_whole(k) and k >= 1):
        raise ValueError(f"k={k!r} must be a whole number from 1 on; leave it out for a measure of the full ranking.")
    _check_rank_tau(rank_tau)


def _check_rank_tau(rank_tau: float) -> None:
    if not (is_number(rank_tau) and rank_tau > 0):
        raise ValueError(f"rank_tau={rank_tau!r} must be a finite number above 0; the authors' code has 1.")


class RankLoss(MeasureLoss):
    """1 − the mean of a measure of ranks, over the queries that have positives (eq:optimizing_M).

    The `measure` says which measure, and the steps how ranks are made smooth: `plus` in rank⁺ and H-rank⁺, `minus` in rank⁻.
    By default they are SupRank's: rank⁺ exact, rank⁻ under H⁻ (eq:h_minus). `using` names an implementation of `ranks`
    ("chunked", "fused", ...). Parameters of the measure and the steps can be read and set on the loss: `loss.tau = 0.02`.

    A measure is a function of the batch and of `ranks(level, relevance=None)`, which ranks it under the steps. It returns the
    value of each query, and a weight that is 0 for queries without positives, so that a new loss takes a few lines.

    Example:
        >>> def reciprocal_rank(batch, ranks, include_self):
        ...     level = batch.fine_level(include_self=include_self)
        ...     return 1 / ranks(level).total.amin(-1), (level > 0).sum(-1)
        >>> loss = RankLoss(reciprocal_rank, minus=SupStep(tau=0.02))
        >>> loss(torch.eye(3), torch.tensor([0, 0, 1])).item()
        0.5
    """

    def __init__(
        self,
        measure: RankMeasure,
        *,
        plus: Step = heaviside,
        minus: Step = SupStep(),
        include_self: bool = False,
        using: Implementation | ImplementationName | None = None,
    ) -> None:
        super().__init__(include_self=include_self)
        if using is not None:
            resolve_implementation(using)  # refuses an unknown name: better here than in the first step
        self.measure, self.plus, self.minus, self.using = measure, plus, minus, using

    def per_query(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        ranks_of_batch = partial(ranks, batch.scores, plus=self.plus, minus=self.minus, using=self.using)
        return self.measure(batch, ranks_of_batch, include_self=self.include_self)

    def __getattr__(self, name: str) -> Any:
        """Read a parameter of the measure or of a step."""
        for part in _PARTS:
            if name in _parameters(self.__dict__.get(part)):
                return getattr(self.__dict__[part], name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, or a parameter of the measure or the steps, by replacing those that have it."""
        parts = [] if name in self.__dict__ else [part for part in _PARTS if name in _parameters(self.__dict__.get(part))]
        for part in parts:
            super().__setattr__(part, replace(self.__dict__[part], **{name: value}))
        if not parts:
            super().__setattr__(name, value)


def _parameters(part: object) -> set[str]:
    return {field.name for field in fields(part)} if is_dataclass(part) else set()


class SupAP(RankLoss):
    """L_Sup-AP = 1 − mean_i 1/|Ω⁺| Σ_{k∈Ω⁺} rank⁺(k) / (rank⁺(k) + rank⁻ₛ(k))   (eq:SupAP), positives of the fine class.

    It bounds 1 − AP from above, as its step H⁻ in rank⁻ₛ bounds Heaviside's.

    H⁻(t) is σ(t/`tau`) below 0, σ(t/`tau`) + `jump` from 0 to `delta`, and `rho`·(t − `delta`) + `value_at_delta` beyond, which
    by default joins the pieces (eq:h_minus). `tau` and `delta` are gaps of scores, cosines in a call; `rho` is ranks per score,
    `jump` and `value_at_delta` are ranks.

    With `k` the measure is AP@k: a positive counts by σ((k + ½ − rank)/τ*), τ* = `rank_tau` in ranks, and the divisor |Ω⁺| is
    the sum of this over the first |Ω⁺| places, so that a perfect ranking has 1. As τ* goes to 0, that is the cut at k and
    min(k, |Ω⁺|). It bounds nothing, because positives just below k count too, and those far below get almost no gradient.
    """

    def __init__(
        self,
        *,
        k: int | None = None,
        rank_tau: float = APMeasure.rank_tau,
        tau: float = SupStep.tau,
        rho: float = SupStep.rho,
        delta: float = SupStep.delta,
        jump: float = SupStep.jump,
        value_at_delta: float | None = None,
        include_self: bool = False,
        using: Implementation | ImplementationName | None = None,
    ) -> None:
        step = SupStep(tau, rho, delta, jump, value_at_delta)
        super().__init__(APMeasure(k, rank_tau), minus=step, include_self=include_self, using=using)


class SmoothAP(RankLoss):
    """Smooth-AP: 1 − AP with σ(t/τ) in both rank sums, for any class sizes; gradients flow through rank⁺ too. τ = `tau`, a gap
    of scores.

    Like all losses with the sigmoid it bounds nothing. `k` and `rank_tau` are as in `SupAP`.
    """

    def __init__(
        self,
        *,
        k: int | None = None,
        rank_tau: float = APMeasure.rank_tau,
        tau: float = Sigmoid.tau,
        include_self: bool = False,
        using: Implementation | ImplementationName | None = None,
    ) -> None:
        measure = APMeasure(k, rank_tau)
        super().__init__(measure, plus=Sigmoid(tau), minus=Sigmoid(tau), include_self=include_self, using=using)


class SupRecall(RankLoss):
    """L_Sup-R@K = mean_{k∈K} [1 − 1/min(|Ω⁺|, k) Σ_{p∈Ω⁺} σ((k − rank(p)) / τ*)]   (eq:def_recall_loss).

    K = `ks`, cut-offs or a single one; τ* = `rank_tau`, in ranks. The second sigmoid makes it no bound of 1 − TR@k, and the sum
    may exceed min(|Ω⁺|, k): values can be below 0.

    H⁻(t) is σ(t/`tau`) below 0, σ(t/`tau`) + `jump` from 0 to `delta`, and `rho`·(t − `delta`) + `value_at_delta` beyond, which
    by default joins the pieces (eq:h_minus). `tau` and `delta` are gaps of scores, cosines in a call; `rho` is ranks per score,
    `jump` and `value_at_delta` are ranks.
    """

    def __init__(
        self,
        *,
        ks: Sequence[int] | int = RecallMeasure.ks,
        rank_tau: float = RecallMeasure.rank_tau,
        tau: float = SupStep.tau,
        rho: float = SupStep.rho,
        delta: float = SupStep.delta,
        jump: float = SupStep.jump,
        value_at_delta: float | None = None,
        include_self: bool = False,
        using: Implementation | ImplementationName | None = None,
    ) -> None:
        measure = RecallMeasure(as_tuple(ks), rank_tau)
        step = SupStep(tau, rho, delta, jump, value_at_delta)
        super().__init__(measure, minus=step, include_self=include_self, using=using)


class SmoothRecall(RankLoss):
    """Smooth-R@k: as `SupRecall`, with σ(t/τ) in both rank sums, τ = `tau`, a gap of scores."""

    def __init__(
        self,
        *,
        ks: Sequence[int] | int = RecallMeasure.ks,
        rank_tau: float = RecallMeasure.rank_tau,
        tau: float = Sigmoid.tau,
        include_self: bool = False,
        using: Implementation | ImplementationName | None = None,
    ) -> None:
        measure = RecallMeasure(as_tuple(ks), rank_tau)
        super().__init__(measure, plus=Sigmoid(tau), minus=Sigmoid(tau), include_self=include_self, using=using)


class SupHAP(RankLoss):
    """L_Sup-H-AP = 1 − mean_i 1/Σ rel(k) Σ_{k∈Ω⁺} H-rank⁺(k) / (rank⁺(k) + rank⁻ₛ(k))   (sec:happier).

    Relevance is eq:hierarchy_relevance with `decay` (above 1: HAPPIER_F), or Property 1's with `weights`, which makes this
    a surrogate of Σ w_l·AP^(l). Weights are given finest level first, as label columns are.

    H⁻(t) is σ(t/`tau`) below 0, σ(t/`tau`) + `jump` from 0 to `delta`, and `rho`·(t − `delta`) + `value_at_delta` beyond, which
    by default joins the pieces (eq:h_minus). `tau` and `delta` are gaps of scores, cosines in a call; `rho` is ranks per score,
    `jump` and `value_at_delta` are ranks.
    """

    def __init__(
        self,
        *,
        decay: float = HAPMeasure.decay,
        weights: Sequence[float] | None = None,
        tau: float = SupStep.tau,
        rho: float = SupStep.rho,
        delta: float = SupStep.delta,
        jump: float = SupStep.jump,
        value_at_delta: float | None = None,
        include_self: bool = False,
        using: Implementation | ImplementationName | None = None,
    ) -> None:
        measure = HAPMeasure(decay, None if weights is None else as_tuple(weights))
        step = SupStep(tau, rho, delta, jump, value_at_delta)
        super().__init__(measure, minus=step, include_self=include_self, using=using)


class SmoothHAP(RankLoss):
    """Smooth-H-AP: as `SupHAP`, with σ(t/τ) in all three rank sums, τ = `tau`, a gap of scores."""

    def __init__(
        self,
        *,
        decay: float = HAPMeasure.decay,
        weights: Sequence[float] | None = None,
        tau: float = Sigmoid.tau,
        include_self: bool = False,
        using: Implementation | ImplementationName | None = None,
    ) -> None:
        measure = HAPMeasure(decay, None if weights is None else as_tuple(weights))
        super().__init__(measure, plus=Sigmoid(tau), minus=Sigmoid(tau), include_self=include_self, using=using)


class SupNDCG(RankLoss):
    """L_Sup-NDCG = 1 − mean_i DCG_s/iDCG with gain 2^l − 1 (sec:ndcg); a user's relevance is taken as the gain itself.

    It bounds 1 − NDCG from above.

    H⁻(t) is σ(t/`tau`) below 0, σ(t/`tau`) + `jump` from 0 to `delta`, and `rho`·(t − `delta`) + `value_at_delta` beyond, which
    by default joins the pieces (eq:h_minus). `tau` and `delta` are gaps of scores, cosines in a call; `rho` is ranks per score,
    `jump` and `value_at_delta` are ranks.

    With `k` the measure is NDCG@k: a gain counts by σ((k + ½ − rank)/τ*), τ* = `rank_tau` in ranks, in DCG and in iDCG, so that
    a perfect ranking has 1, and as τ* goes to 0 that is the cut at k. It bounds nothing, because items just below k count too.
    Items far below k get almost no gradient: with a large `rank_tau` more of them do.
    """

    def __init__(
        self,
        *,
        k: int | None = None,
        rank_tau: float = NDCGMeasure.rank_tau,
        tau: float = SupStep.tau,
        rho: float = SupStep.rho,
        delta: float = SupStep.delta,
        jump: float = SupStep.jump,
        value_at_delta: float | None = None,
        include_self: bool = False,
        using: Implementation | ImplementationName | None = None,
    ) -> None:
        step = SupStep(tau, rho, delta, jump, value_at_delta)
        super().__init__(NDCGMeasure(k, rank_tau), minus=step, include_self=include_self, using=using)


class SmoothNDCG(RankLoss):
    """Smooth-NDCG: as `SupNDCG`, with σ(t/τ) in both rank sums, τ = `tau`, a gap of scores. It is ApproxNDCG (Qin et al.,
    2010), whose α is 1/τ.
    """

    def __init__(
        self,
        *,
        k: int | None = None,
        rank_tau: float = NDCGMeasure.rank_tau,
        tau: float = Sigmoid.tau,
        include_self: bool = False,
        using: Implementation | ImplementationName | None = None,
    ) -> None:
        measure = NDCGMeasure(k, rank_tau)
        super().__init__(measure, plus=Sigmoid(tau), minus=Sigmoid(tau), include_self=include_self, using=using)


class SupMRR(RankLoss):
    """L_Sup-MRR = 1 − mean_i 1 / min_{k∈Ω⁺} (rank⁺(k) + rank⁻ₛ(k)), one minus the mean reciprocal rank of the first positive.

    It bounds 1 − MRR from above. The gradient is that of the first positive alone. There is no `include_self`: the query would
    always be the first.

    H⁻(t) is σ(t/`tau`) below 0, σ(t/`tau`) + `jump` from 0 to `delta`, and `rho`·(t − `delta`) + `value_at_delta` beyond, which
    by default joins the pieces (eq:h_minus). `tau` and `delta` are gaps of scores, cosines in a call; `rho` is ranks per score,
    `jump` and `value_at_delta` are ranks.
    """

    def __init__(
        self,
        *,
        tau: float = SupStep.tau,
        rho: float = SupStep.rho,
        delta: float = SupStep.delta,
        jump: float = SupStep.jump,
        value_at_delta: float | None = None,
        using: Implementation | ImplementationName | None = None,
    ) -> None:
        step = SupStep(tau, rho, delta, jump, value_at_delta)
        super().__init__(MRRMeasure(), minus=step, using=using)


class SmoothMRR(RankLoss):
    """Smooth-MRR: as `SupMRR`, with σ(t/τ) in both rank sums, τ = `tau`, a gap of scores."""

    def __init__(
        self,
        *,
        tau: float = Sigmoid.tau,
        using: Implementation | ImplementationName | None = None,
    ) -> None:
        super().__init__(MRRMeasure(), plus=Sigmoid(tau), minus=Sigmoid(tau), using=using)
