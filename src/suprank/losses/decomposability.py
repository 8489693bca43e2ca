"""Decomposability losses: they calibrate scores across batches, which a loss on ranks within a batch cannot see."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from suprank.losses.base import RetrievalLoss
from suprank.losses.batch import may_wait_for

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from suprank.losses.batch import RetrievalBatch


@dataclass(eq=False, kw_only=True)
class PairCalibration(RetrievalLoss):
    """L_DG = 1/|Ω⁺| Σ_{j∈Ω⁺} [α − s_j]₊ + 1/|Ω⁻| Σ_{j∈Ω⁻} [s_j − β]₊   (eq:labs), α = `positive_floor`, β = `negative_ceiling`.

    Positives share the finest class, all other items are negatives, the query itself is neither. Each of the two terms
    is averaged over the queries that have such pairs. `average="violating"` pools the pairs of the batch and divides by
    the number that violate their threshold, as the authors' code does.
    """

    positive_floor: float = 0.9
    negative_ceiling: float = 0.6
    average: Literal["all", "violating"] = "all"

    def __post_init__(self) -> None:
        super().__init__()
        if self.average not in ("all", "violating"):
            raise ValueError(f"average={self.average!r} must be 'all' (eq:labs) or 'violating' (the authors' code).")
        for name, value in (("positive_floor", self.positive_floor), ("negative_ceiling", self.negative_ceiling)):
            if not math.isfinite(value):
                raise ValueError(f"{name}={value} must be a finite number: a cosine similarity; the authors use 0.9 and 0.6.")

    def on(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        level = batch.fine()
        too_far = (self.positive_floor - batch.scores).clamp(min=0).where(level > 0, 0)
        too_close = (batch.scores - self.negative_ceiling).clamp(min=0).where(level == 0, 0)
        return self._mean(too_far, level > 0) + self._mean(too_close, level == 0)

    def _mean(self, hinge: Tensor, pair: Tensor) -> Tensor:
        if self.average == "violating":
            return hinge.sum() / (hinge > 0).sum().clamp(min=1)
        count = pair.sum(-1)
        return (hinge.sum(-1) / count.clamp(min=1)).sum() / (count > 0).sum().clamp(min=1)


class ProxySoftmax(RetrievalLoss):
    """L*_DG = −log( exp(vᵀp_y/η) / Σ_z exp(vᵀp_z/η) )   (eq:cluster_loss), mean over the batch, η = `temperature`.

    One learnable proxy for each fine class, normalised on use; column 0 of the labels must hold 0..num_classes − 1.
    Give `loss.parameters()` to an optimizer: the authors train proxies at a rate of their own. References and relevance
    play no part here.
    """

    def __init__(self, num_classes: int, embedding_size: int, *, temperature: float = 0.05) -> None:
        super().__init__()
        for name, value in (("num_classes", num_classes), ("embedding_size", embedding_size), ("temperature", temperature)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name}={value} must be a finite number above 0.")
        self.temperature = temperature
        bound = embedding_size**-0.5
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_size).uniform_(-bound, bound))

    def extra_repr(self) -> str:
        classes, size = self.proxies.shape
        return f"num_classes={classes}, embedding_size={size}, temperature={self.temperature}"

    def on(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        if batch.labels is None:
            raise ValueError("ProxySoftmax needs labels: each embedding is drawn to the proxy of its fine class.")
        fine = batch.labels[:, 0].long()
        classes, size = self.proxies.shape
        if batch.queries.shape[1] != size:
            raise ValueError(
                f"embeddings have dimension {batch.queries.shape[1]} but proxies {size}; set embedding_size to match."
            )
        if may_wait_for(fine) and not ((fine >= 0) & (fine < classes)).all():
            raise ValueError(
                f"labels span {int(fine.min())}..{int(fine.max())}, but {classes} proxies stand for classes 0..{classes - 1}; "
                f"renumber with torch.unique(labels, return_inverse=True) over the whole training set, or raise num_classes."
            )
        with torch.autocast(batch.queries.device.type, enabled=False):
            proxies = normalize(self.proxies.to(batch.queries.dtype), dim=-1)
            return cross_entropy(batch.queries @ proxies.T / self.temperature, fine)
