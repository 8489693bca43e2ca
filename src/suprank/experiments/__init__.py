"""Several training runs as one experiment: `sweep` combines values of a recipe's entries, `compare` compares methods.

Both train what is missing in their folder, resume what was interrupted, and return the table of means over seeds.
`suprank.experiments.plots` draws the figures, and needs matplotlib; `suprank.experiments.parallel` trains in processes.
"""

from suprank.experiments.comparisons import Comparison, ComparisonResult, collect_comparison, compare, plan_comparison
from suprank.experiments.grid import RECIPE, SEED, Combination, Grid
from suprank.experiments.old_runner import Display, ExperimentStopped, Plan, Task, run_tasks
from suprank.experiments.results import Outcome, Outcomes, comparison_table, relative_table, runs_csv, summary_table
from suprank.experiments.search_result import SearchResult
from suprank.experiments.search_settings import SearchSettings
from suprank.experiments.significance import Difference, Significance
from suprank.experiments.sweeps import Sweep, SweepResult, collect_sweep, plan_sweep, sweep
from suprank.experiments.tables import Row, Statistic, Table, comparison_latex, comparison_markdown
from suprank.experiments.trials import Trial
from suprank.experiments.worker_processes import WorkerPool

__all__ = [
    "RECIPE",
    "SEED",
    "Combination",
    "Comparison",
    "ComparisonResult",
    "Difference",
    "Display",
    "ExperimentStopped",
    "Grid",
    "Outcome",
    "Outcomes",
    "Plan",
    "Row",
    "SearchResult",
    "SearchSettings",
    "Significance",
    "Statistic",
    "Sweep",
    "SweepResult",
    "Table",
    "Task",
    "Trial",
    "WorkerPool",
    "collect_comparison",
    "collect_sweep",
    "compare",
    "comparison_latex",
    "comparison_markdown",
    "comparison_table",
    "plan_comparison",
    "plan_sweep",
    "relative_table",
    "run_tasks",
    "runs_csv",
    "summary_table",
    "sweep",
]
