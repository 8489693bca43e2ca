"""A dataset of a few pictures, and training in this process: every table and figure on it takes seconds."""

import json

from suprank.training.loop import train
from suprank.training.recipe import read_recipe, to_toml
from tests.training.runs import pictures


def manifest(folder):
    """The file of a manifest with 12 classes in 3 coarse ones."""
    return pictures(folder, classes=12)


def overrides(file):
    """Entries that make any recipe of a small set a matter of a fraction of a second."""
    return [
        f"data.manifest={file}",
        "data.workers=0",
        "data.cache_images=true",
        "model.backbone=test_resnet",
        "images.size=32",
        "images.test_resize=32",
        "batch.size=16",
        "batch.images_per_class=2",
        "batch.batches=2",
        "run.epochs=1",
        "engine.accelerator=cpu",
        "logging.tensorboard=false",
    ]


def config_of(task):
    """The recipe of a task, as its command names it."""
    words = task.command[task.command.index("train") + 1 : task.command.index("--out")]
    return read_recipe(words[0], words[1:])


def run_here(waiting, jobs, lock, gpus, display, *, workers=None):
    """In place of `runner._run_here`: train in this process."""
    for task in waiting:
        train(config_of(task), task.folder, resume=True)
    return []


def pretend(waiting, jobs, lock, gpus, display, *, workers=None):
    """In place of `runner._run_here`: write results that depend on the name of the loss and the seed, without training."""
    for task in waiting:
        config = config_of(task)
        share = 0.1 + (sum(map(ord, config.loss.name)) % 50) / 100 + config.run.seed / 100
        values = dict.fromkeys([f"R@{k}" for k in (1, 2, 4, 8, 10, 16, 32, 100)], share)
        values |= dict.fromkeys(("AP", "mAP@R", "mAP@100", "H-AP", "wAP", "NDCG", "ASI"), share / 2)
        levels = ("fine", "category", "supercategory", "genus", "family", "order", "class", "phylum", "kingdom")
        for name in ("AP", "ASI", "R@1"):
            values |= {f"{name}/{level}": share / (place + 1) for place, level in enumerate(levels)}
        task.folder.mkdir(parents=True, exist_ok=True)
        (task.folder / "recipe.toml").write_text(to_toml(config), encoding="utf-8")
        result = {"epoch": 1, "step": 10, "seconds": 1.0, "metrics": {"test": values}, "best": None}
        (task.folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return []
