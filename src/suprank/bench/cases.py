"""What is timed: our losses and baselines, plain torch, pytorch-metric-learning's losses, and the similarity product."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.functional import normalize

from suprank import losses
from suprank.bench.workload import DIM, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Kind = Literal["ours", "baseline", "plain torch", "peer", "floor"]


@dataclass(frozen=True)
class Case:
    """A loss to time. `loss(workload)` builds it; `takes_memory` and `takes_tree` say what it can be called with.

    A `graphed` loss is recorded as a CUDA graph and replayed, which takes the host out of the time: GPUs only.
    """

    name: str
    kind: Kind
    loss: Callable[[Workload], nn.Module]
    takes_memory: bool = False
    takes_tree: bool = True
    graphed: bool = False


class SimilarityProduct(nn.Module):
    """The scores alone: normalize, multiply, go back. Every loss that starts from embeddings pays at least this."""

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
        cosine = _theirs("distances", "CosineSimilarity")
        self.miner = _theirs("miners", "TripletMarginMiner", margin=margin, type_of_triplets="semihard", distance=cosine)
        self.loss = _theirs("losses", "TripletMarginLoss", margin=margin, distance=cosine)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = self.loss(embeddings, labels, self.miner(embeddings, labels))
        return value


def _theirs(module: str, name: str, **options: Any) -> nn.Module:
    theirs: nn.Module = getattr(importlib.import_module(f"pytorch_metric_learning.{module}"), name)(**options)
    return theirs


def _peer(name: str) -> Case:
    return Case(f"PML {name}", "peer", lambda _: _theirs("losses", name), takes_tree=False)


def _proxies(workload: Workload) -> losses.ProxySoftmax:
    return losses.ProxySoftmax(workload.classes, DIM)


def _class_labels(workload: Workload) -> Tensor:
    """The labels of every fine class, `[classes, levels]`."""
    inputs = workload.inputs(torch.device("cpu"))
    return (inputs.labels if inputs.ref_labels is None else inputs.ref_labels).unique(dim=0)


def _over_levels(loss: Callable[[int], losses.RetrievalLoss]) -> Callable[[Workload], nn.Module]:
    """One loss for each level, made from how many classes there are."""

    def summed(workload: Workload) -> nn.Module:
        return losses.SumOverLevels([loss(last + 1) for last in _class_labels(workload).amax(0).tolist()])

    return summed


CASES: dict[str, Case] = {
    case.name: case
    for case in [
        Case("similarity product", "floor", lambda _: SimilarityProduct(), takes_memory=True),
        Case("SupAP", "ours", lambda _: losses.SupAP(), takes_memory=True),
        Case("SmoothAP", "ours", lambda _: losses.SmoothAP()),
        Case("SupRecall", "ours", lambda _: losses.SupRecall()),
        Case("SmoothRecall", "ours", lambda _: losses.SmoothRecall()),
        Case("PairCalibration", "ours", lambda _: losses.PairCalibration()),
        Case("ProxySoftmax", "ours", _proxies),
        Case("roadmap", "ours", lambda _: losses.roadmap(decomposability=losses.PairCalibration())),
        Case("rod_recall", "ours", lambda _: losses.rod_recall(decomposability=losses.PairCalibration())),
        Case("SupHAP", "ours", lambda _: losses.SupHAP(), takes_memory=True),
        Case("SmoothHAP", "ours", lambda _: losses.SmoothHAP()),
        Case("happier", "ours", lambda workload: losses.happier(workload.classes, DIM)),
        Case("SupNDCG", "ours", lambda _: losses.SupNDCG()),
        Case("SmoothNDCG", "ours", lambda _: losses.SmoothNDCG()),
        Case("rod_ndcg", "ours", lambda workload: losses.rod_ndcg(workload.classes, DIM)),
        Case("SupAP, CUDA graph", "ours", lambda _: losses.SupAP(), graphed=True),
        Case("SupHAP, CUDA graph", "ours", lambda _: losses.SupHAP(), graphed=True),
        Case("FastAP", "baseline", lambda _: losses.FastAP(), takes_memory=True),
        Case("SoftBinAP", "baseline", lambda _: losses.SoftBinAP(), takes_memory=True),
        Case("BlackBoxAP", "baseline", lambda _: losses.BlackBoxAP(), takes_memory=True),
        Case("TripletSemiHard", "baseline", lambda _: losses.TripletSemiHard(), takes_memory=True),
        Case("DistanceWeightedTriplet", "baseline", lambda _: losses.DistanceWeightedTriplet(), takes_memory=True),
        Case("ContrastiveXBM", "baseline", lambda _: losses.ContrastiveXBM(), takes_memory=True),
        Case("MultiSimilarity", "baseline", lambda _: losses.MultiSimilarity(), takes_memory=True),
        Case("ProxyNCA", "baseline", lambda workload: losses.ProxyNCA(workload.classes, DIM)),
        Case("ProxyAnchor", "baseline", lambda workload: losses.ProxyAnchor(workload.classes, DIM)),
        Case("ArcFace", "baseline", lambda workload: losses.ArcFace(workload.classes, DIM)),
        Case("CosFace", "baseline", lambda workload: losses.CosFace(workload.classes, DIM)),
        Case("CSL", "baseline", lambda workload: losses.CSL(_class_labels(workload), DIM)),
        Case("SumOverLevels, TripletSemiHard", "baseline", _over_levels(lambda _: losses.TripletSemiHard())),
        Case("SumOverLevels, ProxySoftmax", "baseline", _over_levels(lambda classes: losses.ProxySoftmax(classes, DIM))),
        Case("SumOverLevels, ProxyNCA", "baseline", _over_levels(lambda classes: losses.ProxyNCA(classes, DIM))),
        _peer("SmoothAPLoss"),
        _peer("FastAPLoss"),
        Case("PML TripletMarginLoss, semi-hard", "peer", lambda _: MinedTriplets(), takes_tree=False),
        Case("plain torch SupAP", "plain torch", lambda _: losses.SupAP(using="definition")),
        Case("plain torch SupHAP", "plain torch", lambda _: losses.SupHAP(using="definition")),
    ]
}
