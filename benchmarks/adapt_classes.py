"""What `suprank adapt` gains on unseen classes; and on its training images and new images of their classes: docs/adapting.md.

    python benchmarks/adapt_classes.py EMBEDDINGS --level species --loss sup-ap --seed 1 --out FILE.jsonl
    python benchmarks/adapt_classes.py EMBEDDINGS --level species --half --batch whole lr=1e-3 --out FILE.jsonl

EMBEDDINGS is a folder of `suprank embed` with the parts train and test, which share no class. With `--half`, half of the images
of a training class are for training and validation; the other half are the new images. KEY=VALUE are settings of `AdaptConfig`.
Prints metrics before and after and the best step; a line of FILE has them too, in percent, with every validation.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from suprank.adaptation import AdaptConfig, adapt
from suprank.adaptation.class_splits import split_classes
from suprank.evaluation import RetrievalData, evaluate
from suprank.workflows.adaptation import open_training

METRIC = "mAP@R"
TEST_METRICS = ("R@1", METRIC, "AP")


def random_half(fine: np.ndarray, seed: int) -> np.ndarray:
    """A mask of half of the images of each class, drawn at random."""
    order = np.random.default_rng(100 + seed).permutation(len(fine))
    order = order[np.argsort(fine[order], kind="stable")]
    half = np.zeros(len(fine), bool)
    half[order[::2]] = True
    return half


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("embeddings", type=Path)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="such as lr=1e-3 or hidden=512")
    parser.add_argument("--level", action="append", default=[])
    parser.add_argument("--loss", default="roadmap")
    parser.add_argument("--batch", default="256", help="images, or whole")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", action="store_true", help="train on half of the images of each class")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="a line is appended to this file")
    options = parser.parse_intermixed_args()
    settings = dict(one.split("=", 1) for one in options.settings)
    batch = options.batch if options.batch == "whole" else int(options.batch)
    values = {key: json.loads(text) if text[0].isdigit() else text for key, text in settings.items()}
    config = AdaptConfig.model_validate({"loss": {"name": options.loss}, "batch": batch, "seed": options.seed, **values})
    data, test = open_training(options.embeddings, levels=options.level)
    every, known = data.queries.embeddings[:], data.queries.labels
    half = random_half(known[:, 0], options.seed) if options.half else np.ones(len(known), bool)
    embeddings, labels = every[half], known[half]
    result = adapt(embeddings, labels, config, test=test, levels=data.levels, device=options.device)
    seed = result.best_seed
    row: dict[str, Any] = {
        "embeddings": options.embeddings.name,
        **{"loss": options.loss, "batch": batch, "seed": options.seed, "half": options.half, **settings},
        **{"images": result.rows["training"], "classes": result.classes["training"]},
        "unseen classes": {
            metric: {"before": 100 * result.before[metric], "after": 100 * result.after[metric]} for metric in TEST_METRICS
        },
        "validation": {"before": 100 * result.raw, "after": 100 * seed.best.value, "step": seed.best.step},
        "history": [{"step": one.step, "loss": one.loss, METRIC: 100 * one.value} for one in seed.history],
    }
    if options.half:
        training = split_classes(labels, config, with_test=False).training
        new = ~half & np.isin(known[:, 0], labels[training, 0])
        sets = {
            "training images": RetrievalData.from_arrays(embeddings[training], labels[training]),
            "new images of the training classes": RetrievalData.from_arrays(every[new], known[new]),
        }
        for name, one in sets.items():
            values = [
                100 * evaluate(own, metrics=[METRIC], device=options.device, progress=False)[METRIC]
                for own in (one, one.with_head(result.head))
            ]
            row[name] = {METRIC: dict(zip(("before", "after"), values, strict=True))}
    for name in ("training images", "new images of the training classes", "unseen classes"):
        for metric, values in row.get(name, {}).items():
            print(f"{name}: {metric} {values['before']:.2f} → {values['after']:.2f}")
    print(f"best step on the validation classes: {seed.best.step} of {result.config.steps}")
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
