"""How far a metric within batches is from the metric over all items: the decomposability gap, and its bounds for AP."""

from suprank.evaluation.gap.bound_formulas import (
    gap_bound,
    gap_bound_in_any_order,
    refined_gap_bound,
    refined_gap_bound_in_any_order,
)
from suprank.evaluation.gap.embedding_bounds import GapBounds, gap_bounds
from suprank.evaluation.gap.measured_gap import DecomposabilityGap, decomposability_gap

__all__ = [
    "DecomposabilityGap",
    "GapBounds",
    "decomposability_gap",
    "gap_bound",
    "gap_bound_in_any_order",
    "gap_bounds",
    "refined_gap_bound",
    "refined_gap_bound_in_any_order",
]
