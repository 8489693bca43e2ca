"""k-means and Ward's method on rows of length 1, and the cosines of rows to the centers of their clusters."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.hierarchy.encoders import Progress

N_INIT, MAX_ITERATIONS = 1, 300
"""k-means: the number of starts by k-means++ (runs with other seeds show what other starts would give), and of iterations."""

MAX_PAIRS = 15_000_000
"""Points times clusters beyond which k-means goes by batches: 21,213 labels at the default k, where six runs take a minute."""

BATCH = 4_096
"""Points of a batch; smaller ones leave more clusters empty."""

MAX_WARD_ROWS = 20_000
"""Ward's method holds all distances at once, and for a while twice: 3.2 GB for this many rows."""

MAX_ROWS_TO_SPLIT = 2_000
"""A group of up to this many rows is split by Ward's method, which takes a moment; a larger one by k-means."""

_CHUNK = 4_096  # rows whose cosines are computed at once


def kmeans(vectors: NDArray[np.float32], k: int, seed: int, weights: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """The cluster 0, 1, ... of each row: `k` clusters, or a few less, such as where fewer rows differ.

    Equal rows count as one point with their joint weight, so they always stay together. A single thread adds up, because with
    several the sums, and so the result, could change from run to run.
    """
    return kmeans_runs(vectors, k, [seed], weights)[0]


def kmeans_runs(
    vectors: NDArray[np.float32],
    k: int,
    seeds: Sequence[int],
    weights: NDArray[Any] | None = None,
    progress: Progress = lambda done, total: None,
) -> list[NDArray[np.int64]]:
    """`kmeans` with each of the seeds, one after the other."""
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    points, point_of_row = distinct_rows(vectors)
    mass = np.bincount(point_of_row, weights=weights, minlength=len(points)).astype(np.float64)
    k = min(k, len(points))
    runs = []
    progress(0, len(seeds))
    with threadpool_limits(1), warnings.catch_warnings():
        # Points that differ only by rounding may fall into one cluster, which leaves fewer than k.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for number, seed in enumerate(seeds, start=1):
            clusters = _fit(points, mass, k, seed)
            runs.append(np.unique(clusters[point_of_row], return_inverse=True)[1].astype(np.int64))
            progress(number, len(seeds))
    return runs


def in_batches(points: int, k: int) -> bool:
    """Whether `kmeans` looks at a part of the points at a time, because there are many points and clusters."""
    return points * k > MAX_PAIRS


def _fit(points: NDArray[np.float32], mass: NDArray[np.float64], k: int, seed: int) -> NDArray[Any]:
    from sklearn.cluster import KMeans, MiniBatchKMeans

    if in_batches(len(points), k):
        model = MiniBatchKMeans(k, n_init=N_INIT, batch_size=BATCH, random_state=seed)
    else:
        model = KMeans(k, n_init=N_INIT, max_iter=MAX_ITERATIONS, random_state=seed)
    clusters: NDArray[Any] = model.fit(points, sample_weight=mass).labels_
    return clusters


def distinct_rows(vectors: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The distinct rows in the order of their first occurrence, and the index among them of each row."""
    seen: dict[bytes, int] = {}
    index = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in vectors + np.float32(0)], np.int64)  # -0 becomes 0
    return vectors[np.unique(index, return_index=True)[1]], index


def ward(vectors: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The cluster 0, 1, ... of each row, after the merges of Ward's method that leave `k` clusters.

    The method is deterministic. More than 20,000 rows are refused.
    """
    if len(vectors) > MAX_WARD_ROWS:
        raise ValueError(
            f"{len(vectors):,} labels are too many for Ward's method, which holds all their distances "
            f"({len(vectors) ** 2 * 8 / 1e9:,.0f} GB); it takes up to {MAX_WARD_ROWS:,}. Use k-means."
        )
    if len(vectors) == 1:
        return np.zeros(1, np.int64)
    from scipy.cluster.hierarchy import linkage

    return cut_tree(linkage(vectors.astype(np.float64), "ward"), k)


def cut_tree(tree: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """The cluster of each leaf after all but the last k − 1 merges of a tree that scipy's `linkage` made.

    This gives exactly k clusters (or as many as there are leaves); cutting at a height gives fewer when heights are equal.
    """
    leaves = len(tree) + 1
    parent = np.arange(leaves + len(tree))
    for merge, (first, second) in enumerate(tree[: max(0, leaves - k), :2].astype(np.int64)):
        parent[first] = parent[second] = leaves + merge
    for node in range(len(parent) - 1, -1, -1):  # parents come after their children, so their root is known
        parent[node] = parent[parent[node]]
    return np.unique(parent[:leaves], return_inverse=True)[1].astype(np.int64)


def suggested_split(vectors: NDArray[np.float32], parts: int = 2) -> NDArray[np.int64]:
    """The part of each row when a group is split. Part 0 is the largest; parts of equal size are ordered by their first row.

    Up to 2,000 rows are split by Ward's method, more by k-means. Equal rows stay together: if all are equal, or there is only
    one row, all are in part 0.
    """
    distinct = len(distinct_rows(np.asarray(vectors, np.float32))[0])
    if distinct < 2 or parts < 2:
        return np.zeros(len(vectors), np.int64)
    if len(vectors) > MAX_ROWS_TO_SPLIT:
        return _number_by_size(kmeans(vectors, parts, seed=0))
    from scipy.cluster.hierarchy import linkage

    # All rows, not only the distinct ones: a spelling that ten labels share weighs ten times.
    tree = linkage(np.asarray(vectors, np.float64), "ward")
    return _number_by_size(cut_tree(tree, min(parts, distinct)))


def _number_by_size(parts: NDArray[np.int64]) -> NDArray[np.int64]:
    _, first, part_of_row, sizes = np.unique(parts, return_index=True, return_inverse=True, return_counts=True)
    number = np.empty(len(sizes), np.int64)
    number[np.lexsort((first, -sizes))] = np.arange(len(sizes))
    return number[part_of_row]


def cluster_centers(
    vectors: NDArray[np.float32], clusters: NDArray[np.int64], weights: NDArray[Any] | None = None
) -> NDArray[np.float32]:
    """The direction of each cluster's mean `[cluster, dimension]`, of length 1; zeros if its rows cancel out.

    Clusters are numbered 0, 1, ...; the mean is weighted by `weights` of the rows, if given.
    """
    from scipy.sparse import csr_array

    mass = np.ones(len(vectors)) if weights is None else np.asarray(weights, np.float64)
    members = csr_array((mass, (clusters, np.arange(len(vectors)))), shape=(int(clusters.max()) + 1, len(vectors)))
    sums = members @ vectors.astype(np.float64)
    length = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.divide(sums, length, out=np.zeros_like(sums), where=length > 1e-9).astype(np.float32)


def cosines_and_margins(
    vectors: NDArray[np.float32], clusters: NDArray[np.int64], centers: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Each row's cosine to the center of its cluster, and how much that exceeds the cosine to the nearest other center.

    The margin is negative if another center has the larger cosine: k-means compares distances to means, and the mean of a loose
    cluster is short. With a single center, the margin is the cosine itself.
    """
    cosine, margin = np.empty(len(vectors), np.float32), np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        own = clusters[chunk]
        cosines = np.clip(vectors[chunk] @ centers.T, -1, 1)  # rounding can exceed 1
        each = np.arange(len(own))
        cosine[chunk] = cosines[each, own]
        cosines[each, own] = -np.inf
        next_best = cosines.max(axis=1) if len(centers) > 1 else np.zeros(len(own), np.float32)
        margin[chunk] = cosine[chunk] - next_best
    return cosine, margin
