"""Exact evaluation of embeddings: every metric of the paper, at any size."""

from typing import Any

from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.evaluate import evaluate, top_k
from suprank.evaluation.gap import Gap, GapBounds, decomposability_gap, gap_bound, gap_bounds, refined_gap_bound
from suprank.evaluation.landmarks import LandmarkScore, landmark_map, landmark_map_of_files, read_predictions, read_solution
from suprank.evaluation.overlap import QueryInGalleryWarning
from suprank.evaluation.report import Comparison, Report
from suprank.evaluation.revisited import GroundTruth, read_ground_truth, revisited
from suprank.evaluation.runs import Qrels, Run

__all__ = [
    "Comparison",
    "Embeddings",
    "Gap",
    "GapBounds",
    "GroundTruth",
    "LandmarkScore",
    "Qrels",
    "QueryInGalleryWarning",
    "Report",
    "RetrievalMetrics",
    "Run",
    "decomposability_gap",
    "evaluate",
    "gap_bound",
    "gap_bounds",
    "landmark_map",
    "landmark_map_of_files",
    "read_ground_truth",
    "read_predictions",
    "read_solution",
    "refined_gap_bound",
    "revisited",
    "top_k",
]


def __getattr__(name: str) -> Any:
    if name != "RetrievalMetrics":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from suprank.evaluation.torchmetrics_adapter import RetrievalMetrics
    except ModuleNotFoundError as error:
        if error.name != "torchmetrics":
            raise
        raise ImportError('RetrievalMetrics is a torchmetrics metric: pip install "suprank[metrics]"') from None
    return RetrievalMetrics
