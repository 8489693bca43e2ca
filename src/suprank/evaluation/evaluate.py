"""`evaluate`: every metric of embeddings and labels, exactly, in bounded memory, on one process or many."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from suprank.evaluation.arguments import (
    as_array,
    check_ks,
    check_label_pair,
    check_label_tree,
    check_level_names,
    excluded_items,
    parse_metrics,
)
from suprank.evaluation.checkpoint import Checkpoint, digest_integers
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.labels import integer_labels
from suprank.evaluation.metric_names import MEAN_OF_LEVELS, Metric
from suprank.evaluation.metrics import MetricSettings, check_weights, default_metrics
from suprank.evaluation.positives import LabelPositives, SetPositives
from suprank.evaluation.query_values import Processes, QueryValues
from suprank.evaluation.report import Report
from suprank.evaluation.report_text import UNDEFINED
from suprank.evaluation.search import Search, check_dimensions, choose_device
from suprank.evaluation.statistics import mean_over_queries
from suprank.evaluation.units import query_classes
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.system.progress import Progress


def evaluate(
    embeddings: EmbeddingSource,
    labels: Tensor | ArrayLike,
    gallery: EmbeddingSource | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    *,
    metrics: Sequence[str] | None = None,
    ks: Sequence[int] = (1, 10, 100),
    levels: Sequence[str] | None = None,
    decay: float = 1.0,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    normalize: bool = True,
    self_index: Tensor | ArrayLike | None = None,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    gallery_ids: Sequence[Any] | NDArray[Any] | None = None,
    ignored: Sequence[Sequence[int]] | None = None,
    classes: Mapping[str, Tensor | ArrayLike] | None = None,
    per_query: bool = False,
    intervals: bool = False,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    distributed: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | Progress = True,
) -> Report:
    """Rank the gallery for every query by cosine similarity, and compute every metric of the ranking, exactly.

    Embeddings are tensors, numpy arrays, or paths of ``.npy``, ``.pt`` or ``.parquet`` files, which may be larger than memory;
    several files, as a list or a pattern, are one collection.
    Labels are `[N]` or `[N, L]`, column 0 the finest, and must form a tree; −1 is no label: such an item is a positive of no
    query and a negative of all. Labels `[N, L, M]` are sets of up to M labels at each level, padded with −1, or truth values
    of M classes: an item is a positive where its set meets the query's. Without a gallery, the queries are ranked against each
    other.

    The query itself is left out of its list: the item `self_index` (−1 for none), or the items with the query's id; without a
    gallery and ids, the item of the same number. So are the items in `ignored[query]`. An exact copy of the query under
    another number is an item like any other; but if most queries have one in the gallery that is not left out, a
    `QueryInGalleryWarning` is raised, and without a gallery a warning too.

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
    the embeddings and labels given, up to 30 bytes per item for the label tree, and 8 bytes per metric and query: by default
    256 MiB for each of torch's threads (512 MiB at least), on a GPU 4 GiB. A gallery that does not fit into it is read again
    for every block of queries. `progress` is a function of (done, total), or whether to show a bar on a terminal.

    `per_query` keeps each query's values, and `intervals` adds 95 % confidence intervals for new classes: queries of a class
    are not independent of one another (`Report.units`). `classes` are the labels of the queries at every level that you have,
    by name, finest first, also at those that are not evaluated; by default `labels`.

    `checkpoint` is a folder, in which the values of finished blocks of queries are saved every 30 seconds: after a kill the
    same call goes on with the others, with any number of processes, and gives the same digits. If the folder is of another
    evaluation (other embeddings, labels or settings), a ValueError says what differs. It stays, and a later call returns once
    it has checked the embeddings; delete it when you have the report.

    Example:
        >>> report = evaluate(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]]), torch.tensor([0, 1, 0, 1]))
        >>> report["R@1"], report["AP"]
        (0.0, 0.4583333333333333)
    """
    labels, gallery_labels, levels = integer_labels(labels, gallery_labels, levels)
    source = Embeddings.from_source(embeddings, "embeddings")
    items = source if gallery is None else Embeddings.from_source(gallery, "gallery", sequential=True)
    others = None if gallery is None else items
    check_dimensions(source, items)
    device = choose_device(device, source)
    own, theirs = check_label_pair(labels, gallery_labels, source, others)
    names = check_level_names(levels, own.shape[1])
    check_label_tree([own] if gallery is None else [own, theirs], names)
    if not 0 <= decay < float("inf"):
        raise ValueError(
            f"decay={decay} must be 0 or more, and finite: below 0, coarse levels would outweigh fine ones; the paper uses 1."
        )
    settings = MetricSettings(names, float(decay), check_weights(weights, names))
    chosen = default_metrics(check_ks(ks), names) if metrics is None else parse_metrics(metrics, names)
    if gallery is not None and gallery_ids is not None and ids is None:
        raise ValueError("gallery_ids were given without ids, but both are needed to find the query in the gallery; give both.")
    excluded = excluded_items(source, others, self_index, ids, gallery_ids, ignored, stacklevel=4)
    positives: LabelPositives | SetPositives
    if own.ndim == 2:
        positives = LabelPositives(own, theirs, excluded.to(device))
    else:
        positives = SetPositives(own.to(device), theirs.to(device), excluded.to(device))
    parts = {metric: metric.at_levels(names) if metric.level == MEAN_OF_LEVELS else [metric] for metric in chosen}
    computed = list(dict.fromkeys(part for some in parts.values() for part in some))
    processes = Processes.here(device, distributed=distributed)
    saved = None if checkpoint is None else Checkpoint(Path(checkpoint), rank=processes.rank)
    refusal = f"the first process cannot use the checkpoint {checkpoint}; its own error says why."
    with ExitStack() as lock:
        if saved is not None:
            processes.run_first(lambda: lock.enter_context(saved.lock()), refusal)
        digests = {one: hashlib.sha256() for one in (source, items)}
        search = Search(
            source,
            items,
            device=device,
            memory_budget=memory_budget,
            normalize=normalize,
            positives_per_query=float(positives.counts().mean()) if any(metric.full_ranking for metric in chosen) else 0,
            contiguous=isinstance(positives, LabelPositives),
            digests=None if saved is None else digests,
        )
        if saved is not None:
            fingerprint = _fingerprint(search, settings, computed, digests, (own, theirs), excluded)
            processes.run_first(lambda: saved.begin(fingerprint), refusal)
            if processes.rank:
                saved.begin(fingerprint)  # its own folder, if the processes share none
        if search.whole and isinstance(positives, LabelPositives):
            search.arrange(positives.arrange())
        job = QueryValues(search, positives, computed, settings, processes, saved)
        columns = dict(zip(computed, job.compute(progress_function(progress, "evaluating")), strict=True))
    means = {metric: mean_over_queries(column) for metric, column in columns.items()}
    report = Report(
        means={str(metric): _mean_of_levels([means[part] for part in some]) for metric, some in parts.items()},
        n_queries=len(source),
        n_items=len(items),
        levels=names,
        without_positives=dict(zip(names, _count_without_positives(positives), strict=True)),
        settings={
            "ks": sorted({metric.k for metric in chosen if metric.k is not None}),
            "decay": float(decay),
            "weights": dict(zip(names, settings.weights, strict=True)),
            "normalize": normalize,
        },
        per_query={str(metric): columns[metric] for metric in chosen if metric in columns} if per_query or intervals else None,
        query_ids=None if ids is None else as_array(ids),
    )
    if all(map(math.isnan, report.values())):
        report = replace(report, settings={**report.settings, UNDEFINED: _why_undefined(own, theirs, gallery is not None)})
    if per_query or intervals:
        by_level = dict(zip(names, own.unbind(1), strict=True)) if classes is None else classes
        report = replace(report, classes=query_classes(by_level, report.n_queries))
    if intervals:
        report = report.with_intervals()
    return report if per_query else report.without_queries()


def _fingerprint(
    search: Search,
    settings: MetricSettings,
    metrics: Sequence[Metric],
    digests: Mapping[Embeddings, hashlib._Hash],
    labels: tuple[Tensor, Tensor],
    excluded: Tensor,
) -> dict[str, Any]:
    """What an evaluation must have in common with another one to go on with its work, by the names of arguments."""
    on_gpu = search.device.type == "cuda"
    same = search.queries is search.gallery
    return {
        "queries": len(search.queries),
        "items": len(search.gallery),
        "dim": search.gallery.dim,
        "embeddings": digests[search.queries].hexdigest(),
        "gallery": None if same else digests[search.gallery].hexdigest(),
        "labels": digest_integers(labels[0]),
        "gallery_labels": None if same else digest_integers(labels[1]),
        "self_index, ids and ignored": digest_integers(excluded),
        "metrics": [str(metric) for metric in metrics],
        "levels": settings.levels,
        "decay": settings.decay,
        "weights": settings.weights,
        "normalize": search.normalize,
        "device": torch.cuda.get_device_name(search.device) if on_gpu else "cpu",
        # On a GPU the last digit of a score can depend on the size of a block.
        "memory_budget": search.budget if on_gpu else None,
    }


def _mean_of_levels(means: Sequence[float]) -> float:
    """The mean over the levels at which some query has positives; NaN when there is none."""
    defined = [mean for mean in means if not math.isnan(mean)]
    return sum(defined) / len(defined) if defined else math.nan


def _why_undefined(labels: Tensor, item_labels: Tensor, has_gallery: bool) -> str:
    where = "no item of the gallery" if has_gallery else "no other item"
    reason = f"{where} has a class of the query, at any level" + "; are classes named alike in both?" * has_gallery
    if not (item_labels >= 0).any():
        reason = f"{where} has a label"
    if not (labels >= 0).any():
        reason = "no query has a label"
    return f"no metric is defined, because no query has a positive: {reason}"


def _count_without_positives(positives: LabelPositives | SetPositives) -> list[int]:
    """How many queries have no positives at each level, finest first."""
    sizes, _ = positives.sizes(torch.arange(len(positives.queries), device=positives.device))
    return (sizes == 0).sum(0).flip(0).tolist()
