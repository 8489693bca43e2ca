"""Centers of clusters, and how near a label is to its own and to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS = 4_096  # cosines at once


def centers_of(
    vectors: NDArray[np.float32], clusters: NDArray[np.int64], weights: NDArray[Any] | None = None
) -> NDArray[np.float32]:
    """The direction of each cluster's mean `[cluster, dimension]`, of length 1; zeros where its rows cancel out.

    Clusters are numbered 0, 1, ...; `weights` of the rows count in the mean.
    """
    from scipy.sparse import csr_array

    mass = np.ones(len(vectors)) if weights is None else np.asarray(weights, np.float64)
    members = csr_array((mass, (clusters, np.arange(len(vectors)))), shape=(int(clusters.max()) + 1, len(vectors)))
    sums = members @ vectors.astype(np.float64)
    length = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.divide(sums, length, out=np.zeros_like(sums), where=length > 1e-9).astype(np.float32)


def nearness(
    vectors: NDArray[np.float32], clusters: NDArray[np.int64], centers: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Of each row the cosine to the center of its cluster, and by how much that exceeds the cosine to the nearest other center.

    The margin is negative where another center has the larger cosine: k-means goes by distances to means, and a loose cluster's
    mean is short. Where there is one center only, the margin is the nearness itself.
    """
    near, margin = np.empty(len(vectors), np.float32), np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), _ROWS):
        own = clusters[start : start + _ROWS]
        cosines = np.clip(vectors[start : start + _ROWS] @ centers.T, -1, 1)  # rounding goes beyond
        each = np.arange(len(own))
        near[start : start + _ROWS] = cosines[each, own]
        cosines[each, own] = -np.inf
        next_best = cosines.max(axis=1) if len(centers) > 1 else np.zeros(len(own), np.float32)
        margin[start : start + _ROWS] = near[start : start + _ROWS] - next_best
    return near, margin
