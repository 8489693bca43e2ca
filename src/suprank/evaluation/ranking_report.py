"""`ranking_report`: every metric of embeddings and labels, exactly, in bounded memory, on one process or many."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed

from suprank.evaluation.arguments import as_array, check_ks, check_label_tree, excluded_items, integer_tensor, parse_metrics
from suprank.evaluation.block_ranking import sums_over_ranking, sums_over_top
from suprank.evaluation.checkpoint import Checkpoint, digest_integers
from suprank.evaluation.metric_names import MEAN_OF_LEVELS, Metric
from suprank.evaluation.metrics import (
    MetricSettings,
    QuerySums,
    check_weights,
    default_metrics,
    mean_over_queries,
    metric_values,
)
from suprank.evaluation.positives import LabelPositives, SetPositives
from suprank.evaluation.report import Report
from suprank.evaluation.report_text import UNDEFINED
from suprank.evaluation.search import Search, choose_device
from suprank.evaluation.units import query_classes
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.system.progress import Progress

_QUERIES_AT_ONCE = 2**14  # whose metrics are computed together: few operations, and small beside the memory budget


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


# The values of every query


class Processes(NamedTuple):
    """The processes of torch.distributed that share an evaluation: the number of this one, how many there are, its device."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def here(cls, device: torch.device, *, distributed: bool) -> Processes:
        """Those of the process group, if there is one and it is `distributed`; or this process alone."""
        if distributed and torch.distributed.is_available() and torch.distributed.is_initialized():
            return cls(torch.distributed.get_rank(), torch.distributed.get_world_size(), device)
        return cls(0, 1, device)

    def all_reduce(self, values: NDArray[Any], operation: Literal["SUM", "MIN", "MAX"]) -> NDArray[Any]:
        """The sum, least or greatest of all processes' values."""
        if self.world_size == 1:
            return values
        device = torch.device("cpu")
        if torch.distributed.get_backend() == "nccl":  # which needs a GPU, whatever we evaluate on
            device = self.device if self.device.type == "cuda" else torch.device("cuda")
        reduced = torch.from_numpy(values).to(device)
        torch.distributed.all_reduce(reduced, getattr(torch.distributed.ReduceOp, operation))
        return reduced.cpu().numpy()

    def run_first(self, action: Callable[[], object], refusal: str) -> None:
        """Run `action` in the first process; if that fails, all of them end, the others with `refusal`."""
        error: Exception | None = None
        try:
            if self.rank == 0:
                action()
        except (OSError, ValueError) as found:
            error = found
        if self.all_reduce(np.array([error is not None], np.int32), "MAX")[0] and self.rank:
            raise ValueError(refusal)
        if error is not None:
            raise error


@dataclass(frozen=True)
class QueryValues:
    """What is ranked and computed: `compute()` does it."""

    search: Search
    positives: LabelPositives | SetPositives
    metrics: list[Metric]
    settings: MetricSettings
    processes: Processes
    checkpoint: Checkpoint | None

    @property
    def full(self) -> bool:
        """Whether the whole list is ranked, and not only its top."""
        return any(metric.full_ranking for metric in self.metrics)

    @property
    def ks(self) -> list[int]:
        return sorted({metric.k for metric in self.metrics if metric.k is not None})

    def rank_block(self, rows: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], QuerySums]]:
        """The sums of these queries' rankings; of a query that comes twice, the second counts."""
        search, positives, settings, ks = self.search, self.positives, self.settings, self.ks
        if self.full:
            return [(rows, sums_over_ranking(search.score(rows), positives, settings, ks))]
        sums, unknown = sums_over_top(search.score(rows), positives, settings, ks)
        if not unknown.any():
            return [(rows, sums)]
        again = rows[unknown.cpu().numpy()]
        exact = sums_over_ranking(search.score(again), positives, settings, ks)
        return [(rows, sums), (again, exact._replace(full=None))]

    def blocks(self) -> list[slice]:
        """The blocks of queries, the same in all processes, so that every product has the same shape.

        They are cut wherever one of them would cut, because free memory and threads may differ: otherwise a query could be
        ranked by two processes, or by none.
        """
        longest = min(max(self.ks, default=0), len(self.search.gallery))
        counts = self.positives.counts()
        own = self.search.blocks(counts if self.full else np.full(len(counts), longest))
        cuts = np.zeros(len(counts) + 1, np.int32)
        cuts[[block.stop for block in own]] = 1
        stops = np.flatnonzero(self.processes.all_reduce(cuts, "MAX")).tolist()
        return [slice(start, stop) for start, stop in pairwise([0, *stops])]

    def compute(self, show: Progress) -> NDArray[np.float64]:
        """The value of every metric for every query, `[metrics, queries]`; processes share the blocks."""
        search, positives, saved = self.search, self.positives, self.checkpoint
        values = np.zeros((len(self.metrics), len(positives.queries)))
        blocks = self.blocks()
        if saved is not None:
            blocks = self._unfinished(blocks, saved, values)
        mine = blocks[self.processes.rank :: self.processes.world_size]
        waiting: list[tuple[NDArray[np.int64], QuerySums]] = []
        passes = 2 if self.full and not search.whole else 1  # over a streamed gallery, for a block
        chunks = _ChunkProgress(mine, len(search.gallery) * passes, lambda done: show(done, len(positives.queries)))
        if search.workers == 1 and not search.resident:  # a block can take minutes
            search.on_chunk = chunks
        with closing(search.map_blocks(self.rank_block, [positives.queries[block] for block in mine])) as results:
            for number, (block, parts) in enumerate(zip(mine, results, strict=True)):
                chunks.begin(number + 1)
                waiting += parts
                due = saved is not None and saved.is_due
                if block is mine[-1] or due or sum(len(rows) for rows, _ in waiting) > _QUERIES_AT_ONCE:
                    parted, sums = zip(*waiting, strict=True)
                    rows = np.concatenate(parted)
                    some = metric_values(self.metrics, QuerySums.concatenate(sums), self.ks, self.settings)
                    values[:, rows] = some.cpu().numpy()
                    if saved is not None:
                        saved.save(rows, values[:, rows])
                    waiting = []
                show(block.stop, len(positives.queries))
        if mine[-1:] != blocks[-1:] or not blocks:
            show(len(positives.queries), len(positives.queries))  # the last block belongs to another process, or is known
        # Every entry is one process's value and the others' 0: the sum is exact.
        return self.processes.all_reduce(values, "SUM")

    def _unfinished(self, blocks: list[slice], saved: Checkpoint, values: NDArray[np.float64]) -> list[slice]:
        """The blocks whose values no process has saved; those of the others are filled in, each by one process."""
        rank, count, _ = self.processes
        known = self.processes.all_reduce(np.where(saved.load_values(values), rank, count).astype(np.int32), "MIN")
        left = [block for block in blocks if (known[self.positives.queries[block]] == count).any()]
        for block in left:
            known[self.positives.queries[block]] = count
        values[:, known != rank] = 0
        return left


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
