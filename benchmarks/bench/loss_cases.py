"""The losses that are timed: ours, baselines, plain torch, pytorch-metric-learning's, and the similarity product."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.functional import normalize

from bench.loss_workload import DIM, LossWorkload
from suprank import losses

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Kind = Literal["ours", "baseline", "plain torch", "peer", "floor"]


@dataclass(frozen=True)
class LossCase:
    """A loss to time. `loss(workload)` builds it; `takes_memory` and `takes_tree` say which inputs it accepts.

    A `graphed` loss is recorded as a CUDA graph and replayed, which removes the host's time: GPUs only.
    """

    name: str
    kind: Kind
    loss: Callable[[LossWorkload], nn.Module]
    takes_memory: bool = False
    takes_tree: bool = True
    graphed: bool = False


class SimilarityProduct(nn.Module):
    """Only the scores: normalize, multiply, and go back. Every loss on embeddings takes at least this long."""

    def forward(
        self, embeddings: Tensor, labels: Tensor, *, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        queries = normalize(embeddings, dim=-1)
        items = queries if ref_emb is None else normalize(ref_emb, dim=-1)
        return (queries @ items.T).mean()


class MinedTriplets(nn.Module):
    """pytorch-metric-learning's triplet loss on the semi-hard triplets of cosines that its miner finds."""

    def __init__(self, margin: float = 0.05) -> None:
        super().__init__()
        cosine = _metric_learning("distances", "CosineSimilarity")
        self.miner = _metric_learning(
            "miners", "TripletMarginMiner", margin=margin, type_of_triplets="semihard", distance=cosine
        )
        self.loss = _metric_learning("losses", "TripletMarginLoss", margin=margin, distance=cosine)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = self.loss(embeddings, labels, self.miner(embeddings, labels))
        return value


def _metric_learning(module: str, name: str, **options: Any) -> nn.Module:
    """An object of pytorch-metric-learning, which is imported when it is needed."""
    built: nn.Module = getattr(importlib.import_module(f"pytorch_metric_learning.{module}"), name)(**options)
    return built


def _peer(name: str) -> LossCase:
    return LossCase(f"PML {name}", "peer", lambda _: _metric_learning("losses", name), takes_tree=False)


def _proxies(workload: LossWorkload) -> losses.ProxySoftmax:
    return losses.ProxySoftmax(workload.classes, DIM)


def _class_labels(workload: LossWorkload) -> Tensor:
    """The labels of every fine class, `[classes, levels]`."""
    inputs = workload.inputs(torch.device("cpu"))
    return (inputs.labels if inputs.ref_labels is None else inputs.ref_labels).unique(dim=0)


def _over_levels(loss: Callable[[int], losses.RetrievalLoss]) -> Callable[[LossWorkload], nn.Module]:
    """The sum of one loss for each level; `loss` takes the number of classes of the level."""

    def build(workload: LossWorkload) -> nn.Module:
        return losses.SumOverLevels([loss(last + 1) for last in _class_labels(workload).amax(0).tolist()])

    return build


LOSS_CASES: dict[str, LossCase] = {
    case.name: case
    for case in [
        LossCase("similarity product", "floor", lambda _: SimilarityProduct(), takes_memory=True),
        LossCase("SupAP", "ours", lambda _: losses.SupAP(), takes_memory=True),
        LossCase("SmoothAP", "ours", lambda _: losses.SmoothAP()),
        LossCase("SupRecall", "ours", lambda _: losses.SupRecall()),
        LossCase("SmoothRecall", "ours", lambda _: losses.SmoothRecall()),
        LossCase("PairCalibration", "ours", lambda _: losses.PairCalibration()),
        LossCase("ProxySoftmax", "ours", _proxies),
        LossCase("roadmap", "ours", lambda _: losses.roadmap(decomposability=losses.PairCalibration())),
        LossCase("rod_recall", "ours", lambda _: losses.rod_recall(decomposability=losses.PairCalibration())),
        LossCase("SupHAP", "ours", lambda _: losses.SupHAP(), takes_memory=True),
        LossCase("SmoothHAP", "ours", lambda _: losses.SmoothHAP()),
        LossCase("happier", "ours", lambda workload: losses.happier(decomposability=_proxies(workload))),
        LossCase("SupNDCG", "ours", lambda _: losses.SupNDCG()),
        LossCase("SmoothNDCG", "ours", lambda _: losses.SmoothNDCG()),
        LossCase("rod_ndcg", "ours", lambda workload: losses.rod_ndcg(decomposability=_proxies(workload))),
        LossCase("SupAP, CUDA graph", "ours", lambda _: losses.SupAP(), graphed=True),
        LossCase("SupHAP, CUDA graph", "ours", lambda _: losses.SupHAP(), graphed=True),
        LossCase("FastAP", "baseline", lambda _: losses.FastAP(), takes_memory=True),
        LossCase("SoftBinAP", "baseline", lambda _: losses.SoftBinAP(), takes_memory=True),
        LossCase("BlackBoxAP", "baseline", lambda _: losses.BlackBoxAP(), takes_memory=True),
        LossCase("TripletSemiHard", "baseline", lambda _: losses.TripletSemiHard(), takes_memory=True),
        LossCase("DistanceWeightedTriplet", "baseline", lambda _: losses.DistanceWeightedTriplet(), takes_memory=True),
        LossCase("ContrastiveXBM", "baseline", lambda _: losses.ContrastiveXBM(), takes_memory=True),
        LossCase("ContrastiveKoLeo", "baseline", lambda _: losses.ContrastiveKoLeo(), takes_memory=True),
        LossCase("MultiSimilarity", "baseline", lambda _: losses.MultiSimilarity(), takes_memory=True),
        LossCase("SupCon", "baseline", lambda _: losses.SupCon(), takes_memory=True),
        LossCase("SigLIP", "baseline", lambda _: losses.SigLIP(), takes_memory=True),
        LossCase("Circle", "baseline", lambda _: losses.Circle(), takes_memory=True),
        LossCase("KoLeo", "baseline", lambda _: losses.KoLeo(), takes_memory=True),
        LossCase("CrossEntropy", "baseline", lambda workload: losses.CrossEntropy(workload.classes, DIM)),
        LossCase("ProxyNCA", "baseline", lambda workload: losses.ProxyNCA(workload.classes, DIM)),
        LossCase("ProxyAnchor", "baseline", lambda workload: losses.ProxyAnchor(workload.classes, DIM)),
        LossCase("ArcFace", "baseline", lambda workload: losses.ArcFace(workload.classes, DIM)),
        LossCase("CosFace", "baseline", lambda workload: losses.CosFace(workload.classes, DIM)),
        LossCase("CSL", "baseline", lambda workload: losses.CSL(_class_labels(workload), DIM)),
        LossCase("SumOverLevels, TripletSemiHard", "baseline", _over_levels(lambda _: losses.TripletSemiHard())),
        LossCase("SumOverLevels, ProxySoftmax", "baseline", _over_levels(lambda classes: losses.ProxySoftmax(classes, DIM))),
        LossCase("SumOverLevels, ProxyNCA", "baseline", _over_levels(lambda classes: losses.ProxyNCA(classes, DIM))),
        _peer("SmoothAPLoss"),
        _peer("FastAPLoss"),
        _peer("SupConLoss"),
        _peer("CircleLoss"),
        _peer("MultiSimilarityLoss"),
        LossCase("PML TripletMarginLoss, semi-hard", "peer", lambda _: MinedTriplets(), takes_tree=False),
        LossCase("plain torch SupAP", "plain torch", lambda _: losses.SupAP(using="definition")),
        LossCase("plain torch SupHAP", "plain torch", lambda _: losses.SupHAP(using="definition")),
    ]
}
