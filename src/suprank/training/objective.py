"""The loss that a recipe names, and its value on a batch and against a memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from suprank import losses
from suprank.training.loss_names import LOSSES

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from suprank.losses import RetrievalLoss
    from suprank.training.config import LossConfig
    from suprank.training.memory import CrossBatchMemory

SURROGATES: dict[str, type[losses.RankLoss]] = {
    "sup-ap": losses.SupAP,
    "sup-recall": losses.SupRecall,
    "sup-hap": losses.SupHAP,
    "sup-ndcg": losses.SupNDCG,
    "smooth-ap": losses.SmoothAP,
    "smooth-recall": losses.SmoothRecall,
    "smooth-hap": losses.SmoothHAP,
    "smooth-ndcg": losses.SmoothNDCG,
}


def loss_of(config: LossConfig, classes: int, dim: int) -> RetrievalLoss:
    """The loss by its name, with `classes` proxies of width `dim` if it has proxies."""
    surrogate_name, decomposability_name = LOSSES[config.name].parts(config.decomposability)
    decomposability: RetrievalLoss | None = None
    if decomposability_name == "proxies":
        decomposability = losses.ProxySoftmax(classes, dim, temperature=config.temperature)
    elif decomposability_name == "pairs":
        decomposability = losses.PairCalibration(
            positive_floor=config.positive_floor, negative_ceiling=config.negative_ceiling, average=config.average
        )
    if surrogate_name is None:
        assert decomposability is not None
        return decomposability
    kind = SURROGATES[surrogate_name]
    read = LOSSES[surrogate_name].reads(None) - {"mixup"}
    surrogate: RetrievalLoss = kind(**{name: getattr(config, name) for name in read})
    if config.mixup:
        surrogate = losses.SimilarityMixup(surrogate)
    return surrogate if decomposability is None else losses.Combined(surrogate, decomposability, config.weight)


class Objective(nn.Module):
    """What is minimised: the loss within the batch and, once there is a memory to look at, against that too.

        L = (1 − w)·L(batch, batch) + w·L(batch, memory),    w = `memory_weight`

    The batch enters the memory before it is read, as in the authors' code; no image is in its own list, whether it entered now
    or earlier. Gradients reach the batch, and never the memory. After a call `log` holds the parts, detached.
    """

    def __init__(self, loss: RetrievalLoss, memory: CrossBatchMemory | None = None, memory_weight: float = 0.5) -> None:
        super().__init__()
        self.loss, self.memory, self.memory_weight = loss, memory, memory_weight
        self.log: dict[str, Tensor] = {}

    def forward(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Int[Tensor, "batch levels"],
        ids: Int[Tensor, " batch"],
        *,
        remembering: bool = True,
    ) -> Float[Tensor, ""]:
        """The loss; with `remembering=False` the memory is filled and not looked at."""
        value = self.loss(embeddings, labels)
        parts = {name: part for name, part in getattr(self.loss, "log", {}).items() if name != "loss"}
        if self.memory is not None:
            self.memory.add(embeddings, labels, ids)
            if remembering:
                known = self.memory.contents()
                against = self.loss(
                    embeddings, labels, ref_emb=known.embeddings, ref_labels=known.labels, ids=ids, ref_ids=known.ids
                )
                value = (1 - self.memory_weight) * value + self.memory_weight * against
                parts["against memory"] = against.detach()
        self.log = {"loss": value.detach(), **parts}
        return value


def gradients(value: Float[Tensor, ""], embeddings: Tensor, parameters: list[nn.Parameter]) -> tuple[Tensor, list[Tensor]]:
    """Of the loss on the embeddings, and on its own parameters, the proxies."""
    on_embeddings, *on_parameters = torch.autograd.grad(value, [embeddings, *parameters])
    return on_embeddings, on_parameters
