"""A map of the classes: the class means in two dimensions, by t-SNE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.explorer.images import Images
    from suprank.explorer.source import Source


PCA_BELOW = 5
"""Below this number of classes t-SNE is meaningless, and principal components are used."""

MAX_CLASSES = 2000
"""Classes on the map at most: more take minutes and make a map that nobody can read."""


@dataclass(frozen=True, eq=False)
class ClassMap:
    """Positions `[classes, 2]` of the finest classes; the mean of a class is that of its unit embeddings.

    `labels` and `coarse` are label numbers of the finest and the coarsest level (−1: none), `images` the number of images of
    each class, and `typical_rows` the gallery row of the image closest to the mean. `method` says how the classes were placed.
    There are `total_classes`; if that is too many, only those with the most images are placed.
    """

    positions: NDArray[np.float64]
    labels: NDArray[np.int64]
    coarse: NDArray[np.int64]
    images: NDArray[np.int64]
    typical_rows: NDArray[np.int64]
    method: Literal["t-SNE", "PCA"]
    total_classes: int


def class_map(source: Source, *, max_classes: int = MAX_CLASSES, perplexity: float = 30, seed: int = 0) -> ClassMap | None:
    """The map of the gallery's classes; None with fewer than two classes, or without labels."""
    if not source.levels:
        return None
    labels = source.gallery.labels
    counts = np.bincount(labels[labels[:, 0] >= 0, 0], minlength=len(source.names[source.levels[0]]))
    total = int((counts > 0).sum())
    if total < 2:
        return None
    chosen = np.sort(np.argsort(-counts, kind="stable")[: min(total, max_classes)])
    group_of_label = np.full(len(counts) + 1, -1, np.int64)  # the last entry is for label −1, none
    group_of_label[chosen] = np.arange(len(chosen))
    group = group_of_label[labels[:, 0]]
    means, typical = _means(source.gallery, group, len(chosen))
    first = np.unique(np.where(group < 0, len(chosen), group), return_index=True)[1][: len(chosen)]
    method: Literal["t-SNE", "PCA"] = "PCA" if len(chosen) < PCA_BELOW else "t-SNE"
    positions = _principal_components(means) if method == "PCA" else _tsne(means, perplexity, seed)
    return ClassMap(positions, chosen, labels[first, -1], counts[chosen], typical, method, total)


def _means(images: Images, group: NDArray[np.int64], number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The unit mean of each group and the row closest to it, in two passes over the embeddings."""
    sums = np.zeros((number, images.dim))
    for first, unit in images.blocks():
        own = group[first : first + len(unit)]
        np.add.at(sums, own[own >= 0], unit[own >= 0])
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    means = sums / np.where(lengths > 0, lengths, 1)
    best, nearest = np.full(number, -np.inf), np.full(number, -1, np.int64)
    for first, unit in images.blocks():
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


def _principal_components(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first two principal components of the means; the second is zero if there is only one."""
    centered = means - means.mean(0)
    left, values, _ = np.linalg.svd(centered, full_matrices=False)
    found = np.zeros((len(means), 2))
    count = min(2, len(values))
    found[:, :count] = left[:, :count] * values[:count]
    # The sign of a component is arbitrary: put the farthest class on the positive side.
    for column in found.T:
        if column[np.abs(column).argmax()] < 0:
            column *= -1
    return found


def _tsne(means: NDArray[np.float64], perplexity: float, seed: int) -> NDArray[np.float64]:
    """t-SNE by openTSNE with cosine distances, exact neighbors and one thread, so that the map is reproducible."""
    from openTSNE import TSNE

    bounded = min(perplexity, (len(means) - 1) / 3)  # t-SNE uses three times as many neighbors
    initial = _principal_components(means)
    # Small, as t-SNE needs it, and with some noise, so that classes with equal means can separate.
    initial *= 1e-4 / max(initial[:, 0].std(), 1e-12)
    initial += np.random.default_rng(seed).normal(scale=1e-6, size=initial.shape)
    model = TSNE(perplexity=bounded, metric="cosine", neighbors="exact", initialization=initial, random_state=seed, n_jobs=1)
    return np.asarray(model.fit(means), np.float64)
