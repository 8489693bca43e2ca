"""A dataset of a few pictures, and training in this process: every table and figure on it takes seconds."""

import json

from suprank.training.loop import train
from suprank.training.recipe import to_toml
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


def train_here(config, folder):
    """Train in this process."""
    train(config, folder, resume=True)


def pretend(config, folder):
    """Write results that depend on the name of the loss and the seed, without training."""
    share = 0.1 + (sum(map(ord, config.loss.name)) % 50) / 100 + config.run.seed / 100
    values = dict.fromkeys([f"R@{k}" for k in (1, 2, 4, 8, 10, 16, 32, 100)], share)
    values |= dict.fromkeys(("AP", "mAP@R", "mAP@100", "H-AP", "wAP", "NDCG", "ASI"), share / 2)
    levels = ("fine", "category", "supercategory", "genus", "family", "order", "class", "phylum", "kingdom")
    for name in ("AP", "ASI", "R@1"):
        values |= {f"{name}/{level}": share / (place + 1) for place, level in enumerate(levels)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(to_toml(config), encoding="utf-8")
    result = {"epoch": 1, "step": 10, "seconds": 1.0, "metrics": {"test": values}, "best": None}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
