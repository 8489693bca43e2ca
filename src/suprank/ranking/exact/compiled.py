"""Places and their sums on a CPU, by loops that numba compiles (part of every extra, or `pip install numba`).

The loops run without Python's lock, on as many threads as torch uses, each with a share of the queries; numba's own threads
are left alone, since not all of their layers may be entered twice.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from suprank.ranking.exact import numba_loops
from suprank.ranking.exact.result import Places, RankingSums, Top, TopSums
from suprank.ranking.exact.tables import discount, harmonic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Float, Integer
    from numpy.typing import NDArray
    from torch import Tensor

_CPU = torch.device("cpu")


def take(
    scores: Float[Tensor, "queries items"], item: Integer[Tensor, "..."], first: int, into: Float[Tensor, "queries wanted"]
) -> None:
    """Take the wanted items out of the rows: their scores go `into` the result, and −∞ stays behind."""
    rows = _array(item) if item.ndim == 2 else _array(item[None])
    _on_threads(numba_loops.take_rows, len(scores), scores.numpy(), rows, np.int64(first), into.numpy())


def sort_positives(
    scores: Float[Tensor, "queries positives"], level: Integer[Tensor, "queries positives"]
) -> tuple[Float[Tensor, "queries positives"], Integer[Tensor, "queries positives"]]:
    """Positives by score descending, on equal scores the lower level first. Padding has level 0 and score −∞."""
    falling, levels = np.empty(scores.shape, np.float32), np.empty(level.shape, np.int8)
    _on_threads(numba_loops.sort_rows, len(scores), _array(scores), _array(level), falling, levels)
    return torch.from_numpy(falling), torch.from_numpy(levels)


def count_at_or_above(
    thresholds: Float[Tensor, "queries positives"], scores: Float[Tensor, "queries items"]
) -> Integer[Tensor, "queries positives"]:
    """How many of the query's scores are equal to each threshold or above it; thresholds descend along the row."""
    counts = np.empty(thresholds.shape, np.int32)
    _on_threads(numba_loops.count_rows, len(counts), _array(thresholds), _array(scores), counts)
    return torch.from_numpy(counts)


def ranking_sums(
    places: Places, sizes: Integer[Tensor, "queries depth"], relevance: Float[Tensor, "queries depth"]
) -> RankingSums:
    """The sums over the full ranking, in one walk along each query's positives."""
    sums = _SumArrays(len(sizes), sizes.shape[1], ())
    inputs = _tables(sizes, relevance, int(places.place.max()) if places.place.numel() else 0)
    _on_threads(numba_loops.sum_rows, len(sizes), _array(places.level), _array(places.place), *inputs, *sums.arrays)
    return sums.ranking


def top_sums(places: Places, relevance: Float[Tensor, "queries depth"], ks: Sequence[int]) -> TopSums:
    """The sums over the first k items, in one walk along each query's first positives."""
    sums, most = _SumArrays(len(relevance), relevance.shape[1], ks), max(ks, default=0)
    level, place = _array(places.level[:, :most]), _array(places.place[:, :most])
    # Sizes and places beyond k do not matter here: nothing is found within a size of 0.
    sizes = torch.zeros(relevance.shape, dtype=torch.int32, device="cpu")
    furthest = int(places.place[:, :most].max()) if level.size else 0
    _on_threads(numba_loops.sum_rows, len(sizes), level, place, *_tables(sizes, relevance, furthest), *sums.arrays)
    return sums.top


def one_pass_sums(
    scores: Float[Tensor, "queries items"],
    start: Integer[Tensor, "queries depth"],
    end: Integer[Tensor, "queries depth"],
    ignored: Integer[Tensor, "queries ignored"],
    sizes: Integer[Tensor, "queries depth"],
    relevance: Float[Tensor, "queries depth"],
    ks: Sequence[int],
) -> tuple[RankingSums, TopSums]:
    """Do `take`, `sort_positives`, `count_at_or_above`, `ranking_sums` and `top_sums` in one pass, query by query.

    The items of level l or deeper are those from `start[:, l − 1]` to `end[:, l − 1]`. The scores are overwritten. It
    runs in the calling thread.
    """
    sums = _SumArrays(len(sizes), sizes.shape[1], ks)
    inputs = _tables(sizes, relevance, scores.shape[1])
    numba_loops.one_pass_rows(0, len(sizes), scores.numpy(), _array(start), _array(end), _array(ignored), *inputs, *sums.arrays)
    return sums.ranking, sums.top


def top(scores: Float[Tensor, "queries items"], k: int, first: int = 0, best: Top | None = None) -> Top:
    """The k highest of the scores and of the best so far; of equal scores, items of lower numbers come first.

    It runs in the calling thread.
    """
    if best is None:
        best = Top(scores[:, :0], scores.new_empty(len(scores), 0, dtype=torch.int64))
    k = min(k, scores.shape[1] + best.scores.shape[1])
    values, items = np.empty((len(scores), k), np.float32), np.empty((len(scores), k), np.int64)
    known = _array(best.scores), _array(best.item)
    numba_loops.top_rows(0, len(scores), _array(scores), np.int64(first), *known, values, items)
    return Top(torch.from_numpy(values), torch.from_numpy(items))


class _SumArrays:
    """The arrays that the loops add to, and their names."""

    def __init__(self, queries: int, depth: int, ks: Sequence[int]):
        self.arrays: tuple[NDArray[Any], ...] = (
            np.asarray(ks, np.int64),
            np.zeros((6, queries, depth)),
            np.zeros((2, queries)),
            np.zeros((4, queries, len(ks), depth)),
            np.zeros((2, queries, len(ks))),
        )

    @property
    def ranking(self) -> RankingSums:
        _, by_level, by_query, _, _ = self.arrays
        return RankingSums._make(map(torch.from_numpy, (*by_level, *by_query)))

    @property
    def top(self) -> TopSums:
        *_, by_level, by_query = self.arrays
        return TopSums._make(map(torch.from_numpy, (*by_level, *by_query)))


def _tables(sizes: Tensor, relevance: Tensor, furthest: int) -> tuple[NDArray[Any], ...]:
    """Sizes and relevance as arrays, with tables that reach as far as the sizes and the places do."""
    largest = int(sizes.max()) if sizes.numel() else 0
    tables = harmonic(max(largest, 1), _CPU).numpy(), discount(max(furthest, 1), _CPU).numpy()
    return _array(sizes.int()), _array(relevance.double()), *tables


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.contiguous().numpy()


def _on_threads(loop: Callable[..., None], queries: int, *arrays: Any) -> None:
    """Run `loop(begin, end, *arrays)` over the queries, an equal share on each thread."""
    workers = min(torch.get_num_threads(), queries)
    if workers <= 1:
        loop(0, queries, *arrays)
        return
    bounds = [worker * queries // workers for worker in range(workers + 1)]
    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(loop, *share, *arrays) for share in pairwise(bounds)]:
            future.result()
