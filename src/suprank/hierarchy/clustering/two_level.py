"""k-means for many points and clusters: a start by cells, the least useful centers dropped, then a few rounds over all points.

Full k-means starts with k-means++, which compares every point with several candidates for each center, and then takes some
twenty rounds. Here points are first parted into √k cells, and k-means within each cell gives a quarter more centers than
wanted. Which of them are dropped is decided over all cells, so that a cell that got too many loses them; this is what makes
the result as good as that of full k-means: docs/hierarchies.md has the numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SURPLUS = 1.25
"""Centers of the start, as a multiple of k."""

DROP_ROUNDS, ROUNDS = 2, 3
"""Rounds in which the surplus is dropped, and rounds of Lloyd's algorithm after them (two more lower the sum by 0.1 %)."""

STEPS = 1 + DROP_ROUNDS + ROUNDS
"""How often `two_level_kmeans` calls `advance`."""

_CELL_ROUNDS, _SAMPLE_PER_CELL = 10, 256  # cells are found in a sample; more rounds change nothing that lasts
_MAX_CELL_CENTERS = 128  # k-means++ takes a time that grows with points × centers, so a cell with more is parted again
_CHUNK, _SUM_CHUNK = 512, 8_192  # rows at once: products stay in the cache; sums need a float64 copy
_MAX_FILLS, _SAME = 10, 1e-6  # squared distances up to this are rounding


def _nothing() -> None:
    pass


def two_level_kmeans(
    points: NDArray[np.float32],
    mass: NDArray[np.float64],
    k: int,
    seed: int,
    advance: Callable[[], None] = _nothing,
    check: Callable[[], None] = _nothing,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The cluster of each point, and the `k` centers, of which each point's own is the nearest.

    Points are distinct and have a positive mass. No cluster is empty, unless points differ by rounding only. Call it with BLAS
    limited to one thread: then a seed gives the same clusters on any number of cores. `advance` is called after each step;
    `check` several times a second, and may raise to end the run.
    """
    if k >= len(points):
        for _ in range(STEPS):
            advance()
        return np.arange(len(points)), points.copy()
    centers = _start(points, mass, min(math.ceil(SURPLUS * k), len(points)), seed, check)
    advance()
    for left in range(DROP_ROUNDS, 0, -1):
        nearest = nearest_centers(points, centers, check)
        cost = np.bincount(nearest.first, mass * nearest.gap, len(centers))  # a dropped center's points go to their second
        centers = _means(points, mass, nearest.first, centers)
        centers = np.delete(centers, _least_missed(centers, cost, math.ceil((len(centers) - k) / left)), axis=0)
        advance()
    for number in range(ROUNDS):
        if number:  # the means of the last drop are those of the first round
            centers = _means(points, mass, nearest.first, centers)
        nearest = nearest_centers(points, centers, check)
        _fill_empty(points, centers, nearest)
        advance()
    return nearest.first, centers


class Nearest(NamedTuple):
    """The nearest and second nearest center of points; of equally near ones the first counts as the nearer."""

    first: NDArray[np.int64]
    distance: NDArray[np.float32]
    """Squared distance to the nearest center."""

    second: NDArray[np.int64]
    gap: NDArray[np.float32]
    """How much larger the squared distance to the second is; infinite if there is only one center."""


def nearest_centers(points: NDArray[np.float32], centers: NDArray[np.float32], check: Callable[[], None] = _nothing) -> Nearest:
    """Find the two nearest centers of each point, some hundred points at a time."""
    many = len(points)
    first, second = np.empty(many, np.int64), np.empty(many, np.int64)
    distance, gap = np.empty(many, np.float32), np.empty(many, np.float32)
    half = (np.square(centers, dtype=np.float64).sum(axis=1) / 2).astype(np.float32)
    products = np.empty((_CHUNK, len(centers)), np.float32)
    for start in range(0, many, _CHUNK):
        check()
        chunk = points[start : start + _CHUNK]
        at, each = slice(start, start + len(chunk)), np.arange(len(chunk))
        scores = np.matmul(chunk, centers.T, out=products[: len(chunk)])
        scores -= half  # (|x|² − |x − c|²) / 2
        first[at] = best = scores.argmax(axis=1)
        highest = scores[each, best]
        scores[each, best] = -np.inf
        second[at] = next_best = scores.argmax(axis=1)
        gap[at] = 2 * (highest - scores[each, next_best])
        distance[at] = np.maximum(np.square(chunk).sum(axis=1) - 2 * highest, 0)
    return Nearest(first, distance, second, gap)


def _least_missed(centers: NDArray[np.float32], cost: NDArray[Any], count: int) -> list[int]:
    """The centers that cost least to drop, but not one that stands in for another: two halves of a group must not both go."""
    nearest = nearest_centers(centers, centers)
    neighbor = np.where(nearest.first == np.arange(len(centers)), nearest.second, nearest.first).tolist()
    dropped: list[int] = []
    needed: set[int] = set()
    order = np.argsort(cost, kind="stable").tolist()
    for center in order:
        if len(dropped) < count and center not in needed:
            dropped.append(center)
            needed.add(neighbor[center])
    gone = set(dropped)
    return dropped + [center for center in order if center not in gone][: count - len(dropped)]


def _start(
    points: NDArray[np.float32], mass: NDArray[np.float64], count: int, seed: int, check: Callable[[], None]
) -> NDArray[np.float32]:
    """Centers by k-means within the cells of a coarse k-means; a cell gets as many as its share of the sum of squares."""
    check()
    if count <= _MAX_CELL_CENTERS or count == len(points):
        return _fit(points, mass, count, seed)
    cells = math.isqrt(count)
    size = min(len(points), _SAMPLE_PER_CELL * cells)
    sample = np.sort(np.random.default_rng(seed).choice(len(points), size, replace=False))
    nearest = nearest_centers(points, _fit(points[sample], mass[sample], cells, seed), check)
    cell_of_point = nearest.first
    sizes = np.bincount(cell_of_point, minlength=cells)
    counts = allot(np.bincount(cell_of_point, mass * nearest.distance, cells), sizes, count)
    members = np.split(np.argsort(cell_of_point, kind="stable"), np.cumsum(sizes)[:-1])
    parts = [(rows, own) for rows, own in zip(members, counts.tolist(), strict=True) if own]
    if len(parts) == 1:  # points that differ by rounding only
        return _fit(points, mass, count, seed)
    return np.concatenate([_start(points[rows], mass[rows], own, seed, check) for rows, own in parts])


def _fit(points: NDArray[np.float32], mass: NDArray[np.float64], k: int, seed: int) -> NDArray[np.float32]:
    if k >= len(points):
        return points
    from sklearn.cluster import KMeans

    model = KMeans(k, n_init=1, max_iter=_CELL_ROUNDS, random_state=seed).fit(points, sample_weight=mass)
    centers: NDArray[np.float32] = model.cluster_centers_
    return centers


def allot(shares: NDArray[Any], sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Divide `count` centers among cells by their shares: at least one for a cell with points, at most one for each point.

    Example:
        >>> allot(np.array([6.0, 3.0, 1.0, 0.0]), np.array([3, 9, 9, 0]), 10).tolist()
        [3, 5, 2, 0]
    """
    counts = np.minimum(sizes, 1)
    while (missing := count - int(counts.sum())) > 0:
        room = np.flatnonzero(counts < sizes)
        weight = np.maximum(shares[room], np.finfo(np.float64).tiny)
        wanted = weight / weight.sum() * (missing + counts[room].sum()) - counts[room]
        whole = np.clip(np.floor(wanted), 0, (sizes - counts)[room]).astype(np.int64)
        if 0 < whole.sum() <= missing:
            counts[room] += whole
        else:  # less than one each: one more for those that lack most
            counts[room[np.argsort(-wanted, kind="stable")[:missing]]] += 1
    return counts


def _means(
    points: NDArray[np.float32], mass: NDArray[np.float64], clusters: NDArray[np.int64], centers: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The mean of each cluster; a cluster without points keeps its center."""
    from scipy.sparse import csr_array

    sums = np.zeros(centers.shape)
    for start in range(0, len(points), _SUM_CHUNK):
        own = clusters[start : start + _SUM_CHUNK]
        at = slice(start, start + len(own))
        members = csr_array((mass[at], (own, np.arange(len(own)))), shape=(len(centers), len(own)))
        sums += members @ points[at].astype(np.float64)
    total = np.bincount(clusters, mass, len(centers))[:, None]
    return np.divide(sums, total, out=centers.astype(np.float64), where=total > 0).astype(np.float32)


def _fill_empty(points: NDArray[np.float32], centers: NDArray[np.float32], nearest: Nearest) -> None:
    """Move centers without points to the points furthest from their own centers, and points to them.

    Edits `centers`, `nearest.first` and `nearest.distance` in place.
    """
    clusters, distances = nearest.first, nearest.distance
    for _ in range(_MAX_FILLS):
        empty = np.flatnonzero(np.bincount(clusters, minlength=len(centers)) == 0)
        furthest = np.argsort(-distances, kind="stable")[: len(empty)]
        furthest = furthest[distances[furthest] > _SAME]
        if not len(furthest):
            return
        filled = empty[: len(furthest)]
        centers[filled] = points[furthest]
        found = nearest_centers(points, centers[filled])
        moved = found.distance < distances
        clusters[moved], distances[moved] = filled[found.first[moved]], found.distance[moved]
