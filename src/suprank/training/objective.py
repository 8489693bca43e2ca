"""The loss that a recipe names, and its value on a batch and against a memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from suprank import losses
from suprank.training.loss_names import LOSSES

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from suprank.losses import RetrievalLoss
    from suprank.losses.memory import EmbeddingMemory
    from suprank.training.config import LossConfig

Make = Callable[..., losses.RetrievalLoss]
"""Makes a loss of the labels of each class `[classes, levels]`, the width of the embeddings, and entries of `[loss]`."""

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


def _of_items(kind: type[RetrievalLoss]) -> Make:
    """Of a loss that looks at images alone."""
    return lambda classes, dim, **entries: kind(**entries)


def _of_classes(kind: Callable[..., RetrievalLoss]) -> Make:
    """Of a loss with a proxy for each fine class."""
    return lambda classes, dim, **entries: kind(len(classes), dim, **entries)


def _of_levels(make: Make) -> Make:
    """Of a loss for every level, with classes of its own."""

    def made(classes: Tensor, dim: int, **entries: Any) -> RetrievalLoss:
        at_levels = [_classes(classes[:, level:]) for level in range(classes.shape[1])]
        return losses.SumOverLevels([make(own, dim, **entries) for own in at_levels])

    return made


def _classes(labels: Int[Tensor, "images levels"]) -> Int[Tensor, "classes levels"]:
    """The labels of each class of the first column, which numbers them from 0, at all levels."""
    return labels[np.unique(labels[:, 0].numpy(), return_index=True)[1]]


BASELINES: dict[str, Make] = {
    "fast-ap": _of_items(losses.FastAP),
    "softbin-ap": _of_items(losses.SoftBinAP),
    "blackbox-ap": _of_items(losses.BlackBoxAP),
    "triplet-sh": _of_items(losses.TripletSemiHard),
    "triplet-dw": _of_items(losses.DistanceWeightedTriplet),
    "contrastive-xbm": _of_items(losses.ContrastiveXBM),
    "multi-similarity": _of_items(losses.MultiSimilarity),
    "proxy-nca": _of_classes(losses.ProxyNCA),
    "proxy-anchor": _of_classes(losses.ProxyAnchor),
    "arcface": _of_classes(losses.ArcFace),
    "cosface": _of_classes(losses.CosFace),
    "csl": losses.CSL,
    "sum-triplet-sh": _of_levels(_of_items(losses.TripletSemiHard)),
    "sum-nsm": _of_levels(_of_classes(losses.ProxySoftmax)),
    "sum-proxy-nca": _of_levels(_of_classes(losses.ProxyNCA)),
}


def build_loss(config: LossConfig, labels: Int[Tensor, "images levels"], dim: int) -> RetrievalLoss:
    """The loss by its name, for embeddings of width `dim`, with proxies for the classes of the training images, if it has any.

    `labels` are those of all of these images, or of one of each class; at each level they are numbered from 0.
    """
    classes = _classes(labels)
    if config.name in BASELINES:
        given = {name: getattr(config, name) for name in LOSSES[config.name].reads(None)}
        return BASELINES[config.name](classes, dim, **{name: value for name, value in given.items() if value is not None})
    surrogate_name, decomposability_name = LOSSES[config.name].parts(config.decomposability)
    decomposability: RetrievalLoss | None = None
    if decomposability_name == "proxies":
        decomposability = losses.ProxySoftmax(len(classes), dim, temperature=config.temperature)
    elif decomposability_name == "pairs":
        decomposability = losses.PairCalibration(
            positive_floor=config.positive_floor, negative_ceiling=config.negative_ceiling, average=config.average
        )
    if surrogate_name is None:
        assert decomposability is not None
        return decomposability
    kind = SURROGATES[surrogate_name]
    read = LOSSES[surrogate_name].reads(None) - {"mixup", "level_weights"}
    entries = {name: getattr(config, name) for name in read}
    if config.level_weights is not None:
        depth = classes.shape[1]
        entries["weights"] = weights = (1 / depth,) * depth if config.level_weights == "equal" else config.level_weights
        if len(weights) != depth:
            raise ValueError(
                f"level_weights={weights} are {len(weights)}, but the labels have {depth} level(s); "
                f"give one for each level, coarsest first."
            )
    surrogate: RetrievalLoss = kind(**entries)
    if config.mixup:
        surrogate = losses.SimilarityMixup(surrogate)
    return surrogate if decomposability is None else losses.Combined(surrogate, decomposability, config.weight)


class Objective(nn.Module):
    """What is minimized: the loss within the batch and, once there is a memory to look at, against that too.

        L = (1 − w)·L(batch, batch) + w·L(batch, memory),    w = `memory_weight`

    The batch enters the memory before it is read, as in the authors' code; no image is in its own list, whether it entered now
    or earlier. Gradients reach the batch, and never the memory. After a call `log` holds the parts, detached.
    """

    def __init__(self, loss: RetrievalLoss, memory: EmbeddingMemory | None = None, memory_weight: float = 0.5) -> None:
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
