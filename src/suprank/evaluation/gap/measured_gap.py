"""The decomposability gap of embeddings: a metric within batches, minus the metric over all items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from suprank.evaluation.arguments import check_label_pair
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.evaluate import evaluate
from suprank.evaluation.gap.partition import as_numpy, partition_items
from suprank.evaluation.labels import integer_labels
from suprank.evaluation.metric_names import MEAN_OF_LEVELS, OVERALL, parse_metric
from suprank.evaluation.metrics import mean_over_queries
from suprank.ranking.relevance import refuse_label_sets
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.evaluation.gap.partition import Batches
    from suprank.system.progress import Progress

_ROW_BYTES = 128 * 2**20  # of the queries of a batch, which are copied


@dataclass(frozen=True, eq=False)
class DecomposabilityGap:
    """The decomposability gap (eq:decomposability-gap). Above 0, the metric looks better within batches than it is."""

    value: float  # mean over the queries; NaN when none has a positive
    in_batches: float  # mean of the first term, the metric within batches
    overall: float  # mean of the second term, the metric over all items
    queries_left_out: int  # because they have no positives
    per_query: NDArray[np.float64] = field(repr=False)  # NaN for queries without positives


def decomposability_gap(
    embeddings: EmbeddingSource,
    labels: Tensor | ArrayLike,
    batches: Batches,
    metric: str = "AP",
    *,
    gallery: EmbeddingSource | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    levels: Sequence[str] | None = None,
    decay: float = 1.0,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: bool | Progress = True,
    normalize: bool = True,
    seed: int = 0,
) -> DecomposabilityGap:
    """DG = 1/K Σ_b M_b − M for each query: the mean of its metric over batches, minus its metric over all items.

    `batches` says how the items (the gallery if one is given, else the queries themselves) are partitioned: a batch size,
    for items shuffled with `seed`, where the last batch is smaller if the size does not divide their number; or a sequence
    of arrays of item numbers; or an integer for each item, the number of its batch.

    `metric` is a key of `evaluate`, such as "AP", "H-AP", "R@1" or "AP/genus"; other arguments are as there. Every query
    is evaluated in every batch that has a positive of it at the levels that the metric uses, itself left out; K is the
    number of those batches (eq:decomposability-gap assumes that all have one). Counts in the metric, such as |Ω^(l)| in
    H-AP's relevance, are taken within the batch.

    DG is at most 1 and can be negative: a batch without the hard negatives makes a query look better, a batch with the hard
    negatives and few positives makes it look worse. `gap_bounds` bounds it from the composition of the batches.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.0, 1.0]])
        >>> labels = torch.tensor([0, 0, 1, 1, 2])  # item 2 has item 1, of another class, closer than item 3
        >>> decomposability_gap(embeddings, labels, [[0, 1, 4], [2, 3]])
        DecomposabilityGap(value=0.125, in_batches=1.0, overall=0.875, queries_left_out=1)
    """
    if (parsed := parse_metric(metric)).level == MEAN_OF_LEVELS:
        (instead,) = parsed.at_levels([OVERALL])
        raise ValueError(f"metric={metric!r} has no value for a single query, so it has no gap; try {instead}, or a level.")
    source = Embeddings.from_source(embeddings, "embeddings")
    items = source if gallery is None else Embeddings.from_source(gallery, "gallery")
    labels, gallery_labels, levels, _ = integer_labels(labels, gallery_labels, levels)
    parts = partition_items(batches, len(items), seed)
    show = progress_function(progress, "measuring the gap")
    steps = len(source) + len(items)
    options: dict[str, Any] = {
        "levels": levels,
        "decay": decay,
        "weights": weights,
        "device": device,
        "memory_budget": memory_budget,
        "metrics": [metric],
        "normalize": normalize,
        "per_query": True,
    }
    pair = check_label_pair(labels, gallery_labels, source, None if gallery is None else items)
    refuse_label_sets(pair[0], "the decomposability gap", "leave out all but one label of an image")
    report = evaluate(
        source,
        labels,
        None if gallery is None else items,
        gallery_labels,
        progress=lambda done, total: show(done, steps),
        **options,
    )
    overall = _only_column(report.per_query)
    own, theirs = map(as_numpy, pair)
    column = _coarsest_column(metric, report.levels)
    queries_by_label = _QueriesByLabel(own[:, column])
    self_index = np.full(len(source), -1, np.int64)  # the query's number in the batch
    total, number = np.zeros(len(source)), np.zeros(len(source), np.int64)
    done = len(source)
    for part in parts:
        batch = items.rows(torch.from_numpy(part))
        if gallery is None:
            self_index[part] = np.arange(len(part))
        for rows in queries_by_label.find(theirs[part, column], at_once=max(1, _ROW_BYTES // (4 * source.dim))):
            within = evaluate(
                source.rows(torch.from_numpy(rows)),
                own[rows],
                batch,
                theirs[part],
                self_index=self_index[rows],
                progress=False,
                **options,
            )
            values = _only_column(within.per_query)
            total[rows] += np.nan_to_num(values)
            number[rows] += ~np.isnan(values)
        if gallery is None:
            self_index[part] = -1
        done += len(part)
        show(done, steps)
    in_batches = np.divide(total, number, out=np.full(len(source), np.nan), where=number > 0)
    gap = in_batches - overall
    valid = ~np.isnan(gap)
    return DecomposabilityGap(
        value=mean_over_queries(gap),
        in_batches=mean_over_queries(in_batches[valid]),
        overall=mean_over_queries(overall[valid]),
        queries_left_out=int((~valid).sum()),
        per_query=gap,
    )


class _QueriesByLabel:
    """The queries of each label, sorted once, so that no batch has to search through all queries."""

    def __init__(self, labels: NDArray[np.int64]):
        self.order = np.argsort(labels, kind="stable")
        self.ordered = labels[self.order]

    def find(self, labels: NDArray[np.int64], *, at_once: int) -> list[NDArray[np.int64]]:
        """The queries that have one of these labels, in blocks of `at_once`; −1 is no label."""
        known = np.unique(labels[labels >= 0])
        first, last = np.searchsorted(self.ordered, known, "left"), np.searchsorted(self.ordered, known, "right")
        ranges = [self.order[start:stop] for start, stop in zip(first, last, strict=True)]
        rows = np.sort(np.concatenate(ranges)) if ranges else np.empty(0, np.int64)
        return [rows[start : start + at_once] for start in range(0, len(rows), at_once)]


def _coarsest_column(metric: str, levels: Sequence[str]) -> int:
    """The column of the coarsest level that the metric uses: items with another label there are not positives."""
    parsed = parse_metric(metric)
    if parsed.hierarchical or parsed.level == OVERALL:
        return len(levels) - 1
    return 0 if parsed.level is None else list(levels).index(parsed.level)


def _only_column(values: Mapping[str, NDArray[np.float64]] | None) -> NDArray[np.float64]:
    assert values is not None
    (column,) = values.values()
    return column
