"""Grids of training runs: which there are, how they are run and resumed, and the table of what came out.

`suprank sweep` is this with words around it; `suprank.training.sweep.plot` has the figure, and needs matplotlib.
"""

from suprank.training.sweep.folder import Outcome, Outcomes, Sweep, entries_of, locked, outcome, outcomes
from suprank.training.sweep.grid import RECIPE, SEED, Combination, Grid, checked
from suprank.training.sweep.results import Row, Statistic, Table, relative_table, run_table, table
from suprank.training.sweep.running import Ended, Stopped, Task, ended, shared_gpus, task, tasks
from suprank.training.sweep.slurm import queued, slurm_parameters, submitted

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
