"""k-means on rows of length 1, where the nearest center by distance is the one of the largest cosine, about."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

N_INIT, MOST_ROUNDS = 1, 300
"""Starts of a run (by k-means++; the further seeds tell what other starts would give), and its most rounds."""


def kmeans(vectors: NDArray[np.float32], k: int, seed: int, weights: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """The cluster of each row, 0, 1, ...: `k` of them, or fewer where fewer rows differ.

    Equal rows are one point of their joint weight, so they always stay together. One thread adds up: with several the sums, and
    with them the outcome, could change from run to run.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    points, point_of = distinct_rows(vectors)
    mass = np.bincount(point_of, weights=weights, minlength=len(points))
    k = min(k, len(points))
    with threadpool_limits(1), warnings.catch_warnings():
        # Points that differ by rounding alone may fall into one cluster, which leaves fewer than k.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(k, n_init=N_INIT, max_iter=MOST_ROUNDS, random_state=seed, copy_x=True)
        found = model.fit(points, sample_weight=mass).labels_
    return np.unique(found[point_of], return_inverse=True)[1].astype(np.int64)


def distinct_rows(vectors: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The different rows, in the order in which they first stand, and which of them each row is."""
    seen: dict[bytes, int] = {}
    of = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in vectors + np.float32(0)], np.int64)  # -0 becomes 0
    return vectors[np.unique(of, return_index=True)[1]], of
