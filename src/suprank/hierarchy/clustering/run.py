"""A pinned run of k-means or Ward: which label is in which cluster, and all that is said of labels and clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.hierarchy.clustering import quality
from suprank.hierarchy.clustering.centers import centers_of, nearness
from suprank.hierarchy.clustering.kmeans import kmeans
from suprank.hierarchy.clustering.naming import WordCounts, suggested_names
from suprank.hierarchy.clustering.ward import ward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.hierarchy.embedding import Label
    from suprank.hierarchy.encoders import Progress

NO_SIGNAL = "no text signal"


@dataclass(frozen=True)
class Clusters:
    """The cluster 0, 1, ... of each label, by falling weight, with what is known of labels and clusters.

    Labels whose vector is zero are in a last cluster of their own, which has no figures.
    """

    clusters: NDArray[np.int64]
    near: NDArray[np.float32]
    margin: NDArray[np.float32]
    names: list[list[str]]
    tightness: list[float | None]
    stability: list[float | None]
    figures: dict[str, Any]


def clusters_of(
    labels: Sequence[Label], vectors: NDArray[np.float32], settings: dict[str, Any], progress: Progress
) -> Clusters:
    """The clusters of labels by their vectors, of length 1 or zero, as the settings of the step say."""
    known = vectors.any(axis=1)
    mass = np.array([label.weight for label in labels], np.int64)
    clusters = np.full(len(labels), 0, np.int64)
    near, margin = np.zeros(len(labels), np.float32), np.zeros(len(labels), np.float32)
    stable: NDArray[np.float64] | None = None
    figures: dict[str, Any] = {"labels": len(labels), "without_signal": int((~known).sum())}
    if known.any():
        rows, weights = vectors[known], np.maximum(mass[known], 1) if settings["weighted"] else None
        runs = _runs(rows, weights, settings, progress)
        clusters[known] = runs[0] = _by_weight(runs[0], mass[known])
        near[known], margin[known] = nearness(rows, runs[0], centers_of(rows, runs[0], weights))
        stable = quality.stability(runs[0], runs[1:])
        figures |= {"silhouette": quality.silhouette(rows, runs[0]), "silhouette_of": min(len(rows), quality.SAMPLE)}
        figures |= {"sizes": quality.sizes(runs[0]), "tightness": float(near[known].mean(dtype=np.float64))}
        figures["agreement"] = quality.agreement(runs[0], runs[1:])
    many = int(clusters[known].max()) + 1 if known.any() else 0
    figures["clusters"] = many
    clusters[~known] = many
    members = _members(clusters)
    texts = [label.text for label in labels]
    counts = WordCounts.of(texts, len(members))
    names = [suggested_names([texts[at] for at in some], counts, vectors[some], mass[some]) for some in members[:many]]
    tight: list[float | None] = [float(near[some].mean(dtype=np.float64)) for some in members[:many]]
    again: list[float | None] = [None] * many if stable is None else stable.tolist()
    blank = len(members) - many
    return Clusters(
        clusters,
        near,
        margin,
        names + [[NO_SIGNAL]] * blank,
        tight + [None] * blank,
        again + [None] * blank,
        figures,
    )


def _runs(
    rows: NDArray[np.float32], weights: NDArray[Any] | None, settings: dict[str, Any], progress: Progress
) -> list[NDArray[np.int64]]:
    """The run itself, then the further ones."""
    if settings["method"] == "ward":
        return [ward(rows, settings["k"])]
    runs = []
    for further in range(settings["seeds"] + 1):
        progress(further, settings["seeds"] + 1)
        runs.append(kmeans(rows, settings["k"], settings["seed"] + further, weights))
    progress(len(runs), len(runs))
    return runs


def _by_weight(clusters: NDArray[np.int64], mass: NDArray[np.int64]) -> NDArray[np.int64]:
    """The clusters numbered by falling weight; equal ones by the number of labels, then by their first label."""
    _, first, sizes = np.unique(clusters, return_index=True, return_counts=True)
    number = np.empty(len(sizes), np.int64)
    number[np.lexsort((first, -sizes, -np.bincount(clusters, weights=mass)))] = np.arange(len(sizes))
    return number[clusters]


def _members(clusters: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    order = np.argsort(clusters, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1)
