"""The decomposability gap by batch size: how much better batches look than the whole collection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from suprank.explorer.findings.curves import ScoreBlock, levels_by_rank, sample_queries, score_blocks
from suprank.explorer.findings.query_metrics import main_metric

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from suprank.evaluation import Report
    from suprank.evaluation.retrieval_data import RetrievalData


SIZES = (32, 64, 128, 256, 512)
MAX_BATCHES = 1000
"""Maximum number of batches per size; sizes with more are skipped, so that a gallery of millions takes no longer."""

_PAIRS = 6_000_000  # query-item pairs: a thousand queries of a small collection


@dataclass(frozen=True, eq=False)
class GapBySize:
    """The gap of each measure (eq:decomposability-gap), signed, for items shuffled into batches of each size.

    `values[measure]` and `in_batches[measure]` have one entry per size; `overall[measure]` is the measure over all items. The
    last size is the whole collection: a single batch, whose gap is 0. Values are NaN if no query has a positive. Measured on
    `queries` of the `total_queries`, a random sample if not all.
    """

    sizes: tuple[int, ...]
    values: dict[str, tuple[float, ...]]
    in_batches: dict[str, tuple[float, ...]]
    overall: dict[str, float]
    queries: int
    total_queries: int


def gap_by_size(
    data: RetrievalData,
    report: Report,
    sizes: Sequence[int] = SIZES,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> GapBySize:
    """The gap of AP and H-AP as `suprank.evaluation.decomposability_gap` defines it; `report` has the per-query values.

    Unlike that function, this computes both measures at once, can sample the queries, and leaves a query that is in the
    gallery out of its own list.
    """
    assert report.per_query is not None
    items = len(data.items)
    measures = tuple(dict.fromkeys(("AP", main_metric(report))))
    queries = sample_queries(data, seed, _PAIRS)
    overall = np.stack([report.per_query[measure][queries] for measure in measures])
    usable = [size for size in sorted(set(sizes)) if size < items and items <= MAX_BATCHES * size]
    shuffled = np.random.default_rng(seed).permutation(items)
    in_batches: list[list[NDArray[np.float64]]] = [[] for _ in usable]
    done = 0
    for block in score_blocks(data, queries) if usable else ():
        block = ScoreBlock(block.scores[:, shuffled], block.levels[:, shuffled])
        for size, found in zip(usable, in_batches, strict=True):
            found.append(_mean_over_batches(block, size, len(data.levels), data.defaults.decay)[: len(measures)])
        done += len(block.scores)
        progress(done, len(queries))
    within = np.stack([*(np.concatenate(found, axis=1) for found in in_batches), overall])  # [sizes, measures, queries]
    means = [[_mean(values) for values in one] for one in within]
    gaps = [[_mean(values) for values in one] for one in within - overall]
    return GapBySize(
        (*usable, items),
        {measure: tuple(row[column] for row in gaps) for column, measure in enumerate(measures)},
        {measure: tuple(row[column] for row in means) for column, measure in enumerate(measures)},
        {measure: means[-1][column] for column, measure in enumerate(measures)},
        len(queries),
        len(data.queries),
    )


def _mean_over_batches(block: ScoreBlock, size: int, depth: int, decay: float) -> NDArray[np.float64]:
    """AP and H-AP, `[2, queries]`: means over the batches that have a positive; NaN if none has. Columns are in batch order."""
    queries, items = block.scores.shape
    whole = items - items % size
    sums, numbers = np.zeros((2, queries)), np.zeros((2, queries), np.int64)
    for part, width in ((slice(0, whole), size), (slice(whole, items), items - whole)):
        if width:
            lists = ScoreBlock(block.scores[:, part].reshape(-1, width), block.levels[:, part].reshape(-1, width))
            values = average_precisions(levels_by_rank(lists), depth, decay).reshape(2, queries, -1)
            sums += np.nansum(values, axis=-1)
            numbers += (~np.isnan(values)).sum(-1)
    return np.divide(sums, numbers, out=np.full(sums.shape, np.nan), where=numbers > 0)


def average_precisions(ranked: NDArray[np.int64], depth: int, decay: float = 1.0) -> NDArray[np.float64]:
    """AP of the finest level and H-AP of each list, `[2, lists]`; NaN without a positive. Rows are levels in ranked order.

    These are the measures of `suprank.evaluation.evaluate`, which takes milliseconds for each batch where this takes
    microseconds: everything is computed for the positives of all lists at once.

    Example:
        >>> average_precisions(np.array([[2, 0, 1], [0, 0, 0]]), depth=2).round(4).tolist()  # relevance 1, 0 and 1/2
        [[1.0, nan], [0.8889, nan]]
    """
    lists = len(ranked)
    row, column = ranked.nonzero()
    level, rank = ranked[row, column], column + 1
    first = np.searchsorted(row, np.arange(lists))  # of each list's positives
    running, relevance = np.zeros((depth + 1, len(row))), np.zeros((depth + 1, lists))
    for current in range(1, depth + 1):
        counts = np.concatenate([[0], np.cumsum(level == current)])  # from the first list on
        running[current] = counts[1:] - counts[first][row]
        size = np.bincount(row[level == current], minlength=lists)
        relevance[current] = np.divide((current / depth) ** decay, size, out=np.zeros(lists), where=size > 0)
    own = relevance[level, row]
    hierarchical = sum(running[current] * np.minimum(own, relevance[current, row]) for current in range(1, depth + 1))
    fine = level == depth
    numerators = np.bincount(row[fine], (running[depth] / rank)[fine], lists), np.bincount(row, hierarchical / rank, lists)
    divisors = np.bincount(row[fine], minlength=lists), np.bincount(row, own, lists)
    with np.errstate(invalid="ignore"):
        return np.stack(numerators) / np.stack(divisors)


def _mean(values: NDArray[np.float64]) -> float:
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if len(valid) else float("nan")
