"""Losses that compare a query with all its positives and negatives at once: SupCon, SigLIP, Circle, and Multi-Similarity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from suprank.losses.base import QueryMean, RetrievalLoss
from suprank.ranking.hyper_parameters import check_above_zero, check_finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor

    from suprank.losses.score_batch import RankingBatch


class ContrastLoss(RetrievalLoss):
    """The base of losses that are one mean over queries, and read scores and binary levels only. A subclass implements `means`.

    Positives are of the fine class, all other items are negatives, the query itself is neither. A batch without a positive
    has a `NoPositivesWarning`. After a call `log["queries_without_positives"]` has their number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log: dict[str, Tensor] = {}

    def compute(self, batch: RankingBatch) -> Float[Tensor, ""]:
        (mean,) = self.means(batch)
        level = batch.fine_level()
        skipped = (~(level > 0).any(-1)).sum()
        self.log = self.loggable({"queries_without_positives": skipped})
        if mean.counts is not None:  # elsewhere a query without positives has a loss too
            self.check_positives(batch.checks, skipped, len(level))
        return mean.value

    def compute_lists(self, batch: RankingBatch) -> Float[Tensor, ""]:
        return self.compute(batch)

    def means(self, batch: RankingBatch) -> Sequence[QueryMean]:
        raise NotImplementedError


class SupCon(ContrastLoss):
    """SupCon (Khosla et al., NeurIPS 2020): cross entropy over the batch, mean over the positives of a query:

        L = mean_i 1/|Ω⁺| Σ_{p∈Ω⁺} −log( exp(s_p/η) / Σ_{j≠i} exp(s_j/η) ),   η = `temperature`, in cosines

    With one positive a query this is InfoNCE, or NT-Xent. Two views of each image: `loss(torch.cat([one, other]),
    torch.arange(n).repeat(2))`. Images and texts, as in CLIP: the mean of `loss(images, pairs, ref_emb=texts,
    ref_labels=pairs)`, `pairs = torch.arange(n)`, and of the same with the two exchanged.

    Positives are of the fine class. A query without positives is left out of the mean; a batch of such queries gives 0, with
    zero gradients. `from_scores` takes any scores, and divides them by η.
    """

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__()
        check_above_zero(temperature=temperature)
        self.temperature = temperature

    def means(self, batch: RankingBatch) -> Sequence[QueryMean]:
        level = batch.fine_level()
        logits = batch.scores / self.temperature
        positives = (level > 0).sum(-1)
        attracted = logits.where(level > 0, 0).sum(-1) / positives.clamp(min=1)
        loss = log_sum_exp(logits, level >= 0) - attracted
        return [QueryMean(loss.where(positives > 0, 0), positives > 0)]


class SigLIP(ContrastLoss):
    """SigLIP (Zhai et al., ICCV 2023): a binary decision for each pair, with a learnable scale t and bias b:

        L = mean_i ( Σ_{p∈Ω⁺} −log σ(t·s_p + b) + Σ_{n∈Ω⁻} −log σ(−t·s_n − b) )

    t starts as `scale`, per unit of score, and b as `bias`. t is trained as its logarithm `log_scale`; give `loss.parameters()`
    to an optimizer, in a recipe `[proxies]`, with a learning rate of 1e-3 or so. Images and texts: `loss(images, pairs,
    ref_emb=texts, ref_labels=pairs)`, `pairs = torch.arange(n)`, is the loss of the paper in both directions.

    Sums and not means over pairs, so the loss grows with the number of items. Positives are of the fine class. The mean is
    over all queries: one without positives still has negatives. `from_scores` takes any scores.
    """

    def __init__(self, *, scale: float = 10.0, bias: float = -10.0) -> None:
        super().__init__()
        check_above_zero(scale=scale)
        check_finite(bias=bias)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.bias = nn.Parameter(torch.tensor(float(bias)))

    def extra_repr(self) -> str:
        if self.bias.is_meta:
            return ""
        return f"scale={self.log_scale.exp().item():.4g}, bias={self.bias.item():.4g}"

    def means(self, batch: RankingBatch) -> Sequence[QueryMean]:
        level, scores = batch.fine_level(), batch.scores
        logits = self.log_scale.to(scores.dtype).exp() * scores + self.bias.to(scores.dtype)
        return [QueryMean(-logsigmoid(logits.where(level > 0, -logits)).where(level >= 0, 0).sum(-1))]


class Circle(ContrastLoss):
    """Circle loss (Sun et al., CVPR 2020), γ = `scale` and m = `margin`, a cosine:

        L = mean_i log( 1 + Σ_{n∈Ω⁻} exp(γ·α_n·(s_n − m)) · Σ_{p∈Ω⁺} exp(−γ·α_p·(s_p − 1 + m)) ),
        α_n = [s_n + m]₊,   α_p = [1 + m − s_p]₊, both without a gradient

    Positives are of the fine class. The mean is over the queries that have positives and negatives, also over those whose
    loss is 0 in float32, which pytorch-metric-learning leaves out.
    """

    cosines_only = True

    def __init__(self, *, margin: float = 0.4, scale: float = 80.0) -> None:
        super().__init__()
        check_finite(margin=margin)
        check_above_zero(scale=scale)
        self.margin, self.scale = margin, scale

    def means(self, batch: RankingBatch) -> Sequence[QueryMean]:
        level, scores, fixed = batch.fine_level(), batch.scores, batch.scores.detach()
        far = self.scale * (1 + self.margin - fixed).clamp(min=0) * (1 - self.margin - scores)
        close = self.scale * (fixed + self.margin).clamp(min=0) * (scores - self.margin)
        exponents = log_sum_exp(far, level > 0) + log_sum_exp(close, level == 0)
        loss = torch.logaddexp(exponents, torch.zeros_like(exponents))
        return [QueryMean(loss, (level > 0).any(-1) & (level == 0).any(-1))]


class MultiSimilarity(ContrastLoss):
    """The multi-similarity loss (Wang et al., CVPR 2019), on all pairs:

        L_i = 1/α · log(1 + Σ_{j∈Ω⁺} exp(−α(s_ij − λ))) + 1/β · log(1 + Σ_{j∈Ω⁻} exp(β(s_ij − λ))),   λ = `base`, a cosine

    mean over all queries. Positives share the finest class, all other items are negatives, the query itself is neither; a query
    without positives keeps its negative term. Their pair mining is left out.
    """

    cosines_only = True

    def __init__(self, *, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5) -> None:
        super().__init__()
        check_above_zero(alpha=alpha, beta=beta)
        check_finite(base=base)
        self.alpha, self.beta, self.base = alpha, beta, base

    def means(self, batch: RankingBatch) -> Sequence[QueryMean]:
        level, above = batch.fine_level(), batch.scores - self.base
        positive = log_one_plus_sum_exp(-self.alpha * above, level > 0) / self.alpha
        return [QueryMean(positive + log_one_plus_sum_exp(self.beta * above, level == 0) / self.beta)]


def log_sum_exp(
    values: Float[Tensor, "rows columns"], where: Bool[Tensor, "rows columns"], dim: int = -1
) -> Float[Tensor, " others"]:
    """log Σ exp of some of the values; −∞, with the gradient 0, where there are none."""
    return values.masked_fill(~where, -torch.inf).logsumexp(dim)


def log_one_plus_sum_exp(
    values: Float[Tensor, "rows columns"], where: Bool[Tensor, "rows columns"], dim: int = -1
) -> Float[Tensor, " others"]:
    """log(1 + Σ exp) of some of the values."""
    exponents = log_sum_exp(values, where, dim)
    return torch.logaddexp(exponents, torch.zeros_like(exponents))
