"""The losses that a recipe can name: name, kind, class, description, and the ranges in which tuning looks for its keys."""

from __future__ import annotations

from suprank import losses
from suprank.training.loss_specs.base import (
    ClassLossSpec,
    ItemLossSpec,
    ItemSumSpec,
    ProxyLossSpec,
    ProxySumSpec,
    TrainedItemLossSpec,
    add_loss,
)
from suprank.training.loss_specs.rank_specs import CombinedSpec, RankSpec
from suprank.training.search_space import Choices, FloatRange

TAU = {"tau": FloatRange(0.002, 0.1, log=True)}
PAIRS = {"positive_floor": FloatRange(0.7, 0.98), "negative_ceiling": FloatRange(0.2, 0.69)}
HEAT = {"temperature": FloatRange(0.02, 0.2, log=True)}
COMBINED = {**TAU, **PAIRS, **HEAT, "weight": FloatRange(0.02, 0.9)}
HINGE = {"margin": FloatRange(0.01, 0.5, log=True)}
SCALE = {"scale": FloatRange(8.0, 128.0, log=True)}
SOFTMAX = {"scale": FloatRange(1.0, 10.0, log=True)}
XBM = {"margin": FloatRange(0.1, 0.9)}

add_loss("sup-ap", RankSpec, losses.SupAP, "Sup-AP (eq:SupAP)", TAU)
add_loss("sup-recall", RankSpec, losses.SupRecall, "Sup-R@k (eq:def_recall_loss)", TAU)
add_loss("sup-hap", RankSpec, losses.SupHAP, "Sup-H-AP (sec:happier)", TAU)
add_loss("sup-ndcg", RankSpec, losses.SupNDCG, "Sup-NDCG (sec:ndcg)", TAU)
add_loss("smooth-ap", RankSpec, losses.SmoothAP, "Smooth-AP: sigmoids in place of the bound", TAU)
add_loss("smooth-recall", RankSpec, losses.SmoothRecall, "Smooth-R@k", TAU)
add_loss("smooth-hap", RankSpec, losses.SmoothHAP, "Smooth-H-AP", TAU)
add_loss("smooth-ndcg", RankSpec, losses.SmoothNDCG, "Smooth-NDCG", TAU)

add_loss("pair-calibration", ItemLossSpec, losses.PairCalibration, "L_DG alone (eq:labs)", PAIRS)
add_loss("nsm", ProxyLossSpec, losses.ProxySoftmax, "L*_DG alone: normalized softmax (eq:cluster_loss)", HEAT)
add_loss("roadmap", CombinedSpec, losses.SupAP, "ROADMAP: Sup-AP and a decomposability loss (eq:roadmap)", COMBINED)
add_loss("rod-recall", CombinedSpec, losses.SupRecall, "ROD-R@k: Sup-R@k and a decomposability loss (eq:def_rod_rk)", COMBINED)
add_loss("happier", CombinedSpec, losses.SupHAP, "HAPPIER: Sup-H-AP and a decomposability loss (sec:happier)", COMBINED)
add_loss("rod-ndcg", CombinedSpec, losses.SupNDCG, "ROD-NDCG: Sup-NDCG and a decomposability loss (sec:ndcg)", COMBINED)

# Losses of other papers, which the paper compares with.
add_loss(
    "fast-ap", ItemLossSpec, losses.FastAP, "FastAP: AP of a soft histogram of distances", {"bins": Choices((5, 10, 20, 40))}
)
add_loss(
    "softbin-ap",
    ItemLossSpec,
    losses.SoftBinAP,
    "SoftBin-AP: AP of a soft histogram of similarities",
    {"bins": Choices((10, 20, 40))},
)
add_loss(
    "blackbox-ap",
    ItemLossSpec,
    losses.BlackBoxAP,
    "BlackBox-AP: exact ranks, a solver's gradient",
    {"interpolation": FloatRange(0.4, 40.0, log=True), "margin": FloatRange(0.002, 0.2, log=True)},
)
add_loss("triplet-sh", ItemLossSpec, losses.TripletSemiHard, "Triplets with semi-hard negatives", HINGE)
add_loss(
    "triplet-dw",
    ItemLossSpec,
    losses.DistanceWeightedTriplet,
    "Triplets with distance-weighted negatives",
    {"margin": FloatRange(0.02, 0.6, log=True)},
)
add_loss("supcon", ItemLossSpec, losses.SupCon, "SupCon: softmax over the batch; InfoNCE is its case of one positive", HEAT)
add_loss("contrastive-xbm", ItemLossSpec, losses.ContrastiveXBM, "The contrastive loss of XBM, for use with a memory", XBM)
add_loss(
    "irt-r",
    ItemLossSpec,
    losses.ContrastiveKoLeo,
    "IRT_R: contrastive, with a differential entropy regularizer",
    {**XBM, "entropy_weight": FloatRange(0.05, 2.0, log=True)},
)
add_loss(
    "siglip",
    TrainedItemLossSpec,
    losses.SigLIP,
    "SigLIP: a decision for each pair, with a learned scale and bias",
    {"scale": FloatRange(2.0, 50.0, log=True), "bias": FloatRange(-20.0, 0.0)},
)
add_loss(
    "circle", ItemLossSpec, losses.Circle, "Circle: pairs weighted by how far they are from where they should be", XBM | SCALE
)
add_loss(
    "multi-similarity",
    ItemLossSpec,
    losses.MultiSimilarity,
    "Multi-Similarity: soft hinges of all pairs",
    {"alpha": FloatRange(0.5, 20.0, log=True), "beta": FloatRange(10.0, 100.0, log=True), "base": FloatRange(0.1, 0.9)},
)
add_loss(
    "cross-entropy",
    ProxyLossSpec,
    losses.CrossEntropy,
    "Cross entropy of a linear classifier",
    {"label_smoothing": FloatRange(0.0, 0.3)},
)
add_loss("proxy-nca", ProxyLossSpec, losses.ProxyNCA, "ProxyNCA++", SOFTMAX)
add_loss("proxy-anchor", ProxyLossSpec, losses.ProxyAnchor, "ProxyAnchor: every proxy against the batch", HINGE | SCALE)
add_loss(
    "arcface",
    ProxyLossSpec,
    losses.ArcFace,
    "ArcFace: softmax with a margin of the angle",
    {"margin": FloatRange(0.05, 0.8), **SCALE},
)
add_loss(
    "cosface",
    ProxyLossSpec,
    losses.CosFace,
    "CosFace: softmax with a margin of the cosine",
    {"margin": FloatRange(0.05, 0.6), **SCALE},
)
add_loss("csl", ClassLossSpec, losses.CSL, "CSL: margins that grow with the level", SCALE)
add_loss("sum-triplet-sh", ItemSumSpec, losses.TripletSemiHard, "ΣTL_SH: semi-hard triplets at every level", HINGE)
add_loss("sum-nsm", ProxySumSpec, losses.ProxySoftmax, "ΣNSM: normalized softmax at every level", HEAT)
add_loss("sum-proxy-nca", ProxySumSpec, losses.ProxyNCA, "ΣNCA++: ProxyNCA++ at every level", SOFTMAX)
