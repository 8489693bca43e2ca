"""Contrastive losses, which compare a query with its positives and all other items at once: SupCon and, in it, InfoNCE."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from suprank.losses.base import QueryMean, RetrievalLoss
from suprank.losses.decomposability import check_above_zero

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from suprank.losses.score_batch import RankingBatch


class SupCon(RetrievalLoss):
    """SupCon (Khosla et al., NeurIPS 2020): cross entropy over the batch, mean over the positives of a query:

        L = mean_i 1/|Ω⁺| Σ_{p∈Ω⁺} −log( exp(s_p/η) / Σ_{j≠i} exp(s_j/η) ),   η = `temperature`, in cosines

    With one positive a query this is InfoNCE, or NT-Xent. Two views of each image: `loss(torch.cat([one, other]),
    torch.arange(n).repeat(2))`. Images and texts, as in CLIP: the mean of `loss(images, pairs, ref_emb=texts,
    ref_labels=pairs)`, `pairs = torch.arange(n)`, and of the same with the two exchanged.

    Positives are of the fine class. A query without positives is left out of the mean; a batch of such queries gives 0, with
    zero gradients, and, among the first ones, a `NoPositivesWarning`. `log["queries_without_positives"]` has their number.
    """

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__()
        check_above_zero(temperature=temperature)
        self.temperature = temperature
        self.log: dict[str, Tensor] = {}

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"

    def compute(self, batch: RankingBatch) -> Float[Tensor, ""]:
        skipped = (~(batch.fine_level() > 0).any(-1)).sum()
        self.log = self.loggable({"queries_without_positives": skipped})
        self.check_positives(batch.checks, skipped, len(batch.scores))
        (mean,) = self.means(batch)
        return mean.value

    def compute_lists(self, batch: RankingBatch) -> Float[Tensor, ""]:
        return self.compute(batch)

    def means(self, batch: RankingBatch) -> Sequence[QueryMean]:
        level = batch.fine_level()
        logits = batch.scores / self.temperature
        positives = (level > 0).sum(-1)
        attracted = logits.where(level > 0, 0).sum(-1) / positives.clamp(min=1)
        loss = logits.masked_fill(level < 0, -torch.inf).logsumexp(-1) - attracted
        return [QueryMean(loss.where(positives > 0, 0).sum(), (positives > 0).sum())]
