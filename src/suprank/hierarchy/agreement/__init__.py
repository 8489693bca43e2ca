"""How far the branches of two annotators agree, and where they differ."""

from suprank.hierarchy.agreement.comparison import Agreement, Comparison, compare_branches
from suprank.hierarchy.agreement.disagreements import Annotation, Disagreement
from suprank.hierarchy.agreement.measures import Statistic

__all__ = ["Agreement", "Annotation", "Comparison", "Disagreement", "Statistic", "compare_branches"]
