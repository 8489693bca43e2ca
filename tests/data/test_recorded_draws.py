"""Batches and held-out classes stay those of version 0.2.0: a resumed run sees the images it would have seen.

Where a digest changes, recorded runs do not resume to their batches and recorded splits are not drawn again, and the changelog
has to say so.
"""

import hashlib

import numpy as np
import pytest

from suprank.data import BalancedBatchSampler, HierarchicalBatchSampler, Manifest, class_folds, holdout_classes


def tree(sizes, *widths):
    """Labels of classes of these sizes, with so many of them under one parent, so many of these under the next, and so on."""
    levels = [np.repeat(np.arange(len(sizes)), sizes)]
    for width in widths:
        levels.append(levels[-1] // width)
    return np.stack(levels, axis=1)[np.arange(len(levels[0])) * 7919 % len(levels[0])]  # not sorted by class


LABELS = {
    "few classes": tree([40, 31, 50, 7, 22, 40], 2),
    "many classes": tree([1 + row * row % 23 for row in range(700)], 35),
    "a dominant class": tree([300, *range(1, 21)], 3),
    "classes of one image": tree([1] * 120, 10),
    "six classes of an image or two": tree([1, 1, 1, 1, 2, 1], 2),
    "seven levels": tree([1 + row % 3 for row in range(256)], 2, 2, 2, 2, 2, 2),
    "several labels": np.stack([np.arange(300) % 50, np.arange(300) // 6, np.arange(300) ** 2 % 50], axis=1)[:, None],
}


def digest(values):
    return hashlib.blake2b(np.asarray(values, np.int64).tobytes(), digest_size=8).hexdigest()


def digest_of_two_epochs(sampler):
    return digest([*sampler, *sampler])


@pytest.mark.parametrize(
    ("shape", "batch_size", "m", "settings", "recorded"),
    [
        ("few classes", 8, 4, {}, "626eefa8643582ba"),
        ("few classes", 12, 2, {"seed": 7, "batches": 11}, "c94295fdee0dba0d"),
        ("many classes", 128, 4, {}, "0a3f559dd6d7fad8"),
        ("many classes", 30, 3, {"seed": 2, "max_images_per_class": 6}, "2f70b01f4dac2891"),
        ("a dominant class", 12, 2, {"seed": 1}, "e82bfd5ca080ead3"),
        ("classes of one image", 24, 4, {}, "ebb74a71ef02728c"),
        ("seven levels", 32, 2, {"seed": 3}, "1262ef76a2c7ce82"),
        ("several labels", 32, 4, {}, "9e80e673b47f9e16"),
    ],
)
def test_balanced_batches_are_those_recorded(shape, batch_size, m, settings, recorded):
    assert digest_of_two_epochs(BalancedBatchSampler(LABELS[shape], batch_size, m, **settings)) == recorded


@pytest.mark.parametrize(
    ("shape", "batch_size", "m", "settings", "recorded"),
    [
        ("few classes", 32, 4, {}, "ab09378de0345985"),  # a class gives several groups
        (
            "few classes",
            120,
            5,
            {"coarse_per_batch": 3, "batches": 40},
            "91d8c5955c257e67",
        ),  # and all its images
        ("many classes", 128, 4, {"batches": 150}, "0660783418ba9aa2"),
        ("many classes", 30, 3, {"coarse_per_batch": 3, "batches": 200, "seed": 2}, "1ee369c648865013"),
        ("a dominant class", 12, 2, {"coarse_per_batch": 1, "seed": 1}, "78b2c72d967c44e4"),
        ("classes of one image", 24, 4, {}, "4bccd297f4cdb644"),
        ("six classes of an image or two", 20, 2, {}, "656211d4046961bb"),
        ("seven levels", 32, 2, {"level": 4, "batches_per_combination": 2}, "8bd75dbee0d93976"),
    ],
)
def test_hierarchical_batches_are_those_recorded(shape, batch_size, m, settings, recorded):
    assert digest_of_two_epochs(HierarchicalBatchSampler(LABELS[shape], batch_size, m, **settings)) == recorded


def manifest(shape):
    """Its labels as a manifest, in which every ninth image is a distractor, and the last one has no labels."""
    labels = LABELS[shape]
    columns = {f"label_{level}": [f"{level}.{label}" for label in labels[:, level]] for level in range(labels.shape[1])}
    for column in columns.values():
        column[-1] = None
    splits = ["train" if row % 9 else "distractor" for row in range(len(labels) - 1)] + ["distractor"]
    return Manifest.from_columns({"path": [f"{row}.jpg" for row in range(len(labels))], "split": splits, **columns}, root=".")


@pytest.mark.parametrize(
    ("shape", "fraction", "settings", "recorded"),
    [
        ("few classes", 0.5, {}, "1f9670b2e64f92b4"),
        ("many classes", 0.5, {}, "4cc5d20f428e41df"),
        ("many classes", 0.13, {"seed": 4}, "5abbe75d6e137e80"),
        ("many classes", 0.9, {"seed": 5, "shared": "0"}, "6a3d5ef1f0a4c57b"),
        ("a dominant class", 0.4, {"seed": 1}, "d38cc415aa29a4bf"),
        ("classes of one image", 0.25, {}, "911d581ab0339eed"),
        ("seven levels", 0.5, {"seed": 2}, "141a4139dff1bdd6"),
        ("seven levels", 0.3, {"shared": "2"}, "d592768e98f9e9c3"),
        ("seven levels", 0.6, {"level": "1", "shared": "4", "seed": 3}, "70a5c584f8a33c97"),
    ],
)
def test_classes_held_out_are_those_recorded(shape, fraction, settings, recorded):
    splits = holdout_classes(manifest(shape), fraction, **settings).table["split"].to_pylist()
    assert digest([("train", "test", "distractor").index(split) for split in splits]) == recorded


@pytest.mark.parametrize(
    ("shape", "folds", "settings", "recorded"),
    [
        ("few classes", 3, {}, "d1877c845f6d5910"),
        ("many classes", 5, {"seed": 1}, "898d7e9b9b477207"),
        ("seven levels", 4, {"level": "1"}, "0f8dc955bb8690b0"),
    ],
)
def test_folds_are_those_recorded(shape, folds, settings, recorded):
    assert digest(class_folds(manifest(shape), folds, **settings)) == recorded
