"""Ward's tree of rows: the cut of a whole project into k clusters, and the cut of one group into parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from suprank.hierarchy.clustering.kmeans import distinct_rows, kmeans

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_ROWS = 20_000
"""Of a tree: all distances are held at once, and for a while twice, 3.2 GB for these."""

MOST_TO_SPLIT = 2_000
"""Of a group that is split by its tree, which takes a moment; a larger one is split by k-means."""


def ward(vectors: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The cluster of each row, 0, 1, ..., after the merges of Ward's method that leave `k` clusters.

    Nothing is drawn: the same rows give the same clusters. Refused above 20,000 rows.
    """
    if len(vectors) > MOST_ROWS:
        raise ValueError(
            f"{len(vectors):,} labels are too many for Ward's tree, which holds all their distances "
            f"({len(vectors) ** 2 * 8 / 1e9:,.0f} GB); up to {MOST_ROWS:,} it is offered. Use k-means."
        )
    if len(vectors) == 1:
        return np.zeros(1, np.int64)
    from scipy.cluster.hierarchy import linkage

    return cut(linkage(vectors.astype(np.float64), "ward"), k)


def cut(tree: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """The cluster of each leaf after all but the last k − 1 merges of a tree that scipy's `linkage` made.

    Always k clusters (as many as leaves, at most), where cutting at a height gives fewer when heights are equal.
    """
    leaves = len(tree) + 1
    above = np.arange(leaves + len(tree))
    for merge, (first, second) in enumerate(tree[: max(0, leaves - k), :2].astype(np.int64)):
        above[first] = above[second] = leaves + merge
    for node in range(len(above) - 1, -1, -1):  # parents come after their children, so theirs is known
        above[node] = above[above[node]]
    return np.unique(above[:leaves], return_inverse=True)[1].astype(np.int64)


def suggested_split(vectors: NDArray[np.float32], parts: int = 2) -> NDArray[np.int64]:
    """The part of each row when a group is split: 0 is the largest, then by size, equal ones by their first row.

    Ward's tree of the rows, cut; above 2,000 rows, k-means. Equal rows stay together: where all are equal, or there is
    one row, all are in part 0.
    """
    different = len(distinct_rows(np.asarray(vectors, np.float32))[0])
    if different < 2 or parts < 2:
        return np.zeros(len(vectors), np.int64)
    if len(vectors) > MOST_TO_SPLIT:
        return _by_size(kmeans(vectors, parts, seed=0))
    from scipy.cluster.hierarchy import linkage

    # All rows, not the different ones alone: a spelling that ten labels share weighs ten times.
    tree = linkage(np.asarray(vectors, np.float64), "ward")
    return _by_size(cut(tree, min(parts, different)))


def _by_size(parts: NDArray[np.int64]) -> NDArray[np.int64]:
    _, first, part_of, sizes = np.unique(parts, return_index=True, return_inverse=True, return_counts=True)
    number = np.empty(len(sizes), np.int64)
    number[np.lexsort((first, -sizes))] = np.arange(len(sizes))
    return number[part_of]
