"""Losses of other papers to compare with, called as every loss here is; docs/losses.md names those that are not here."""

from suprank.losses.baselines.binned import FastAP, SoftBinAP
from suprank.losses.baselines.blackbox import BlackBoxAP
from suprank.losses.baselines.contrast import Circle, MultiSimilarity, SigLIP, SupCon
from suprank.losses.baselines.pairs import ContrastiveKoLeo, ContrastiveXBM, KoLeo
from suprank.losses.baselines.proxies import CSL, ArcFace, CosFace, CrossEntropy, ProxyAnchor, ProxyNCA
from suprank.losses.baselines.triplets import DistanceWeightedTriplet, TripletSemiHard

__all__ = [
    "CSL",
    "ArcFace",
    "BlackBoxAP",
    "Circle",
    "ContrastiveKoLeo",
    "ContrastiveXBM",
    "CosFace",
    "CrossEntropy",
    "DistanceWeightedTriplet",
    "FastAP",
    "KoLeo",
    "MultiSimilarity",
    "ProxyAnchor",
    "ProxyNCA",
    "SigLIP",
    "SoftBinAP",
    "SupCon",
    "TripletSemiHard",
]
