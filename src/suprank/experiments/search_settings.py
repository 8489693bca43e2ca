"""How the recipes of a comparison are tuned: trials, folds, metric, and the ranges of every recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from suprank.experiments.grid import SEED, Setting
from suprank.experiments.methods import changed_settings, flatten
from suprank.experiments.trials import (
    default_space,
    parse_space,
    recipe_value,
)
from suprank.training.search_space import SearchSpace

if TYPE_CHECKING:
    from suprank.experiments.methods import Method
    from suprank.training.config import TrainConfig
BUDGET = ("run.epochs", "batch.size", "batch.batches", "batch.max_images_per_class", "batch.accumulate")
"""Keys that all methods and trials share, even if `may_differ` allows other differences: with them, trials cost the same."""

NOT_SEARCHED = ("data", "evaluation", "engine", "checkpoint", "logging")
"""Tables that say what is measured, and where, but not how a method trains."""


@dataclass(frozen=True)
class SearchSettings:
    """How a comparison is tuned: the number of trials of each recipe, the number of folds, the level whose classes stay
    together in a fold, the metric to maximize, the ranges that were given, and the space of each recipe by its label.

    `level`, unless it is given, and `metric`, which is `evaluation.best`, are empty until the images are known
    (`Search.prepare`).
    """

    trials: int
    folds: int = 4
    level: str = ""
    metric: str = ""
    search: tuple[str, ...] = ()
    spaces: dict[str, SearchSpace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.trials < 2:
            raise ValueError(f"tune={self.trials} must be 2 or more: the first trial is the recipe as it is.")
        if self.folds < 2:
            raise ValueError(f"folds={self.folds} must be 2 or more: a fold's classes are validated on the others' training.")

    def merge(self, other: SearchSettings) -> SearchSettings:
        """These settings with the recipes of another call, which must ask for the same search."""
        own, now = (
            {"tune": one.trials, "folds": one.folds, "search": " ".join(one.search), "fold_level": one.level}
            for one in (self, other if other.level else replace(other, level=self.level))
        )
        if changed := changed_settings(own, now):
            raise ValueError(
                f"the comparison in this folder was tuned otherwise: {', '.join(changed)}. Methods can only be compared with "
                "the same budget; give it as it was, or name another folder."
            )
        return replace(self, spaces={**other.spaces, **self.spaces})


def read_spaces(
    recipes: Mapping[str, str], configs: Mapping[str, TrainConfig], given: Sequence[str], fixed: Setting
) -> dict[str, SearchSpace]:
    """The space of each recipe by its label: the default one, with the ranges that were `given` in place of its own, and
    without the keys that are `fixed` for all recipes. An end of a range that cannot be run is refused."""
    from suprank.training.recipe import read_recipe, toml_value

    overrides = [f"{key}={value}" for key, value in fixed]
    replaced = parse_space(given)
    for key, one in replaced.items():
        if one is not None and (key in (*BUDGET, SEED) or key.split(".")[0] in NOT_SEARCHED):
            raise ValueError(
                f"search={key}: all trials have the same budget and the same evaluation, so it cannot be searched; give it "
                f"one value for all, {key}=..., or compare values of it without tune."
            )
    spaces: dict[str, SearchSpace] = {}
    for label, config in configs.items():
        space = default_space(config)
        for key, one in replaced.items():
            if one is None:
                space.pop(key, None)
            elif key in space or _has_key(config, key):
                space[key] = one.including(recipe_value(config, key))  # type: ignore[arg-type]
        space = {key: one for key, one in space.items() if key not in dict(fixed)}
        for key, one in space.items():
            for end in one.ends if key != "batch.images_per_class" else ():
                try:
                    read_recipe(recipes[label], [*overrides, f"{key}={toml_value(end)}"])
                except ValueError as error:
                    raise ValueError(f"{label} cannot be tuned in {key}={one}, so nothing was: {error}") from error
        if not space:
            raise ValueError(f"{label} has nothing to tune: all of its keys are given; leave optimizer.lr open, for example.")
        spaces[label] = space
    unknown = [key for key in replaced if not any(_has_key(config, key) for config in configs.values())]
    if unknown:
        raise ValueError(f"search={unknown[0]} is a key of none of the recipes; see `suprank recipes --losses`.")
    return spaces


def _has_key(config: TrainConfig, key: str) -> bool:
    return key in flatten(config) or (key.startswith("loss.arguments.") and hasattr(config.loss, "arguments"))


def check_equal_budget(methods: Mapping[str, Method]) -> None:
    """Refuse methods whose trials would not cost the same."""
    for key in BUDGET:
        values = {label: method.settings.get(key) for label, method in methods.items()}
        if len(set(map(str, values.values()))) > 1:
            listed = ", ".join(f"{value} in {label}" for label, value in values.items())
            raise ValueError(
                f"{key} is {listed}, but tune gives every method the same budget, whatever may_differ allows; give one "
                f"value for all, {key}=...."
            )
