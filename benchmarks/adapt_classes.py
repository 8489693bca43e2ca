"""What `suprank adapt` gains on its training images, on new images of the same classes, and on unseen classes.

python benchmarks/adapt_classes.py EMBEDDINGS --level species
python benchmarks/adapt_classes.py EMBEDDINGS --level species --loss sup-ap --batch whole --seed 1

EMBEDDINGS is a folder of `suprank embed` with the parts train and test, which share no class. Half of the images of a training
class are for training and validation; the other half are the new images. Prints mAP@R before and after, and the best step.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from suprank.adaptation import AdaptConfig, EvaluationSet, adapt
from suprank.adaptation.class_splits import split_classes
from suprank.workflows.adaptation import AdaptInput

METRIC = "mAP@R"


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
    parser.add_argument("--level", action="append", default=[])
    parser.add_argument("--loss", default="roadmap")
    parser.add_argument("--batch", default="256", help="images, or whole")
    parser.add_argument("--lr", type=float, default=AdaptConfig().lr)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    batch = options.batch if options.batch == "whole" else int(options.batch)
    config = AdaptConfig(loss={"name": options.loss}, batch=batch, lr=options.lr, seed=options.seed)
    data = AdaptInput.read(options.embeddings, levels=options.level)
    half = random_half(data.labels[:, 0], options.seed)
    embeddings, labels = np.asarray(data.embeddings)[half], data.labels[half]
    result = adapt(embeddings, labels, config, test=data.test, level_names=data.levels, device=options.device)
    training = split_classes(labels, config, with_test=False).training
    new = ~half & np.isin(data.labels[:, 0], labels[training, 0])
    sets = {
        "training images": EvaluationSet(embeddings[training], labels[training]),
        "new images of the training classes": EvaluationSet(np.asarray(data.embeddings)[new], data.labels[new]),
    }
    for name, one in sets.items():
        before, after = (
            one.evaluate(head, metrics=[METRIC], device=options.device, progress=False)[METRIC] for head in (None, result.head)
        )
        print(f"{name}: {100 * before:.2f} → {100 * after:.2f}")
    print(f"unseen classes: {100 * result.before[METRIC]:.2f} → {100 * result.after[METRIC]:.2f}")
    print(f"best step on the validation classes: {result.best_seed.best.step} of {result.config.steps}")


if __name__ == "__main__":
    main()
