"""Decomposability losses: they calibrate scores across batches, which a loss on the ranks within a batch cannot do."""

from __future__ import annotations

from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from suprank.losses.base import QueryMean, RetrievalLoss
from suprank.losses.batch import unit_vectors, without_autocast
from suprank.ranking.hyper_parameters import check_above_zero, check_sizes, is_number
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
            if not is_number(value):
                raise ValueError(f"{name}={value!r} must be a finite number: a cosine similarity; the authors use 0.9 and 0.6.")
        self.positive_floor, self.negative_ceiling, self.average = positive_floor, negative_ceiling, average

    def compute_lists(self, batch: ScoreBatch) -> Float[Tensor, ""]:
        return reduce(add, [mean.value for mean in self.means(batch)])

    def means(self, batch: RankingBatch) -> Sequence[QueryMean]:
        level = batch.fine_level()
        too_far = (self.positive_floor - batch.scores).clamp(min=0).where(level > 0, 0)
        too_close = (batch.scores - self.negative_ceiling).clamp(min=0).where(level == 0, 0)
        return [self._mean(too_far, level > 0), self._mean(too_close, level == 0)]

    def _mean(self, hinge: Tensor, pair: Tensor) -> QueryMean:
        if self.average == "violating":
            return QueryMean(hinge.sum(-1), (hinge > 0).sum(-1))
        count = pair.sum(-1)
        return QueryMean(hinge.sum(-1) / count.clamp(min=1), count > 0)


class ProxyLoss(RetrievalLoss):
    """The base of losses that compare images with proxies, learnable vectors for the fine classes, and not with each other.

    A subclass holds the proxies and implements `per_image`, the loss of each unit vector. The loss is the mean over the
    images that have a fine class: those labeled −1 have no proxy, and are left out. Labels are checked before, and
    autocast is off.
    """

    ranks_items = False

    def __init__(self, num_classes: int, embedding_size: int) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, embedding_size=embedding_size)
        self.num_classes, self.embedding_size = num_classes, embedding_size

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        fine = self._fine_classes(batch)
        with without_autocast(batch.queries):
            return self.mean(batch.queries, fine)

    def means(self, batch: RetrievalBatch) -> Sequence[QueryMean]:
        fine = self._fine_classes(batch)
        with without_autocast(batch.queries):
            each, known = self._each(batch.queries, fine)
        return [QueryMean(each.where(known, 0), known)]

    def mean(self, queries: Float[Tensor, "queries dim"], fine: Integer[Tensor, " queries"]) -> Float[Tensor, ""]:
        """The mean loss of unit vectors of these classes, −1 for none; 0 where no image has a class."""
        return mean_over_queries(*self._each(queries, fine))[0]

    def _each(self, queries: Tensor, fine: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of every image, and whether it has a class. Those without one get any, and their value is left out."""
        # So does a class out of range, if a check reports it after the launches; if none does, torch must.
        highest = self.num_classes - 1 if may_read(Reading.TO_CHECK) else None
        return self.per_image(queries, fine.clamp(0, highest)), fine >= 0

    def _fine_classes(self, batch: RetrievalBatch) -> Tensor:
        """The fine class of every image, checked."""
        if batch.labels is None:
            raise ValueError(f"{type(self).__name__} needs labels: each embedding is drawn to the proxy of its fine class.")
        refuse_label_sets(batch.labels, type(self).__name__, "use a loss without proxies, such as SupAP or PairCalibration")
        if batch.dim != self.embedding_size:
            raise ValueError(
                f"embeddings have dimension {batch.dim} but proxies {self.embedding_size}; set embedding_size to match."
            )
        fine, classes = batch.labels[:, 0], self.num_classes
        batch.checks.add(fine, lambda: classes - 2 - fine.max(), partial(_check_classes, fine, classes))
        return fine

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

    def per_image(self, queries: Float[Tensor, "queries dim"], fine: Integer[Tensor, " queries"]) -> Float[Tensor, " queries"]:
        return cross_entropy(cosines(queries, self.proxies) / self.temperature, fine, reduction="none")


def uniform_proxies(num_classes: int, embedding_size: int) -> nn.Parameter:
    """Proxies, initialized as the authors' are: uniform within ±1/√dimension."""
    bound = embedding_size**-0.5
    return nn.Parameter(torch.empty(num_classes, embedding_size).uniform_(-bound, bound))


def cosines(
    queries: Float[Tensor, "queries dim"], proxies: Float[Tensor, "classes full_dim"]
) -> Float[Tensor, "queries classes"]:
    """Cosines of unit vectors with proxies of any length and floating dtype, in the precision of the vectors.

    Vectors of fewer dimensions, the first of an embedding (`Matryoshka`), are compared with the same dimensions of the proxies.
    """
    return queries @ unit_vectors(proxies[:, : queries.shape[1]].to(queries.dtype)).T
