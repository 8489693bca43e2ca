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

import re
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank.experiments import slurm
from suprank.experiments.folds import (
    check_fold_batches,
    fitting_space,
    fold_level,
    fold_manifests,
    open_training_manifest,
    validation_metric,
)
from suprank.experiments.grid import FOLD, RECIPE, SEED, TRIAL, TUNED, Combination
from suprank.experiments.old_runner import Display, Task, run_tasks, shared_gpus, submit
from suprank.experiments.results import read_outcome
from suprank.experiments.search_result import SEARCH_FOLDER
from suprank.experiments.trials import (
    Params,
    Trial,
    TrialStorage,
    best_trial,
    import_optuna,
    recipe_value,
    startup_trials,
    suggest,
)
from suprank.files.atomic import write_atomically
from suprank.training.code_copies import check_finished_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suprank.data import Manifest
    from suprank.experiments.old_runner import EndedTask
    from suprank.experiments.search_settings import SearchSettings
    from suprank.experiments.worker_processes import WorkerPool
    from suprank.training.config import TrainConfig

TUNED_FOLDER = "tuned"
PER_CLASS = "batch.images_per_class"
ONCE = ("evaluation.every=0", "evaluation.at_start=false")
"""Overrides of every run of a tuned comparison: test images are read once, after the last epoch."""

_OUT_OF_MEMORY = re.compile("out of memory|allocate", re.IGNORECASE)  # as torch and numpy say it
WEIGHTS = ("checkpoints", "best", "model")  # folders of a run that a finished trial does not need


@dataclass
class Search:
    """The search of a comparison: `prepare` checks it, `run` runs it."""

    folder: Path
    settings: SearchSettings
    recipes: dict[str, str]
    configs: dict[str, TrainConfig]
    overrides: tuple[str, ...]
    train: Manifest
    folds: list[Manifest]

    @classmethod
    def prepare(
        cls,
        folder: Path,
        settings: SearchSettings,
        recipes: Mapping[str, str],
        configs: Mapping[str, TrainConfig],
        overrides: Sequence[str],
    ) -> Search:
        """Check the search against the training images, and divide their classes into folds. Nothing is written.

        The number of images of a class is searched among those that leave enough classes for a batch in every fold.
        """
        import_optuna()
        config = next(iter(configs.values()))
        manifest = open_training_manifest(config)
        level = settings.level or fold_level(manifest, config.data.levels, settings.folds)
        folds = fold_manifests(manifest, settings.folds, level)
        images = [manifest.split("train"), *(one.split("train") for one in folds)]
        spaces = dict(settings.spaces)
        for label, own in configs.items():
            check_fold_batches(own, images, f"{label}: a fold")
            spaces[label] = fitting_space(spaces[label], own, images)
            if not spaces[label]:
                raise ValueError(f"{label} has nothing to tune; leave optimizer.lr open, for example.")
        metric = validation_metric(config, folds[0], settings.metric)
        settings = replace(settings, level=level, metric=metric, spaces=spaces)
        return cls(folder, settings, dict(recipes), dict(configs), tuple(overrides), images[0], folds)

    @property
    def storage(self) -> TrialStorage:
        return TrialStorage(self.folder / SEARCH_FOLDER)

    def write_folds(self) -> None:
        """Write the manifests of the folds. Those of an earlier call must be the same."""
        from suprank.data import Manifest

        for number, fold in enumerate(self.folds):
            file = self._fold_file(number)
            if file.exists():
                if not Manifest.read(file).table.equals(fold.table):
                    raise ValueError(
                        f"the training images or their classes are not those of {file}, with which the search began; restore "
                        f"the manifest, or name another --out."
                    )
            else:
                fold.save(file)

    def tasks(self, label: str, number: int, params: Params) -> list[Task]:
        """The runs of a trial, one for each fold."""
        from suprank.training.recipe import toml_value

        found = []
        for fold in range(self.settings.folds):
            run = Combination(((RECIPE, label), (TRIAL, str(number)), (FOLD, str(fold))))
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
            found.append(Task.create(run.name, self.recipes[label], overrides, self.folder))
        return found

    def setting(self, label: str, params: Params, fold: int | None = None) -> list[str]:
        """The values of a trial as overrides of its recipe, for training on a fold or on all training images.

        Steps are those of the recipe as it is: with more images of a class in a batch, an epoch over all images would have more
        batches if the last ones of a class are filled up, and its trial a larger budget.
        """
        from suprank.training.batches import batches_per_epoch

        config = self.configs[label]
        overrides = params_overrides(config, params, self.overrides)
        if PER_CLASS in params and params[PER_CLASS] != config.batch.images_per_class:
            images = self.train if fold is None else self.folds[fold].split("train")
            overrides.append(f"batch.batches={batches_per_epoch(config, images)}")
        return overrides

    def run(self, *, jobs: int, workers: WorkerPool | None, lock: int, display: Display) -> None:
        """Run the trials that are missing, `jobs` runs at a time, and store them as their last fold ends.

        Recipes do not wait for each other, and the first trials of a recipe not for one another. A run that fails (its loss
        became NaN, memory ran out) makes its trial the worst. A run that was refused (an image is missing), or that somebody
        stopped, ends the search instead, because the setting is not to blame.
        """
        progress = {label: _Progress(self, label) for label in self.recipes}
        queue: deque[Task] = deque(task for one in progress.values() for task in one.advance())
        left = sum(one.runs_left for one in progress.values())
        total = len(progress) * self.settings.trials * self.settings.folds
        if left < total:
            display.skipped(total - left, total)
        owners = {task.name: one for one in progress.values() for task in queue if task.name in one.running}
        display.begin(left)
        try:
            gpus = shared_gpus(list(self.configs.values()), jobs)
            for ended in run_tasks(queue, jobs, lock=lock, gpus=gpus, workers=workers, display=display):
                display.run_ended(ended.task.name, ended.failure)
                _refuse_if_not_the_setting(ended)
                owner = owners[ended.task.name]
                if ended.failure:
                    display.note(f"{ended.task.name} {ended.failure}, so its trial is the worst; see {ended.task.log}.")
                new = list(owner.end(ended.task, ended.failure))
                owners |= dict.fromkeys((task.name for task in new), owner)
                queue.extend(new)
        finally:
            display.end()

    def submit(self, parameters: tuple[str, dict[str, Any]], display: Display) -> bool:
        """Submit the runs that can be run now to SLURM; True if nothing is left to do. A run that was submitted and is no
        longer in the queue failed, unless it left a result."""
        on_cluster = parameters[0] == "slurm"  # processes of this machine have no queue to ask
        submitted = set(slurm.saved_jobs(self.folder)) if on_cluster else set()
        queued = set(slurm.queued_jobs(self.folder)) if on_cluster else set()
        waiting: list[Task] = []
        done = True
        for label in self.recipes:
            one = _Progress(self, label)
            new = deque(one.advance())
            while new:
                task = new.popleft()
                if task.name in submitted - queued and task.log.exists():
                    new.extend(one.end(task, "ended without a result"))
                else:
                    waiting.append(task)
            done = done and not one.runs_left
        if waiting:
            submit(waiting, self.folder, *parameters, display)
        return done

    def write_tuned_recipes(self) -> None:
        """Write the best setting of each recipe, with the overrides of all runs, as a recipe that extends it."""
        from suprank.training.recipe import parse_value, toml_value

        given = {key: value for key, _, value in (one.partition("=") for one in self.overrides if one not in ONCE) if value}
        (self.folder / TUNED_FOLDER).mkdir(exist_ok=True)
        for label, recipe in self.recipes.items():
            best = best_trial(self.storage.load(label, self.settings.spaces[label]))
            if best is None:
                continue
            tables: dict[str, list[str]] = {}
            chosen = (one.partition("=") for one in self.setting(label, best.params))
            for key, value in {**given, **{key: value for key, _, value in chosen}}.items():
                table, _, entry = key.rpartition(".")
                tables.setdefault(table, []).append(f"{entry} = {toml_value(parse_value(value))}")
            value = f"{self.settings.metric} {100 * best.value:.2f} on validation classes"
            lines = [f"# The best of {self.settings.trials} trials: {value}.", f"extends = {toml_value(recipe)}"]
            lines += [line for table, entries in tables.items() for line in ("", f"[{table}]", *entries)]
            name = Combination(((RECIPE, label),)).name
            write_atomically(self.folder / TUNED_FOLDER / f"{name}.toml", ("\n".join(lines) + "\n").encode())

    def _fold_file(self, number: int) -> Path:
        return self.folder / SEARCH_FOLDER / f"fold-{number}.parquet"


class _Progress:
    """The trials of one recipe: those that are stored, and those whose runs are waiting or running."""

    def __init__(self, search: Search, label: str) -> None:
        self.search, self.label = search, label
        self.space, self.count = search.settings.spaces[label], search.settings.trials
        self.stored = search.storage.load(label, self.space)
        self.running: dict[str, int] = {}  # the names of runs, with the numbers of their trials
        self._params: dict[int, Params] = {}
        self._failures: dict[int, str] = {}
        for trial in self.stored[-1:]:  # a loss of the user's own must be the one that was tried
            for task in search.tasks(label, trial.number, trial.params):
                check_finished_run(task.folder)

    @property
    def runs_left(self) -> int:
        """Runs that are not finished, of all trials to come."""
        later = self.count - len(self.stored) - len(self._params)
        return len(self.running) + later * self.search.settings.folds

    def advance(self) -> Iterator[Task]:
        """Begin the trials that can begin, store those that have ended, and yield the runs to do."""
        while len(self.stored) < self.count:
            first = len(self.stored)
            for number in range(first, max(first + 1, startup_trials(self.count))):
                if number not in self._params:
                    self._params[number] = self._suggest(number)
                    tasks = self.search.tasks(self.label, number, self._params[number])
                    waiting = [task for task in tasks if read_outcome(task.folder) is None]
                    self.running |= {task.name: number for task in waiting}
                    yield from waiting
            if first in self.running.values():
                return
            self._store(first)

    def end(self, task: Task, failure: str) -> Iterator[Task]:
        """Note that a run has ended, and yield further runs to do."""
        number = self.running.pop(task.name)
        if failure:
            self._failures.setdefault(number, f"{task.name} {failure}")
        yield from self.advance()

    def _suggest(self, number: int) -> Params:
        if number == 0:
            config = self.search.configs[self.label]
            return {key: recipe_value(config, key) for key in self.space}
        return suggest(self.space, self.stored, number, self.count)

    def _store(self, number: int) -> None:
        params, failure = self._params.pop(number), self._failures.pop(number, "")
        values, seconds = [], 0.0
        for task in self.search.tasks(self.label, number, params):
            outcome = read_outcome(task.folder)
            value = None if outcome is None else outcome.metrics["test"].get(self.search.settings.metric)
            if outcome is not None and value is None:
                failure = failure or f"{task.name} has no {self.search.settings.metric}: it is undefined for its embeddings"
            values.append(value)
            seconds += outcome.seconds if outcome else 0.0
            for name in WEIGHTS:
                shutil.rmtree(task.folder / name, ignore_errors=True)
        trial = Trial(number, params, tuple(values), round(seconds, 3), failure)
        self.search.storage.add(self.label, self.space, trial)
        self.stored.append(trial)


def _refuse_if_not_the_setting(ended: EndedTask) -> None:
    """Raise if a run did not fail because of its setting: it was refused, or stopped by somebody."""
    text = ended.task.last_lines
    if ended.code == 2 and not _OUT_OF_MEMORY.search(" ".join(text.replace("│", " ").split())):
        raise ValueError(
            f"{ended.task.name} was refused, so the search cannot go on; the end of {ended.task.log}:\n{text}\nGiven "
            "again, the command continues the search."
        )
    if ended.code in (-15, -2, 143, 130):
        raise ValueError(f"{ended.task.name} was stopped by a signal. Given again, the command continues the search.")


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
