"""Decomposability losses: they calibrate scores across batches, which a loss on the ranks within a batch cannot do."""

from __future__ import annotations

import math
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from suprank.losses.base import QueryMean, RetrievalLoss
from suprank.losses.unit_vectors import unit_vectors, without_autocast
from suprank.ranking.measures import mean_over_queries
from suprank.ranking.reading import Reading, may_read
from suprank.ranking.relevance import refuse_label_sets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Integer
    from torch import Tensor

    from suprank.losses.batch import RetrievalBatch
    from suprank.losses.score_batch import RankingBatch, ScoreBatch


class PairCalibration(RetrievalLoss):
    """L_DG = 1/|Ω⁺| Σ_{j∈Ω⁺} [α − s_j]₊ + 1/|Ω⁻| Σ_{j∈Ω⁻} [s_j − β]₊   (eq:labs), α = `positive_floor`, β = `negative_ceiling`.

    Positives share the finest class, all other items are negatives, the query itself is neither. Each of the two terms
    is averaged over the queries that have such pairs. `average="violating"` pools the pairs of the batch and divides by
    the number that violate their threshold, as the authors' code does. Thresholds are cosines, or what the scores given to
    `from_scores` are.
    """

    def __init__(
        self,
        *,
        positive_floor: float = 0.9,
        negative_ceiling: float = 0.6,
        average: Literal["all", "violating"] = "all",
    ) -> None:
        super().__init__()
        if average not in ("all", "violating"):
            raise ValueError(f"average={average!r} must be 'all' (eq:labs) or 'violating' (the authors' code).")
        for name, value in (("positive_floor", positive_floor), ("negative_ceiling", negative_ceiling)):
            if not math.isfinite(value):
                raise ValueError(f"{name}={value} must be a finite number: a cosine similarity; the authors use 0.9 and 0.6.")
        self.positive_floor, self.negative_ceiling, self.average = positive_floor, negative_ceiling, average

    def extra_repr(self) -> str:
        return f"positive_floor={self.positive_floor}, negative_ceiling={self.negative_ceiling}, average={self.average!r}"

    def compute_lists(self, batch: ScoreBatch) -> Float[Tensor, ""]:
        return reduce(add, [mean.value for mean in self.means(batch)])

    def means(self, batch: RankingBatch) -> Sequence[QueryMean]:
        level = batch.fine_level()
        too_far = (self.positive_floor - batch.scores).clamp(min=0).where(level > 0, 0)
        too_close = (batch.scores - self.negative_ceiling).clamp(min=0).where(level == 0, 0)
        return [self._mean(too_far, level > 0), self._mean(too_close, level == 0)]

    def _mean(self, hinge: Tensor, pair: Tensor) -> QueryMean:
        if self.average == "violating":
            return QueryMean(hinge.sum(), (hinge > 0).sum())
        count = pair.sum(-1)
        return QueryMean((hinge.sum(-1) / count.clamp(min=1)).sum(), (count > 0).sum())


class ProxyLoss(RetrievalLoss):
    """The base of losses that compare images with proxies, learnable vectors for the fine classes, and not with each other.

    A subclass holds the proxies and implements `per_image`, the loss of each unit vector. The loss is the mean over the
    images that have a fine class: those labeled −1 have no proxy, and are left out. Labels are checked before, and
    autocast is off.
    """

    ranks_items = False

    def __init__(self, num_classes: int, embedding_size: int) -> None:
        super().__init__()
        check_above_zero(num_classes=num_classes, embedding_size=embedding_size)
        self.num_classes, self.embedding_size = num_classes, embedding_size

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}, embedding_size={self.embedding_size}"

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        if batch.labels is None:
            raise ValueError(f"{type(self).__name__} needs labels: each embedding is drawn to the proxy of its fine class.")
        refuse_label_sets(batch.labels, type(self).__name__, "use a loss without proxies, such as SupAP or PairCalibration")
        if batch.queries.shape[1] != self.embedding_size:
            raise ValueError(
                f"embeddings have dimension {batch.queries.shape[1]} but proxies {self.embedding_size}; "
                f"set embedding_size to match."
            )
        fine, classes = batch.labels[:, 0], self.num_classes
        batch.checks.add(fine, lambda: classes - 2 - fine.max(), partial(_check_classes, fine, classes))
        with without_autocast(batch.queries):
            return self.mean(batch.queries, fine)

    def means(self, batch: RetrievalBatch) -> Sequence[QueryMean]:
        value = self.compute(batch)  # checks that there are labels
        assert batch.labels is not None
        count = (batch.labels[:, 0] >= 0).sum()
        return [QueryMean(value * count, count)]

    def mean(self, queries: Float[Tensor, "queries dim"], fine: Integer[Tensor, " queries"]) -> Float[Tensor, ""]:
        """The mean loss of unit vectors of these classes, −1 for none; 0 where no image has a class."""
        known = fine >= 0
        # Those without a class get any: their value is left out. So does a class out of range, if a check reports it after the
        # launches; if none does, torch must.
        highest = self.num_classes - 1 if may_read(Reading.TO_CHECK) else None
        each = self.per_image(queries, fine.clamp(0, highest))
        return mean_over_queries(each, known)[0]

    def per_image(self, queries: Float[Tensor, "queries dim"], fine: Integer[Tensor, " queries"]) -> Float[Tensor, " queries"]:
        """The loss of each unit vector, of a class from 0 on."""
        raise NotImplementedError


def _check_classes(fine: Tensor, classes: int) -> None:
    if not (fine < classes).all():
        raise ValueError(
            f"labels span {int(fine.min())}..{int(fine.max())}, but {classes} proxies stand for classes 0..{classes - 1}; "
            f"renumber with torch.unique(labels, return_inverse=True) over the whole training set, or raise num_classes."
        )


class ProxySoftmax(ProxyLoss):
    """L*_DG = −log( exp(vᵀp_y/η) / Σ_z exp(vᵀp_z/η) )   (eq:cluster_loss), mean over the batch, η = `temperature`.

    One learnable proxy for each fine class, normalized on use; column 0 of the labels must hold 0..num_classes − 1, or −1
    for an image without a class, which is left out. Give `loss.parameters()` to an optimizer: the authors train proxies
    at a learning rate of their own. References and relevance are not used.
    """

    def __init__(self, num_classes: int, embedding_size: int, *, temperature: float = 0.05) -> None:
        super().__init__(num_classes, embedding_size)
        check_above_zero(temperature=temperature)
        self.temperature = temperature
        self.proxies = uniform_proxies(num_classes, embedding_size)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, temperature={self.temperature}"

    def per_image(self, queries: Float[Tensor, "queries dim"], fine: Integer[Tensor, " queries"]) -> Float[Tensor, " queries"]:
        return cross_entropy(cosines(queries, self.proxies) / self.temperature, fine, reduction="none")


def uniform_proxies(num_classes: int, embedding_size: int) -> nn.Parameter:
    """Proxies, initialized as the authors' are."""
    return nn.Parameter(init_proxies(torch.empty(num_classes, embedding_size), embedding_size))


@torch.no_grad()
def init_proxies(proxies: Tensor, embedding_size: int) -> Tensor:
    """Initialize proxies as the authors do: uniform within ±1/√dimension."""
    bound = embedding_size**-0.5
    return proxies.uniform_(-bound, bound)


def cosines(queries: Float[Tensor, "queries dim"], proxies: Float[Tensor, "classes dim"]) -> Float[Tensor, "queries classes"]:
    """Cosines of unit vectors with proxies of any length and floating dtype, in the precision of the vectors."""
    return queries @ unit_vectors(proxies.to(queries.dtype)).T


def check_above_zero(**values: float) -> None:
    """Raise if a hyper-parameter is not a finite number above 0."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name}={value} must be a finite number above 0.")
