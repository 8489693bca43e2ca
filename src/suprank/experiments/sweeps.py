"""Sweeps: every combination of some values of a recipe's entries is trained. The folder of a sweep:

sweep.json                  the recipe, the axes and the combinations, so that another grid can be added
loss.weight=0.1,seed=0/     a run folder of `suprank train`; it is finished when result.json exists
logs/                       what each run printed
slurm/                      submitit's files, and jobs.json: the job of each run
table.csv  table.md         a row for each run; a row for each combination, mean ± standard deviation over seeds
plot.png  plot.svg          the figure; relative.md, .png and .svg are increases over one value
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank.experiments.grid import SEED, Combination, Grid, Values, canonical_value, read_configs
from suprank.experiments.methods import changed_settings, flatten
from suprank.experiments.old_runner import Display, Plan, Task
from suprank.experiments.results import Outcomes, metric_names, read_outcomes, relative_table, runs_csv, summary_table
from suprank.files.atomic import write_atomically
from suprank.files.folders import refuse_foreign_files
from suprank.system.custom_code import trusting
from suprank.training.run_folder import json_bytes

if TYPE_CHECKING:
    from os import PathLike

    from suprank.experiments.tables import Table
    from suprank.experiments.worker_processes import WorkerPool
    from suprank.training.config import TrainConfig

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepResult:
    """The outcomes of all runs of a sweep, the table of means (None if no run is finished), the table of increases (None unless
    asked for), how many runs the call asked for, and the names of those that failed."""

    outcomes: Outcomes
    table: Table | None
    relative: Table | None = None
    planned: int = 0
    failed: tuple[str, ...] = ()


def sweep(
    recipe: str | PathLike[str],
    values: Values,
    out: str | PathLike[str],
    *,
    seeds: int | None = None,
    jobs: int | None = None,
    workers: WorkerPool | None = None,
    metrics: Sequence[str] = (),
    relative_to: str | None = None,
    slurm: Sequence[str] = (),
    display: Display | None = None,
    command: str = "",
    trust_code: bool = False,
) -> SweepResult:
    """Train every combination of the values, as `suprank sweep` does, and return the table of their metrics.

        sweep("cub/roadmap", {"loss.weight": [0, 0.1, 0.3], "batch.size": 64}, "lambda", seeds=3).table.markdown()

    Every combination is checked before the first one runs. Finished runs in the folder `out` are not run again, interrupted
    ones are resumed, and further values are added to the sweep. `jobs` runs are run at a time, with `workers` in processes that
    stay (see `WorkerPool`); `slurm` ("partition=gpu", ...) submits them as a SLURM array instead. `relative_to`
    ("loss.weight=0") adds a table of increases. `command` is saved with the sweep for the reader. `trust_code` is the user's
    consent to code that the recipe's file names. Tables and figures are written into `out`.
    """
    metrics = metric_names(metrics)
    with trusting(trust_code):
        plan = plan_sweep(recipe, values, out, seeds=seeds, relative_to=relative_to, command=command)
        failed = plan.run(jobs=jobs, workers=workers, slurm_options=slurm, display=display)
    result = collect_sweep(out, metrics=metrics, relative_to=relative_to, display=display)
    return replace(result, planned=len(plan.tasks), failed=tuple(failed))


def plan_sweep(
    recipe: str | PathLike[str],
    values: Values,
    out: str | PathLike[str],
    *,
    seeds: int | None = None,
    relative_to: str | None = None,
    command: str = "",
) -> Plan:
    """Check a sweep, together with what is in its folder already, without running or writing anything."""
    folder, grid = Path(out).absolute(), Grid.from_values(values, seeds)
    earlier = Sweep.load(folder)
    refuse_foreign_files(Path(out), SWEEP_FILE, "a sweep", "name another folder (--out)")
    recipe = str(Path(recipe).absolute()) if Path(recipe).is_file() else str(recipe)
    grid = earlier.align(grid) if earlier else grid
    configs = read_configs(recipe, grid)
    record = Sweep.from_grid(recipe, grid, configs[0], command)
    record = earlier.merge(record) if earlier else record
    if relative_to:
        relative_table(dict.fromkeys(record.runs), relative_to)  # refuses what is no value of an axis
    tasks = [Task.create(run.name, recipe, grid.overrides(run), folder) for run in grid.combinations()]
    return Plan(record, folder, tasks, configs, "suprank-sweep")


def collect_sweep(
    out: str | PathLike[str],
    *,
    metrics: Sequence[str] = (),
    relative_to: str | None = None,
    display: Display | None = None,
) -> SweepResult:
    """Write the tables and figures of a sweep's finished runs, without running anything."""
    folder, metrics, display = Path(out).absolute(), metric_names(metrics), display or Display()
    record = Sweep.load(folder)
    if record is None:
        raise FileNotFoundError(f"{out} has no {SWEEP_FILE}, so there is nothing to collect; name the folder of a sweep.")
    outcomes = read_outcomes(record.runs, folder)
    write_atomically(folder / "table.csv", runs_csv(outcomes).encode())
    if not any(outcomes.values()):
        display.note(f"none of {len(outcomes)} runs is finished, so there is no table yet.")
        return SweepResult(outcomes, None)
    table = summary_table(outcomes, metrics)
    relative = relative_table(outcomes, relative_to, metrics) if relative_to else None
    figures = [("table", "plot", table), *([("relative", "relative", relative)] if relative else [])]
    for name, _, one in figures:
        try:
            write_atomically(folder / f"{name}.md", one.markdown().encode())
        finally:
            display.table(one)
    if plots := import_plots(display):
        for _, name, one in figures:
            plots.draw_sweep(one, [folder / f"{name}.png", folder / f"{name}.svg"])
    return SweepResult(outcomes, table, relative)


def import_plots(display: Display) -> Any:
    """The module `suprank.experiments.plots`; None, which is displayed, if matplotlib is not installed."""
    try:
        from suprank.experiments import plots
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        display.note('no figure, because matplotlib is not installed; pip install "suprank[train]", then --collect.')
        return None
    return plots


@dataclass(frozen=True)
class Sweep:
    """The content of sweep.json. `settings` are those that all runs share, by their dotted names; `commands` are for
    readers who want to repeat one."""

    recipe: str
    axes: tuple[str, ...]
    settings: dict[str, Any]
    runs: tuple[Combination, ...]
    commands: tuple[str, ...]

    @classmethod
    def from_grid(cls, recipe: str, grid: Grid, config: TrainConfig, command: str) -> Sweep:
        """A sweep of one grid; `config` is that of any of its combinations."""
        axes = tuple(key for key, _ in grid.axes)
        settings = {key: value for key, value in flatten(config).items() if not any(_overlap(key, axis) for axis in axes)}
        if "loss.name" in axes:  # losses have keys and defaults of their own, so that only what the recipe sets is shared
            defaults = {f"loss.{key}" for key in config.loss.key_names() if key not in config.loss.changed_keys()}
            settings = {key: value for key, value in settings.items() if key not in defaults}
        return cls(recipe, axes, settings, tuple(grid.combinations()), (command,))

    def align(self, grid: Grid) -> Grid:
        """The grid with the axes of this sweep, in its order, and values spelled as here.

        A single value of one of the axes is a point on that axis. Other axes are refused: the table would have holes.
        """
        given = {**{key: (value,) for key, value in grid.fixed if key in self.axes}, **dict(grid.axes)}
        if set(given) != set(self.axes):
            raise ValueError(
                f"the sweep in this folder is over {_list_axes(self.axes)}, and this one over "
                f"{_list_axes([key for key, _ in grid.axes])}; give a value for each of its axes, or another --out."
            )
        spelling = {(key, canonical_value(run[key])): run[key] for run in reversed(self.runs) for key in self.axes}
        axes = tuple(
            (key, tuple(spelling.get((key, canonical_value(value)), value) for value in given[key])) for key in self.axes
        )
        return Grid(tuple((key, value) for key, value in grid.fixed if key not in self.axes), axes)

    def merge(self, other: Sweep) -> Sweep:
        """This sweep with the runs of another one, which may differ only in the values of the axes."""
        if changed := changed_settings(self.settings, other.settings):
            raise ValueError(
                f"the sweep in this folder has other settings: {', '.join(changed[:5])}. One table cannot hold both; give the "
                f"settings of {self.recipe} as they were, or another --out."
            )
        runs, commands = dict.fromkeys((*self.runs, *other.runs)), dict.fromkeys((*self.commands, *other.commands))
        return replace(self, runs=tuple(runs), commands=tuple(commands))

    @classmethod
    def load(cls, folder: Path) -> Sweep | None:
        """The sweep of a folder, or None if the folder has none."""
        file = folder / SWEEP_FILE
        try:
            content = json.loads(file.read_bytes())
            runs = tuple(Combination(tuple((key, run[key]) for key in content["axes"])) for run in content["runs"])
            return cls(content["recipe"], tuple(content["axes"]), dict(content["settings"]), runs, tuple(content["commands"]))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} is damaged ({error!r}); remove it, or name another --out.") from error

    def save(self, folder: Path) -> None:
        content = {
            "recipe": self.recipe,
            "axes": self.axes,
            "commands": self.commands,
            "runs": [dict(run.values) for run in self.runs],
            "settings": self.settings,
        }
        write_atomically(folder / SWEEP_FILE, json_bytes(content, indent=1))


def _overlap(key: str, axis: str) -> bool:
    """Whether the axis is this entry, or a table that holds it, or a part of it: `loss`, `loss.tau`, `data.tests.fine`."""
    return f"{key}.".startswith(f"{axis}.") or f"{axis}.".startswith(f"{key}.")


def _list_axes(keys: Sequence[str]) -> str:
    return ", ".join(key for key in keys if key != SEED) or "seeds only"
