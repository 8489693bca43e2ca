"""Rank losses, decomposability losses and their combinations, called as pytorch-metric-learning's losses are."""

from suprank.losses.base import RetrievalLoss
from suprank.losses.batch import RetrievalBatch, unchecked
from suprank.losses.combined import Combined, happier, roadmap, rod_ndcg, rod_recall
from suprank.losses.decomposability import PairCalibration, ProxySoftmax
from suprank.losses.mixup import SimilarityMixup
from suprank.losses.surrogate import (
    RankLoss,
    SmoothAP,
    SmoothHAP,
    SmoothNDCG,
    SmoothRecall,
    SupAP,
    SupHAP,
    SupNDCG,
    SupRecall,
)

__all__ = [
    "Combined",
    "PairCalibration",
    "ProxySoftmax",
    "RankLoss",
    "RetrievalBatch",
    "RetrievalLoss",
    "SimilarityMixup",
    "SmoothAP",
    "SmoothHAP",
    "SmoothNDCG",
    "SmoothRecall",
    "SupAP",
    "SupHAP",
    "SupNDCG",
    "SupRecall",
    "happier",
    "roadmap",
    "rod_ndcg",
    "rod_recall",
    "unchecked",
]
