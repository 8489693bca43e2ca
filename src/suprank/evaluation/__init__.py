"""Exact evaluation of embeddings, with every metric of the paper, at any size; and of ranked lists of any search."""

from typing import Any

from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.evaluate import evaluate
from suprank.evaluation.gap import DecomposabilityGap, GapBounds, decomposability_gap, gap_bound, gap_bounds, refined_gap_bound
from suprank.evaluation.labels import encode_labels
from suprank.evaluation.landmarks import landmark_map, landmark_map_from_files, read_predictions, read_solution
from suprank.evaluation.nearest_neighbors import top_k
from suprank.evaluation.overlap import QueryInGalleryWarning
from suprank.evaluation.protocols import PROTOCOLS, Protocol
from suprank.evaluation.report import Report
from suprank.evaluation.report_comparison import ReportComparison
from suprank.evaluation.retrieval_data import Items, RetrievalData
from suprank.evaluation.revisited import GroundTruth, read_ground_truth
from suprank.evaluation.runs import Qrels, Run, evaluate_run

__all__ = [
    "PROTOCOLS",
    "DecomposabilityGap",
    "Embeddings",
    "GapBounds",
    "GroundTruth",
    "Items",
    "Protocol",
    "Qrels",
    "QueryInGalleryWarning",
    "Report",
    "ReportComparison",
    "RetrievalData",
    "RetrievalMetrics",
    "Run",
    "decomposability_gap",
    "encode_labels",
    "evaluate",
    "evaluate_run",
    "gap_bound",
    "gap_bounds",
    "landmark_map",
    "landmark_map_from_files",
    "read_ground_truth",
    "read_predictions",
    "read_solution",
    "refined_gap_bound",
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
        raise ImportError("RetrievalMetrics is a torchmetrics metric: pip install torchmetrics") from None
    return RetrievalMetrics
