"""Comparisons: several recipes are trained under one budget on one dataset. The folder of a comparison:

    comparison.json             the recipes, their settings and the runs, so that others can be added
    roadmap,seed=0/             a run folder of `suprank train`; it is finished when result.json exists
    logs/, slurm/               as in the folder of a sweep
    comparison.csv .md .tex     a row for each run; a row for each recipe, mean ± standard deviation over seeds
    comparison.png .svg         the figure

A comparison is a sweep whose axes are the recipe and the seed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.experiments.grid import RECIPE, SEED, Combination, Grid, Values
from suprank.experiments.methods import (
    Method,
    canonical_recipes,
    changed_settings,
    check_budget,
    difference_notes,
    label_recipes,
)
from suprank.experiments.results import Outcomes, comparison_table, metric_names, read_outcomes, runs_csv
from suprank.experiments.runner import Display, Plan, Task
from suprank.experiments.sweeps import import_plots
from suprank.experiments.tables import comparison_latex, comparison_markdown
from suprank.files.atomic import write_atomically
from suprank.files.folders import refuse_foreign_files
from suprank.training.run_folder import json_bytes

if TYPE_CHECKING:
    from os import PathLike

    from suprank.experiments.tables import Table
    from suprank.training.config import TrainConfig

COMPARISON_FILE = "comparison.json"


@dataclass(frozen=True)
class ComparisonResult:
    """The outcomes of the compared runs, the table of means (None if no run is finished), sentences on how the methods differ
    besides their losses, how many runs the call asked for, and the names of those that failed."""

    outcomes: Outcomes
    table: Table | None
    notes: tuple[str, ...] = ()
    planned: int = 0
    failed: tuple[str, ...] = ()


def compare(
    recipes: Sequence[str],
    out: str | PathLike[str],
    overrides: Values = (),
    *,
    seeds: int | None = None,
    jobs: int | None = None,
    metrics: Sequence[str] = (),
    name: str = "comparison",
    may_differ: Sequence[str] = (),
    slurm: Sequence[str] = (),
    display: Display | None = None,
    command: str = "",
) -> ComparisonResult:
    """Train several recipes under one budget on one dataset, as `suprank compare` does, and return the table of their metrics.

        compare(["cub112/nsm", "cub112/roadmap"], "runs/cub112", {"run.epochs": 30}, seeds=3).table.markdown()

    The recipes may differ in their loss, proxies, memory and optimizer; other differences are refused before the first one
    runs, except in the keys or tables that `may_differ` names, such as `batch.size`. `overrides` hold for all. Finished runs in
    the folder `out` are not run again, interrupted ones are resumed, and further recipes or seeds are added. `jobs`, `slurm`
    and `command` are as in `sweep`. Table and figure are written into `out` as NAME.csv, .md, .tex, .png and .svg.
    """
    metrics = metric_names(metrics)
    _check_name(name)
    plan = plan_comparison(recipes, out, overrides, seeds=seeds, may_differ=may_differ, display=display, command=command)
    failed = plan.run(jobs=jobs, slurm_options=slurm, display=display)
    result = collect_comparison(out, metrics=metrics, name=name, display=display, command=command)
    return replace(result, planned=len(plan.tasks), failed=tuple(failed))


def plan_comparison(
    recipes: Sequence[str],
    out: str | PathLike[str],
    overrides: Values = (),
    *,
    seeds: int | None = None,
    may_differ: Sequence[str] = (),
    display: Display | None = None,
    command: str = "",
) -> Plan:
    """Check a comparison, together with what is in its folder already, without running or writing anything.

    The recipes keep the labels that they have in the folder. Differences that a reader must know of are displayed.
    """
    folder = Path(out).absolute()
    earlier = Comparison.load(folder)
    refuse_foreign_files(Path(out), COMPARISON_FILE, "a comparison", "name another folder (--out)")
    grid = Grid.from_values(overrides, seeds)
    new, configs = _read_comparison(recipes, grid, command, earlier, tuple(may_differ))
    record = earlier.merge(new) if earlier else new
    for note in difference_notes(record.methods, record.may_differ):
        (display or Display()).note(note)
    names = new.recipes
    tasks = [Task.create(run.name, names[run[RECIPE]], _overrides(grid, run[SEED]), folder) for run in new.runs]
    return Plan(record, folder, tasks, configs, "suprank-compare")


def collect_comparison(
    out: str | PathLike[str],
    recipes: Sequence[str] = (),
    *,
    metrics: Sequence[str] = (),
    name: str = "comparison",
    display: Display | None = None,
    command: str = "",
) -> ComparisonResult:
    """Write table and figure of a comparison's finished runs, without running anything: of these recipes, by default of all."""
    folder, metrics, display = Path(out).absolute(), metric_names(metrics), display or Display()
    _check_name(name)
    record = Comparison.load(folder)
    if record is None:
        raise FileNotFoundError(
            f"{out} has no {COMPARISON_FILE}, so there is nothing to collect; name the folder of a comparison."
        )
    record = record.select(recipes)
    outcomes, notes = read_outcomes(record.runs, folder), difference_notes(record.methods, record.may_differ)
    if not any(outcomes.values()):
        write_atomically(folder / f"{name}.csv", runs_csv(outcomes).encode())
        display.note(f"none of {len(outcomes)} runs is finished, so there is no table yet.")
        return ComparisonResult(outcomes, None, tuple(notes))
    table = comparison_table(outcomes, metrics)
    try:
        write_atomically(folder / f"{name}.csv", runs_csv(outcomes).encode())
        write_atomically(folder / f"{name}.md", comparison_markdown(table, notes).encode())
        write_atomically(folder / f"{name}.tex", comparison_latex(table, command, notes).encode())
    finally:
        display.table(table, seconds=True)
    if plots := import_plots(display):
        plots.draw_comparison(table, [folder / f"{name}.png", folder / f"{name}.svg"])
    return ComparisonResult(outcomes, table, tuple(notes))


@dataclass(frozen=True)
class Comparison:
    """The content of comparison.json: methods by their labels, in the order of the rows, and the runs. `commands` are for
    readers who want to repeat one. `may_differ` are the exceptions of `check_budget`."""

    methods: dict[str, Method]
    runs: tuple[Combination, ...]
    commands: tuple[str, ...]
    may_differ: tuple[str, ...] = ()

    @property
    def recipes(self) -> dict[str, str]:
        """The recipes by their labels."""
        return {label: method.recipe for label, method in self.methods.items()}

    def merge(self, other: Comparison) -> Comparison:
        """This comparison with the recipes and seeds of another one; a recipe of both must have the same settings in both."""
        for label, method in other.methods.items():
            changed = changed_settings(self.methods[label].settings, method.settings) if label in self.methods else []
            if changed:
                raise ValueError(
                    f"the comparison in this folder has {label} with other settings: {', '.join(changed[:5])}. One table "
                    "cannot hold both; give the settings as they were, or another --out."
                )
        methods = {**other.methods, **self.methods}
        order = dict.fromkeys((*self.methods, *other.methods))
        runs, commands = dict.fromkeys((*self.runs, *other.runs)), dict.fromkeys((*self.commands, *other.commands))
        may_differ = tuple(dict.fromkeys((*self.may_differ, *other.may_differ)))
        merged = Comparison({label: methods[label] for label in order}, tuple(runs), tuple(commands), may_differ)
        check_budget(merged.methods, may_differ)
        return merged

    def select(self, names: Sequence[str]) -> Comparison:
        """The part with these recipes, in their order, by label or by name; all of it if there are none."""
        if not names:
            return self
        labels = {recipe: label for label, recipe in self.recipes.items()}
        recipes = canonical_recipes([self.recipes.get(name, name) for name in names])
        missing = [recipe for recipe in recipes if recipe not in labels]
        if missing:
            raise ValueError(f"{', '.join(missing)} is not in the comparison; choose from {', '.join(self.methods)}.")
        chosen = [labels[recipe] for recipe in recipes]
        runs = tuple(run for label in chosen for run in self.runs if run[RECIPE] == label)
        return Comparison({label: self.methods[label] for label in chosen}, runs, self.commands, self.may_differ)

    @classmethod
    def load(cls, folder: Path) -> Comparison | None:
        """The comparison of a folder, or None if the folder has none."""
        file = folder / COMPARISON_FILE
        try:
            content = json.loads(file.read_bytes())
            methods = {label: Method(one["recipe"], dict(one["settings"])) for label, one in content["methods"].items()}
            runs = tuple(Combination(((RECIPE, label), (SEED, seed))) for label, seed in content["runs"])
            return cls(methods, runs, tuple(content["commands"]), tuple(content.get("may_differ", ())))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{file} is damaged ({error!r}); remove it, or name another --out.") from error

    def save(self, folder: Path) -> None:
        content = {
            "commands": self.commands,
            "may_differ": self.may_differ,
            "runs": [[run[RECIPE], run[SEED]] for run in self.runs],
            "methods": {label: method._asdict() for label, method in self.methods.items()},
        }
        write_atomically(folder / COMPARISON_FILE, json_bytes(content, indent=1))


def _read_comparison(
    recipes: Sequence[str], grid: Grid, command: str, earlier: Comparison | None, may_differ: tuple[str, ...]
) -> tuple[Comparison, list[TrainConfig]]:
    """A comparison of these recipes with the overrides and seeds of the grid, and the config of each recipe.

    Everything is read here, so that what cannot be run, or not be compared, is refused before anything runs.
    """
    from suprank.training.recipe import read_recipe

    if not recipes:
        raise ValueError("there is no recipe to compare; name some, such as cub112/nsm cub112/roadmap.")
    seeds = _seeds(grid)
    methods: dict[str, Method] = {}
    configs = []
    for label, recipe in label_recipes(canonical_recipes(recipes), earlier.recipes if earlier else None).items():
        try:
            config, *_ = [read_recipe(recipe, _overrides(grid, seed)) for seed in seeds]
        except ValueError as error:
            raise ValueError(f"{recipe} cannot be run, so nothing was: {error}") from error
        methods[label] = Method.from_config(recipe, config)
        configs.append(config)
    allowed = (*may_differ, *(earlier.may_differ if earlier else ()))
    check_budget(methods, allowed)
    runs = tuple(Combination(((RECIPE, label), (SEED, seed))) for label in methods for seed in seeds)
    return Comparison(methods, runs, (command,), may_differ), configs


def _seeds(grid: Grid) -> tuple[str, ...]:
    *axes, (_, seeds) = grid.axes
    if axes:
        key, values = axes[0]
        raise ValueError(
            f"{key}={','.join(values)} has several values, and all runs of a comparison share one; `suprank sweep` combines "
            f"values, or give one, in quotes if it has a comma."
        )
    return seeds


def _overrides(grid: Grid, seed: str) -> list[str]:
    return grid.overrides(Combination(((SEED, seed),)))


def _check_name(name: str) -> None:
    if not name or name != Path(name).name or name.startswith("."):
        raise ValueError(f"--name {name!r} must be the beginning of a file's name, such as approximations.")
