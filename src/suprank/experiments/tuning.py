"""Tuning the recipes of a comparison: each gets the same number of trials, on validation classes that are taken from the
training classes. In the folder of the comparison:

    search/optuna.journal          every trial, as Optuna stores it
    search/fold-0.parquet, ...     the training images, with the classes of the fold as test images
    roadmap,trial=3,fold=0/        the run of a trial, without its weights
    tuned/roadmap.toml             the best setting, as a recipe
    roadmap,tuned=yes,seed=0/      its runs on all training classes, which are evaluated on the test classes, once

A trial is a run like any other. The manifests of the folds have no test images, so that no trial can read one.
"""

from __future__ import annotations

import shutil
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank.executors.local import Crashed
from suprank.experiments.experiment import MethodPlan, PlannedRun, metric_value, unfinished, why_failed
from suprank.experiments.folds import (
    check_fold_batches,
    fitting_space,
    fold_level,
    fold_manifests,
    open_training_manifest,
    validation_metric,
)
from suprank.experiments.grid import FOLD, RECIPE, SEED, TRIAL, TUNED, Combination
from suprank.experiments.results import read_outcome
from suprank.experiments.search_result import SEARCH_FOLDER
from suprank.experiments.trials import Params, Study, Trial, best_trial, import_optuna, recipe_value, stored_trials
from suprank.files.atomic import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suprank.data import Manifest
    from suprank.experiments.display import Display
    from suprank.experiments.experiment import Executor
    from suprank.experiments.search_settings import SearchSettings
    from suprank.training.config import TrainConfig

TUNED_FOLDER = "tuned"
PER_CLASS = "batch.images_per_class"
ONCE = ("evaluation.every=0", "evaluation.at_start=false")
"""Overrides of every run of a tuned comparison: test images are read once, after the last epoch."""

WEIGHTS = ("checkpoints", "best", "model")  # folders of a run that a finished trial does not need
ENDED_BY_SOMEBODY = (-signal.SIGTERM, -signal.SIGINT)  # exit codes; other signals end a process that is out of memory


@dataclass
class Search:
    """The search of a comparison, checked: `tuned_runs` searches."""

    plan: MethodPlan
    settings: SearchSettings
    train: Manifest
    folds: list[Manifest]

    @classmethod
    def prepare(cls, plan: MethodPlan) -> Search:
        """Check the search of a plan against the training images, and divide their classes into folds. Nothing is written.

        The number of images of a class is searched among those that leave enough classes for a batch in every fold.
        """
        import_optuna()
        settings, config = plan.record.search, next(iter(plan.configs.values()))
        assert settings is not None
        manifest = open_training_manifest(config)
        level = settings.level or fold_level(manifest, config.data.levels, settings.folds)
        folds = fold_manifests(manifest, settings.folds, level)
        images = [manifest.split("train"), *(one.split("train") for one in folds)]
        spaces = dict(settings.spaces)
        for label, own in plan.configs.items():
            check_fold_batches(own, images, f"{label}: a fold")
            spaces[label] = fitting_space(spaces[label], own, images)
            if not spaces[label]:
                raise ValueError(f"{label} has nothing to tune; leave optimizer.lr open, for example.")
        metric = validation_metric(config, folds[0])
        return cls(plan, replace(settings, level=level, metric=metric, spaces=spaces), images[0], folds)

    @property
    def folder(self) -> Path:
        return self.plan.folder / SEARCH_FOLDER

    @property
    def overrides(self) -> list[str]:
        """Those that hold for all runs of the call."""
        return [f"{key}={value}" for key, value in self.plan.grid.fixed]

    def tuned_runs(self, executor: Executor, display: Display) -> list[PlannedRun]:
        """Run the trials that are missing, and return the runs with the best setting of each recipe."""
        self._write_folds()
        self._run(executor, display)
        runs = []
        for label, recipe in self.plan.recipes.items():
            best = best_trial(stored_trials(self.folder, label))
            if best is None:
                display.note(f"all {self.settings.trials} trials of {label} failed, so there is no tuned run of it.")
                continue
            self._write_tuned_recipe(label, best)
            if best.number > 0:  # the first trial is the recipe as it is
                for seed in dict(self.plan.grid.axes)[SEED]:
                    overrides = [*self.overrides, f"{SEED}={seed}", *self.setting(label, best.params)]
                    name = tuned_combination(label, True, seed).name
                    runs.append(PlannedRun.read(name, recipe, overrides, self.plan.folder))
        return runs

    def _write_folds(self) -> None:
        """Write the manifests of the folds. Those of an earlier call must be the same."""
        from suprank.data import Manifest

        for number, fold in enumerate(self.folds):
            file = self._fold_file(number)
            if not file.exists():
                fold.save(file)
            elif not Manifest.read(file).table.equals(fold.table):
                raise ValueError(
                    f"the training images or their classes are not those of {file}, with which the search began; restore "
                    f"the manifest, or name another folder."
                )

    def fold_runs(self, label: str, number: int, params: Params) -> list[PlannedRun]:
        """The runs of a trial, one for each fold."""
        from suprank.training.recipe import toml_value

        found = []
        for fold in range(self.settings.folds):
            name = Combination(((RECIPE, label), (TRIAL, str(number)), (FOLD, str(fold)))).name
            overrides = [
                *self.overrides,
                "run.seed=0",
                *self.setting(label, params, fold),
                f"data.manifest={toml_value(str(self._fold_file(fold)))}",
                "data.root=",
                "data.tests=",
                f"evaluation.best={toml_value(self.settings.metric)}",
                "logging.tensorboard=false",
            ]
            found.append(PlannedRun.read(name, self.plan.recipes[label], overrides, self.plan.folder))
        return found

    def setting(self, label: str, params: Params, fold: int | None = None) -> list[str]:
        """The values of a trial as overrides of its recipe, for training on a fold or on all training images.

        Steps are those of the recipe as it is: with more images of a class in a batch, an epoch over all images would have more
        batches if the last ones of a class are filled up, and its trial a larger budget.
        """
        from suprank.training.batches import batches_per_epoch

        config = self.plan.configs[label]
        overrides = params_overrides(config, params, self.overrides)
        if PER_CLASS in params and params[PER_CLASS] != config.batch.images_per_class:
            images = self.train if fold is None else self.folds[fold].split("train")
            overrides.append(f"batch.batches={batches_per_epoch(config, images)}")
        return overrides

    def _run(self, executor: Executor, display: Display) -> None:
        """Run the trials that are missing, and tell Optuna of each as its last fold ends.

        Recipes do not wait for each other, and the first trials of a recipe not for one another. A run whose loss became NaN
        or infinite, or that ran out of memory, makes its trial the worst. Anything else ends the search, because no setting is
        to blame.
        """
        recipes = {label: _RecipeSearch(self, label) for label in self.plan.recipes}
        queue = [(run, one) for one in recipes.values() for run in one.advance()]
        total = len(recipes) * self.settings.trials * self.settings.folds
        if queue and len(queue) < total:
            display.skipped(total - sum(one.runs_left for one in recipes.values()), total)
        planned = {run.name: (run, one) for run, one in queue}
        tasks = deque(run.task for run, _ in queue)
        display.begin(list(planned), self.settings.metric)
        try:
            for task, answer in executor.train(tasks, list(self.plan.configs.values()), self.plan.folder, display):
                run, recipe = planned[task.name]
                failure = why_failed(answer.error)
                value = None if failure else metric_value(read_outcome(run.folder), self.settings.metric)
                display.run_ended(run.name, failure, value)
                if answer.error is not None and not is_settings_fault(answer.error):
                    raise ValueError(
                        f"{run.name} failed, and no setting is to blame, so the search has stopped: {failure}\nIts log is "
                        f"{run.log}. Given again, the command continues the search."
                    ) from answer.error
                if failure:
                    display.note(f"{run.name}: {failure}\nSo its trial is the worst; its log is {run.log}.")
                for new in recipe.end(run, failure):
                    planned[new.name] = (new, recipe)
                    display.run_added(new.name)
                    tasks.append(new.task)
        finally:
            display.end()

    def _write_tuned_recipe(self, label: str, best: Trial) -> None:
        """Write the best setting of a recipe, with the overrides of all runs, as a recipe that extends it."""
        from suprank.training.recipe import parse_value, toml_value

        given = [one.partition("=") for one in self.overrides if one not in ONCE]
        chosen = [one.partition("=") for one in self.setting(label, best.params)]
        tables: dict[str, list[str]] = {}
        for key, value in {key: value for key, _, value in (*given, *chosen) if value}.items():
            table, _, entry = key.rpartition(".")
            tables.setdefault(table, []).append(f"{entry} = {toml_value(parse_value(value))}")
        value = f"{self.settings.metric} {100 * best.value:.2f} on validation classes"
        lines = [f"# The best of {self.settings.trials} trials: {value}."]
        lines += [f"extends = {toml_value(self.plan.recipes[label])}"]
        lines += [line for table, entries in tables.items() for line in ("", f"[{table}]", *entries)]
        folder = self.plan.folder / TUNED_FOLDER
        folder.mkdir(exist_ok=True)
        write_atomically(folder / f"{Combination(((RECIPE, label),)).name}.toml", ("\n".join(lines) + "\n").encode())

    def _fold_file(self, number: int) -> Path:
        return self.folder / f"fold-{number}.parquet"


def is_settings_fault(error: Exception) -> bool:
    """Whether a run failed because of its setting: its loss became NaN or infinite, or memory ran out."""
    import torch

    from suprank.training import NonFiniteLossError

    if isinstance(error, Crashed):
        return error.exit_code < 0 and error.exit_code not in ENDED_BY_SOMEBODY
    return isinstance(error, NonFiniteLossError | MemoryError | torch.OutOfMemoryError)


@dataclass
class _OpenTrial:
    """A trial whose runs have not all ended."""

    params: Params
    runs: list[PlannedRun]
    waiting: set[str]
    failure: str = ""


class _RecipeSearch:
    """The trials of one recipe: Optuna's study, and those that are open."""

    def __init__(self, search: Search, label: str) -> None:
        self.search, self.label = search, label
        space, config = search.settings.spaces[label], search.plan.configs[label]
        own = {key: recipe_value(config, key) for key in space}
        self.study = Study(search.folder, label, space, own, search.settings.trials)
        self.open: dict[int, _OpenTrial] = {}
        for trial in self.study.told()[-1:]:  # a loss of the user's own must be the one that was tried
            unfinished(search.fold_runs(label, trial.number, trial.params))

    @property
    def runs_left(self) -> int:
        """Runs that are not finished, of all trials to come."""
        later = self.search.settings.trials - len(self.study.told()) - len(self.open)
        return sum(len(trial.waiting) for trial in self.open.values()) + later * self.search.settings.folds

    def advance(self) -> Iterator[PlannedRun]:
        """Ask for the trials that can begin, tell of those that have ended, and yield the runs to do."""
        while True:
            for number, params in self.study.ask():
                runs = self.search.fold_runs(self.label, number, params)
                waiting = unfinished(runs)
                self.open[number] = _OpenTrial(params, runs, {run.name for run in waiting})
                yield from waiting
            ended = [number for number, trial in self.open.items() if not trial.waiting]
            if not ended:
                return
            for number in ended:
                self._tell(number, self.open.pop(number))

    def end(self, run: PlannedRun, failure: str) -> Iterator[PlannedRun]:
        """Note that a run has ended, and yield further runs to do."""
        trial = next(trial for trial in self.open.values() if run.name in trial.waiting)
        trial.waiting.remove(run.name)
        trial.failure = trial.failure or (failure and f"{run.name}: {failure}")
        yield from self.advance()

    def _tell(self, number: int, trial: _OpenTrial) -> None:
        metric, outcomes = self.search.settings.metric, [read_outcome(run.folder) for run in trial.runs]
        values = [metric_value(outcome, metric) for outcome in outcomes]
        for run, outcome, value in zip(trial.runs, outcomes, values, strict=True):
            if outcome is not None and value is None:
                trial.failure = trial.failure or f"{run.name} has no {metric}: it is undefined for its embeddings"
            for name in WEIGHTS:
                shutil.rmtree(run.folder / name, ignore_errors=True)
        seconds = round(sum(outcome.seconds for outcome in outcomes if outcome), 3)
        self.study.tell(Trial(number, trial.params, tuple(values), seconds, trial.failure))


def params_overrides(config: TrainConfig, params: Params, given: Sequence[str] = ()) -> list[str]:
    """A trial's setting as overrides of its recipe. A rate of the head that the recipe sets keeps its ratio to the
    backbone's, unless the overrides that were `given` for all recipes set it."""
    from suprank.training.recipe import toml_value

    values: dict[str, Any] = dict(params)
    head = config.optimizer.head_lr
    fixed = "optimizer.head_lr" in (*params, *(one.partition("=")[0] for one in given))
    if "optimizer.lr" in params and head is not None and not fixed:
        values["optimizer.head_lr"] = float(f"{head * float(params['optimizer.lr']) / config.optimizer.lr:.6g}")
    return [f"{key}={toml_value(value)}" for key, value in values.items()]


def tuned_combination(label: str, tuned: bool, seed: str) -> Combination:
    """The final run of a recipe, as it is or with its best setting."""
    return Combination(((RECIPE, label), (TUNED, "yes" if tuned else "no"), (SEED, seed)))
