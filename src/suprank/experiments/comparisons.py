"""Comparisons: several recipes are trained under one budget on one dataset. The folder of a comparison:

    comparison.json             the recipes, their settings and the runs, so that others can be added
    roadmap,seed=0/             a run folder of `suprank train`; it is finished when result.json exists
    logs/, slurm/               as in the folder of a sweep
    comparison.csv .md .tex     a row for each run; a row for each recipe, mean ± standard deviation over seeds
    comparison.png .svg         the figure
    comparison-differences.csv  the best of each column against every other row: is it more than chance?

A comparison is a sweep whose axes are the recipe and the seed. One that is tuned has further files (see
`suprank.experiments.tuning`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from suprank.experiments.old_runner import Display, Plan, Task
from suprank.experiments.results import Outcomes, comparison_table, metric_names, read_outcome, runs_csv
from suprank.experiments.search_result import SearchResult
from suprank.experiments.search_settings import SearchSettings, check_equal_budget, read_spaces
from suprank.experiments.significance import Significance, compare_rows
from suprank.experiments.slurm import slurm_parameters
from suprank.experiments.sweeps import import_plots
from suprank.experiments.tables import comparison_latex, comparison_markdown
from suprank.experiments.tuning import ONCE, Search, tuned_combination
from suprank.files.atomic import write_atomically
from suprank.files.folders import refuse_foreign_files
from suprank.system.custom_code import trusting
from suprank.training.run_folder import json_bytes

if TYPE_CHECKING:
    from os import PathLike

    from suprank.experiments.tables import Table
    from suprank.experiments.worker_processes import WorkerPool
    from suprank.training.config import TrainConfig

COMPARISON_FILE = "comparison.json"


@dataclass(frozen=True)
class ComparisonResult:
    """The outcomes of the compared runs, the table of means (None if no run is finished), sentences on how the methods differ
    besides their losses, how many runs the call asked for, and the names of those that failed. `significance` says which
    differences of the table are more than chance, and `search` what was tuned (None if nothing was)."""

    outcomes: Outcomes
    table: Table | None
    notes: tuple[str, ...] = ()
    planned: int = 0
    failed: tuple[str, ...] = ()
    significance: Significance | None = None
    search: SearchResult | None = None


def compare(
    recipes: Sequence[str],
    out: str | PathLike[str],
    overrides: Values = (),
    *,
    seeds: int | None = None,
    jobs: int | None = None,
    workers: WorkerPool | None = None,
    metrics: Sequence[str] = (),
    name: str = "comparison",
    may_differ: Sequence[str] = (),
    slurm: Sequence[str] = (),
    tune: int | SearchSettings | None = None,
    display: Display | None = None,
    command: str = "",
    trust_code: bool = False,
) -> ComparisonResult:
    """Train several recipes under one budget on one dataset, as `suprank compare` does, and return the table of their metrics.

        compare(["cub112/nsm", "cub112/roadmap"], "runs/cub112", {"run.epochs": 30}, seeds=3).table.markdown()

    The recipes may differ in their loss, proxies, memory and optimizer; other differences are refused before the first one
    runs, except in the keys or tables that `may_differ` names, such as `batch.size`. `overrides` hold for all. Finished runs in
    the folder `out` are not run again, interrupted ones are resumed, and further recipes or seeds are added. `jobs`, `slurm`,
    `command` and `trust_code` are as in `sweep`. Table and figure are written into `out` as NAME.csv, .md, .tex, .png and .svg.

    `tune` gives every recipe this many trials on validation classes, which are taken from the training classes, and adds a row
    with the best setting (`SearchSettings` has the folds, the metric and the ranges): `compare(..., tune=12)`.

    With `workers` the runs take turns in `jobs` processes, which stay: see `WorkerPool`.
    """
    metrics = metric_names(metrics)
    _check_name(name)
    with trusting(trust_code):
        plan = plan_comparison(
            recipes, out, overrides, seeds=seeds, may_differ=may_differ, tune=tune, display=display, command=command
        )
        if tune is None:
            planned, failed = len(plan.tasks), plan.run(jobs=jobs, workers=workers, slurm_options=slurm, display=display)
        else:
            planned, failed = _run_tuned(plan, jobs=jobs, workers=workers, slurm_options=slurm, display=display or Display())
    result = collect_comparison(out, metrics=metrics, name=name, display=display, command=command)
    return replace(result, planned=planned, failed=tuple(failed))


def plan_comparison(
    recipes: Sequence[str],
    out: str | PathLike[str],
    overrides: Values = (),
    *,
    seeds: int | None = None,
    may_differ: Sequence[str] = (),
    tune: int | SearchSettings | None = None,
    display: Display | None = None,
    command: str = "",
) -> ComparisonPlan:
    """Check a comparison, together with what is in its folder already, without running or writing anything.

    The recipes keep the labels that they have in the folder. Differences that a reader must know of are displayed. The tasks
    are those of the recipes as they are: what a search would try is not known before.
    """
    folder = Path(out).absolute()
    earlier = Comparison.load(folder)
    refuse_foreign_files(Path(out), COMPARISON_FILE, "a comparison", "name another folder (--out)")
    grid = Grid.from_values(overrides, seeds)
    settings = SearchSettings(tune) if isinstance(tune, int) else tune
    grid = _evaluated_once(grid) if settings else grid
    new, configs = _read_comparison(recipes, grid, command, earlier, tuple(may_differ))
    if settings:
        new = replace(new, search=_with_spaces(settings, new.recipes, configs, grid))
    record = earlier.merge(new) if earlier else new
    if record.search:
        check_equal_budget(record.methods)
    for note in difference_notes(record.methods, record.may_differ):
        (display or Display()).note(note)
    tasks = [
        Task.create(run.name, new.recipes[run[RECIPE]], _overrides(grid, run[SEED]), folder)
        for run in (_final_run(one, record) for one in new.runs)
    ]
    by_label = dict(zip(new.methods, configs, strict=True))
    return ComparisonPlan(record, folder, tasks, configs, "suprank-compare", new.recipes, by_label, grid)


@dataclass(frozen=True)
class ComparisonPlan(Plan):
    """A plan with the recipes and configs of the call by their labels, and its overrides and seeds."""

    record: Comparison
    recipes: dict[str, str]
    by_label: dict[str, TrainConfig]
    grid: Grid


def _final_run(run: Combination, record: Comparison) -> Combination:
    """A run of the record; in a tuned comparison its name says that it is not tuned."""
    return run if record.search is None else tuned_combination(run[RECIPE], False, run[SEED])


def _evaluated_once(grid: Grid) -> Grid:
    """The grid with test images that are read once, after the last epoch."""
    keys = [override.partition("=")[0] for override in ONCE]
    given = [key for key, _ in grid.fixed if key in keys]
    if given:
        raise ValueError(f"{given[0]} is set by --tune, so that the test images are evaluated once, at the end; leave it out.")
    fixed = tuple((key, value) for key, _, value in (override.partition("=") for override in ONCE))
    return Grid((*grid.fixed, *fixed), grid.axes)


def _with_spaces(
    settings: SearchSettings, recipes: Mapping[str, str], configs: Sequence[TrainConfig], grid: Grid
) -> SearchSettings:
    """The settings with the space of each recipe, of which every end is one that can be run."""
    from suprank.training.recipe import read_recipe, toml_value

    base, fixed = _overrides(grid, _seeds(grid)[0]), [key for key, _ in grid.fixed]

    def check(label: str, key: str, value: object) -> None:
        read_recipe(recipes[label], [*base, f"{key}={toml_value(value)}"])

    by_label = dict(zip(recipes, configs, strict=True))
    return replace(settings, spaces=read_spaces(by_label, settings.given, fixed, check))


def _run_tuned(
    plan: ComparisonPlan, *, jobs: int | None, workers: WorkerPool | None, slurm_options: Sequence[str], display: Display
) -> tuple[int, list[str]]:
    """Search, then train the recipes as they are and with their best settings. Returns the number of final runs that were
    asked for, and the names of those that failed."""
    settings = plan.record.search
    assert settings is not None
    parameters = slurm_parameters(slurm_options, plan.configs, jobs, plan.job_name) if slurm_options else None
    overrides = [f"{key}={value}" for key, value in plan.grid.fixed]
    search = Search.prepare(plan.folder, settings, plan.recipes, plan.by_label, overrides)
    plan = replace(plan, record=replace(plan.record, search=search.settings))
    with plan.open() as lock:
        search.write_folds()
        if parameters is None:
            search.run(jobs=jobs or 1, workers=workers, lock=lock, display=display)
        elif not search.submit(parameters, display):
            display.note("the search goes on when these runs have ended: give the same command again.")
            return 0, []
        search.write_tuned_recipes()
        result = SearchResult.load(plan.folder, search.settings, plan.record.methods)
        tasks = list(plan.tasks)
        for label, recipe in plan.recipes.items():
            best = result.best(label)
            if best is None:
                display.note(f"all {search.settings.trials} trials of {label} failed, so there is no tuned run of it.")
            elif best.number > 0:  # the first trial is the recipe as it is
                chosen = search.setting(label, best.params)
                for seed in _seeds(plan.grid):
                    run = tuned_combination(label, True, seed)
                    tasks.append(Task.create(run.name, recipe, [*_overrides(plan.grid, seed), *chosen], plan.folder))
        failed = plan.run_tasks(tasks, jobs=jobs, workers=workers, lock=lock, slurm_parameters=parameters, display=display)
        return len(tasks), failed


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
    search = None if record.search is None else SearchResult.load(folder, record.search, record.methods)
    folders = _run_folders(record, folder, search)
    outcomes, notes = (
        {run: read_outcome(one) for run, one in folders.items()},
        difference_notes(record.methods, record.may_differ),
    )
    write_atomically(folder / f"{name}.csv", runs_csv(outcomes, folders=folders).encode())
    if search:
        write_atomically(folder / f"{name}-search.csv", search.csv().encode())
        write_atomically(folder / f"{name}-search.md", search.markdown().encode())
    plots = import_plots(display)
    if plots and search:
        plots.draw_search(search, [folder / f"{name}-search.png", folder / f"{name}-search.svg"])
    if not any(outcomes.values()):
        display.note(f"none of {len(outcomes)} runs is finished, so there is no table yet.")
        return ComparisonResult(outcomes, None, tuple(notes), search=search)
    table = comparison_table(outcomes, metrics)
    significance = compare_rows(table, outcomes, folders)
    table = replace(table, better=significance.better())
    if significance.differences or significance.missing:
        notes.append(significance.sentence())
    further = [search.markdown()] if search else []
    try:
        write_atomically(folder / f"{name}.md", comparison_markdown(table, notes, further).encode())
        write_atomically(folder / f"{name}.tex", comparison_latex(table, command, notes).encode())
        if significance.differences:
            write_atomically(folder / f"{name}-differences.csv", significance.csv().encode())
            write_atomically(folder / f"{name}-differences.md", significance.markdown().encode())
    finally:
        display.table(table, seconds=True)
    if search and search.summary():
        display.note("\n".join(["tuned:", *search.summary(), f"all trials: {Path(out) / name}-search.md, .csv and .png"]))
    if plots:
        plots.draw_comparison(table, [folder / f"{name}.png", folder / f"{name}.svg"])
    return ComparisonResult(outcomes, table, tuple(notes), significance=significance, search=search)


def _run_folders(record: Comparison, folder: Path, search: SearchResult | None) -> dict[Combination, Path]:
    """The final runs of a comparison, and their folders. A recipe that was best as it is has no tuned runs of its own."""
    if search is None:
        return {run: folder / run.name for run in record.runs}
    folders = {}
    for label in record.methods:
        best = search.best(label)
        for tuned in (False, True):
            for run in (run for run in record.runs if run[RECIPE] == label):
                own = tuned_combination(label, tuned, run[SEED])
                trained = tuned and (best is None or best.number > 0)
                folders[own] = folder / tuned_combination(label, trained, run[SEED]).name
    return folders


@dataclass(frozen=True)
class Comparison:
    """The content of comparison.json: methods by their labels, in the order of the rows, and the runs. `commands` are for
    readers who want to repeat one. `may_differ` are the exceptions of `check_budget`, and `search` says how it is tuned."""

    methods: dict[str, Method]
    runs: tuple[Combination, ...]
    commands: tuple[str, ...]
    may_differ: tuple[str, ...] = ()
    search: SearchSettings | None = None

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
        if (self.search is None) != (other.search is None):
            tuned = f"tuned with --tune {self.search.trials}" if self.search else "not tuned"
            raise ValueError(
                f"the comparison in this folder was {tuned}, and methods can only be compared with the same budget; "
                f"{'give that too' if self.search else 'leave --tune out'}, or name another --out."
            )
        search = self.search.merge(other.search) if self.search and other.search else None
        methods = {**other.methods, **self.methods}
        order = dict.fromkeys((*self.methods, *other.methods))
        runs, commands = dict.fromkeys((*self.runs, *other.runs)), dict.fromkeys((*self.commands, *other.commands))
        may_differ = tuple(dict.fromkeys((*self.may_differ, *other.may_differ)))
        merged = Comparison({label: methods[label] for label in order}, tuple(runs), tuple(commands), may_differ, search)
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
        return replace(self, methods={label: self.methods[label] for label in chosen}, runs=runs)

    @classmethod
    def load(cls, folder: Path) -> Comparison | None:
        """The comparison of a folder, or None if the folder has none."""
        file = folder / COMPARISON_FILE
        try:
            content = json.loads(file.read_bytes())
            methods = {label: Method(one["recipe"], dict(one["settings"])) for label, one in content["methods"].items()}
            runs = tuple(Combination(((RECIPE, label), (SEED, seed))) for label, seed in content["runs"])
            search = SearchSettings.from_json(content["search"]) if content.get("search") else None
            return cls(methods, runs, tuple(content["commands"]), tuple(content.get("may_differ", ())), search)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{file} is damaged ({error!r}); remove it, or name another --out.") from error

    def save(self, folder: Path) -> None:
        content = {
            "commands": self.commands,
            "may_differ": self.may_differ,
            "runs": [[run[RECIPE], run[SEED]] for run in self.runs],
            **({"search": self.search.to_json()} if self.search else {}),
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
