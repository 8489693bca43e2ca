"""Batches of every composition, all losses by name, and the rank losses beside their equations in loops."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from suprank import losses
from suprank.losses import (
    PairCalibration,
    ProxySoftmax,
    RankLoss,
    RetrievalLoss,
    SimilarityMixup,
    SmoothAP,
    SmoothHAP,
    SmoothMRR,
    SmoothNDCG,
    SmoothRecall,
    SumOverLevels,
    SupAP,
    SupHAP,
    SupMRR,
    SupNDCG,
    SupRecall,
    happier,
    roadmap,
    rod_recall,
)
from tests import reference

DIM = 5

COMPOSITIONS: dict[str, list[int] | list[list[int]]] = {
    "equal classes": [0, 0, 1, 1, 2, 2],
    "unequal classes": [0, 1, 0, 2, 0, 1, 0],
    "singletons and a pair": [0, 1, 2, 2, 3],
    "singletons only": [0, 1, 2, 3],
    "one class only": [5, 5, 5, 5],
    "one image": [3],
    "two of one class": [1, 1],
    "ids far apart": [10**12, 7, 10**12, 7, 4],
    "one column": [[0], [0], [1], [1]],
    "two levels": [[0, 0], [0, 0], [1, 0], [2, 1], [2, 1], [3, 1], [4, 2]],
    "three levels": [[0, 0, 0], [0, 0, 0], [1, 0, 0], [2, 1, 0], [2, 1, 0], [3, 2, 1], [4, 2, 1], [4, 2, 1]],
    "a fine id under two parents": [[0, 0], [0, 1], [0, 0], [0, 1], [1, 1]],
    "coarse company only": [[0, 0], [1, 0], [2, 0], [3, 1]],
    "some without a label": [-1, 0, 0, -1, 1, 1, -1],
    "some without a fine label": [[0, 0], [-1, 0], [0, 0], [-1, 0], [-1, -1], [1, 1], [-1, -1], [1, 1]],
    "no labels at all": [-1, -1, -1],
}

SUP: dict[str, type[RankLoss]] = {"SupAP": SupAP, "SupRecall": SupRecall, "SupHAP": SupHAP, "SupNDCG": SupNDCG}
SMOOTH: dict[str, type[RankLoss]] = {
    "SmoothAP": SmoothAP,
    "SmoothRecall": SmoothRecall,
    "SmoothHAP": SmoothHAP,
    "SmoothNDCG": SmoothNDCG,
}
RANK_LOSSES = SUP | SMOOTH

TREE = torch.tensor([[one, one // 2, one // 6] for one in range(12)])  # classes 0..11 at three levels

# Every loss, given the labels of each class [classes, levels] and the size of the embeddings.
LOSSES: dict[str, Callable[[Tensor, int], RetrievalLoss]] = {
    **{name: lambda tree, dim, make=make: make() for name, make in RANK_LOSSES.items()},
    "SupMRR": lambda tree, dim: SupMRR(),
    "SmoothMRR": lambda tree, dim: SmoothMRR(),
    "PairCalibration": lambda tree, dim: PairCalibration(),
    "ProxySoftmax": lambda tree, dim: ProxySoftmax(len(tree), dim),
    "ROADMAP": lambda tree, dim: roadmap(len(tree), dim),
    "ROD-R@k": lambda tree, dim: rod_recall(decomposability=PairCalibration()),
    "HAPPIER": lambda tree, dim: happier(len(tree), dim),
    "mixed SupAP": lambda tree, dim: SimilarityMixup(SupAP()),
    "FastAP": lambda tree, dim: losses.FastAP(),
    "SoftBinAP": lambda tree, dim: losses.SoftBinAP(),
    "BlackBoxAP": lambda tree, dim: losses.BlackBoxAP(),
    "TripletSemiHard": lambda tree, dim: losses.TripletSemiHard(margin=0.3),
    "DistanceWeightedTriplet": lambda tree, dim: losses.DistanceWeightedTriplet(),
    "SupCon": lambda tree, dim: losses.SupCon(),
    "SigLIP": lambda tree, dim: losses.SigLIP(),
    "Circle": lambda tree, dim: losses.Circle(),
    "ContrastiveXBM": lambda tree, dim: losses.ContrastiveXBM(),
    "KoLeo (R)": lambda tree, dim: losses.Combined(SupAP(), losses.KoLeo()),
    "Matryoshka": lambda tree, dim: losses.Matryoshka(roadmap(len(tree), dim), (2, dim)),
    "IRT_R": lambda tree, dim: losses.ContrastiveKoLeo(),
    "MultiSimilarity": lambda tree, dim: losses.MultiSimilarity(),
    "CrossEntropy": lambda tree, dim: losses.CrossEntropy(len(tree), dim),
    "ProxyNCA": lambda tree, dim: losses.ProxyNCA(len(tree), dim),
    "ProxyAnchor": lambda tree, dim: losses.ProxyAnchor(len(tree), dim),
    "ArcFace": lambda tree, dim: losses.ArcFace(len(tree), dim),
    "CosFace": lambda tree, dim: losses.CosFace(len(tree), dim),
    "CSL": lambda tree, dim: losses.CSL(tree, dim),
    "ΣTL": lambda tree, dim: SumOverLevels([losses.TripletSemiHard(margin=0.3) for _ in tree.T]),
    "ΣNSM": lambda tree, dim: SumOverLevels([ProxySoftmax(int(column.max()) + 1, dim) for column in tree.T]),
}
PROXIES_ONLY = ("ProxySoftmax", "CrossEntropy", "ProxyNCA", "ProxyAnchor", "ArcFace", "CosFace", "CSL", "ΣNSM")
WITH_PROXIES = (*PROXIES_ONLY, "ROADMAP", "HAPPIER", "Matryoshka")
RANDOM = ("BlackBoxAP", "DistanceWeightedTriplet", "mixed SupAP")


def build(name: str, labels: Tensor | None = None, dim: int = DIM) -> RetrievalLoss:
    """The loss of this name for labels of this depth (three levels by default), always with the same proxies."""
    depth = 3 if labels is None else 1 if labels.ndim == 1 else labels.shape[1]
    torch.default_generator.manual_seed(3)
    return LOSSES[name](TREE[:, :depth], dim)


def gradient_of(loss, embeddings: Tensor, labels: Tensor | None = None, **options) -> tuple[Tensor, Tensor]:
    """The value, and the gradient with respect to the embeddings. Losses that draw at random draw the same every time."""
    leaf = embeddings.detach().clone().requires_grad_()
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats a stack trace for CUDA every time
    value = loss(leaf, labels, **options)
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


def on_a_circle(*degrees: float, dtype: torch.dtype = torch.float64) -> Tensor:
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], -1).to(dtype)


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm)
        return func(*args, **(kwargs or {}))


def batch(composition: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Random embeddings, not of unit length, for the labels of a composition."""
    labels = torch.tensor(COMPOSITIONS[composition])
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(len(labels), DIM, generator=generator, dtype=torch.float64)).to(dtype), labels


def with_a_class(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, list[int]]:
    """The embeddings that have a fine class, and their classes: what a loss with proxies looks at."""
    fine = labels.reshape(len(labels), -1)[:, 0]
    return embeddings[fine >= 0], fine[fine >= 0].tolist()


def rows(labels: Tensor) -> list[list[int]]:
    return (labels[:, None] if labels.ndim == 1 else labels).tolist()


def slow_loss(name: str, embeddings: Tensor, labels: Tensor, *, include_self: bool = False, minus=None) -> float:
    """The loss `name` by the reference loops. `minus` replaces H⁻."""
    lists = reference.batch_lists(embeddings.tolist(), rows(labels), include_self=include_self)
    return slow_loss_of_lists(name, lists, depth=len(rows(labels)[0]), minus=minus)


def slow_loss_of_lists(name: str, lists, depth: int, minus=None) -> float:
    plus, minus = (
        (reference.smooth(), reference.smooth())
        if name.startswith("Smooth")
        else (reference.heaviside, minus or reference.h_minus())
    )
    measure = name.removeprefix("Smooth").removeprefix("Sup")
    values = []
    for scores, level in lists:
        fine = reference.binary(level, depth)
        if measure == "AP":
            values.append(reference.average_precision(scores, fine, plus, minus))
        elif measure == "Recall":
            values.append(reference.mean_recall(scores, fine, (1, 2, 4, 8, 16), plus, minus))
        elif measure == "HAP":
            relevance = reference.tree_relevance(level, depth=depth)
            values.append(reference.h_average_precision(scores, level, relevance, plus, minus))
        elif measure == "MRR":
            values.append(reference.reciprocal_rank(scores, fine, plus, minus))
        else:
            values.append(reference.ndcg(scores, level, reference.exponential_gain(level), plus, minus))
    assert all(not math.isinf(value) for value in values)
    return reference.mean_loss(values)
