"""Validation classes of a search: folds of the training classes, and whether a batch can be filled without one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from suprank.training.search_space import Choices, SearchSpace

if TYPE_CHECKING:
    from suprank.data import Manifest
    from suprank.training.config import TrainConfig


def open_training_manifest(config: TrainConfig) -> Manifest:
    from suprank.training.manifests import open_manifest

    return open_manifest(config.data.manifest, config.data.root)


def fold_level(manifest: Manifest, levels: Sequence[str] | None, folds: int) -> str:
    """The level whose classes stay together: the coarsest at which training and test images have no class in common.

    So validation classes are to the training classes as the test classes are: other species of the same families on CUB, other
    alphabets on Omniglot. It is the finest level if training and test images share classes, or there are no test images. Only
    names of classes are compared.
    """
    known = [level for level in manifest.levels if levels is None or level in levels]
    splits = set(manifest.splits)
    others = [split for split in ("test", "query") if split in splits]
    if "train" not in splits or not known:
        raise ValueError("there are no labeled training images to take validation classes from; mark some rows as train.")
    chosen = known[0]
    for level in known if others else ():
        train = set(manifest.split("train").labels_at([level])[:, 0].ravel().tolist()) - {-1}
        test = set(manifest.split(*others).labels_at([level])[:, 0].ravel().tolist())
        if train & test or len(train) < 2 * folds:
            break
        chosen = level
    return chosen


def fold_manifests(manifest: Manifest, folds: int, level: str) -> list[Manifest]:
    """The training images, once for each fold, with the classes of the fold as test images. There are no other images."""
    from suprank.data import class_folds

    images = manifest.split("train")
    try:
        fold_of = class_folds(images, folds, level=level)
    except ValueError as error:
        raise ValueError(f"the training classes cannot be divided into validation folds: {error}") from error
    finest = images.labels_at(images.levels[:1])[:, 0]
    fewest = min(len(set(finest[fold_of == fold].tolist())) for fold in range(folds))
    if fewest < 2:
        raise ValueError(
            f"folds={folds} leaves a fold with one class, whose images are all right answers; use fewer, so that each fold "
            f"has two classes or more."
        )
    return [
        images.with_columns(split=["test" if own == fold else "train" for own in fold_of.tolist()]) for fold in range(folds)
    ]


def check_fold_batches(config: TrainConfig, images: Sequence[Manifest], about: str) -> None:
    from suprank.training.batches import check_batches

    for one in images:
        try:
            check_batches(config, one, config.engine.devices * config.engine.nodes)
        except ValueError as error:
            raise ValueError(f"{about} cannot fill a batch: {error} More folds leave more classes to train on.") from error


def fitting_space(space: SearchSpace, config: TrainConfig, images: Sequence[Manifest]) -> SearchSpace:
    """The space without numbers of images per class that do not fit into the batch, or leave too few classes for it."""
    from suprank.training.config import TrainConfig

    key = "batch.images_per_class"
    if not isinstance(space.get(key), Choices):
        return space
    fitting = []
    for value in space[key].ends:
        try:
            batch = {**config.batch.model_dump(), "images_per_class": value}
            check_fold_batches(TrainConfig.model_validate({**config.model_dump(), "batch": batch}), images, "")
        except ValueError:
            continue
        fitting.append(value)
    rest = {other: one for other, one in space.items() if other != key}
    return rest if len(fitting) < 2 else {**rest, key: Choices(tuple(fitting))}


def validation_metric(config: TrainConfig, fold: Manifest) -> str:
    """The metric to maximize: `evaluation.best`, or its default for these levels."""
    from suprank.training.validation import Validator

    data = config.data.model_copy(update={"cache_images": False, "tests": {}})
    return Validator.from_config(config.model_copy(update={"data": data}), fold).best_metric[1]
