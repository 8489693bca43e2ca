"""What the tests of sweeps share: runs of the stand-in, settings, and outcomes that were never run."""

import sys
import time
from pathlib import Path

from suprank.experiments.sweep import Grid, Outcome, tasks
from suprank.training.config import TrainConfig

TRAINER = Path(__file__).with_name("trainer.py")


def trainer_command(recipe, overrides, folder):
    """In place of `train_command`."""
    return [sys.executable, "-S", str(TRAINER), recipe, *overrides, "--out", str(folder)]


def some_tasks(*arguments, seeds=None):
    return tasks("r.toml", Grid.read(arguments, seeds), Path.cwd())


def begun(task):
    """How often it was started."""
    return len((task.folder / "begun").read_text()) if (task.folder / "begun").exists() else 0


def process_of(task):
    """Of one that stays."""
    return int((task.folder / "staying").read_text())


def until(happened, seconds=30):
    """Waits for something that another process does."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def until_staying(*tasks):
    until(lambda: all((task.folder / "staying").exists() for task in tasks))


def config(**changes):
    """Settings as a recipe would give them, with further entries by their tables."""
    return TrainConfig.model_validate({"data": {"manifest": "glyphs"}, "loss": {"name": "roadmap"}, **changes})


def outcomes_of(share, *arguments, seeds=None):
    """Outcomes with R@1 from a function of the values; None is a run that is not finished."""
    found = {}
    for run in Grid.read(arguments, seeds).combinations():
        one = share(dict(run.values))
        found[run] = None if one is None else Outcome(1, 1, 1.0, {"test": {"R@1": one, "H-AP": 0.5 * one, "MRR": None}})
    return found
