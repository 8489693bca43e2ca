"""Experiments: recipes, values of their keys, and seeds are trained under one budget. The folder of an experiment:

    experiment.json             the recipes, their settings, the axes and the runs, so that others can be added
    roadmap,seed=0/             a run folder of `suprank train`; it is finished when result.json exists
    logs/, slurm/               what each run printed; submitit's files
    comparison.csv .md .tex     a row for each run; a row for each setting, mean ± standard deviation over seeds
    comparison.png .svg         the figure; comparison-relative.md, .png and .svg are increases over one value
    comparison-differences.csv  the best of each column against every other row: is it more than chance?

One that is tuned has further files (see `suprank.experiments.tuning`).
"""

from __future__ import annotations

import os
import shlex
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.executors import local, parse_on
from suprank.executors.local import Answer, Crashed, Task
from suprank.experiments.grid import RECIPE, SEED, Combination, Grid, canonical_value
from suprank.experiments.methods import Method, canonical_recipes, changed_settings
from suprank.experiments.results import Outcome, read_outcome
from suprank.experiments.search_settings import SearchSettings
from suprank.experiments.train_run import PRELOAD, RunStopped, train_run, train_run_again
from suprank.files.atomic import write_atomically
from suprank.files.locking import lock_folder
from suprank.system.custom_code import is_custom
from suprank.training.code_copies import check_finished_run, find_sources
from suprank.training.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pydantic import TypeAdapter

    from suprank.experiments.display import Display
    from suprank.training.config import TrainConfig

EXPERIMENT_FILE = "experiment.json"


@dataclass(frozen=True)
class Experiment:
    """The content of experiment.json: methods by their labels, in the order of the rows, and the runs, with a value for each
    of the axes. `commands` are for readers who want to repeat one. `may_differ` are the exceptions of `check_budget`, and
    `search` says how it is tuned."""

    axes: tuple[str, ...]
    methods: dict[str, Method]
    runs: tuple[Combination, ...]
    commands: tuple[str, ...] = ()
    may_differ: tuple[str, ...] = ()
    search: SearchSettings | None = None

    @property
    def recipes(self) -> dict[str, str]:
        """The recipes by their labels."""
        return {label: method.recipe for label, method in self.methods.items()}

    def align(self, grid: Grid) -> Grid:
        """The grid with the axes of this experiment, in its order, and values spelled as here.

        A single value of one of the axes is a point on that axis. Other axes are refused: the table would have holes.
        """
        axes = [key for key in self.axes if key != RECIPE]
        given = {**{key: (value,) for key, value in grid.fixed if key in axes}, **dict(grid.axes)}
        if set(given) != set(axes):
            raise ValueError(
                f"the experiment in this folder is over {_list_axes(axes)}, and this one over {_list_axes(given)}; give a "
                "value for each of its axes, or name another folder."
            )
        spelling = {(key, canonical_value(run[key])): run[key] for run in reversed(self.runs) for key in axes}
        aligned = tuple(
            (key, tuple(spelling.get((key, canonical_value(value)), value) for value in given[key])) for key in axes
        )
        return Grid(tuple((key, value) for key, value in grid.fixed if key not in axes), aligned)

    def merge(self, other: Experiment) -> Experiment:
        """This experiment with the recipes and runs of another one, whose common recipes must have the same settings."""
        if self.axes != other.axes:
            raise ValueError(
                f"the experiment in this folder is over {', '.join(self.axes)}, and this one over {', '.join(other.axes)}; "
                "name another folder."
            )
        for label, method in other.methods.items():
            changed = changed_settings(self.methods[label].settings, method.settings) if label in self.methods else []
            if changed:
                raise ValueError(
                    f"the experiment in this folder has {label} with other settings: {', '.join(changed[:5])}. One table "
                    "cannot hold both; give the settings as they were, or name another folder."
                )
        if (self.search is None) != (other.search is None):
            tuned = f"tuned with tune={self.search.trials}" if self.search else "not tuned"
            raise ValueError(
                f"the experiment in this folder was {tuned}, and methods can only be compared with the same budget; "
                f"{'give that too' if self.search else 'leave tune out'}, or name another folder."
            )
        return Experiment(
            self.axes,
            {**self.methods, **other.methods, **self.methods},
            _union(self.runs, other.runs),
            _union(self.commands, other.commands),
            _union(self.may_differ, other.may_differ),
            self.search.merge(other.search) if self.search and other.search else None,
        )

    def select(self, names: Sequence[str]) -> Experiment:
        """The part with these recipes, in their order, by label or by name; all of it if there are none."""
        if not names:
            return self
        labels = {recipe: label for label, recipe in self.recipes.items()}
        recipes = canonical_recipes([self.recipes.get(name, name) for name in names])
        missing = [recipe for recipe in recipes if recipe not in labels]
        if missing:
            raise ValueError(f"{', '.join(missing)} is not in the experiment; choose from {', '.join(self.methods)}.")
        chosen = [labels[recipe] for recipe in recipes]
        runs = tuple(one for label in chosen for one in self.runs if one.method == label)
        return replace(self, methods={label: self.methods[label] for label in chosen}, runs=runs)

    @classmethod
    def load(cls, folder: Path) -> Experiment | None:
        """The experiment of a folder, or None if the folder has none."""
        file = folder / EXPERIMENT_FILE
        from pydantic import ValidationError

        try:
            experiment: Experiment = _json_form().validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            first = error.errors()[0]
            reason = " ".join([*map(str, first["loc"]), first["msg"]])
            raise ValueError(f"{file} is damaged ({reason}); remove it, or name another folder.") from error
        return experiment

    def save(self, folder: Path) -> None:
        write_atomically(folder / EXPERIMENT_FILE, _json_form().dump_json(self, indent=1) + b"\n")


@cache
def _json_form() -> TypeAdapter[Experiment]:
    """Reads and writes experiment.json by the types of the fields."""
    from pydantic import TypeAdapter

    return TypeAdapter(Experiment)


def _union(*several: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(one for some in several for one in some))


def _list_axes(keys: Iterable[str]) -> str:
    return ", ".join(key for key in keys if key != SEED) or "seeds only"


class PlannedRun(NamedTuple):
    """A run that was checked and can be run: what it is, and the recipe with the overrides that make its config."""

    name: str
    recipe: str
    overrides: list[str]
    config: TrainConfig
    folder: Path
    log: Path

    @classmethod
    def read(cls, name: str, recipe: str, overrides: Sequence[str], folder: Path) -> PlannedRun:
        """The run of this name in the folder of an experiment. One that cannot be run is refused."""
        from suprank.training.recipe import read_recipe

        try:
            config = read_recipe(recipe, overrides, saved=RunFolder(folder / name).saved_recipe)
        except ValueError as error:
            raise ValueError(f"{name} cannot be run, so nothing was: {error}") from error
        return cls(name, recipe, list(overrides), config, folder / name, folder / "logs" / f"{name}.log")

    @property
    def command(self) -> str:
        """The command that trains it, for a reader."""
        return shlex.join(["suprank", "train", self.recipe, *self.overrides, "--out", str(self.folder), "--resume"])

    @property
    def task(self) -> Task:
        own_code = is_custom(self.config.loss.name) or is_custom(self.config.model.backbone)
        return Task(self.name, (self.config.model_dump_json(), str(self.folder)), self.log, needs_new_process=own_code)


@dataclass(frozen=True)
class Plan:
    """An experiment that was checked, with the runs that were asked for. The record may have further ones, of earlier calls."""

    record: Experiment
    folder: Path
    runs: list[PlannedRun]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the folder, lock it for this process and save the record in it.

        Code that the recipes name must have the user's consent, before any run starts.
        """
        for one in self.runs:
            find_sources(one.config, self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"{self.folder} cannot be made ({error.strerror}); name another folder.") from error
        with lock_experiment(self.folder):
            self.record.save(self.folder)
            yield

    def train(self, runs: Sequence[PlannedRun], display: Display, *, executor: Executor, metric: str = "") -> list[str]:
        """Train those of the runs that are not finished, and return the names of those that failed."""
        waiting = unfinished(runs)
        if len(waiting) < len(runs):
            display.skipped(len(runs) - len(waiting), len(runs))
        planned, failed = {one.name: one for one in waiting}, []
        display.begin(list(planned), metric)
        try:
            tasks = deque(one.task for one in waiting)
            for task, answer in executor.train(tasks, [one.config for one in waiting], self.folder, display):
                failure, folder = why_failed(answer.error), planned[task.name].folder
                display.run_ended(task.name, failure, None if failure else metric_value(read_outcome(folder), metric))
                if failure:
                    failed.append(task.name)
                    display.note(f"{task.name} failed: {failure}\nIts log is {task.log}.")
        finally:
            display.end()
        return failed


@dataclass(frozen=True)
class MethodPlan(Plan):
    """A plan with the recipes of the call and their configs by their labels, and its values and seeds."""

    recipes: dict[str, str]
    configs: dict[str, TrainConfig]
    grid: Grid


@dataclass(frozen=True)
class Executor:
    """Where runs are trained ("local", "ray", "ray=HOST:PORT" or "slurm KEY=VALUE ..."), and how many at the same time."""

    on: str = "local"
    jobs: int | None = None

    def __post_init__(self) -> None:
        parse_on(self.on)  # refuses a place that nobody knows, before anything is done

    def train(
        self, tasks: deque[Task], configs: Sequence[TrainConfig], folder: Path, display: Display
    ) -> Iterator[tuple[Task, Answer]]:
        """Train the tasks, which have the devices and the batches of these configs, and yield each as it ends. Tasks that are
        added to the deque in the meantime are trained too."""
        where, rest = parse_on(self.on)
        shown: dict[str, Any] = {
            "on_start": lambda task: display.run_started(task.name),
            "on_report": lambda task, values: display.run_progress(task.name, *values),
        }
        if where == "ray":
            yield from _train_on_ray(tasks, configs, rest, self.jobs, shown)
        elif where == "slurm":
            from suprank.executors import slurm

            shape, started = _array_shape(configs), shown["on_start"]
            options: dict[str, Any] = {"jobs": self.jobs, "shape": shape, "preload": PRELOAD, "on_start": started}
            yield from slurm.run(train_run, tasks, folder, rest, **options)
        else:
            jobs = self.jobs or 1
            gpus, keep = shared_gpus(configs, jobs), _uses_gpu(configs)
            yield from local.run(train_run, tasks, jobs=jobs, gpus=gpus, keep=keep, preload=PRELOAD, **shown)


def _train_on_ray(
    tasks: deque[Task], configs: Sequence[TrainConfig], address: str, jobs: int | None, shown: Mapping[str, Any]
) -> Iterator[tuple[Task, Answer]]:
    """A run takes its GPUs, if there are any and it is not for the CPU, and an equal share of a machine's cores for each."""
    from suprank.executors.ray_cluster import RayCluster

    if any(config.engine.nodes > 1 for config in configs):
        raise ValueError("engine.nodes must be 1 on Ray, where each run is on one machine; torchrun trains on several.")
    devices = max((config.engine.devices for config in configs), default=1)
    workers = max((config.data.workers or 0 for config in configs), default=0)
    with RayCluster(address) as cluster:
        wanted = {config.engine.accelerator for config in configs}
        gpus = devices if "cuda" in wanted or ("auto" in wanted and cluster.machines(gpus=1)) else 0
        cpus = cluster.cpus_per_gpu() * gpus if gpus else max(devices, workers)
        yield from cluster.run(train_run_again, tasks, jobs=jobs, cpus=cpus, gpus=gpus, **shown)


def _array_shape(configs: Sequence[TrainConfig]) -> dict[str, int]:
    """Nodes, tasks and GPUs, which all runs of a SLURM array share."""
    shapes = {(config.engine.nodes, config.engine.devices, config.engine.accelerator == "cpu") for config in configs}
    if len(shapes) > 1:
        raise ValueError(
            "the runs of a SLURM array must have the same engine.nodes, engine.devices and engine.accelerator; run them one by "
            "one."
        )
    ((nodes, devices, on_cpu),) = shapes or {(1, 1, True)}
    return {"nodes": nodes, "ntasks_per_node": devices} | ({} if on_cpu else {"gpus_per_node": devices})


def unfinished(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """The runs that have no result. The code of finished ones must not have changed since."""
    waiting = []
    for one in runs:
        if read_outcome(one.folder) is None:
            waiting.append(one)
        else:
            check_finished_run(one.folder)
    return waiting


def why_failed(error: Exception | None) -> str:
    """Why a run failed, in words; empty if it did not."""
    if error is None or isinstance(error, Crashed | RunStopped):
        return str(error or "")
    return str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"


def metric_value(outcome: Outcome | None, metric: str) -> float | None:
    """The metric of the first test set."""
    return next(iter(outcome.metrics.values()), {}).get(metric) if outcome else None


def shared_gpus(configs: Sequence[TrainConfig], jobs: int) -> list[str]:
    """The GPUs, as CUDA_VISIBLE_DEVICES names them, among which runs at the same time are distributed; none if a run takes
    several GPUs, or none."""
    if jobs == 1 or any(config.engine.devices > 1 or config.engine.accelerator == "cpu" for config in configs):
        return []
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [gpu for gpu in named.split(",") if gpu] if named else [str(gpu) for gpu in range(torch.cuda.device_count())]


def _uses_gpu(configs: Sequence[TrainConfig]) -> bool:
    import torch

    return torch.cuda.is_available() and all(one.engine.accelerator != "cpu" and one.engine.devices == 1 for one in configs)


def lock_experiment(folder: Path) -> AbstractContextManager[int]:
    """Hold the lock of an experiment's folder."""
    return lock_folder(folder, "running an experiment in", "wait for it, or stop it")
