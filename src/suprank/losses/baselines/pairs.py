"""The contrastive pair loss that XBM was published with (Wang et al., CVPR 2020), that of IRT_R, and the entropy term KoLeo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from suprank.losses.base import QueryMean, RetrievalLoss
from suprank.losses.batch import without_autocast
from suprank.ranking.hyper_parameters import is_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor

    from suprank.losses.batch import RetrievalBatch

_COPY = 1 - 1e-5  # a positive this similar is taken for the image itself
_SHORTEST = 1e-8  # added to a distance before its logarithm


class ContrastiveXBM(RetrievalLoss):
    """L = mean_i ( Σ_{p: s_p < 1 − 1e-5} (1 − s_p) + Σ_{n: s_n > m} s_n ), m = `margin`.

    Sums and not means over pairs, so the loss grows with the number of items; a memory is just more of them (`ref_emb`). The
    mean is over all queries: one without positives still has negatives. Both inequalities are strict, and the second term
    jumps by m where a negative passes it, which gradients do not see: they are those of Σ [s_n − m]₊. Positives are of
    the fine class, all other items are negatives, the query itself is neither.
    """

    def __init__(self, *, margin: float = 0.5) -> None:
        super().__init__()
        if not (is_number(margin) and 0 <= margin < 1):
            raise ValueError(
                f"margin={margin!r} must be a cosine similarity from 0 to below 1, above which a negative is too close; "
                f"Wang et al. use 0.5."
            )
        self.margin = margin

    def means(self, batch: RetrievalBatch) -> Sequence[QueryMean]:
        scores, level = batch.scores, batch.fine_level()
        too_far = (1 - scores).where((level > 0) & (scores < _COPY), 0)
        too_close = scores.where((level == 0) & (scores > self.margin), 0)
        return [QueryMean((too_far + too_close).sum(-1))]


class ContrastiveKoLeo(ContrastiveXBM):
    """The loss of IRT_R (El-Nouby et al., 2021): contrastive, with a term that spreads the embeddings of a batch.

        L = L_XBM + λ·L_KoLeo,   L_KoLeo = −mean_i log( min_{j≠i} ‖v_i − v_j‖ ),   λ = `entropy_weight`

    L_XBM is `ContrastiveXBM`. Its gradient is that of their hinge Σ [s_n − m]₊; its value is higher by m for each negative
    above the margin m. L_KoLeo is `KoLeo` among the queries: it pushes each
    embedding away from the nearest other one of the batch, whatever their classes. References are no neighbors, so a memory
    changes the pairs only. L may fall below 0, since distances go up to 2. A batch of one image has no neighbors, and L_KoLeo
    is 0; between exact copies it is −log 1e-8, with no gradient.
    """

    def __init__(self, *, margin: float = 0.5, entropy_weight: float = 0.7) -> None:
        super().__init__(margin=margin)
        if not (is_number(entropy_weight) and entropy_weight >= 0):
            raise ValueError(f"entropy_weight={entropy_weight!r} must be finite, 0 or more; El-Nouby et al. use 0.7.")
        self.entropy_weight = entropy_weight
        self.log: dict[str, Tensor] = {}

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        pairs, entropy = super().compute(batch), self._entropy(batch.queries)
        self.log = self.loggable({"pairs": pairs.detach(), "KoLeo": entropy.detach()})
        return pairs + self.entropy_weight * entropy

    def _entropy(self, vectors: Float[Tensor, "rows dim"]) -> Float[Tensor, ""]:
        if len(vectors) == 1:
            return 0 * vectors.sum()
        others = ~torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
        return _koleo(vectors, vectors, others).mean()


class KoLeo(RetrievalLoss):
    """L_KoLeo = −mean_i log( min_{j≠i} ‖v_i − v_j‖ ), which spreads embeddings over the sphere, whatever their classes.

    The Kozachenko-Leonenko estimate of the differential entropy, negated (Sablayrolles et al., ICLR 2019; DINOv2). A term for
    another loss: `Combined(SupAP(), KoLeo(), 0.1)`. Neighbors are the items of the query's list: the batch, or references and a
    memory, without the query and its copies. It may fall below 0, since distances go up to 2. Between exact copies it is
    −log 1e-8, with no gradient. A query without other items is left out.
    """

    def means(self, batch: RetrievalBatch) -> Sequence[QueryMean]:
        listed = batch.fine_level() >= 0
        return [QueryMean(_koleo(batch.queries, batch.items, listed).where(listed.any(-1), 0), listed.any(-1))]


def _koleo(
    queries: Float[Tensor, "queries dim"], items: Float[Tensor, "items dim"], listed: Bool[Tensor, "queries items"]
) -> Float[Tensor, " queries"]:
    """−log of the distance of each query to the nearest item of its list."""
    with torch.no_grad(), without_autocast(queries):
        # The squares are those of unit vectors, but for virtual examples and vectors of no length.
        nearest = (queries @ items.T - items.square().sum(-1) / 2).masked_fill_(~listed, -torch.inf).argmax(-1)
    # The difference itself, since 2 − 2s loses the digits of small distances.
    distance = torch.linalg.vector_norm(queries - items[nearest], dim=-1)
    return -(distance + _SHORTEST).log()
