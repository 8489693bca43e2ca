"""A map of the classes: the class means in two dimensions, by t-SNE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from suprank.explorer.images import unit_blocks, unit_embeddings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import Items, RetrievalData


PCA_BELOW = 5
"""Below this number of classes t-SNE is meaningless, and principal components are used."""

MAX_CLASSES = 20_000
"""Classes on the map unless told otherwise; t-SNE takes 20 s for so many on one core, and the neighbors four times as long for
twice as many."""

_ROWS = 1024  # class means that are compared with all others at once
_SHORT_FROM = 1000  # classes from which 250 iterations follow the first 250; the other 250 lower the divergence by 1.5 %
_FFT_FROM = 3000  # classes from which interpolation is quicker than Barnes and Hut's tree


@dataclass(frozen=True, eq=False)
class ClassMap:
    """Positions `[classes, 2]` of the finest classes; the mean of a class is that of its unit embeddings.

    `labels` and `coarse` are label numbers of the finest and the coarsest level (−1: none), `images` the number of images of
    each class, and `typical_rows` the gallery row of the image closest to the mean. `method` says how the classes were placed.
    There are `total_classes`; if that is too many, only those with the most images are placed. `image_rows` are gallery rows of
    single images on the map, as many from each class as possible, and `image_positions` their positions.

    `same_coarse` says how well the coarsest classes cluster, in the embedding space and not on the plane: the share of classes
    whose nearest class, by the cosine of the means, has the same coarsest label. `same_coarse_by_chance` is its expectation if
    the nearest were any other class. Both are over the classes with a coarsest label, and NaN with a single level.
    """

    positions: NDArray[np.float64]
    labels: NDArray[np.int64]
    coarse: NDArray[np.int64]
    images: NDArray[np.int64]
    typical_rows: NDArray[np.int64]
    method: Literal["t-SNE", "PCA"]
    total_classes: int
    same_coarse: float
    same_coarse_by_chance: float
    image_rows: NDArray[np.int64]
    image_positions: NDArray[np.float64]


def class_map(
    data: RetrievalData, *, max_classes: int = MAX_CLASSES, images: int = 0, perplexity: float = 30, seed: int = 0
) -> ClassMap | None:
    """The map of the gallery's `max_classes` largest classes, or of all with 0; None with fewer than two, or without labels.

    `images` single images of these classes, drawn at random, are placed among them: a class has a second image on the map only
    if every class has its first. An image does not move the classes.
    """
    if max_classes < 0:
        raise ValueError(f"max_classes={max_classes} must be a number of classes, or 0 for all.")
    if images < 0:
        raise ValueError(f"images={images} must be a number of images, or 0 for none.")
    if not data.levels:
        return None
    labels = data.items.labels
    counts = np.bincount(labels[labels[:, 0] >= 0, 0], minlength=len(data.names[data.levels[0]]))
    total = int((counts > 0).sum())
    if total < 2:
        return None
    chosen = np.sort(np.argsort(-counts, kind="stable")[: min(total, max_classes or total)])
    group_of_label = np.full(len(counts) + 1, -1, np.int64)  # the last entry is for label −1, none
    group_of_label[chosen] = np.arange(len(chosen))
    group = group_of_label[labels[:, 0]]
    means, typical = unit_means(data.items, group, len(chosen))
    first = np.unique(np.where(group < 0, len(chosen), group), return_index=True)[1][: len(chosen)]
    rows = _spread_over_groups(group, images, seed)
    method: Literal["t-SNE", "PCA"] = "PCA" if len(chosen) < PCA_BELOW else "t-SNE"
    vectors = unit_embeddings(data.items, rows).astype(np.float64)
    positions, placed = _principal_components(means, vectors) if method == "PCA" else _tsne(means, vectors, perplexity, seed)
    coarse = labels[first, -1]
    neighbors = same_label_neighbors(means, coarse) if len(data.levels) > 1 else (float("nan"), float("nan"))
    return ClassMap(positions, chosen, coarse, counts[chosen], typical, method, total, *neighbors, rows, placed)


def same_label_neighbors(means: NDArray[np.float64], labels: NDArray[np.int64]) -> tuple[float, float]:
    """Share of unit rows whose nearest other row has their label, and what chance would give; rows of label −1 are left out.

    Example:
        >>> rows = np.array([[1, 0], [0.8, 0.6], [0, 1], [-1, 0]])
        >>> same_label_neighbors(rows, np.array([0, 0, 1, 1]))  # the third is nearest to the second
        (0.75, 0.3333333333333333)
    """
    means, labels = means[labels >= 0], labels[labels >= 0]
    number = len(labels)
    if number < 2:
        return float("nan"), float("nan")
    hits = 0
    for first in range(0, number, _ROWS):
        scores = means[first : first + _ROWS] @ means.T
        own = np.arange(first, first + len(scores))
        scores[np.arange(len(scores)), own] = -np.inf
        hits += int((labels[scores.argmax(1)] == labels[own]).sum())
    sizes = np.bincount(labels)
    return hits / number, float((sizes * (sizes - 1)).sum()) / (number * (number - 1))


def unit_means(images: Items, group: NDArray[np.int64], number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The unit mean of each group and the row closest to it, in two passes over the embeddings."""
    sums = np.zeros((number, images.embeddings.dim))
    for first, unit in unit_blocks(images):
        own = group[first : first + len(unit)]
        np.add.at(sums, own[own >= 0], unit[own >= 0])
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    means = sums / np.where(lengths > 0, lengths, 1)
    best, nearest = np.full(number, -np.inf), np.full(number, -1, np.int64)
    for first, unit in unit_blocks(images):
        own = group[first : first + len(unit)]
        rows = np.flatnonzero(own >= 0)
        scores = (unit[rows] * means[own[rows]]).sum(1)
        # From the farthest to the closest, so that the closest is written last; for ties the first row.
        order = np.lexsort((-rows, scores))
        rows, scores = rows[order], scores[order]
        better = scores > best[own[rows]]
        nearest[own[rows[better]]] = first + rows[better]
        best[own[rows[better]]] = scores[better]
    return means, nearest


def _spread_over_groups(group: NDArray[np.int64], number: int, seed: int) -> NDArray[np.int64]:
    """At most `number` random rows, sorted: first one of each group, then a second, and so on; group −1 is left out."""
    shuffled = np.random.default_rng(seed).permutation(np.flatnonzero(group >= 0))
    by_group = shuffled[np.argsort(group[shuffled], kind="stable")]
    sizes = np.bincount(group[by_group], minlength=1)
    turn = np.empty(len(group), np.int64)
    turn[by_group] = np.arange(len(by_group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of the row in its group
    return np.sort(shuffled[np.argsort(turn[shuffled], kind="stable")][:number])


def _principal_components(
    means: NDArray[np.float64], others: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first two principal components of the means, and of other rows on the same axes; the second is 0 if there is one."""
    center = means.mean(0)
    _, values, axes = np.linalg.svd(means - center, full_matrices=False)
    two = np.zeros((2, means.shape[1]))
    count = min(2, int((values > 1e-9 * max(values[0], 1e-12)).sum()))
    two[:count] = axes[:count]
    # The sign of a component is arbitrary: put the farthest class on the positive side.
    found = (means - center) @ two.T
    signs = np.where(found[np.abs(found).argmax(0), [0, 1]] < 0, -1, 1)
    return found * signs, (others - center) @ two.T * signs


def _tsne(
    means: NDArray[np.float64], others: NDArray[np.float64], perplexity: float, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """t-SNE by openTSNE with cosine distances, exact neighbors and one thread, so that the map is reproducible.

    Other rows are placed afterwards, next to the means that are closest to them (`TSNEEmbedding.transform`).
    """
    from openTSNE import TSNE

    number = len(means)
    most = (number - 1) / 3  # t-SNE uses three times as many neighbors as the perplexity
    initial, _ = _principal_components(means, others)
    # Small, as t-SNE needs it, and with some noise, so that classes with equal means can separate.
    initial *= 1e-4 / max(initial[:, 0].std(), 1e-12)
    initial += np.random.default_rng(seed).normal(scale=1e-6, size=initial.shape)
    model = TSNE(
        perplexity=min(perplexity, most),
        metric="cosine",
        neighbors="exact",
        initialization=initial,
        n_iter=250 if number >= _SHORT_FROM else 500,
        negative_gradient_method="fft" if number >= _FFT_FROM else "bh",
        random_state=seed,
        n_jobs=1,
    )
    fitted = model.fit(means)
    # This also shifts the fitted positions, to a common center, so they are read afterwards.
    placed = np.asarray(fitted.transform(others, perplexity=min(5, most))) if len(others) else np.zeros((0, 2))
    return np.asarray(fitted, np.float64), placed.astype(np.float64)
