"""The training runs of tables and figures. All tables and figures of one folder share them:

OUT/sop/roadmap,seed=0/      a run folder of `suprank train`; it is finished when result.json exists
OUT/data/                    manifests of datasets that were imported
OUT/logs/                    what each run printed
OUT/experiment.json          the commands that were given, and all runs
OUT/tab-main_sop_inat.md     tables and figures
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from suprank.evaluation.metric_names import LEVEL_MEANS, parse_metric
from suprank.experiments.experiment import EXPERIMENT_FILE, Experiment, Plan, PlannedRun
from suprank.experiments.grid import PRESET, RECIPE, SEED, Combination
from suprank.experiments.methods import Method, check_budget, difference_notes
from suprank.experiments.results import Outcome, read_outcome
from suprank.files.outputs import foreign_file, refuse_foreign_files
from suprank.training.run_folder import RunFolder

if TYPE_CHECKING:
    from os import PathLike

    from suprank.training.config import TrainConfig

AXES = (PRESET, RECIPE, SEED)


class Training(NamedTuple):
    """A method on a preset, with overrides that belong to it: `("sop", "roadmap", ("batch.size=64",))`."""

    preset: str
    method: str
    overrides: tuple[str, ...] = ()

    @property
    def recipe(self) -> str:
        return f"{self.preset}/{self.method}"

    def run(self, seed: int) -> Combination:
        """The run with this seed, by whose name its folder is known: `sop/roadmap,seed=0`."""
        return Combination(((PRESET, self.preset), (RECIPE, ",".join((self.method, *self.overrides))), (SEED, str(seed))))


Results = Mapping[Training, Sequence[Outcome | None]]
"""The outcomes of the runs of each training in the order of the seeds; None for a run that is not finished."""


@dataclass(frozen=True)
class PaperRuns:
    """The runs that some tables and figures need, in one folder. `dataset_overrides` say where the images of a preset are;
    `overrides` are the user's, and hold for all runs."""

    folder: Path
    trainings: tuple[Training, ...]
    seeds: int
    dataset_overrides: Mapping[str, Sequence[str]]
    overrides: Sequence[str] = ()
    command: str = ""

    @cached_property
    def configs(self) -> dict[Training, TrainConfig]:
        """The config of each training. One that cannot be run is refused here, before anything runs."""
        from suprank.training.recipe import read_recipe

        configs = {}
        for training in self.trainings:
            try:
                configs[training] = read_recipe(training.recipe, self.arguments(training))
            except ValueError as error:
                raise ValueError(f"{training.recipe} cannot be run, so nothing was: {error}") from error
        return configs

    def arguments(self, training: Training) -> list[str]:
        """What is changed in the recipe, as `suprank train` takes it; later ones win."""
        given = [*self.dataset_overrides.get(training.preset, ()), *self.overrides, *training.overrides]
        entries = dict(_split(one) for one in given)
        if any(one.startswith("model.backbone=") for one in training.overrides):
            entries.pop("model.weights", None)  # those of another backbone
        return [f"{key}={value}" for key, value in entries.items()]

    def run_folder(self, training: Training, seed: int) -> Path:
        return self.folder / training.run(seed).name

    def check(self, trainings: Iterable[Training], exceptions: Sequence[str] = ()) -> list[str]:
        """Refuse trainings of one table that differ in more than their method; return sentences on how they may differ."""
        notes = []
        by_preset: dict[str, dict[str, Method]] = {}
        for training in trainings:
            label = training.run(0)[RECIPE]
            by_preset.setdefault(training.preset, {})[label] = Method.from_config(training.recipe, self.configs[training])
        for preset, methods in by_preset.items():
            try:
                check_budget(methods, exceptions)
            except ValueError as error:
                raise ValueError(f"{preset}: {error}") from error
            notes += [f"{preset}: {note}" for note in difference_notes(methods, exceptions)]
        return notes

    def open_folder(self, *, may_be_shared: bool = False) -> None:
        """Create the folder, and make it one of `suprank paper`, where tables and figures can be added.

        A folder of other things is refused, or left as it is if it may be shared: figures without runs can go anywhere.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"{self.folder} cannot be made ({error.strerror}); name another folder.") from error
        if not may_be_shared:
            refuse_foreign_files(self.folder, EXPERIMENT_FILE, "results of `suprank paper`", "name another folder")
        if foreign_file(self.folder, EXPERIMENT_FILE) is None and Experiment.load(self.folder) is None:
            Experiment(AXES, {}, (), (self.command,)).save(self.folder)

    def plan(self) -> Plan:
        """All runs, checked together with those of earlier calls: one table cannot hold runs of several settings."""
        methods = {one.run(0).method: Method.from_config(one.recipe, config) for one, config in self.configs.items()}
        combinations = [(one, seed, one.run(seed)) for one in self.trainings for seed in range(self.seeds)]
        record = Experiment(AXES, methods, tuple(run for *_, run in combinations), (self.command,))
        earlier = Experiment.load(self.folder)
        runs = [
            PlannedRun.read(run.name, one.recipe, [*self.arguments(one), f"{SEED}={seed}"], self.folder)
            for one, seed, run in combinations
        ]
        return Plan(earlier.merge(record) if earlier else record, self.folder, runs)

    def results(self) -> Results:
        """The outcomes of all runs."""
        return {
            training: [read_outcome(self.run_folder(training, seed)) for seed in range(self.seeds)]
            for training in self.trainings
        }

    def state(self, training: Training, seed: int) -> str:
        """`finished`, `interrupted` or `missing`."""
        folder = RunFolder(self.run_folder(training, seed))
        return "finished" if folder.result is not None else "interrupted" if folder.has_begun() else "missing"


def share_of(outcome: Outcome, metric: str) -> float | None:
    """A metric of a run as a share of 1; None if it was not measured.

    `mean:AP` is the mean of AP over the levels of every test set: over the three test sets of DyML-Vehicle, which have one
    level each, and over the three levels of DyML-Product.

    Example:
        >>> one = Outcome(1, 10, 2.0, {"test": {"AP": 0.25, "AP/fine": 0.25, "AP/coarse": 0.75, "AP/overall": 0.4}})
        >>> share_of(one, "AP"), share_of(one, "mean:AP")
        (0.25, 0.5)
    """
    if not metric.startswith("mean:"):
        return next(iter(outcome.metrics.values()), {}).get(metric)
    name = metric.removeprefix("mean:")
    shares: list[float | None] = []
    for values in outcome.metrics.values():
        levels = level_metrics(values, name)
        shares += [values[one] for one in levels] if levels else [values.get(name)]
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known and len(known) == len(shares) else None


def read_comparisons(folder: str | PathLike[str]) -> Results:
    """The results of the CSV files that `suprank compare` wrote, PRESET.csv each, in a folder."""
    results: dict[Training, list[Outcome]] = {}
    files = sorted(Path(folder).glob("*.csv"))
    if not files:
        raise FileNotFoundError(f"{folder} has no .csv files of `suprank compare`, named by their preset, such as cub112.csv.")
    for file in files:
        for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
            if row["finished"] != "yes":
                continue
            names = list(row)[list(row).index("seconds") + 1 :]
            metrics = {name: float(row[name]) if row[name] else None for name in names}
            outcome = Outcome(int(row["epoch"]), int(row["step"]), float(row["seconds"]), {"test": metrics})
            results.setdefault(Training(file.stem, Path(row["recipe"]).stem), []).append(outcome)
    return results


def level_metrics(values: Iterable[str], name: str) -> list[str]:
    """The metrics among these that are `name` at a level, finest first; not the means over levels."""
    return [metric for metric in values if metric.startswith(f"{name}/") and parse_metric(metric).level not in LEVEL_MEANS]


def _split(override: str) -> tuple[str, str]:
    key, equals, value = override.partition("=")
    if not (equals and key):
        raise ValueError(f"{override!r} must be KEY=VALUE, such as batch.chunk=64.")
    return key, value
