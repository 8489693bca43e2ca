"""Several training runs as one experiment: `compare` trains recipes and values of their keys under one budget.

It trains what is missing in its folder, resumes what was interrupted, and returns the table of means over seeds.
`suprank.experiments.plots` draws the figures, and needs matplotlib.
"""

from suprank.experiments.comparisons import ComparisonResult, collect, compare, plan_comparison
from suprank.experiments.display import Display, ProgressDisplay
from suprank.experiments.experiment import Experiment, Plan
from suprank.experiments.results import Outcome, Outcomes
from suprank.experiments.search_result import SearchResult
from suprank.experiments.search_settings import SearchSettings
from suprank.experiments.significance import Difference, Significance
from suprank.experiments.tables import Statistic, Table
from suprank.experiments.trials import Trial

__all__ = [
    "ComparisonResult",
    "Difference",
    "Display",
    "Experiment",
    "Outcome",
    "Outcomes",
    "Plan",
    "ProgressDisplay",
    "SearchResult",
    "SearchSettings",
    "Significance",
    "Statistic",
    "Table",
    "Trial",
    "collect",
    "compare",
    "plan_comparison",
]
