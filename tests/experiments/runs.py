"""What the tests of experiments share: runs of the stand-in, recipes in files, configs, and outcomes that were never run."""

import os
import sys
from pathlib import Path

from suprank.experiments import RECIPE, SEED, Combination, Grid, Outcome, Task
from suprank.experiments.comparisons import _read_comparison
from suprank.training.config import TrainConfig
from tests.waiting import wait_until

TRAINER = Path(__file__).with_name("trainer.py")


def trainer_command(recipe, overrides, folder):
    """In place of `train_command`."""
    return [sys.executable, "-S", str(TRAINER), recipe, *overrides, "--out", str(folder)]


def some_tasks(*arguments, seeds=None):
    grid = Grid.from_values(arguments, seeds)
    return [Task.create(run.name, "r.toml", grid.overrides(run), Path.cwd()) for run in grid.combinations()]


def begun(task):
    """How often it was started."""
    return len((task.folder / "begun").read_text()) if (task.folder / "begun").exists() else 0


def process_of(task):
    """Of one that stays."""
    return int((task.folder / "staying").read_text())


def exit_code(process):
    wait_until(lambda: process.poll() is not None)
    return process.poll()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until_staying(*tasks):
    wait_until(lambda: all((task.folder / "staying").exists() for task in tasks))


def config(**changes):
    """Settings as a recipe would give them, with further entries by their tables."""
    return TrainConfig.model_validate({"data": {"manifest": "glyphs"}, "loss": {"name": "roadmap"}, **changes})


def outcomes_of(share, *arguments, seeds=None):
    """Outcomes with R@1 from a function of the values; None is a run that is not finished."""
    found = {}
    for run in Grid.from_values(arguments, seeds).combinations():
        one = share(dict(run.values))
        found[run] = None if one is None else Outcome(1, 1, 1.0, {"test": {"R@1": one, "H-AP": 0.5 * one, "MRR": None}})
    return found


# Comparisons


def write_recipe(name, weight=0.1, **tables):
    """NAME.toml with this λ, which the stand-in for training makes a result of; entries of further tables by their names."""
    lines = ['[data]\nmanifest = "glyphs"', f'[loss]\nname = "roadmap"\nweight = {weight}']
    for table, entries in tables.items():
        lines += [f"[{table}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    Path(f"{name}.toml").parent.mkdir(exist_ok=True, parents=True)
    Path(f"{name}.toml").write_text("\n".join(lines) + "\n")


def comparison_of(*recipes, overrides=(), seeds=None, command="suprank compare", earlier=None, may_differ=()):
    return _read_comparison(recipes, Grid.from_values(overrides, seeds), command, earlier, may_differ)[0]


def comparison_outcomes(shares):
    """Outcomes from R@1 by label, a share for each seed; None is a run that is not finished."""
    found = {}
    for label, values in shares.items():
        for seed, one in enumerate(values):
            metrics = {"test": {"H-AP": None if one is None else one / 2, "R@1": one, "MRR": 0.5, "mAP@R": 0.25}}
            run = Combination(((RECIPE, label), (SEED, str(seed))))
            found[run] = None if one is None else Outcome(1, 1, 10.0 + seed, metrics)
    return found
