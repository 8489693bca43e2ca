"""The folder of a comparison, with a run folder for every recipe and seed:

comparison.json             the recipes, their settings and the runs, so that others can be added
roadmap,seed=0/             a run folder of `suprank train`; it is finished when result.json is there
logs/, slurm/               as in the folder of a sweep
comparison.csv .md .tex     a row for each run; a row for each recipe, mean ± standard deviation over seeds
comparison.png .svg         the figure
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suprank.experiments.comparison.names import labels, spelt
from suprank.experiments.comparison.settings import Method, changes, check_budget
from suprank.experiments.sweep import RECIPE, SEED, Combination, Grid, Task, task
from suprank.files.atomic import write_atomically
from suprank.training.recipe import read_recipe
from suprank.training.run_folder import json_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from suprank.training.config import TrainConfig

FILE = "comparison.json"


@dataclass(frozen=True)
class Comparison:
    """What comparison.json holds: methods by their labels, in the order of the rows, and the runs. `commands` are for the
    reader, who may want to give one again."""

    methods: dict[str, Method]
    runs: tuple[Combination, ...]
    commands: tuple[str, ...]

    @property
    def recipes(self) -> dict[str, str]:
        """The recipes by their labels."""
        return {label: method.recipe for label, method in self.methods.items()}

    def joined(self, other: Comparison) -> Comparison:
        """This comparison with the recipes and seeds of another one; a recipe of both must have the same settings in both."""
        for label, method in other.methods.items():
            changed = changes(self.methods[label].settings, method.settings) if label in self.methods else []
            if changed:
                raise ValueError(
                    f"the comparison there has {label} with other settings: {', '.join(changed[:5])}. One table cannot hold "
                    "both; give the settings as they were, or another --out."
                )
        methods = {**other.methods, **self.methods}
        order = dict.fromkeys((*self.methods, *other.methods))
        runs, commands = dict.fromkeys((*self.runs, *other.runs)), dict.fromkeys((*self.commands, *other.commands))
        found = Comparison({label: methods[label] for label in order}, tuple(runs), tuple(commands))
        check_budget(found.methods)
        return found

    def only(self, names: Sequence[str]) -> Comparison:
        """The part of it with these recipes, in their order, by label or by name; all of it where there are none."""
        if not names:
            return self
        by_recipe = {recipe: label for label, recipe in self.recipes.items()}
        recipes = spelt([self.recipes.get(name, name) for name in names])
        missing = [recipe for recipe in recipes if recipe not in by_recipe]
        if missing:
            raise ValueError(f"{', '.join(missing)} is not in the comparison; choose from {', '.join(self.methods)}.")
        chosen = [by_recipe[recipe] for recipe in recipes]
        runs = tuple(run for label in chosen for run in self.runs if run[RECIPE] == label)
        return Comparison({label: self.methods[label] for label in chosen}, runs, self.commands)

    @classmethod
    def load(cls, folder: Path) -> Comparison | None:
        """The comparison of a folder, or None where there is none."""
        file = folder / FILE
        try:
            there = json.loads(file.read_bytes())
            methods = {label: Method(one["recipe"], dict(one["settings"])) for label, one in there["methods"].items()}
            runs = tuple(Combination(((RECIPE, label), (SEED, seed))) for label, seed in there["runs"])
            return cls(methods, runs, tuple(there["commands"]))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{file} is damaged ({error!r}); remove it, or name another --out.") from error

    def save(self, folder: Path) -> None:
        written = {
            "commands": self.commands,
            "runs": [[run[RECIPE], run[SEED]] for run in self.runs],
            "methods": {label: method._asdict() for label, method in self.methods.items()},
        }
        write_atomically(folder / FILE, json_bytes(written, indent=1))


def asked(
    recipes: Sequence[str], grid: Grid, command: str, there: Comparison | None = None
) -> tuple[Comparison, list[TrainConfig]]:
    """A comparison of these recipes with the overrides and seeds of the grid, and the settings of each; they keep the labels
    that they have in the folder. All is read here, so that what cannot be run, or compared, is told before anything runs."""
    if not recipes:
        raise ValueError("there is no recipe to compare; name some, such as cub112/nsm cub112/roadmap.")
    seeds = _seeds(grid)
    methods: dict[str, Method] = {}
    configs = []
    for label, recipe in labels(spelt(recipes), there.recipes if there else None).items():
        try:
            read = [read_recipe(recipe, _overrides(grid, seed)) for seed in seeds]
        except ValueError as error:
            raise ValueError(f"{recipe} cannot be run, so nothing was: {error}") from error
        methods[label] = Method.of(recipe, read[0])
        configs.append(read[0])
    check_budget(methods)
    runs = tuple(Combination(((RECIPE, label), (SEED, seed))) for label in methods for seed in seeds)
    return Comparison(methods, runs, (command,)), configs


def tasks(comparison: Comparison, grid: Grid, folder: Path) -> list[Task]:
    """A task for every run, finished or not."""
    recipes = comparison.recipes
    return [task(run.name, recipes[run[RECIPE]], _overrides(grid, run[SEED]), folder) for run in comparison.runs]


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
