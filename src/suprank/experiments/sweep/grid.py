"""Grids of runs: the product of the values of some entries of a recipe."""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suprank.experiments.sweep.values import meaning, split_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.training.config import TrainConfig

SEED, RECIPE = "run.seed", "recipe"
LONGEST_NAME = 120  # of a folder; file systems allow 255 bytes

Setting = tuple[tuple[str, str], ...]
"""Entries of a recipe and their values, as they were written."""


@dataclass(frozen=True)
class Combination:
    """One run of a grid: a value for every axis. The seed is one of them; in a comparison, the recipe is the other."""

    values: Setting

    def __getitem__(self, key: str) -> str:
        return dict(self.values)[key]

    def without(self, key: str) -> Setting:
        """The values of the other axes."""
        return tuple((axis, value) for axis, value in self.values if axis != key)

    @property
    def setting(self) -> Setting:
        """The values without the seed: runs that share it differ by chance alone."""
        return self.without(SEED)

    @property
    def name(self) -> str:
        """The name of its folder, such as `loss.weight=0.1,seed=0` or, in a comparison, `roadmap,seed=0`; with a hash where
        that would be too long or no name."""
        short = {SEED: "seed=", RECIPE: ""}
        plain = ",".join(f"{short.get(key, f'{key}=')}{value}" for key, value in self.values)
        safe = re.sub(r"[^\w.=,+-]", "_", plain, flags=re.ASCII)
        if safe == plain and len(plain) <= LONGEST_NAME:
            return plain
        return f"{safe[: LONGEST_NAME - 9]}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Grid:
    """`key=value` for all runs, and axes of several values; their product is the runs."""

    fixed: Setting
    axes: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def read(cls, arguments: Sequence[str], seeds: int | None = None) -> Grid:
        """Of `key=value` and `key=value,value,...`. The seed is always an axis: 0 to seeds − 1, or as run.seed=... says."""
        found: dict[str, list[str]] = {}
        for argument in arguments:
            key, equals, text = argument.partition("=")
            if not (equals and key.strip()):
                raise ValueError(f"{argument!r} must be key=value or key=value,value, such as loss.weight=0,0.1.")
            if key in found:
                raise ValueError(f"{key} is given twice; put its values together, as in {key}={','.join(found[key])},{text}.")
            found[key] = values = split_values(text)
            meanings = [meaning(value) for value in values]
            twice = next((value for value in values if meanings.count(meaning(value)) > 1), None)
            if twice is not None:
                raise ValueError(f"{argument!r} has {twice} twice; leave one out.")
        if SEED in found and seeds is not None:
            raise ValueError(f"{SEED}={','.join(found[SEED])} and --seeds {seeds} both give the seeds; leave one out.")
        if seeds is not None and seeds < 1:
            raise ValueError(f"--seeds {seeds} must be at least 1.")
        chosen = found.pop(SEED, None) or [str(seed) for seed in range(seeds or 1)]
        fixed = tuple((key, values[0]) for key, values in found.items() if len(values) == 1)
        axes = tuple((key, tuple(values)) for key, values in found.items() if len(values) > 1)
        return cls(fixed, (*axes, (SEED, tuple(chosen))))

    def combinations(self) -> list[Combination]:
        """All of them, the seed changing fastest, then the axis given last."""
        keys = [key for key, _ in self.axes]
        product = itertools.product(*(values for _, values in self.axes))
        return [Combination(tuple(zip(keys, values, strict=True))) for values in product]

    def overrides(self, run: Combination) -> list[str]:
        """What is changed in the recipe for a run, as `suprank train` takes it."""
        return [f"{key}={value}" for key, value in (*self.fixed, *run.values)]


def checked(recipe: str, grid: Grid) -> list[TrainConfig]:
    """The settings of every combination, so that a bad one is told before anything runs."""
    from suprank.training.recipe import read_recipe  # seconds, because of torch; the process of a SLURM task needs none of it

    configs = []
    for run in grid.combinations():
        try:
            configs.append(read_recipe(recipe, grid.overrides(run)))
        except ValueError as error:
            raise ValueError(f"{run.name} cannot be run, so nothing was: {error}") from error
    return configs
