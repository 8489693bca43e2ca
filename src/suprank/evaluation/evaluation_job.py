"""The work of one evaluation: blocks of queries, shared by processes, saved for a resume, and estimated before it starts."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.distributed

from suprank.evaluation.block_ranking import sums_over_ranking, sums_over_top
from suprank.evaluation.checkpoint import Checkpoint, digest, digest_integers
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.metric_names import Metric
from suprank.evaluation.metrics import MetricSettings, QuerySums, metric_values
from suprank.evaluation.plan import EvaluationPlan, measure_seconds
from suprank.evaluation.positives import LabelPositives, SetPositives
from suprank.evaluation.search import Search

if TYPE_CHECKING:
    import hashlib

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.evaluation.progress import Progress

_log = logging.getLogger("suprank.evaluation")

_FEWEST_CHUNKS = 64  # of a gallery for which it is worth measuring how long it takes
_LONG = 60  # seconds from which this is announced
_QUERIES_AT_ONCE = 2**14  # whose metrics are computed together: few operations, and small beside the memory budget


@dataclass(frozen=True)
class EvaluationJob:
    """Checked arguments, and how the work is divided."""

    search: Search
    positives: LabelPositives | SetPositives
    labels: tuple[Tensor, Tensor]
    excluded: Tensor  # items by their own numbers
    parts: dict[Metric, list[Metric]]  # metrics of the report, and those whose means they are made of
    computed: list[Metric]
    settings: MetricSettings
    distributed: bool

    @property
    def full(self) -> bool:
        """Whether the whole list is ranked, and not only its top."""
        return any(metric.full_ranking for metric in self.computed)

    @property
    def ks(self) -> list[int]:
        return sorted({metric.k for metric in self.computed if metric.k is not None})

    @property
    def passes(self) -> int:
        """How many times the gallery is read for a block of queries, if it is streamed."""
        return 2 if self.full and not self.search.whole else 1

    @property
    def process(self) -> tuple[int, int]:
        """The number of this process, and how many there are."""
        return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if self.distributed else (0, 1)

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
        """The blocks of queries, as this process would cut them."""
        longest = min(max(self.ks, default=0), len(self.search.gallery))
        counts = self.positives.counts()
        return self.search.blocks(counts if self.full else np.full(len(counts), longest))

    def plan(self) -> EvaluationPlan:
        """What will be done, and how long it takes, which is measured."""
        search, blocks, (_, processes) = self.search, self.blocks(), self.process
        rows = [self.positives.queries[block] for block in blocks]
        seconds = measure_seconds(search, self.rank_block, rows[:: min(processes, len(rows))], passes=self.passes)
        return EvaluationPlan(
            queries=len(search.queries),
            items=len(search.gallery),
            dim=search.gallery.dim,
            seconds=seconds,
            gallery_bytes=search.gallery.nbytes,
            on_disk=search.gallery.on_disk,
            # Every process checks all embeddings.
            reads=(1 if search.resident else len(blocks) * self.passes) + processes,
            blocks=len(blocks),
            memory_budget=search.budget,
            device=str(search.device),
            processes=processes,
        )

    def announce(self, *, on_terminal: bool) -> None:
        """Say how long it takes, if the gallery is streamed and it takes long."""
        chunks = -(-len(self.search.gallery) // self.search.chunk)
        if self.search.whole or chunks < _FEWEST_CHUNKS or self.process[0]:
            return
        plan = self.plan()
        if plan.seconds < _LONG:
            return
        _log.info("%s", plan)
        if on_terminal and sys.stderr.isatty():
            print(plan, file=sys.stderr)

    def values_per_query(self, show: Progress, folder: str | os.PathLike[str] | None) -> NDArray[np.float64]:
        """The value of every metric for every query, `[metrics, queries]`; processes share the work."""
        search = self.search
        if folder is None:
            search.check()
            return self._ranked(show, None)
        rank, _ = self.process
        saved = Checkpoint(Path(folder), rank=rank)
        with ExitStack() as lock:
            self._in_first_process(lambda: lock.enter_context(saved.lock()), saved)
            digests = {source: digest() for source in (search.queries, search.gallery)}
            search.check(digests)
            fingerprint = self._fingerprint(digests)
            self._in_first_process(lambda: saved.begin(fingerprint), saved)
            if rank:
                saved.begin(fingerprint)  # its own folder, if the processes share none
            search.open_checkpoint = saved.open_block
            return self._ranked(show, saved)

    def _fingerprint(self, digests: Mapping[Embeddings, hashlib._Hash]) -> dict[str, Any]:
        """What an evaluation must have in common with another one to go on with its work, by the names of arguments."""
        search, settings = self.search, self.settings
        on_gpu = search.device.type == "cuda"
        same = search.queries is search.gallery
        return {
            "queries": len(search.queries),
            "items": len(search.gallery),
            "dim": search.gallery.dim,
            "embeddings": digests[search.queries].hexdigest(),
            "gallery": None if same else digests[search.gallery].hexdigest(),
            "labels": digest_integers(self.labels[0]),
            "gallery_labels": None if same else digest_integers(self.labels[1]),
            "self_index, ids and ignored": digest_integers(self.excluded),
            "metrics": [str(metric) for metric in self.computed],
            "level_names": settings.level_names,
            "decay": settings.decay,
            "weights": settings.weights,
            "normalize": search.normalize,
            "device": torch.cuda.get_device_name(search.device) if on_gpu else "cpu",
            # On a GPU the last digit of a score can depend on the size of a block.
            "memory_budget": search.budget if on_gpu else None,
        }

    def _in_first_process(self, action: Callable[[], object], saved: Checkpoint) -> None:
        """Lock, create or check the folder in the first process; if that fails, all of them end."""
        rank, _ = self.process
        refusal: Exception | None = None
        try:
            if rank == 0:
                action()
        except (OSError, ValueError) as error:
            refusal = error
        if self.distributed and _all_reduce(np.array([refusal is not None], np.int32), self.search, "MAX")[0] and rank:
            raise ValueError(f"the first process cannot use the checkpoint {saved.folder}; its own error says why.")
        if refusal is not None:
            raise refusal

    def _ranked(self, show: Progress, saved: Checkpoint | None) -> NDArray[np.float64]:
        search, positives, (rank, world) = self.search, self.positives, self.process
        values = np.zeros((len(self.computed), len(positives.queries)))
        # The blocks are the same on any number of processes, so that every product has the same shape.
        blocks = _agree_on_blocks(self.blocks(), search) if self.distributed else self.blocks()
        if saved is not None:
            blocks = self._unfinished(blocks, saved, values)
        mine = blocks[rank::world]
        waiting: list[tuple[NDArray[np.int64], QuerySums]] = []
        chunks = _ChunkProgress(mine, len(search.gallery) * self.passes, lambda done: show(done, len(positives.queries)))
        if search.workers == 1 and not search.resident:  # a block can take minutes
            search.on_chunk = chunks
        with closing(search.map_blocks(self.rank_block, [positives.queries[block] for block in mine])) as results:
            for number, (block, parts) in enumerate(zip(mine, results, strict=True)):
                chunks.begin(number + 1)
                waiting += parts
                if saved is not None:
                    saved.finish_blocks([rows for rows, _ in parts])
                last = block is mine[-1]
                save = saved is not None and (last or saved.is_due)
                if save or last or sum(len(rows) for rows, _ in waiting) > _QUERIES_AT_ONCE:
                    parted, sums = zip(*waiting, strict=True)
                    block_values = metric_values(self.computed, QuerySums.concatenate(sums), self.ks, self.settings)
                    rows = np.concatenate(parted)
                    values[:, rows] = block_values.cpu().numpy()
                    if saved is not None:
                        saved.add(rows, values[:, rows], save=save)
                    waiting = []
                show(block.stop, len(positives.queries))
        if mine[-1:] != blocks[-1:] or not blocks:
            show(len(positives.queries), len(positives.queries))  # the last block belongs to another process, or is known
        # Every entry is one process's value and the others' 0: the sum is exact.
        return _all_reduce(values, search, "SUM") if self.distributed else values

    def _unfinished(self, blocks: list[slice], saved: Checkpoint, values: NDArray[np.float64]) -> list[slice]:
        """The blocks whose values no process has saved; those of the others are filled in, each by one process."""
        rank, world = self.process
        known = np.where(saved.load_values(values), rank, world).astype(np.int32)
        if self.distributed:
            known = _all_reduce(known, self.search, "MIN")
        left = [block for block in blocks if (known[self.positives.queries[block]] == world).any()]
        for block in left:
            known[self.positives.queries[block]] = world
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


def _agree_on_blocks(blocks: Sequence[slice], search: Search) -> list[slice]:
    """The same blocks on every process, cut wherever one of them would cut, because free memory and threads may differ.

    Otherwise a query could be ranked by two processes, or by none.
    """
    cuts = np.zeros(blocks[-1].stop + 1, np.int32)
    cuts[[block.stop for block in blocks]] = 1
    stops = np.flatnonzero(_all_reduce(cuts, search, "MAX")).tolist()
    return [slice(start, stop) for start, stop in pairwise([0, *stops])]


def _all_reduce(values: NDArray[Any], search: Search, operation: Literal["SUM", "MIN", "MAX"]) -> NDArray[Any]:
    device = torch.device("cpu")
    if torch.distributed.get_backend() == "nccl":  # which needs a GPU, whatever we evaluate on
        device = search.device if search.device.type == "cuda" else torch.device("cuda")
    reduced = torch.from_numpy(values).to(device)
    torch.distributed.all_reduce(reduced, getattr(torch.distributed.ReduceOp, operation))
    return reduced.cpu().numpy()
