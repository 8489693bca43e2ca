"""The decomposability gap by batch size: how much better batches look than the whole collection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation import evaluate
from suprank.explorer.findings.curves import sample_queries
from suprank.explorer.findings.query_metrics import main_metric

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from suprank.evaluation import Report
    from suprank.explorer.source import Source


SIZES = (32, 64, 128, 256, 512)
MAX_BATCHES = 1000
"""Maximum number of batches per size; sizes with more are skipped, because a batch is an evaluation and takes milliseconds."""

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
    source: Source,
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
    items = len(source.gallery)
    measures = tuple(dict.fromkeys(("AP", main_metric(report))))
    queries = sample_queries(source, seed, _PAIRS)
    overall = np.stack([report.per_query[measure][queries] for measure in measures])
    usable = [size for size in sorted(set(sizes)) if size < items and items <= MAX_BATCHES * size]
    total = sum(-(-items // size) for size in usable)
    in_batches, done = [], 0
    for size in usable:
        shuffled = np.random.default_rng(seed).permutation(items)
        parts = [np.sort(shuffled[start : start + size]) for start in range(0, items, size)]
        sums, numbers = np.zeros(overall.shape), np.zeros(overall.shape, np.int64)
        for part in parts:
            values = _in_batch(source, queries, part, measures)
            sums += np.nan_to_num(values)
            numbers += ~np.isnan(values)
            done += 1
            progress(done, total)
        in_batches.append(np.divide(sums, numbers, out=np.full(sums.shape, np.nan), where=numbers > 0))
    within = np.stack([*in_batches, overall])  # [sizes, measures, queries]
    means = [[_mean(values) for values in one] for one in within]
    gaps = [[_mean(values) for values in one] for one in within - overall]
    return GapBySize(
        (*usable, items),
        {measure: tuple(row[column] for row in gaps) for column, measure in enumerate(measures)},
        {measure: tuple(row[column] for row in means) for column, measure in enumerate(measures)},
        {measure: means[-1][column] for column, measure in enumerate(measures)},
        len(queries),
        len(source.queries),
    )


def _in_batch(
    source: Source, queries: NDArray[np.int64], part: NDArray[np.int64], measures: Sequence[str]
) -> NDArray[np.float64]:
    """Each measure of each query in one batch; NaN if the batch has no positive for it."""
    values = np.full((len(measures), len(queries)), np.nan)
    coarsest = source.queries.labels[queries, -1]
    valid = np.flatnonzero(np.isin(coarsest, source.gallery.labels[part, -1]) & (coarsest >= 0))
    if not len(valid):
        return values
    rows = queries[valid]
    identity: dict[str, Any] = {}
    if source.queries.ids is not None and source.gallery.ids is not None:
        identity["ids"] = [source.queries.ids[row] for row in rows.tolist()]
        identity["gallery_ids"] = [source.gallery.ids[row] for row in part.tolist()]
    elif source.against_each_other:
        position = np.searchsorted(part, rows).clip(max=len(part) - 1)
        identity["self_index"] = np.where(part[position] == rows, position, -1)
    report = evaluate(
        np.asarray(source.queries.embeddings[rows]),
        source.queries.labels[rows],
        np.asarray(source.gallery.embeddings[part]),
        source.gallery.labels[part],
        level_names=source.levels,
        decay=source.decay,
        metrics=list(measures),
        per_query=True,
        progress=False,
        **identity,
    )
    assert report.per_query is not None
    values[:, valid] = [report.per_query[measure] for measure in measures]
    return values


def _mean(values: NDArray[np.float64]) -> float:
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if len(valid) else float("nan")
