"""Figures of a clustering: none of them chooses k, but they say how even, how tight and how much a matter of chance it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SAMPLE = 5_000
"""Labels that the silhouette looks at, at most: it needs all their distances."""


def silhouette(vectors: NDArray[np.float32], clusters: NDArray[np.int64]) -> float | None:
    """Mean silhouette by the cosine, from −1 to 1; of a fixed sample of 5,000 where there are more labels.

    None where it is not defined: fewer than two clusters, or no cluster of two labels.
    """
    if len(vectors) > SAMPLE:
        some = np.sort(np.random.default_rng(0).choice(len(vectors), SAMPLE, replace=False))
        vectors, clusters = vectors[some], clusters[some]
    if not 2 <= len(np.unique(clusters)) < len(clusters):
        return None
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(vectors, clusters, metric="cosine"))


def sizes(clusters: NDArray[np.int64]) -> dict[str, Any]:
    """Labels a cluster: median, most, and how many clusters hold one alone."""
    counts = np.bincount(clusters)
    return {"median": float(np.median(counts)), "largest": int(counts.max()), "singletons": int((counts == 1).sum())}


def agreement(clusters: NDArray[np.int64], others: Sequence[NDArray[np.int64]]) -> dict[str, Any] | None:
    """Adjusted Rand index of a run with each of the others: 1 where they are the same, about 0 where only chance agrees."""
    if not others:
        return None
    from sklearn.metrics import adjusted_rand_score

    found = [float(adjusted_rand_score(clusters, other)) for other in others]
    return {"mean": float(np.mean(found)), "least": min(found), "most": max(found), "runs": len(found)}


def stability(clusters: NDArray[np.int64], others: Sequence[NDArray[np.int64]]) -> NDArray[np.float64] | None:
    """How well each cluster C is found again by the other runs, from 0 to 1.

        stability(C) = mean over runs r of  max over clusters D of r of  |C ∩ D| / |C ∪ D|

    A cluster that every run gives whole has 1; one whose labels are thrown together differently each time, little.
    """
    if not others:
        return None
    from scipy.sparse import coo_array

    own = np.bincount(clusters)
    found = np.zeros(len(own))
    for other in others:
        common = coo_array((np.ones(len(clusters)), (clusters, other))).tocsr().tocoo()  # which adds up equal places
        first, second = common.coords
        overlap = common.data / (own[first] + np.bincount(other)[second] - common.data)
        best = np.zeros(len(own))
        np.maximum.at(best, first, overlap)
        found += best / len(others)
    return found
