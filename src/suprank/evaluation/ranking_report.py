"""`ranking_report`: every metric of embeddings and labels, exactly, in bounded memory, on one process or many."""

from __future__ import annotations

import hashlib
import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from suprank.evaluation.arguments import as_array, check_ks, check_label_tree, excluded_items, integer_tensor, parse_metrics
from suprank.evaluation.checkpoint import Checkpoint, digest_integers
from suprank.evaluation.metric_names import MEAN_OF_LEVELS, Metric
from suprank.evaluation.metrics import MetricSettings, check_weights, default_metrics
from suprank.evaluation.positives import LabelPositives, SetPositives
from suprank.evaluation.query_values import Processes, QueryValues
from suprank.evaluation.report import Report
from suprank.evaluation.report_text import UNDEFINED
from suprank.evaluation.search import Search, choose_device
from suprank.evaluation.statistics import mean_over_queries
from suprank.evaluation.units import query_classes
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike
    from torch import Tensor

    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.system.progress import Progress


def ranking_report(
    data: RetrievalData,
    *,
    metrics: Sequence[str] | None = None,
    ks: Sequence[int] | None = None,
    decay: float | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    normalize: bool = True,
    self_index: Tensor | ArrayLike | None = None,
    ignored: Sequence[Sequence[int]] | None = None,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    distributed: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | Progress = True,
    stacklevel: int = 5,
) -> Report:
    """The metrics of the data, with the values of each query; see `evaluate`. Warnings are in the name of its caller."""
    source, gallery = data.queries.embeddings, None if data.gallery is None else data.gallery.embeddings
    items = source if gallery is None else gallery
    names, defaults = data.levels, data.defaults
    device = choose_device(device, source)
    own = integer_tensor(data.queries.labels, "labels")
    theirs = own if gallery is None else integer_tensor(data.items.labels, "gallery_labels")
    check_label_tree([own] if gallery is None else [own, theirs], names)
    decay = defaults.decay if decay is None else decay
    if not 0 <= decay < float("inf"):
        raise ValueError(
            f"decay={decay} must be 0 or more, and finite: below 0, coarse levels would outweigh fine ones; the paper uses 1."
        )
    weights = defaults.weights if weights is None else weights
    settings = MetricSettings(names, float(decay), check_weights(weights, names))
    cut_offs = check_ks(defaults.ks if ks is None else ks)
    chosen = default_metrics(cut_offs, names) if metrics is None else parse_metrics(metrics, names)
    ids = data.queries.ids, None if data.gallery is None else data.gallery.ids
    excluded = excluded_items(source, gallery, self_index, *ids, ignored, stacklevel=stacklevel)
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
        per_query={str(metric): columns[metric] for metric in chosen if metric in columns},
        query_ids=None if ids[0] is None else as_array(ids[0]),
    )
    if all(map(math.isnan, report.values())):
        report = replace(report, settings={**report.settings, UNDEFINED: _why_undefined(own, theirs, gallery is not None)})
    levels = dict(zip(names, own.unbind(1), strict=True)) if data.classes is None else data.classes
    return replace(report, classes=query_classes(levels, report.n_queries))


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
