"""The trials of a search: which settings may be tuned in which ranges, and the studies of Optuna that choose and store them."""

from __future__ import annotations

import inspect
import json
import os
import statistics
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
                f"search={argument} must be KEY=LOW:HIGH, KEY=LOW:HIGH:log, KEY=VALUE,VALUE or KEY= (not searched), once for "
                f"a key, such as loss.tau=0.005:0.1:log."
            )
        try:
            space[key] = _parse_range(text)
        except ValueError as error:
            raise ValueError(f"search={argument}: {error}") from error
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


# Trials in Optuna's journal


def startup_trials(trials: int) -> int:
    """How many of the trials are the recipe's own setting and random ones; TPE chooses the others."""
    return min(trials, 10, max(3, trials // 3))


class Study:
    """The trials of one recipe: a study of Optuna, in a journal that those of all recipes share.

    The first trial is the recipe as it is, the next ones are random and do not wait for each other (`startup_trials`), and
    each of the others is chosen by TPE when all before it are told. What is drawn depends on the space, the trials before, the
    trial's number and the key, and on nothing else. So a trial that was asked for and not told, because the search was killed,
    is asked for again with its own number and parameters, even if only some of them had been stored.
    """

    def __init__(self, folder: Path, label: str, space: SearchSpace, own: Params, trials: int) -> None:
        self.space, self.trials, self._open = space, trials, dict[int, Any]()
        file = folder / JOURNAL
        _cut_incomplete_line(file)
        Path(f"{file}.lock").unlink(missing_ok=True)  # of a search that was killed: this one holds the folder's lock
        sampler = _sampler(startup_trials(trials))
        with _quiet() as optuna:
            self._study = optuna.create_study(
                study_name=label, storage=_storage(file), direction="maximize", load_if_exists=True, sampler=sampler
            )
            self._study.enqueue_trial(own, skip_if_exists=True)
        if any(trial.params.keys() - space.keys() for trial in self._study.trials):
            raise ValueError(f"{file} has trials of {label} in another space; name another folder.")

    def ask(self) -> Iterator[tuple[int, Params]]:
        """The numbers and parameters of the trials that can begin now, each once; the killed ones of an earlier call first."""
        from optuna.trial import Trial as OptunaTrial
        from optuna.trial import TrialState

        for frozen in self._study.get_trials(states=(TrialState.RUNNING,)):
            if frozen.number not in self._open:
                yield self._begin(OptunaTrial(self._study, frozen._trial_id))
        while True:
            states = [trial.state for trial in self._study.get_trials(deepcopy=False)]
            asked, told = len(states) - states.count(TrialState.WAITING), states.count(TrialState.COMPLETE)
            if asked >= self.trials or (asked >= startup_trials(self.trials) and told < asked):
                return
            yield self._begin(self._study.ask())

    def _begin(self, trial: Any) -> tuple[int, Params]:
        for key, one in self.space.items():
            if isinstance(one, Choices):
                trial.suggest_categorical(key, one.values)
            else:
                trial.suggest_float(key, one.low, one.high, log=one.log)
        self._open[trial.number] = trial
        return trial.number, dict(trial.params)

    def tell(self, trial: Trial) -> None:
        """Store a trial that has ended."""
        for key in ("folds", "seconds", "failure"):
            self._open[trial.number].set_user_attr(key, getattr(trial, key))
        self._study.tell(self._open.pop(trial.number), trial.value)

    def told(self) -> list[Trial]:
        return _told(self._study)


def stored_trials(folder: Path, label: str) -> list[Trial]:
    """The trials of a recipe that have ended, by their numbers; there are none before the first one has."""
    file = folder / JOURNAL
    if not file.exists():
        return []
    with _quiet() as optuna:
        storage = _storage(file)
        if label not in optuna.get_all_study_names(storage):
            return []
        return _told(optuna.load_study(study_name=label, storage=storage))


def _told(study: Any) -> list[Trial]:
    from optuna.trial import TrialState

    return [
        Trial(
            one.number, dict(one.params), tuple(one.user_attrs["folds"]), one.user_attrs["seconds"], one.user_attrs["failure"]
        )
        for one in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    ]


def _sampler(startup: int) -> Any:
    """TPE of each key on its own, with a seed for each number and key, so that nothing depends on what was drawn before.
    Numbers have few digits."""
    from optuna.samplers import TPESampler

    class Sampler(TPESampler):
        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            seed = zlib.crc32(f"{trial.number} {param_name}".encode())
            one = TPESampler(seed=seed, n_startup_trials=startup, multivariate=False, constant_liar=False)
            value = one.sample_independent(study, trial, param_name, param_distribution)
            if isinstance(value, float):
                value = min(max(float(f"{value:.{DIGITS}g}"), param_distribution.low), param_distribution.high)
            return value

    return Sampler(multivariate=False)


def _storage(file: Path) -> Any:
    from optuna.storages import JournalStorage, journal

    try:
        return JournalStorage(journal.JournalFileBackend(str(file), lock_obj=journal.JournalFileOpenLock(str(file))))
    except (json.JSONDecodeError, KeyError) as error:
        raise ValueError(
            f"{file} is damaged ({error!r}); delete it: trials are then read from their runs again, and those that failed are "
            "repeated."
        ) from error


def _cut_incomplete_line(file: Path) -> None:
    """Cut off what was being written when the disk was full or the machine went down: what follows it could not be read."""
    content = file.read_bytes() if file.exists() else b""
    if content and not content.endswith(b"\n"):
        os.truncate(file, content.rfind(b"\n") + 1)


@contextmanager
def _quiet() -> Iterator[ModuleType]:
    """Optuna, without its messages on new studies meanwhile."""
    optuna = import_optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def import_optuna() -> ModuleType:
    """Optuna, or an error that names the extra which brings it."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise ModuleNotFoundError(
            'tuning needs optuna, which is not installed; pip install "suprank[train]"', name="optuna"
        ) from error
    return optuna
