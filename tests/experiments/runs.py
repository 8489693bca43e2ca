"""What the tests of experiments share: a training that takes no time, recipes in files, and outcomes that were never run."""

import json
from pathlib import Path

from suprank.executors.local import Answer, Crashed
from suprank.experiments.grid import RECIPE, SEED, Combination, Grid
from suprank.experiments.results import Outcome
from suprank.training import NonFiniteLossError
from suprank.training.config import TrainConfig
from suprank.training.recipe import to_toml


def training_by(function):
    """In place of `Executor.train`: the function is called for each run, in turn, with its config and its folder."""

    def train(executor, tasks, configs, folder, display):
        while tasks:
            task = tasks.popleft()
            display.run_started(task.name)
            try:
                yield task, Answer(function(TrainConfig.model_validate_json(task.arguments[0]), Path(task.arguments[1])))
            except Exception as error:
                yield task, Answer(error=error)

    return train


def pretend(config, folder):
    """In place of training: R@1 is λ + seed/100.

    It notes in `begun` how often it was called. λ = 0.6 fails until a file `repaired` is in the working folder. Above the
    number in the file `too-high` the loss is NaN, above that in `too-large` memory runs out, above that in `killed` the process
    is killed; and with a file `refuse` an image is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "begun").open("a") as file:
        file.write("x")
    weight = getattr(config.loss, "weight", 0.0)
    crash, nan = Crashed(-9), NonFiniteLossError("the loss is nan")
    for name, error in {"too-high": nan, "too-large": MemoryError("9 GiB"), "killed": crash}.items():
        if Path(name).exists() and weight > float(Path(name).read_text()):
            raise error
    if Path("refuse").exists():
        raise FileNotFoundError("there is no file images/7.jpg")
    if weight == 0.6 and not Path("repaired").exists():
        raise OSError("the disk is full")
    share = weight + config.run.seed / 100
    (folder / "recipe.toml").write_text(to_toml(config))
    metrics = {"test": {"R@1": share, "H-AP": share / 2, "AP/group": share / 4, "AP": None}}
    result = {"epoch": 3, "step": 30, "seconds": 1.5, "metrics": metrics, "best": None}
    (folder / "result.json").write_text(json.dumps(result))
    return metrics


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


def write_recipe(name, weight=0.1, **tables):
    """NAME.toml with this λ, which `pretend` makes a result of; entries of further tables by their names."""
    lines = ['[data]\nmanifest = "glyphs"', f'[loss]\nname = "roadmap"\nweight = {weight}']
    for table, entries in tables.items():
        lines += [f"[{table}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    Path(f"{name}.toml").parent.mkdir(exist_ok=True, parents=True)
    Path(f"{name}.toml").write_text("\n".join(lines) + "\n")


def comparison_outcomes(shares):
    """Outcomes from R@1 by label, a share for each seed; None is a run that is not finished."""
    found = {}
    for label, values in shares.items():
        for seed, one in enumerate(values):
            metrics = {"test": {"H-AP": None if one is None else one / 2, "R@1": one, "MRR": 0.5, "mAP@R": 0.25}}
            run = Combination(((RECIPE, label), (SEED, str(seed))))
            found[run] = None if one is None else Outcome(1, 1, 10.0 + seed, metrics)
    return found
