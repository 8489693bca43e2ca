"""Grids of training runs: which there are, how they are run and resumed, and the table of what came out.

`suprank sweep` is this with words around it; `suprank.experiments.sweep.plot` has the figure, and needs matplotlib.
"""

from suprank.experiments.sweep.folder import Outcome, Outcomes, Sweep, entries_of, locked, outcome, outcomes
from suprank.experiments.sweep.grid import RECIPE, SEED, Combination, Grid, checked
from suprank.experiments.sweep.results import Row, Statistic, Table, relative_table, run_table, table
from suprank.experiments.sweep.running import Ended, Stopped, Task, ended, shared_gpus, task, tasks
from suprank.experiments.sweep.slurm import queued, slurm_parameters, submitted

__all__ = [
    "RECIPE",
    "SEED",
    "Combination",
    "Ended",
    "Grid",
    "Outcome",
    "Outcomes",
    "Row",
    "Statistic",
    "Stopped",
    "Sweep",
    "Table",
    "Task",
    "checked",
    "ended",
    "entries_of",
    "locked",
    "outcome",
    "outcomes",
    "queued",
    "relative_table",
    "run_table",
    "shared_gpus",
    "slurm_parameters",
    "submitted",
    "table",
    "task",
    "tasks",
]
