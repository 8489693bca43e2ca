"""Comparisons of losses: recipes trained under one budget on one dataset, and the table of what came out.

A comparison is a sweep whose axes are the recipe and the seed: the runs, their folders and statistics are those of
`suprank.experiments.sweep`. `suprank compare` is this with words around it; `suprank.experiments.comparison.plot` has the
figure, and needs matplotlib.
"""

from suprank.experiments.comparison.folder import Comparison, asked, tasks
from suprank.experiments.comparison.latex import latex
from suprank.experiments.comparison.names import labels, recipes_and_overrides, spelt
from suprank.experiments.comparison.results import markdown, table
from suprank.experiments.comparison.settings import Method, check_budget, told

__all__ = [
    "Comparison",
    "Method",
    "asked",
    "check_budget",
    "labels",
    "latex",
    "markdown",
    "recipes_and_overrides",
    "spelt",
    "table",
    "tasks",
    "told",
]
