"""Batches of every composition, and every loss beside its equation in loops."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from suprank.losses import (
    PairCalibration,
    ProxySoftmax,
    RetrievalLoss,
    SmoothAP,
    SmoothHAP,
    SmoothNDCG,
    SmoothRecall,
    SupAP,
    SupHAP,
    SupNDCG,
    SupRecall,
    happier,
    roadmap,
    rod_ndcg,
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

SUP = {
    "SupAP": SupAP,
    "SupRecall": SupRecall,
    "SupHAP": SupHAP,
    "SupNDCG": SupNDCG,
}
SMOOTH = {
    "SmoothAP": SmoothAP,
    "SmoothRecall": SmoothRecall,
    "SmoothHAP": SmoothHAP,
    "SmoothNDCG": SmoothNDCG,
}
RANK_LOSSES = SUP | SMOOTH


def every_loss() -> dict[str, RetrievalLoss]:
    """One of each, proxies for classes 0..9 included."""
    return {
        **{name: make() for name, make in RANK_LOSSES.items()},
        "PairCalibration": PairCalibration(),
        "ProxySoftmax": ProxySoftmax(10, DIM),
        "ROADMAP": roadmap(),
        "ROD-R@k": rod_recall(),
        "HAPPIER": happier(ProxySoftmax(10, DIM)),
        "ROD-NDCG": rod_ndcg(ProxySoftmax(10, DIM)),
    }


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
        else:
            values.append(reference.ndcg(scores, level, reference.exponential_gain(level), plus, minus))
    assert all(not math.isinf(value) for value in values)
    return reference.mean_loss(values)
