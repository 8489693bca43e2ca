"""Metrics, curves, examples and maps of a source, as numbers; `explorer.report` draws them."""

from suprank.explorer.findings.batch_gap import GapBySize, gap_by_size
from suprank.explorer.findings.class_means import ClassMap, class_map
from suprank.explorer.findings.collect import RunFindings, collect_findings
from suprank.explorer.findings.curves import (
    HierarchicalAtK,
    PrecisionRecall,
    ScoreHistograms,
    hierarchical_at_k,
    precision_recall_and_scores,
)
from suprank.explorer.findings.mistakes import (
    FirstItems,
    ItemCounts,
    QueryRanking,
    better_mistakes,
    both_fail,
    count_first_items,
)
from suprank.explorer.findings.query_metrics import (
    Example,
    LevelPrecision,
    compare_reports,
    evaluate_source,
    examples,
    match_queries,
    most_different_queries,
    precision_by_level,
    random_queries,
    reorder_queries,
    worst_queries,
)
from suprank.explorer.findings.training_run import Curve, History, LossStep, StepCurve, loss_step, training_history

__all__ = [
    "ClassMap",
    "Curve",
    "Example",
    "FirstItems",
    "GapBySize",
    "HierarchicalAtK",
    "History",
    "ItemCounts",
    "LevelPrecision",
    "LossStep",
    "PrecisionRecall",
    "QueryRanking",
    "RunFindings",
    "ScoreHistograms",
    "StepCurve",
    "better_mistakes",
    "both_fail",
    "class_map",
    "collect_findings",
    "compare_reports",
    "count_first_items",
    "evaluate_source",
    "examples",
    "gap_by_size",
    "hierarchical_at_k",
    "loss_step",
    "match_queries",
    "most_different_queries",
    "precision_by_level",
    "precision_recall_and_scores",
    "random_queries",
    "reorder_queries",
    "training_history",
    "worst_queries",
]
