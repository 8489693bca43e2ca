"""Measures of ranks: one value for each query, in [0, 1] under exact steps, NaN for a query without positives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from suprank.ranking.relevance import IGNORED, exponential_gain
from suprank.ranking.seam import with_kernels
from suprank.ranking.steps import Sigmoid, heaviside

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Integer, Shaped
    from torch import Tensor

    from suprank.ranking.ranks.definition import Ranks
    from suprank.ranking.steps import Step


def average_precision(ranks: Ranks, positive: Bool[Tensor, "queries items"]) -> Float[Tensor, " queries"]:
    """AP = 1/|Ω⁺| · Σ_{k∈Ω⁺} rank⁺(k) / rank(k)   (eq:ap_definition)."""
    return _ratio((ranks.plus / (ranks.plus + ranks.minus)).sum(-1), positive.sum(-1))


def average_precision_at(
    ranks: Ranks,
    positive: Bool[Tensor, "queries items"],
    k: int | Integer[Tensor, " queries"],
    *,
    step: Step = heaviside,
) -> Float[Tensor, " queries"]:
    """AP@k = 1/min(k, |Ω⁺|) · Σ_{p∈Ω⁺, rank(p) ≤ k} rank⁺(p) / rank(p), GLDv2's definition.

    With k = |Ω⁺|, query by query, it is mAP@R, which divides by R: `average_precision_at(ranks, positive, positive.sum(-1))`.

    `step` stands for H in the cut H(k + ½ − rank), as in `ndcg`; the divisor is then the sum of a perfect ranking under the
    same cut, Σ_{i ≤ |Ω⁺|} step(k + ½ − i).
    """
    cut = k if isinstance(k, int) else k[:, None]
    precision = (ranks.plus / ranks.total) * _cut(ranks.total, cut, step)
    places = _places(precision)
    ideal = _cut(places, cut, step).where(places <= positive.sum(-1, keepdim=True), 0).sum(-1)
    return _ratio(precision.sum(-1), ideal)


def recall_at(
    ranks: Ranks, positive: Bool[Tensor, "queries items"], k: int, *, step: Step = heaviside
) -> Float[Tensor, " queries"]:
    """TR@k = 1/min(|Ω⁺|, k) · Σ_{p∈Ω⁺} H(k − rank(p))   (eq:def_recall); `step` stands for H (eq:def_recall_loss).

    The share of the positives that could be in the top k and are. For the printed R@k, see `hit_rate_at`.
    """
    return _ratio(step(k - ranks.total).sum(-1), positive.sum(-1).clamp(max=k))


def hit_rate_at(ranks: Ranks, positive: Bool[Tensor, "queries items"], k: int) -> Float[Tensor, " queries"]:
    """R@k = 1 if a positive is in the top k, else 0 (sec:recall_loss). For the share of positives, see `recall_at`."""
    return _ratio((ranks.total <= k).any(-1).to(ranks.plus.dtype), positive.any(-1).int())


def hierarchical_average_precision(ranks: Ranks, relevance: Float[Tensor, "queries items"]) -> Float[Tensor, " queries"]:
    """H-AP = 1/Σ_{k∈Ω⁺} rel(k) · Σ_{k∈Ω⁺} H-rank⁺(k) / rank(k)   (eq:def_hap)."""
    return _ratio((_h_rank(ranks) / ranks.total).sum(-1), _ranked_only(relevance, ranks).sum(-1))


def hierarchical_recall_at(ranks: Ranks, relevance: Float[Tensor, "queries items"], k: int) -> Float[Tensor, " queries"]:
    """H-R@k = Σ_{j in the top k} rel(j) / Σ_{j∈Ω⁺} rel(j)   (eq:hierarchical_recall)."""
    return _ratio(relevance.where(ranks.total <= k, 0).sum(-1), _ranked_only(relevance, ranks).sum(-1))


def hierarchical_precision_at(ranks: Ranks, relevance: Float[Tensor, "queries items"], k: int) -> Float[Tensor, " queries"]:
    """H-P@k = Σ_{j in the top k} min(rel(j), rel(k)) / (k·rel(k)), k being the item of rank k (eq:hierarchical_precision).

    Where the item of rank k is a negative, its rel(k) = 0 makes that 0/0; we take the limit rel(k) → 0⁺, the share of
    positives in the top k, so that H-P@k is P@k on binary labels at every k. Where no item has rank k exactly, because
    of a tie across it, the same share is given.
    """
    at_k = ranks.total == k
    weight = relevance.where(at_k, 0).amax(-1)
    summed = _h_rank(ranks).where(at_k, 0).amax(-1)
    share = (ranks.total <= k).sum(-1).to(relevance.dtype) / k
    value = torch.where(weight > 0, summed / (k * weight.where(weight > 0, 1)), share)
    return value.where(_ranked_only(relevance, ranks).sum(-1) > 0, torch.nan)


def ndcg(
    ranks: Ranks,
    gain: Float[Tensor, "queries items"],
    ideal: Float[Tensor, " queries"] | None = None,
    *,
    k: int | None = None,
    step: Step = heaviside,
) -> Float[Tensor, " queries"]:
    """NDCG = DCG/iDCG, DCG = Σ_{k∈Ω⁺} gain(k) / log2(1 + rank(k)), over the full ranking (sec:ndcg).

    The paper's gain is `exponential_gain`. iDCG is the DCG of the ranking by decreasing gain; it comes from sorting,
    unless given (`ideal_dcg` gets it from levels without a sort).

    With `k` it is NDCG@k: an item counts in both sums by H(k + ½ − rank), so that those of rank k or less do. `step` stands for
    H: under a smooth one, a perfect ranking still has NDCG@k = 1, as DCG and iDCG have the same cut.
    """
    gain = _ranked_only(gain, ranks)
    if ideal is None:
        ideal = (gain.sort(-1, descending=True).values * _worth(_places(gain), k, step)).sum(-1)
    return _ratio((gain * _worth(ranks.total, k, step)).sum(-1), ideal)


def ideal_dcg(
    level: Integer[Tensor, "queries items"],
    depth: int,
    *,
    k: int | None = None,
    step: Step = heaviside,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, " queries"]:
    """iDCG of the gain 2^l − 1, l = 1..depth: max over rankings of DCG (sec:ndcg), from the number of items at each level.

    Deeper levels rank first, so the |Ω^{+,l}| items of level l or more fill the first places, and each of those places
    is worth 2^(l−1) more than at level l − 1: iDCG = Σ_l 2^(l−1) · Σ_{i ≤ |Ω^{+,l}|} 1/log2(1 + i). With `k`, places count by
    step(k + ½ − i), as in `ndcg`.
    """
    zero = torch.zeros(level.shape[-1] + 1, dtype=dtype or torch.get_default_dtype(), device=level.device)
    prefix = zero.clone()
    prefix[1:] = _worth(_places(zero[1:]), k, step).cumsum(0)
    per_level = [2.0 ** (current - 1) * prefix[(level >= current).sum(-1)] for current in range(1, depth + 1)]
    return torch.stack(per_level).sum(0)


@with_kernels
def ap_and_weight(ranks: Ranks, level: Integer[Tensor, "queries items"]) -> tuple[Tensor, Tensor]:
    """AP, positives being the items of level 1 or more, and their number: what a loss needs of each query."""
    positive = level > 0
    return average_precision(ranks, positive), positive.sum(-1)


@with_kernels
def hap_and_weight(ranks: Ranks, relevance: Float[Tensor, "queries items"]) -> tuple[Tensor, Tensor]:
    """H-AP of each query, and the relevance of its positives."""
    return hierarchical_average_precision(ranks, relevance), relevance.sum(-1)


@with_kernels
def recall_and_weight(
    ranks: Ranks, level: Integer[Tensor, "queries items"], ks: tuple[int, ...], rank_tau: float
) -> tuple[Tensor, Tensor]:
    """The mean over `ks` of R@k under σ(t/τ*), τ* = `rank_tau`, and the number of each query's positives."""
    positive = level > 0
    step = Sigmoid(rank_tau)
    return torch.stack([recall_at(ranks, positive, k, step=step) for k in ks]).mean(0), positive.sum(-1)


@with_kernels
def ndcg_and_weight(
    ranks: Ranks, level: Integer[Tensor, "queries items"], depth: int, k: int | None, rank_tau: float
) -> tuple[Tensor, Tensor]:
    """NDCG of levels up to `depth`, or NDCG@k under σ(t/τ*), τ* = `rank_tau`, and iDCG."""
    step, dtype = Sigmoid(rank_tau), ranks.plus.dtype
    ideal = ideal_dcg(level, depth, k=k, step=step, dtype=dtype)
    return ndcg(ranks, exponential_gain(level, dtype=dtype), ideal, k=k, step=step), ideal


@with_kernels
def mean_over_queries(
    value: Float[Tensor, " queries"], weight: Shaped[Tensor, " queries"], *, complement: bool = False
) -> tuple[Float[Tensor, ""], Integer[Tensor, ""]]:
    """The mean of the values, or of 1 − value, over the queries of weight above 0, and how many are left out; 0 over none."""
    empty = weight <= 0
    skipped = empty.sum()
    value = 1 - value if complement else value
    return value.masked_fill(empty, 0).sum() / (len(value) - skipped).clamp(min=1), skipped


def _worth(rank: Tensor, k: int | None, step: Step) -> Tensor:
    """What a gain of 1 at a rank adds to DCG, or to DCG@k."""
    worth = 1 / torch.log2(1 + rank)
    return worth if k is None else worth * _cut(rank, k, step)


def _cut(rank: Tensor, k: int | Tensor, step: Step) -> Tensor:
    """Whether a rank is within the first k: 1 or 0, or between under a smooth step."""
    return step((k + 0.5) - rank)


def _places(values: Tensor) -> Tensor:
    """The places 1, 2, … along the last dimension, in the dtype of the values."""
    return torch.arange(1, values.shape[-1] + 1, device=values.device, dtype=values.dtype)


def at_least(level: Integer[Tensor, "queries items"], current: int) -> Integer[Tensor, "queries items"]:
    """Binary levels: 1 from level `current` on, 0 below, ignored items still ignored.

    AP of these, `average_precision(ranks(scores, at_least(level, l)), level >= l)`, is AP^(l), AP at level l (eq:sup_ap_level).
    """
    return (level >= current).to(torch.int8).masked_fill(level < 0, IGNORED)


def _h_rank(ranks: Ranks) -> Tensor:
    if ranks.hierarchical is None:
        raise ValueError("these ranks have no H-rank⁺, because relevance was not given; call ranks(scores, level, relevance).")
    return ranks.hierarchical


def _ranked_only(weight: Tensor, ranks: Ranks) -> Tensor:
    """`weight` where an item is ranked, else 0: a matrix of relevance may weigh ignored items too, or hold −1 for them."""
    return weight.where(ranks.plus > 0, 0)


def _ratio(total: Tensor, weight: Tensor) -> Tensor:
    """total / weight, NaN where the weight is 0, without NaN in the gradient of the other queries."""
    tiny = 1 if not weight.dtype.is_floating_point else torch.finfo(weight.dtype).tiny
    return (total / weight.clamp(min=tiny)).masked_fill(weight <= 0, torch.nan)
