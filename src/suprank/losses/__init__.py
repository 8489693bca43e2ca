"""Rank losses, decomposability losses, combinations of the two, and baselines; called as pytorch-metric-learning's are."""

from suprank.losses.base import LabelTreeWarning, NoPositivesWarning, QueryMean, RetrievalLoss
from suprank.losses.baselines import (
    CSL,
    ArcFace,
    BlackBoxAP,
    Circle,
    ContrastiveKoLeo,
    ContrastiveXBM,
    CosFace,
    CrossEntropy,
    DistanceWeightedTriplet,
    FastAP,
    KoLeo,
    MultiSimilarity,
    ProxyAnchor,
    ProxyNCA,
    SigLIP,
    SoftBinAP,
    SupCon,
    TripletSemiHard,
)
from suprank.losses.batch import RetrievalBatch
from suprank.losses.collection import collection_loss
from suprank.losses.combined import Combined, happier, roadmap, rod_ndcg, rod_recall
from suprank.losses.decomposability import PairCalibration, ProxySoftmax
from suprank.losses.gather import gather
from suprank.losses.memory import EmbeddingMemory
from suprank.losses.mixup import SimilarityMixup
from suprank.losses.replay import ReplayedLoss
from suprank.losses.score_batch import ScoreBatch
from suprank.losses.score_scale import scaled_step, suggest_tau
from suprank.losses.surrogate import (
    RankLoss,
    RankMeasure,
    SmoothAP,
    SmoothHAP,
    SmoothMRR,
    SmoothNDCG,
    SmoothRecall,
    SupAP,
    SupHAP,
    SupMRR,
    SupNDCG,
    SupRecall,
)
from suprank.losses.weighted_sums import Matryoshka, SumOverLevels
from suprank.ranking.reading import skip_value_checks

__all__ = [
    "CSL",
    "ArcFace",
    "BlackBoxAP",
    "Circle",
    "Combined",
    "ContrastiveKoLeo",
    "ContrastiveXBM",
    "CosFace",
    "CrossEntropy",
    "DistanceWeightedTriplet",
    "EmbeddingMemory",
    "FastAP",
    "KoLeo",
    "LabelTreeWarning",
    "Matryoshka",
    "MultiSimilarity",
    "NoPositivesWarning",
    "PairCalibration",
    "ProxyAnchor",
    "ProxyNCA",
    "ProxySoftmax",
    "QueryMean",
    "RankLoss",
    "RankMeasure",
    "ReplayedLoss",
    "RetrievalBatch",
    "RetrievalLoss",
    "ScoreBatch",
    "SigLIP",
    "SimilarityMixup",
    "SmoothAP",
    "SmoothHAP",
    "SmoothMRR",
    "SmoothNDCG",
    "SmoothRecall",
    "SoftBinAP",
    "SumOverLevels",
    "SupAP",
    "SupCon",
    "SupHAP",
    "SupMRR",
    "SupNDCG",
    "SupRecall",
    "TripletSemiHard",
    "collection_loss",
    "gather",
    "happier",
    "roadmap",
    "rod_ndcg",
    "rod_recall",
    "scaled_step",
    "skip_value_checks",
    "suggest_tau",
]
