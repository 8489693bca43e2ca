"""The trials of a search as a table for people and as CSV."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.experiments.grid import FOLD, RECIPE, TRIAL, Combination
from suprank.experiments.trials import Trial, best_trial, stored_trials
from suprank.files.markup import markdown_table
from suprank.files.spreadsheets import csv_text

if TYPE_CHECKING:
    from suprank.experiments.methods import Method
    from suprank.experiments.search_settings import SearchSettings

SEARCH_FOLDER = "search"


@dataclass(frozen=True)
class SearchResult:
    """The trials of each recipe by its label, and what they are out of."""

    settings: SearchSettings
    trials: dict[str, list[Trial]]
    epochs: int
    device: str = ""

    @classmethod
    def load(cls, folder: Path, settings: SearchSettings, methods: Mapping[str, Method]) -> SearchResult:
        """The trials that are stored in the folder of a comparison."""
        trials = {label: stored_trials(folder / SEARCH_FOLDER, label) for label in methods}
        epochs = next(iter(methods.values())).settings["run.epochs"]
        return cls(settings, trials, int(epochs), _device(folder, trials))

    def best(self, label: str) -> Trial | None:
        """The best trial of a recipe; None while some are missing, or if all failed."""
        return best_trial(self.trials[label]) if len(self.trials[label]) == self.settings.trials else None

    def markdown(self) -> str:
        """For each recipe the chosen values, the validation metric before and after, and what the search cost."""
        metric = self.settings.metric
        head = ["recipe", "chosen values", f"{metric}, %, untuned", "tuned", "trials", "failed", "epochs", "s"]
        lines = [head]
        for label, trials in self.trials.items():
            best = self.best(label)
            chosen = "–" if best is None else ", ".join(f"{key}={value}" for key, value in best.params.items())
            chosen += " (the recipe's own)" if best is not None and best.number == 0 else ""
            first = "–" if not trials or trials[0].failure else f"{100 * trials[0].value:.2f}"
            failed = sum(bool(trial.failure) for trial in trials)
            cost = [len(trials), failed, len(trials) * self.settings.folds * self.epochs]
            seconds = f"{sum(trial.seconds for trial in trials):.0f}"
            lines.append([label, chosen, first, "–" if best is None else f"{100 * best.value:.2f}", *map(str, cost), seconds])
        folds = self.settings.folds
        text = (
            f"The search: {self.settings.trials} trials for every recipe, each of {folds} runs of {self.epochs} "
            f"epoch{'s' * (self.epochs > 1)}, on {folds} folds of the training classes (each class of the level "
            f"{self.settings.level} is in one fold); {metric} is the mean over the "
            f"validation classes of the folds. s: seconds of the training steps of all trials"
            f"{f', on {self.device}' if self.device else ''}; those of runs that failed are not counted."
        )
        return f"{markdown_table(lines, 2)}\n{text}\n"

    def summary(self) -> list[str]:
        """A sentence for each recipe whose search is complete: the chosen values, and the metric before and after."""
        lines = []
        for label, trials in self.trials.items():
            best = self.best(label)
            if best is None:
                continue
            before = "failed" if trials[0].failure else f"{100 * trials[0].value:.2f}"
            change = f"{self.settings.metric} on validation classes {before} → {100 * best.value:.2f} %"
            values = ", ".join(f"{key}={value}" for key, value in best.params.items())
            lines.append(
                f"{label}: the recipe's own values were the best" if best.number == 0 else f"{label}: {values}; {change}"
            )
        return lines

    def csv(self) -> str:
        """A row for each trial: its values, the metric of each fold and their mean, as shares of 1, and the cost."""
        keys = list(dict.fromkeys(key for space in self.settings.spaces.values() for key in space))
        folds = [f"fold {number}" for number in range(self.settings.folds)]
        header = ["recipe", "trial", *keys, *folds, self.settings.metric, "best", "seconds", "failure"]
        rows: list[list[object]] = []
        for label, trials in self.trials.items():
            best = self.best(label)
            for trial in trials:
                values = [trial.params.get(key) for key in keys]
                chosen = "yes" if best is not None and trial.number == best.number else "no"
                rows.append([label, trial.number, *values, *trial.folds, trial.value, chosen, trial.seconds, trial.failure])
        return csv_text(header, rows)


def _device(folder: Path, trials: Mapping[str, Sequence[Trial]]) -> str:
    """The device of the trials, as their first run noted it."""
    for label in (label for label, own in trials.items() if own):
        run = Combination(((RECIPE, label), (TRIAL, "0"), (FOLD, "0")))
        try:
            session = json.loads((folder / run.name / "environment.json").read_bytes())["sessions"][-1]
        except (OSError, ValueError, KeyError, IndexError):
            continue
        return session["gpus"][0] if session["gpus"] else "CPU"
    return ""
