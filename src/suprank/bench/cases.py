"""What is timed: our losses, the definition in plain torch, pytorch-metric-learning's losses, and the similarity product."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import nn
from torch.nn.functional import normalize

from suprank import losses
from suprank.bench.workload import DIM, Workload
from suprank.ranking import definition

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Kind = Literal["ours", "plain torch", "peer", "floor"]


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
    """The scores alone: normalise, multiply, go back. Every loss that starts from embeddings pays at least this."""

    def forward(
        self, embeddings: Tensor, labels: Tensor, *, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        queries = normalize(embeddings, dim=-1)
        items = queries if ref_emb is None else normalize(ref_emb, dim=-1)
        return (queries @ items.T).mean()


def _peer(name: str) -> Case:
    def loss(_: Workload) -> nn.Module:
        peer: nn.Module = getattr(importlib.import_module("pytorch_metric_learning.losses"), name)()
        return peer

    return Case(f"PML {name}", "peer", loss, takes_tree=False)


def _proxies(workload: Workload) -> losses.ProxySoftmax:
    return losses.ProxySoftmax(workload.classes, DIM)


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
        Case("roadmap", "ours", lambda _: losses.roadmap()),
        Case("rod_recall", "ours", lambda _: losses.rod_recall()),
        Case("SupHAP", "ours", lambda _: losses.SupHAP(), takes_memory=True),
        Case("SmoothHAP", "ours", lambda _: losses.SmoothHAP()),
        Case("happier", "ours", lambda workload: losses.happier(_proxies(workload))),
        Case("SupNDCG", "ours", lambda _: losses.SupNDCG()),
        Case("SmoothNDCG", "ours", lambda _: losses.SmoothNDCG()),
        Case("rod_ndcg", "ours", lambda workload: losses.rod_ndcg(_proxies(workload))),
        Case("SupAP, CUDA graph", "ours", lambda _: losses.SupAP(), graphed=True),
        Case("SupHAP, CUDA graph", "ours", lambda _: losses.SupHAP(), graphed=True),
        _peer("SmoothAPLoss"),
        _peer("FastAPLoss"),
        Case("plain torch SupAP", "plain torch", lambda _: losses.SupAP(using=definition)),
        Case("plain torch SupHAP", "plain torch", lambda _: losses.SupHAP(using=definition)),
    ]
}
