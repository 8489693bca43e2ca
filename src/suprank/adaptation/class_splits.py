"""Class-disjoint splits of a collection: rows to train on, to choose the best step by, and to test with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.adaptation.config import AdaptConfig

LEAST = 2
"""Classes that training, validation and test need each, so that there are positives and negatives."""

MOST_VALIDATION_ROWS = 5_000
"""No further class is held out for validation beyond so many images: every validation ranks all of them."""

_IMAGES_PER_CLASS = 4


class ClassSplit(NamedTuple):
    """Rows of a collection; no class is in two of them. `left_out` counts rows without a label or alone in their class."""

    training: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    left_out: int


class BatchShape(NamedTuple):
    """Images in a batch, and how many of each of its classes."""

    size: int
    images_per_class: int


def split_classes(labels: NDArray[np.int64], config: AdaptConfig, *, with_test: bool) -> ClassSplit:
    """Divide the classes of the finest level at random, by `config.seed`; without `with_test` no class is for testing."""
    fine = labels[:, 0]
    classes, sizes = np.unique(fine[fine >= 0], return_counts=True)
    usable = classes[sizes > 1]
    if not len(classes):
        raise ValueError("no embedding has a label, so there is nothing to learn from; fill in the labels.")
    if not len(usable):
        raise ValueError(
            f"each of the {len(classes):,} classes has a single image, so that no image has a positive; adapt needs classes of "
            f"two images or more."
        )
    parts = 3 if with_test else 2
    if len(usable) < LEAST * parts:
        purposes = "training, validation and test" if with_test else "training and validation"
        raise ValueError(
            f"adapt needs {LEAST * parts} classes of two images or more ({LEAST} each for {purposes}, which share no class), "
            f"and was given {len(usable)}; label more classes."
        )
    drawn = np.random.default_rng(config.seed).permutation(usable)
    count = _count(config.test_classes, len(drawn), len(drawn) - 2 * LEAST) if with_test else 0
    test, drawn = drawn[:count], drawn[count:]
    validation = drawn[: _count(config.validation, len(drawn), len(drawn) - LEAST)]
    rows = np.cumsum(sizes[np.searchsorted(classes, validation)])
    validation = validation[: max(LEAST, int(np.searchsorted(rows, MOST_VALIDATION_ROWS, side="right")))]
    training = drawn[len(validation) :]
    rows_of = [np.flatnonzero(np.isin(fine, some)) for some in (training, validation, test)]
    return ClassSplit(rows_of[0], rows_of[1], rows_of[2], left_out=len(fine) - sum(map(len, rows_of)))


def _count(share: float, classes: int, most: int) -> int:
    return min(max(LEAST, round(share * classes)), most)


def batch_shape(fine: NDArray[np.int64], size: int, images_per_class: int | None) -> BatchShape:
    """The shape of a batch of at most `size` of these images.

    By default it has 4 images of a class, or as many as it takes to fill the batch, if there are too few classes.
    """
    classes = len(np.unique(fine))
    size = min(size, len(fine))
    if images_per_class is None:
        images_per_class = max(min(_IMAGES_PER_CLASS, size), -(-size // classes))
    elif images_per_class > size:
        raise ValueError(f"images_per_class={images_per_class} must be {size} at most, the size of a batch.")
    size = size // images_per_class * images_per_class
    if size > classes * images_per_class:
        raise ValueError(
            f"batch={size} has room for {size // images_per_class} classes of images_per_class={images_per_class}, but "
            f"{classes} are trained on; use a batch of {classes * images_per_class} at most, or leave images_per_class out."
        )
    return BatchShape(size, images_per_class)
