"""Losses of other papers to compare with, called as every loss here is; docs/baselines.md names those that are not here."""

from suprank.losses.baselines.binned import FastAP, SoftBinAP
from suprank.losses.baselines.blackbox import BlackBoxAP
from suprank.losses.baselines.contrast import SupCon
from suprank.losses.baselines.levels import SumOverLevels
from suprank.losses.baselines.pairs import ContrastiveKoLeo, ContrastiveXBM
from suprank.losses.baselines.proxies import CSL, ArcFace, CrossEntropy, ProxyNCA
from suprank.losses.baselines.triplets import DistanceWeightedTriplet, TripletSemiHard
from suprank.losses.baselines.wrapped import CosFace, MultiSimilarity, ProxyAnchor

__all__ = [
    "CSL",
    "ArcFace",
    "BlackBoxAP",
    "ContrastiveKoLeo",
    "ContrastiveXBM",
    "CosFace",
    "CrossEntropy",
    "DistanceWeightedTriplet",
    "FastAP",
    "MultiSimilarity",
    "ProxyAnchor",
    "ProxyNCA",
    "SoftBinAP",
    "SumOverLevels",
    "SupCon",
    "TripletSemiHard",
]
