"""`compare`: several recipes, or values of their keys, are trained under one budget, and their metrics compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank.experiments.display import Display, ProgressDisplay
from suprank.experiments.experiment import EXPERIMENT_FILE, Executor, Experiment, MethodPlan, PlannedRun
from suprank.experiments.grid import RECIPE, SEED, TUNED, Combination, Grid, Values
from suprank.experiments.methods import Method, canonical_recipes, check_budget, difference_notes, label_recipes
from suprank.experiments.results import METRICS, Outcomes, metric_names, read_outcome, relative_table, result_table, runs_csv
from suprank.experiments.search_result import SearchResult
from suprank.experiments.search_settings import SearchSettings, check_equal_budget, read_spaces
from suprank.experiments.significance import Significance, compare_rows
from suprank.experiments.tables import comparison_latex, comparison_markdown
from suprank.experiments.tuning import ONCE, Search, tuned_combination
from suprank.files.atomic import write_atomically
from suprank.files.outputs import refuse_foreign_files
from suprank.system.custom_code import trusting

if TYPE_CHECKING:
    from os import PathLike

    from suprank.experiments.tables import Table


@dataclass(frozen=True)
class ComparisonResult:
    """The outcomes of the compared runs, the table of means (None if no run is finished), sentences on how the methods differ
    besides their losses, how many runs the call asked for, and the names of those that failed. `significance` says which
    differences of the table are more than chance, `relative` is the table of increases (None unless asked for), and `search`
    what was tuned (None if nothing was)."""

    outcomes: Outcomes
    table: Table | None
    notes: tuple[str, ...] = ()
    planned: int = 0
    failed: tuple[str, ...] = ()
    significance: Significance | None = None
    relative: Table | None = None
    search: SearchResult | None = None


def compare(
    recipes: str | Sequence[str],
    out: str | PathLike[str],
    values: Values = (),
    *,
    seeds: int | None = None,
    jobs: int | None = None,
    on: str = "local",
    metrics: Sequence[str] = (),
    name: str = "comparison",
    relative_to: str | None = None,
    may_differ: Sequence[str] = (),
    tune: int | SearchSettings | None = None,
    display: Display | None = None,
    command: str = "",
    trust_code: bool = False,
) -> ComparisonResult:
    """Train several recipes under one budget on one dataset, as `suprank compare` does, and return the table of their metrics.

        compare(["cub112/nsm", "cub112/roadmap"], "runs/cub112", {"run.epochs": 30}, seeds=3).table.markdown()
        compare("cub112/roadmap", "runs/lambda", {"loss.weight": [0, 0.1, 0.3]}, seeds=3).table.markdown()

    `values` hold for all recipes; a key with several values is an axis, of which every value is combined with every recipe.
    The recipes may differ in their loss, proxies, memory and optimizer; other differences are refused before the first one
    runs, except in the keys or tables that `may_differ` names, such as `batch.size`. Finished runs in the folder `out` are not
    run again, interrupted ones are resumed, and further recipes, values or seeds are added. `jobs` runs are trained at the same
    time, `on` this machine ("local"), a Ray cluster ("ray", "ray=HOST:PORT") or SLURM ("slurm partition=gpu"). Table
    and figure are written into `out` as NAME.csv, .md, .tex, .png and .svg; `relative_to` ("loss.weight=0") adds those of the
    increases over one value. `command` is saved for the reader, and `trust_code` is the user's consent to code that a recipe's
    file names.

    `tune` gives every recipe this many trials on validation classes, which are taken from the training classes, and adds a row
    with the best setting (`SearchSettings` has the folds, the metric and the ranges): `compare(..., tune=12)`.

    Progress is shown on stderr, unless another `display` is given: `Display()` shows nothing.
    """
    metrics, display = metric_names(metrics), display or ProgressDisplay()
    _check_name(name)
    executor = Executor(on, jobs)
    with trusting(trust_code):
        plan = plan_comparison(
            recipes,
            out,
            values,
            seeds=seeds,
            relative_to=relative_to,
            may_differ=may_differ,
            tune=tune,
            display=display,
            command=command,
        )
        search = Search.prepare(plan) if plan.record.search else None
        if search:
            plan = replace(plan, record=replace(plan.record, search=search.settings))
        with plan.open():
            runs = [*plan.runs, *(search.tuned_runs(executor, display) if search else ())]
            metric = next(iter(metrics), plan.runs[0].config.evaluation.best or METRICS[0])
            failed = plan.train(runs, display, executor=executor, metric=metric)
    result = collect(out, metrics=metrics, name=name, relative_to=relative_to, display=display, command=command)
    return replace(result, planned=len(runs), failed=tuple(failed))


def plan_comparison(
    recipes: str | Sequence[str],
    out: str | PathLike[str],
    values: Values = (),
    *,
    seeds: int | None = None,
    relative_to: str | None = None,
    may_differ: Sequence[str] = (),
    tune: int | SearchSettings | None = None,
    display: Display | None = None,
    command: str = "",
) -> MethodPlan:
    """Check a comparison, together with what is in its folder already, without running or writing anything.

    The recipes keep the labels that they have in the folder. Differences that a reader must know of are displayed. The runs
    are those of the recipes as they are: what a search would try is not known before.
    """
    folder = Path(out).absolute()
    earlier = Experiment.load(folder)
    refuse_foreign_files(Path(out), EXPERIMENT_FILE, "an experiment", "name another folder")
    settings = SearchSettings(tune) if isinstance(tune, int) else tune
    grid = Grid.from_values(values, seeds)
    grid = earlier.align(grid) if earlier else grid
    grid = _evaluated_once(grid) if settings else grid
    taken = earlier.recipes if earlier else None
    labels = label_recipes(canonical_recipes([recipes] if isinstance(recipes, str) else recipes), taken)
    if not labels:
        raise ValueError("there is no recipe to compare; name some, such as cub112/nsm cub112/roadmap.")
    runs, combinations = [], []
    for label, recipe in labels.items():
        for one in grid.combinations():
            run = tuned_combination(label, False, one[SEED]) if settings else Combination(((RECIPE, label), *one.values))
            combinations.append(Combination(((RECIPE, label), *one.values)))
            runs.append(PlannedRun.read(run.name, recipe, grid.overrides(one), folder))
    axes = [key for key, _ in grid.axes]
    configs = {one[RECIPE]: run.config for one, run in zip(reversed(combinations), reversed(runs), strict=True)}
    methods = {label: Method.from_config(recipe, configs[label], axes) for label, recipe in labels.items()}
    if settings:
        settings = replace(settings, spaces=read_spaces(labels, configs, settings.search, grid.fixed))
    record = Experiment((RECIPE, *axes), methods, tuple(combinations), (command,), tuple(may_differ), settings)
    record = earlier.merge(record) if earlier else record
    check_budget(record.methods, record.may_differ)
    if record.search:
        check_equal_budget(record.methods)
    if relative_to:
        relative_table(dict.fromkeys(_without_constant(record.runs)), relative_to)  # refuses what is no value of an axis
    for note in difference_notes(record.methods, record.may_differ):
        (display or Display()).note(note)
    return MethodPlan(record, folder, runs, labels, configs, grid)


def _evaluated_once(grid: Grid) -> Grid:
    """The grid with test images that are read once, after the last epoch."""
    keys = [override.partition("=")[0] for override in ONCE]
    given = [key for key, _ in grid.fixed if key in keys]
    if given:
        raise ValueError(f"{given[0]} is set by tune, so that the test images are evaluated once, at the end; leave it out.")
    *axes, _ = grid.axes
    if axes:
        raise ValueError(f"{axes[0][0]} has several values, and tune would tune each recipe for all of them; give one.")
    fixed = tuple((key, value) for key, _, value in (override.partition("=") for override in ONCE))
    return Grid((*grid.fixed, *fixed), grid.axes)


def collect(
    out: str | PathLike[str],
    recipes: Sequence[str] = (),
    *,
    metrics: Sequence[str] = (),
    name: str = "comparison",
    relative_to: str | None = None,
    display: Display | None = None,
    command: str = "",
) -> ComparisonResult:
    """Write table and figure of the finished runs of an experiment, without running anything: of these recipes, or of all."""
    folder, metrics, display = Path(out).absolute(), metric_names(metrics), display or Display()
    _check_name(name)
    record = Experiment.load(folder)
    if record is None:
        raise FileNotFoundError(
            f"{out} has no {EXPERIMENT_FILE}, so there is nothing to collect; name the folder of a comparison."
        )
    record = record.select(recipes)
    search = None if record.search is None else SearchResult.load(folder, record.search, record.methods)
    folders = _run_folders(record, folder, search)
    outcomes = {run: read_outcome(one) for run, one in folders.items()}
    notes = difference_notes(record.methods, record.may_differ)
    _write(folder, f"{name}.csv", runs_csv(outcomes, folders=folders))
    plots = _import_plots(display)
    if search:
        _write(folder, f"{name}-search.csv", search.csv())
        _write(folder, f"{name}-search.md", search.markdown())
        if plots:
            plots.save_panels(plots.draw_search(search), _pictures(folder, f"{name}-search"))
    if not any(outcomes.values()):
        display.note(f"none of {len(outcomes)} runs is finished, so there is no table yet.")
        return ComparisonResult(outcomes, None, tuple(notes), search=search)
    table = result_table(outcomes, metrics)
    relative = relative_table(outcomes, relative_to, metrics) if relative_to else None
    significance = compare_rows(table, outcomes, folders)
    table = replace(table, better=significance.better())
    if significance.differences or significance.missing:
        notes.append(significance.sentence())
    try:
        _write(folder, f"{name}.md", comparison_markdown(table, notes, [search.markdown()] if search else []))
        _write(folder, f"{name}.tex", comparison_latex(table, command, notes))
        if significance.differences:
            _write(folder, f"{name}-differences.csv", significance.csv())
            _write(folder, f"{name}-differences.md", significance.markdown())
        if relative:
            _write(folder, f"{name}-relative.md", relative.markdown())
    finally:
        display.table(table, seconds=True)
        if relative:
            display.table(relative)
    if search and search.summary():
        display.note("\n".join(["tuned:", *search.summary(), f"all trials: {Path(out) / name}-search.md, .csv and .png"]))
    if plots:
        draw = plots.draw_comparison if set(table.axes) <= {RECIPE, TUNED} else plots.draw_sweep
        plots.save_panels(draw(table), _pictures(folder, name))
        if relative:
            plots.save_panels(plots.draw_sweep(relative), _pictures(folder, f"{name}-relative"))
    return ComparisonResult(outcomes, table, tuple(notes), significance=significance, relative=relative, search=search)


def _write(folder: Path, name: str, text: str) -> None:
    write_atomically(folder / name, text.encode())


def _pictures(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}.png", folder / f"{name}.svg"]


def _run_folders(record: Experiment, folder: Path, search: SearchResult | None) -> dict[Combination, Path]:
    """The final runs of an experiment, and their folders. A recipe that was best as it is has no tuned runs of its own."""
    if search is None:
        return {short: folder / run.name for short, run in zip(_without_constant(record.runs), record.runs, strict=True)}
    folders = {}
    for label in record.methods:
        best = search.best(label)
        for tuned in (False, True):
            for run in (run for run in record.runs if run[RECIPE] == label):
                own = tuned_combination(label, tuned, run[SEED])
                trained = tuned and (best is None or best.number > 0)
                folders[own] = folder / tuned_combination(label, trained, run[SEED]).name
    return folders


def _without_constant(runs: Sequence[Combination]) -> list[Combination]:
    """The runs without their recipe, if there is one recipe and other axes, which tell the runs apart."""
    is_constant = len({run[RECIPE] for run in runs}) == 1 and len(runs[0].values) > 2
    return [Combination(run.without(RECIPE)) if is_constant else run for run in runs]


def _import_plots(display: Display) -> Any:
    """The module `suprank.experiments.plots`; None, which is displayed, if matplotlib is not installed."""
    try:
        from suprank.experiments import plots
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        display.note('no figure, because matplotlib is not installed; pip install "suprank[train]", then collect.')
        return None
    return plots


def _check_name(name: str) -> None:
    if not name or name != Path(name).name or name.startswith("."):
        raise ValueError(f"name={name!r} must be the beginning of a file's name, such as approximations.")
