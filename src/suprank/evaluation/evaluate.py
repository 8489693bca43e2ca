"""`evaluate`: every metric of embeddings and labels, exactly, in bounded memory, on one process or many."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed

from suprank.evaluation.arguments import (
    as_array,
    check_ks,
    check_label_pair,
    check_level_names,
    check_tree,
    excluded_items,
    parse_metrics,
)
from suprank.evaluation.block_ranking import sums_over_ranking, sums_over_top
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.metric_names import MEAN_OF_LEVELS, Metric
from suprank.evaluation.metrics import MetricSettings, QuerySums, check_weights, default_metrics, metric_values
from suprank.evaluation.positives import LabelPositives, SetPositives
from suprank.evaluation.progress import progress_function
from suprank.evaluation.report import Report
from suprank.evaluation.search import Search, check_dimensions, choose_device
from suprank.evaluation.statistics import mean_over_queries

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.evaluation.progress import Progress

_QUERIES_AT_ONCE = 2**14  # whose metrics are computed together: few operations, and small beside the memory budget


def evaluate(
    embeddings: EmbeddingSource,
    labels: Tensor | ArrayLike,
    gallery: EmbeddingSource | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    *,
    metrics: Sequence[str] | None = None,
    ks: Sequence[int] = (1, 10, 100),
    level_names: Sequence[str] | None = None,
    decay: float = 1.0,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    normalize: bool = True,
    self_index: Tensor | ArrayLike | None = None,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    gallery_ids: Sequence[Any] | NDArray[Any] | None = None,
    ignored: Sequence[Sequence[int]] | None = None,
    per_query: bool = False,
    bootstrap: int = 0,
    seed: int = 0,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    distributed: bool = True,
    progress: bool | Progress = True,
) -> Report:
    """Rank the gallery for every query by cosine similarity, and compute every metric of the ranking, exactly.

    Embeddings are tensors, numpy arrays, or paths of ``.npy``, ``.pt`` or ``.parquet`` files, which may be larger than memory.
    Labels are `[N]` or `[N, L]`, column 0 the finest, and must form a tree; −1 is no label: such an item is a positive of no
    query and a negative of all. Labels `[N, L, M]` are sets of up to M labels at each level, padded with −1: an item is a
    positive where its set meets the query's. Without a gallery, the queries are ranked against each other.

    The query itself is left out of its list: the item `self_index` (−1 for none), or the items with the query's id; without a
    gallery and ids, the item of the same number. So are the items in `ignored[query]`. An exact copy of the query under
    another number is an item like any other; but if most queries have one in the gallery that is not left out, a
    `QueryInGalleryWarning` is raised.

    Items are in a total order: score descending, on equal scores the lower level first. Scores are float32 whatever the
    embeddings are stored in. Products are computed in whole tiles, so that exact copies of an item get the same score
    wherever they are in the gallery; on one CPU every value is the same to the last bit for any memory budget and number of
    processes.

    Metrics: R@k (is a positive in the top k?), TR@k (the share of the positives that could be there), P@k (always divided
    by k), mAP@k (divided by min(k, |Ω⁺|)), AP, mAP@R, R-P (precision at R), MRR, ASI, at the finest level and, as
    ``AP/<level>``, at every level. ``AP/overall`` is the mean over queries of each query's mean over the levels at which it
    has positives. If you name it in `metrics`, ``AP/mean-of-levels`` is the mean over levels of their means over queries, as
    in the authors' code; the two differ where queries lack positives at some level. These use all levels: H-AP with relevance
    (l/L)^decay / |Ω^(l)|, wAP with `weights` (by level name, or a sequence, finest level first), NDCG with gain 2^l − 1, ASI,
    H-P@k and H-R@k. `metrics` chooses some, by these names or by pytorch-metric-learning's, and `ks` is then ignored; if all
    of them have a k, only the top k is ranked. A query without positives at a level is left out of the means there and
    counted in `Report.without_positives`. A k beyond the gallery is allowed: the missing places count as wrong.

    Under torch.distributed each process ranks a share of the queries, and all return the same report; with
    `distributed=False` each process evaluates its own data. `memory_budget` is about how many bytes are used in addition to
    the embeddings given, some hundred bytes per item for the label tree, and 8 bytes per metric and query: by default 256 MiB
    for each of torch's threads (512 MiB at least), on a GPU 4 GiB. A gallery that does not fit into it is read again for
    every block of queries. `per_query` keeps each query's values, and `bootstrap=1000` adds 95 % confidence intervals over
    queries, drawn with `seed`. `progress` is a function of (done, total), or whether to show a bar on a terminal.

    Example:
        >>> report = evaluate(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]]), torch.tensor([0, 1, 0, 1]))
        >>> report["R@1"], report["AP"]
        (0.0, 0.4583333333333333)
    """
    source = Embeddings.from_source(embeddings, "embeddings")
    items = source if gallery is None else Embeddings.from_source(gallery, "gallery")
    check_dimensions(source, items)
    device = choose_device(device, source)
    own, theirs = (
        part.to(device) for part in check_label_pair(labels, gallery_labels, source, None if gallery is None else items)
    )
    names = check_level_names(level_names, own.shape[1])
    check_tree(own if gallery is None else torch.cat([own, theirs]), names)
    if not 0 <= decay < float("inf"):
        raise ValueError(
            f"decay={decay} must be 0 or more, and finite: below 0, coarse levels would outweigh fine ones; the paper uses 1."
        )
    settings = MetricSettings(names, float(decay), check_weights(weights, names))
    chosen = default_metrics(check_ks(ks), names) if metrics is None else parse_metrics(metrics, names)
    if gallery is not None and gallery_ids is not None and ids is None:
        raise ValueError("gallery_ids were given without ids, but both are needed to find the query in the gallery; give both.")
    excluded = excluded_items(source, None if gallery is None else items, self_index, ids, gallery_ids, ignored)
    positives = (LabelPositives if own.ndim == 2 else SetPositives)(own, theirs, excluded.to(device))
    search = Search(
        source,
        items,
        device=device,
        memory_budget=memory_budget,
        normalize=normalize,
        positives_per_query=float(positives.counts().mean()) if any(metric.full_ranking for metric in chosen) else 0,
        contiguous=isinstance(positives, LabelPositives),
    )
    if search.whole and isinstance(positives, LabelPositives):
        search.arrange(positives.arrange())
    distributed = distributed and torch.distributed.is_available() and torch.distributed.is_initialized()
    parts = {metric: metric.at_levels(names) if metric.level == MEAN_OF_LEVELS else [metric] for metric in chosen}
    computed = list(dict.fromkeys(part for some in parts.values() for part in some))
    values = _values_per_query(search, positives, computed, settings, progress_function(progress, "evaluating"), distributed)
    columns = dict(zip(computed, values, strict=True))
    means = {metric: mean_over_queries(column) for metric, column in columns.items()}
    report = Report(
        values={str(metric): _mean_of_levels([means[part] for part in some]) for metric, some in parts.items()},
        queries=len(source),
        items=len(items),
        levels=names,
        without_positives=dict(zip(names, _count_without_positives(positives), strict=True)),
        settings={
            "ks": sorted({metric.k for metric in chosen if metric.k is not None}),
            "decay": float(decay),
            "weights": dict(zip(names, settings.weights, strict=True)),
            "normalize": normalize,
        },
        per_query={str(metric): columns[metric] for metric in chosen if metric in columns} if per_query or bootstrap else None,
        query_ids=None if ids is None else as_array(ids),
    )
    if bootstrap:
        report = report.with_intervals(bootstrap, seed=seed)
    return report if per_query else replace(report, per_query=None, query_ids=None)


def _values_per_query(
    search: Search,
    positives: LabelPositives | SetPositives,
    metrics: Sequence[Metric],
    settings: MetricSettings,
    show: Progress,
    distributed: bool,
) -> NDArray[np.float64]:
    """The value of every metric for every query, `[metrics, queries]`; processes share the work."""
    full = any(metric.full_ranking for metric in metrics)
    ks = sorted({metric.k for metric in metrics if metric.k is not None})
    # The blocks are the same on any number of processes, so that every product has the same shape.
    longest = min(max(ks, default=0), len(search.gallery))
    blocks = search.blocks(positives.counts() if full else np.full(len(positives.queries), longest))
    if distributed:
        blocks = _agree_on_blocks(blocks, search)
    rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else (0, 1)
    mine = blocks[rank::world]
    values = np.zeros((len(metrics), len(positives.queries)))
    waiting: list[tuple[NDArray[np.int64], QuerySums]] = []
    rank_block = partial(_rank_block, search, positives, full=full, settings=settings, ks=ks)
    items = len(search.gallery) * (2 if full and not search.whole else 1)
    chunks = _ChunkProgress(mine, items, lambda done: show(done, len(positives.queries)))
    if search.workers == 1 and not search.resident:  # a block can take minutes
        search.on_chunk = chunks
    with closing(search.map_blocks(rank_block, [positives.queries[block] for block in mine])) as results:
        for number, (block, parts) in enumerate(zip(mine, results, strict=True)):
            chunks.begin(number + 1)
            waiting += parts
            if block is mine[-1] or sum(len(rows) for rows, _ in waiting) > _QUERIES_AT_ONCE:
                rows, sums = zip(*waiting, strict=True)
                block_values = metric_values(metrics, QuerySums.concatenate(sums), ks, settings)
                values[:, np.concatenate(rows)] = block_values.cpu().numpy()
                waiting = []
            show(block.stop, len(positives.queries))
    if mine[-1:] != blocks[-1:]:
        show(len(positives.queries), len(positives.queries))  # the last block belongs to another process
    # Every entry is one process's value and the others' 0: the sum is exact.
    return _all_reduce(values, search, torch.distributed.ReduceOp.SUM) if distributed else values


class _ChunkProgress:
    """Shows how much of a block is done while the gallery is read for it: `items` in all, and more if ties are ranked again."""

    def __init__(self, blocks: Sequence[slice], items: int, show: Callable[[int], None]):
        self.blocks, self.items, self.show = blocks, items, show
        self.begin(0)

    def begin(self, number: int) -> None:
        """From now on chunks are read for the block of this number."""
        self.number, self.read = number, 0

    def __call__(self, items: int) -> None:
        self.read += items
        block = self.blocks[self.number]
        size = block.stop - block.start
        self.show(block.start + min(size * self.read // self.items, size - 1))


def _agree_on_blocks(blocks: Sequence[slice], search: Search) -> list[slice]:
    """The same blocks on every process, cut wherever one of them would cut, because free memory and threads may differ.

    Otherwise a query could be ranked by two processes, or by none.
    """
    cuts = np.zeros(blocks[-1].stop + 1, np.int32)
    cuts[[block.stop for block in blocks]] = 1
    stops = np.flatnonzero(_all_reduce(cuts, search, torch.distributed.ReduceOp.MAX)).tolist()
    return [slice(start, stop) for start, stop in pairwise([0, *stops])]


def _all_reduce(values: NDArray[Any], search: Search, operation: Any) -> NDArray[Any]:
    device = torch.device("cpu")
    if torch.distributed.get_backend() == "nccl":  # which needs a GPU, whatever we evaluate on
        device = search.device if search.device.type == "cuda" else torch.device("cuda")
    reduced = torch.from_numpy(values).to(device)
    torch.distributed.all_reduce(reduced, operation)
    return reduced.cpu().numpy()


def _rank_block(
    search: Search,
    positives: LabelPositives | SetPositives,
    rows: NDArray[np.int64],
    *,
    full: bool,
    settings: MetricSettings,
    ks: Sequence[int],
) -> list[tuple[NDArray[np.int64], QuerySums]]:
    """The sums of these queries' rankings; of a query that comes twice, the second counts."""
    if full:
        return [(rows, sums_over_ranking(search.score(rows), positives, settings, ks))]
    sums, unknown = sums_over_top(search.score(rows), positives, settings, ks)
    if not unknown.any():
        return [(rows, sums)]
    again = rows[unknown.cpu().numpy()]
    exact = sums_over_ranking(search.score(again), positives, settings, ks)
    return [(rows, sums), (again, exact._replace(full=None))]


def _mean_of_levels(means: Sequence[float]) -> float:
    """The mean over the levels at which some query has positives; NaN when there is none."""
    defined = [mean for mean in means if not math.isnan(mean)]
    return sum(defined) / len(defined) if defined else math.nan


def _count_without_positives(positives: LabelPositives | SetPositives) -> list[int]:
    """How many queries have no positives at each level, finest first."""
    sizes, _ = positives.sizes(torch.arange(len(positives.queries), device=positives.device))
    return (sizes == 0).sum(0).flip(0).tolist()
