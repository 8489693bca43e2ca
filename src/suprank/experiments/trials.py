"""The trials of a search: which settings may be tuned in which ranges, what Optuna suggests next, and where trials are stored.

What is suggested depends on nothing but the space, the trials before, and the trial's number: a search that was interrupted
continues with the trials that it would have had.
"""

from __future__ import annotations

import inspect
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.experiments.grid import split_values
from suprank.experiments.methods import flatten
from suprank.training.search_space import Choices, FloatRange, SearchRange, SearchSpace, Value

if TYPE_CHECKING:
    from types import ModuleType

    from suprank.training.config import TrainConfig

JOURNAL = "optuna.journal"
WORST = 0.0
"""The value of a trial that failed: metrics are shares of 1."""

RATE_FACTOR = 10.0
"""Learning rates are searched from a tenth of the recipe's to ten times as much."""

IMAGES_PER_CLASS = (2, 4, 8)
DIGITS = 3  # of suggested numbers: more would change nothing, and be hard to read

Params = dict[str, Value]


class Trial(NamedTuple):
    """A setting that was tried: the metric on the validation classes of each fold (None for one that failed), what the
    training steps took, and why it failed."""

    number: int
    params: Params
    folds: tuple[float | None, ...]
    seconds: float
    failure: str = ""

    @property
    def value(self) -> float:
        """The mean over folds, as a share of 1; the worst value if a fold failed."""
        values = [one for one in self.folds if one is not None]
        return statistics.fmean(values) if len(values) == len(self.folds) else WORST


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the highest value, the first of equals; None if all failed."""
    return max((trial for trial in trials if not trial.failure), key=lambda trial: trial.value, default=None)


# The space


def default_space(config: TrainConfig) -> SearchSpace:
    """The space of a recipe: learning rates (that of the proxies if the loss has any), images per class, and what the spec of
    its loss declares. Ranges are widened to the recipe's own values."""
    space: SearchSpace = {}
    for key, rate in (("optimizer.lr", config.optimizer.lr), ("proxies.lr", config.proxies.lr)):
        if rate > 0 and (key == "optimizer.lr" or _has_proxies(config)):
            space[key] = FloatRange(rate / RATE_FACTOR, rate * RATE_FACTOR, log=True)
    space["batch.images_per_class"] = Choices(IMAGES_PER_CLASS)
    return {key: one.including(recipe_value(config, key)) for key, one in (space | config.loss.search_space()).items()}  # type: ignore[arg-type]


def _has_proxies(config: TrainConfig) -> bool:
    """Whether the loss has parameters; a loss of the user's own is built to see."""
    import torch

    if config.loss.has_proxies is None:
        return any(one.requires_grad for one in config.loss.build(torch.zeros(1, 1, dtype=torch.int64), 1).parameters())
    return config.loss.has_proxies


def recipe_value(config: TrainConfig, key: str) -> Value:
    """The value that the recipe has for a key; of an argument of the user's own loss that it leaves out, the default."""
    value: Any = None
    table, entry, *rest = key.split(".")
    if table == "loss" and entry == "arguments" and rest:
        value = config.loss.arguments.get(rest[0])  # type: ignore[attr-defined]
        if value is None:
            with suppress(ValueError, KeyError):  # a class in C has no signature
                value = inspect.signature(config.loss.load()).parameters[rest[0]].default  # type: ignore[attr-defined]
    else:
        value = flatten(config).get(key)
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"{key} has no value in the recipe to start from; give it one, or leave it out of the search: {key}=.")
    return value


def parse_space(arguments: Sequence[str]) -> dict[str, SearchRange | None]:
    """Ranges as they are given on the command line: KEY=LOW:HIGH, KEY=LOW:HIGH:log, KEY=VALUE,VALUE; None for KEY=, which
    leaves the key out.

    Example:
        >>> {key: str(one) for key, one in parse_space(["loss.tau=0.01:0.1:log", "loss.k=5,10", "proxies.lr="]).items()}
        {'loss.tau': '0.01:0.1:log', 'loss.k': '5,10', 'proxies.lr': 'None'}
    """
    space: dict[str, SearchRange | None] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or "." not in key or key in space:
            raise ValueError(
                f"--search {argument} must be KEY=LOW:HIGH, KEY=LOW:HIGH:log, KEY=VALUE,VALUE or KEY= (not searched), once for "
                f"a key, such as loss.tau=0.005:0.1:log."
            )
        try:
            space[key] = _parse_range(text)
        except ValueError as error:
            raise ValueError(f"--search {argument}: {error}") from error
    return space


def _parse_range(text: str) -> SearchRange | None:
    from suprank.training.recipe import parse_value

    if not text:
        return None
    if ":" in text:
        low, high, *scale = text.split(":")
        if scale not in ([], ["log"]):
            raise ValueError("a range is LOW:HIGH, or LOW:HIGH:log.")
        return FloatRange(float(low), float(high), bool(scale))
    return Choices(tuple(parse_value(one) for one in split_values(text)))


def space_to_json(space: SearchSpace) -> dict[str, Any]:
    return {key: one.__dict__ for key, one in space.items()}


def space_from_json(content: Mapping[str, Any]) -> SearchSpace:
    return {
        key: Choices(tuple(one["values"])) if "values" in one else FloatRange(one["low"], one["high"], one["log"])
        for key, one in content.items()
    }


# Suggestions


def startup_trials(trials: int) -> int:
    """How many of the trials are the recipe's own setting and random ones; TPE chooses the others."""
    return min(trials, 10, max(3, trials // 3))


def suggest(space: SearchSpace, before: Sequence[Trial], number: int, trials: int) -> Params:
    """The setting of a trial, from the trials with smaller numbers. The first ones (`startup_trials`) do not depend on those,
    so that they can be run at the same time; they draw the same random numbers for every recipe."""
    optuna = import_optuna()
    startup = startup_trials(trials)
    sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=startup)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    if number >= startup:
        study.add_trials([_frozen(space, trial) for trial in before[:number]])
    drawn = study.ask(_distributions(space)).params
    return {key: _round(value, space[key]) for key, value in drawn.items()}


def _round(value: Any, one: SearchRange) -> Value:
    if isinstance(one, Choices):
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), one.low), one.high)


def _distributions(space: SearchSpace) -> dict[str, Any]:
    distributions = import_optuna().distributions
    return {
        key: distributions.CategoricalDistribution(one.values)
        if isinstance(one, Choices)
        else distributions.FloatDistribution(one.low, one.high, log=one.log)
        for key, one in space.items()
    }


def _frozen(space: SearchSpace, trial: Trial) -> Any:
    attributes = {"folds": list(trial.folds), "seconds": trial.seconds, "failure": trial.failure}
    return import_optuna().trial.create_trial(
        params=trial.params, distributions=_distributions(space), value=trial.value, user_attrs=attributes
    )


class TrialStorage:
    """The finished trials of a comparison, one study for each recipe, in Optuna's journal in a folder.

    A trial is added when all its folds have ended, in one line, and in the order of the numbers.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / JOURNAL

    def load(self, label: str, space: SearchSpace) -> list[Trial]:
        """The trials of a recipe; there are none before the first one is added."""
        optuna = import_optuna()
        if not self.file.exists() or label not in optuna.get_all_study_names(storage := self._open()):
            return []
        trials = []
        for one in optuna.load_study(study_name=label, storage=storage).get_trials(deepcopy=False):
            if one.params.keys() != space.keys():
                raise ValueError(f"{self.file} has trials of {label} in another space; name another --out.")
            attributes = one.user_attrs
            folds = tuple(attributes["folds"])
            trials.append(Trial(one.number, dict(one.params), folds, attributes["seconds"], attributes["failure"]))
        return trials

    def add(self, label: str, space: SearchSpace, trial: Trial) -> None:
        study = import_optuna().create_study(study_name=label, storage=self._open(), direction="maximize", load_if_exists=True)
        study.add_trial(_frozen(space, trial))

    def _open(self) -> Any:
        storages = import_optuna().storages
        if self.file.exists() and not self.file.read_bytes().endswith(b"\n"):
            raise self._damaged("its last line is not complete")
        backend = storages.journal.JournalFileBackend(
            str(self.file), lock_obj=storages.journal.JournalFileOpenLock(str(self.file))
        )
        try:
            return storages.JournalStorage(backend)
        except (json.JSONDecodeError, KeyError) as error:
            raise self._damaged(repr(error)) from error

    def _damaged(self, reason: str) -> ValueError:
        return ValueError(
            f"{self.file} is damaged ({reason}); delete it: trials are then read from their runs again, and those that failed "
            "are repeated."
        )


def import_optuna() -> ModuleType:
    """Optuna, without its messages on studies and trials."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise ModuleNotFoundError(
            'tuning needs optuna, which is not installed; pip install "suprank[train]"', name="optuna"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
