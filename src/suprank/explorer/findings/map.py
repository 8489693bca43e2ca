"""The classes on a plane: class means, placed by t-SNE so that near classes stand near each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.explorer.images import Images
    from suprank.explorer.source import Source

FEW = 5
"""Classes below which t-SNE says nothing: they are placed by their principal components."""

MOST = 2000
"""Classes that are placed: more take minutes, and make a map that nobody can read."""


@dataclass(frozen=True, eq=False)
class ClassMap:
    """Places `[classes, 2]` of the means of the finest classes, each mean that of unit embeddings.

    `labels` and `coarse` are numbers in `Source.names` of the finest and the coarsest level (-1: it has none); `images` the
    number of images of each class, and `nearest` the gallery row of the one closest to the mean. `method` is how they were
    placed; `of` how many classes there are: those with the most images are placed where that is more.
    """

    places: NDArray[np.float64]
    labels: NDArray[np.int64]
    coarse: NDArray[np.int64]
    images: NDArray[np.int64]
    nearest: NDArray[np.int64]
    method: Literal["t-SNE", "PCA"]
    of: int


def class_map(source: Source, *, most: int = MOST, perplexity: float = 30, seed: int = 0) -> ClassMap | None:
    """The map of the gallery's classes; None with fewer than two of them, and without labels."""
    if not source.levels:
        return None
    labels = source.gallery.labels
    counts = np.bincount(labels[labels[:, 0] >= 0, 0], minlength=len(source.names[source.levels[0]]))
    of = int((counts > 0).sum())
    if of < 2:
        return None
    chosen = np.sort(np.argsort(-counts, kind="stable")[: min(of, most)])
    place = np.full(len(counts) + 1, -1, np.int64)  # the last is that of −1, no label
    place[chosen] = np.arange(len(chosen))
    group = place[labels[:, 0]]
    means, nearest = _means(source.gallery, group, len(chosen))
    first = np.unique(np.where(group < 0, len(chosen), group), return_index=True)[1][: len(chosen)]
    method: Literal["t-SNE", "PCA"] = "PCA" if len(chosen) < FEW else "t-SNE"
    places = _principal(means) if method == "PCA" else _tsne(means, perplexity, seed)
    return ClassMap(places, chosen, labels[first, -1], counts[chosen], nearest, method, of)


def _means(images: Images, group: NDArray[np.int64], number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The direction of the mean of each group, and the row closest to it; two passes over the embeddings."""
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
        # From the farthest to the closest, so that the closest is written last; of equal ones the first row.
        order = np.lexsort((-rows, scores))
        rows, scores = rows[order], scores[order]
        better = scores > best[own[rows]]
        nearest[own[rows[better]]] = first + rows[better]
        best[own[rows[better]]] = scores[better]
    return means, nearest


def _principal(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """The two directions in which the means differ most; a second of zeros where there is only one."""
    centered = means - means.mean(0)
    left, values, _ = np.linalg.svd(centered, full_matrices=False)
    found = np.zeros((len(means), 2))
    kept = min(2, len(values))
    found[:, :kept] = left[:, :kept] * values[:kept]
    # Which way a direction points is chance: the farthest class lies on the positive side.
    for column in found.T:
        if column[np.abs(column).argmax()] < 0:
            column *= -1
    return found


def _tsne(means: NDArray[np.float64], perplexity: float, seed: int) -> NDArray[np.float64]:
    """openTSNE's, with cosines, exact neighbors and one thread: the same map on every run."""
    from openTSNE import TSNE

    bounded = min(perplexity, (len(means) - 1) / 3)  # each class is compared with three times as many neighbors
    begin = _principal(means)
    # Small, as t-SNE wants it, and with some noise, so that classes whose means are equal can part.
    begin *= 1e-4 / max(begin[:, 0].std(), 1e-12)
    begin += np.random.default_rng(seed).normal(scale=1e-6, size=begin.shape)
    model = TSNE(perplexity=bounded, metric="cosine", neighbors="exact", initialization=begin, random_state=seed, n_jobs=1)
    return np.asarray(model.fit(means), np.float64)
