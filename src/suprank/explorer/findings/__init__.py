"""What a source shows, in numbers: nothing here draws."""

from suprank.explorer.findings.curves import AtK, PrecisionRecall, ScoreHistograms, at_k, precision_recall_and_scores
from suprank.explorer.findings.galleries import Gallery, at_random, galleries, most_different, worst
from suprank.explorer.findings.gap import GapBySize, gap_by_size
from suprank.explorer.findings.history import Curve, History, history
from suprank.explorer.findings.map import ClassMap, class_map
from suprank.explorer.findings.metrics import (
    LevelPrecision,
    by_level,
    compared,
    in_order_of,
    metrics,
    same_queries,
)
from suprank.explorer.findings.step import StepCurve, StepFinding, step

__all__ = [
    "AtK",
    "ClassMap",
    "Curve",
    "Gallery",
    "GapBySize",
    "History",
    "LevelPrecision",
    "PrecisionRecall",
    "ScoreHistograms",
    "StepCurve",
    "StepFinding",
    "at_k",
    "at_random",
    "by_level",
    "class_map",
    "compared",
    "galleries",
    "gap_by_size",
    "history",
    "in_order_of",
    "metrics",
    "most_different",
    "precision_recall_and_scores",
    "same_queries",
    "step",
    "worst",
]
