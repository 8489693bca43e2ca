"""Embeddings and labels in, every metric out: exact, in bounded memory, on one process or many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed

from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.inputs import as_array, checked_ks, checked_level_names, chosen_metrics, label_pair, left_out
from suprank.evaluation.metrics import Found, MetricSettings, default_metrics, measured, weights_of
from suprank.evaluation.names import Metric
from suprank.evaluation.progress import progress_to
from suprank.evaluation.report import Report
from suprank.evaluation.runs import Run
from suprank.evaluation.search import Search, check_dimensions, device_for, found_in_all, found_in_top, top
from suprank.evaluation.targets import LabelTargets, check_tree

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import Source
    from suprank.evaluation.progress import Progress
    from suprank.ranking.exact import Top

_MEASURED_TOGETHER = 2**14  # queries: enough that a metric's operations are few, and small beside the memory budget


def evaluate(
    embeddings: Source,
    labels: Tensor | ArrayLike,
    gallery: Source | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    ks: Sequence[int] = (1, 10, 100),
    level_names: Sequence[str] | None = None,
    decay: float = 1.0,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: bool | Progress = True,
    *,
    metrics: Sequence[str] | None = None,
    self_index: Tensor | ArrayLike | None = None,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    gallery_ids: Sequence[Any] | NDArray[Any] | None = None,
    ignored: Sequence[Sequence[int]] | None = None,
    normalize: bool = True,
    per_query: bool = False,
    bootstrap: int = 0,
    seed: int = 0,
    distributed: bool = True,
) -> Report:
    """Rank the gallery for every query by cosine similarity, and measure the ranking, exactly.

    Embeddings are tensors, numpy arrays, or paths of ``.npy``, ``.pt`` or ``.parquet`` files, which may be larger than memory.
    Labels are `[N]` or `[N, L]`, column 0 the finest, and must form a tree; −1 stands for no label: such an item is
    nobody's positive and everybody's competitor. Without a gallery, the queries are ranked against each other.

    Which item is the query itself is told by `self_index` (the item's number, −1 for none) or by ids (an item with the
    query's id); without a gallery, it is the item of the same number. The query is not in its own list, and neither are
    the items in `ignored[query]`. An exact copy of the query under another number is an item like any other; but where most
    queries have one in the gallery and it is not left out, a `QueryInGalleryWarning` says so.

    Items stand in a total order: score descending, on equal scores the lower level first. Scores are float32 whatever
    the embeddings are stored in. Products come in whole tiles, so that exact copies of an item score the same wherever they
    stand; on one CPU a score, and so every value, is the same to the last bit for any memory budget and number of processes.

    Metrics: R@k (is a positive in the top k?), TR@k (the share of the positives that could be there), P@k (divided by k
    always), mAP@k (divided by min(k, |Ω⁺|)), AP, mAP@R, R-P (precision at R), MRR, ASI, at the finest level and, under
    ``AP/<level>``, at every level; ``AP/overall`` is the mean over the levels. H-AP with relevance (l/L)^decay / |Ω^(l)|,
    wAP with `weights` (by level name, or a sequence with the coarsest first, as in the losses), NDCG with gain 2^l − 1, and
    ASI look at all levels; so do H-P@k and H-R@k. `metrics` chooses some, by these names or by pytorch-metric-learning's, and
    `ks` is then not looked at; when all of them look at the top k only, nothing else is ranked. A query without positives at a
    level is left out of the means there and counted in `Report.without_positives`. A k beyond the gallery is allowed: the
    missing places count as wrong.

    Under torch.distributed each process judges a share of the queries, and all return the same report; with
    `distributed=False` each judges all of its own. `memory_budget` is about how many bytes are used beside the embeddings
    given, some hundred bytes an item for the label tree and 8 bytes a metric and query: by default 256 MiB for each of torch's
    threads (512 MiB at least), on a GPU 4 GiB. A gallery that does not fit into it is read from where it is for every block of
    queries. `per_query` keeps each query's values, and `bootstrap=1000` adds 95 % confidence intervals over queries, drawn
    with `seed`. `progress` is a function of (done, total), or whether to show a bar on a terminal.

    Example:
        >>> report = evaluate(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]]), torch.tensor([0, 1, 0, 1]))
        >>> report["R@1"], report["AP"]
        (0.0, 0.4583333333333333)
    """
    source = Embeddings.of(embeddings, "embeddings")
    items = source if gallery is None else Embeddings.of(gallery, "gallery")
    check_dimensions(source, items)
    where = device_for(device, source)
    own, theirs = (part.to(where) for part in label_pair(labels, gallery_labels, source, None if gallery is None else items))
    names = checked_level_names(level_names, own.shape[1])
    check_tree(own if gallery is None else torch.cat([own, theirs]), names)
    if not 0 <= decay < float("inf"):
        raise ValueError(
            f"decay={decay} must be 0 or more, and finite: below 0 coarse levels would outweigh fine ones; the paper uses 1."
        )
    meaning = MetricSettings(names, float(decay), weights_of(weights, names))
    chosen = default_metrics(checked_ks(ks), names) if metrics is None else chosen_metrics(metrics, names)
    if gallery is not None and gallery_ids is not None and ids is None:
        raise ValueError("gallery_ids were given without ids, and only both together tell which item is the query; give both.")
    hidden = left_out(source, None if gallery is None else items, self_index, ids, gallery_ids, ignored)
    targets = LabelTargets(own, theirs, hidden.to(where))
    full = any(metric.full_ranking for metric in chosen)
    wanted = float(targets.positives().mean()) if full else 0
    search = Search(source, items, device=where, memory_budget=memory_budget, normalize=normalize, wanted=wanted)
    if search.whole:
        search.arrange(targets.arrange())
    distributed = distributed and torch.distributed.is_available() and torch.distributed.is_initialized()
    values = _values(search, targets, chosen, meaning, progress_to(progress, "evaluating"), distributed)
    report = Report(
        values={str(metric): _mean(column) for metric, column in zip(chosen, values, strict=True)},
        queries=len(source),
        items=len(items),
        levels=names,
        without_positives=dict(zip(names, _without(targets), strict=True)),
        settings={
            "ks": sorted({metric.k for metric in chosen if metric.k is not None}),
            "decay": float(decay),
            "weights": dict(zip(names, meaning.weights, strict=True)),
            "normalize": normalize,
        },
        per_query=dict(zip(map(str, chosen), values, strict=True)) if per_query or bootstrap else None,
        query_ids=None if ids is None else as_array(ids),
    )
    if bootstrap:
        report = report.with_intervals(bootstrap, seed=seed)
    return report if per_query else replace(report, per_query=None, query_ids=None)


def top_k(
    embeddings: Source,
    gallery: Source | None = None,
    k: int = 100,
    *,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    gallery_ids: Sequence[Any] | NDArray[Any] | None = None,
    self_index: Tensor | ArrayLike | None = None,
    ignored: Sequence[Sequence[int]] | None = None,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: bool | Progress = True,
    normalize: bool = True,
) -> Run:
    """The k best items of every query, by exact search, as a `Run` that saves to TREC, ranx and GLDv2 formats.

    Arguments are as in `evaluate`. Items are called by their ids, or else by their numbers; equal scores stand in the
    order of the items. Lists are shorter where the gallery is.
    """
    source = Embeddings.of(embeddings, "embeddings")
    items = source if gallery is None else Embeddings.of(gallery, "gallery")
    check_dimensions(source, items)
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k={k!r} must be an integer of at least 1; try 100.")
    asked = list(range(len(source))) if ids is None else as_array(ids).tolist()
    if len(set(asked)) < len(asked):
        twice = next(one for one, times in Counter(asked).items() if times > 1)
        raise ValueError(f"ids hold {twice!r} more than once, but a run has one list a query; give each an id of its own.")
    search = Search(source, items, device=device_for(device, source), memory_budget=memory_budget, normalize=normalize)
    hidden = left_out(source, None if gallery is None else items, self_index, ids, gallery_ids, ignored).to(search.device)
    k = min(k, len(items))
    scores, found = np.empty((len(source), k), np.float32), np.empty((len(source), k), np.int64)
    show = progress_to(progress, "searching")
    blocks = [np.arange(block.start, block.stop) for block in search.blocks(np.full(len(source), k))]

    def best(rows: NDArray[np.int64]) -> Top:
        return top(search.scored(rows), hidden[rows[0] : rows[-1] + 1], k)

    with closing(search.each(best, blocks)) as lists:
        for rows, listed in zip(blocks, lists, strict=True):
            scores[rows], found[rows] = listed.scores.cpu().numpy(), listed.item.cpu().numpy()
            show(int(rows[-1]) + 1, len(source))
    called = ids if gallery is None else gallery_ids
    names = np.arange(len(items)) if called is None else as_array(called)
    names = names.astype(np.int64) if names.dtype.kind in "iu" else names
    named = np.where(found >= 0, names[found.clip(0)], "" if names.dtype.kind in "US" else -1)
    return Run(asked, named, scores)


def _values(
    search: Search, targets: LabelTargets, metrics: Sequence[Metric], meaning: MetricSettings, show: Progress, distributed: bool
) -> NDArray[np.float64]:
    """The value of every metric for every query, `[metrics, queries]`, shared out over the processes there are."""
    full = any(metric.full_ranking for metric in metrics)
    ks = sorted({metric.k for metric in metrics if metric.k is not None})
    # The blocks are the same on any number of processes, so that every product has the same shape.
    longest = min(max(ks, default=0), len(search.gallery))
    blocks = search.blocks(targets.positives() if full else np.full(len(targets.queries), longest))
    if distributed:
        blocks = _agreed(blocks, search)
    rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else (0, 1)
    mine = blocks[rank::world]
    values = np.zeros((len(metrics), len(targets.queries)))
    waiting: list[tuple[NDArray[np.int64], Found]] = []
    judge = partial(_found, search, targets, full=full, meaning=meaning, ks=ks)
    with closing(search.each(judge, [targets.queries[block] for block in mine])) as judgments:
        for block, parts in zip(mine, judgments, strict=True):
            waiting += parts
            if block is mine[-1] or sum(len(rows) for rows, _ in waiting) > _MEASURED_TOGETHER:
                rows, found = zip(*waiting, strict=True)
                values[:, np.concatenate(rows)] = measured(metrics, found[0].joined(found[1:]), ks, meaning).cpu().numpy()
                waiting = []
            show(block.stop, len(targets.queries))
    if mine[-1:] != blocks[-1:]:
        show(len(targets.queries), len(targets.queries))  # the last of them are another process's
    # Every entry is one process's value and the others' 0: adding them up is exact.
    return _reduced(values, search, torch.distributed.ReduceOp.SUM) if distributed else values


def _agreed(blocks: Sequence[slice], search: Search) -> list[slice]:
    """The same blocks on every process, cut wherever one of them would cut: free memory and threads may differ.

    Else a query could be judged by two processes, or by none.
    """
    cuts = np.zeros(blocks[-1].stop + 1, np.int32)
    cuts[[block.stop for block in blocks]] = 1
    stops = np.flatnonzero(_reduced(cuts, search, torch.distributed.ReduceOp.MAX)).tolist()
    return [slice(start, stop) for start, stop in pairwise([0, *stops])]


def _reduced(values: NDArray[Any], search: Search, how: Any) -> NDArray[Any]:
    """The values of all processes in one."""
    where = torch.device("cpu")
    if torch.distributed.get_backend() == "nccl":  # which knows GPUs only, whatever is evaluated on
        where = search.device if search.device.type == "cuda" else torch.device("cuda")
    whole = torch.from_numpy(values).to(where)
    torch.distributed.all_reduce(whole, how)
    return whole.cpu().numpy()


def _found(
    search: Search, targets: LabelTargets, rows: NDArray[np.int64], *, full: bool, meaning: MetricSettings, ks: Sequence[int]
) -> list[tuple[NDArray[np.int64], Found]]:
    """What these queries' rankings hold; of queries that come twice, the second counts."""
    if full:
        return [(rows, found_in_all(search.scored(rows), targets, meaning, ks))]
    found, unknown = found_in_top(search.scored(rows), targets, meaning, ks)
    if not unknown.any():
        return [(rows, found)]
    again = rows[unknown.cpu().numpy()]
    exact = found_in_all(search.scored(again), targets, meaning, ks)
    return [(rows, found), (again, exact._replace(tallies=None))]


def _mean(values: NDArray[np.float64]) -> float:
    """The mean over the queries for which there is a value; NaN when there is none."""
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if len(valid) else float("nan")


def _without(targets: LabelTargets) -> list[int]:
    """How many queries have no positives at each level, the finest first."""
    sizes, _ = targets.sizes(torch.arange(len(targets.queries), device=targets.start.device))
    return (sizes == 0).sum(0).flip(0).tolist()
