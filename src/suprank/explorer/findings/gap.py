"""How much better batches look than the whole collection: the decomposability gap by batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation import evaluate
from suprank.explorer.findings.lists import looked_at
from suprank.explorer.findings.metrics import of_all_levels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from suprank.evaluation import Report
    from suprank.explorer.source import Source

SIZES = (32, 64, 128, 256, 512)
MOST_BATCHES = 1000
"""Of a size; sizes that would make more are left out: each batch is an evaluation of its own, of some milliseconds."""

_PAIRS = 6_000_000  # of query and item: a thousand queries of a small collection


@dataclass(frozen=True, eq=False)
class GapBySize:
    """The gap of each measure (eq:decomposability-gap), signed, for items shuffled into batches of each size.

    `values[measure]` and `in_batches[measure]` have an entry a size, `overall[measure]` is the measure over all items. The last
    size is the whole collection: one batch, whose gap is 0. NaN where no query has a positive. `queries` were looked at,
    of `of`: a random sample where not all.
    """

    sizes: tuple[int, ...]
    values: dict[str, tuple[float, ...]]
    in_batches: dict[str, tuple[float, ...]]
    overall: dict[str, float]
    queries: int
    of: int


def gap_by_size(
    source: Source,
    report: Report,
    sizes: Sequence[int] = SIZES,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> GapBySize:
    """AP and H-AP, as `suprank.evaluation.decomposability_gap` defines it; `report` has the values over all items, per query.

    Both measures at once, over a sample of the queries, and with queries that stand in a gallery left out of their own lists:
    that is what is not there.
    """
    assert report.per_query is not None
    items = len(source.gallery)
    measures = tuple(dict.fromkeys(("AP", of_all_levels(report))))
    queries = looked_at(source, seed, _PAIRS)
    overall = np.stack([report.per_query[measure][queries] for measure in measures])
    kept = [size for size in sorted(set(sizes)) if size < items and items <= MOST_BATCHES * size]
    total = sum(-(-items // size) for size in kept)
    found, done = [], 0
    for size in kept:
        shuffled = np.random.default_rng(seed).permutation(items)
        parts = [np.sort(shuffled[start : start + size]) for start in range(0, items, size)]
        sums, numbers = np.zeros(overall.shape), np.zeros(overall.shape, np.int64)
        for part in parts:
            values = _in_batch(source, queries, part, measures)
            sums += np.nan_to_num(values)
            numbers += ~np.isnan(values)
            done += 1
            progress(done, total)
        found.append(np.divide(sums, numbers, out=np.full(sums.shape, np.nan), where=numbers > 0))
    within = np.stack([*found, overall])  # [sizes, measures, queries]
    means = [[_mean(values) for values in one] for one in within]
    gaps = [[_mean(values) for values in one] for one in within - overall]
    return GapBySize(
        (*kept, items),
        {measure: tuple(one[place] for one in gaps) for place, measure in enumerate(measures)},
        {measure: tuple(one[place] for one in means) for place, measure in enumerate(measures)},
        {measure: means[-1][place] for place, measure in enumerate(measures)},
        len(queries),
        len(source.queries),
    )


def _in_batch(
    source: Source, queries: NDArray[np.int64], part: NDArray[np.int64], measures: Sequence[str]
) -> NDArray[np.float64]:
    """Each measure of each query in one batch, NaN where the batch has no positive of it."""
    values = np.full((len(measures), len(queries)), np.nan)
    coarsest = source.queries.labels[queries, -1]
    there = np.flatnonzero(np.isin(coarsest, source.gallery.labels[part, -1]) & (coarsest >= 0))
    if not len(there):
        return values
    rows = queries[there]
    identity: dict[str, Any] = {}
    if source.queries.ids is not None and source.gallery.ids is not None:
        identity["ids"] = [source.queries.ids[row] for row in rows.tolist()]
        identity["gallery_ids"] = [source.gallery.ids[row] for row in part.tolist()]
    elif source.against_each_other:
        place = np.searchsorted(part, rows).clip(max=len(part) - 1)
        identity["self_index"] = np.where(part[place] == rows, place, -1)
    found = evaluate(
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
    assert found.per_query is not None
    values[:, there] = [found.per_query[measure] for measure in measures]
    return values


def _mean(values: NDArray[np.float64]) -> float:
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if len(valid) else float("nan")
