"""The values of metrics for every query: blocks of queries are ranked, shared by processes, and saved for a resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed

from suprank.evaluation.block_ranking import sums_over_ranking, sums_over_top
from suprank.evaluation.checkpoint import Checkpoint
from suprank.evaluation.metric_names import Metric
from suprank.evaluation.metrics import MetricSettings, QuerySums, metric_values
from suprank.evaluation.positives import LabelPositives, SetPositives
from suprank.evaluation.search import Search

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.system.progress import Progress

_QUERIES_AT_ONCE = 2**14  # whose metrics are computed together: few operations, and small beside the memory budget


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
