"""Agreement: how far the branches of two annotators say the same, and where they do not."""

from suprank.hierarchy.agreement.compared import Agreement, Comparison, compared
from suprank.hierarchy.agreement.disagreements import Disagreement, View
from suprank.hierarchy.agreement.measures import Figure

__all__ = ["Agreement", "Comparison", "Disagreement", "Figure", "View", "compared"]
