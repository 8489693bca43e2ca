"""How a search divides its memory budget: does the gallery stay, are rows of scores whole, how large are chunks and blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from suprank.evaluation.matrix_product import TILE, round_up

if TYPE_CHECKING:
    import numpy as np

_DEFAULT_BUDGET = {"cpu": 256 * 2**20, "cuda": 4 * 2**30}  # on a CPU for each thread, and for two at least
_MOST_QUERIES = {"cpu": 512, "cuda": 8192}
_LEAST_STREAMED = {"cpu": 16384, "cuda": 65536}  # items in a chunk of a gallery that does not stay, if it fits
_MOST_QUERIES_STREAMED = 16384
_SHARED_CHUNK = 4096  # items in a chunk where threads divide the gallery: it stays in a core's cache
_READINGS = 2  # whole rows of scores may take so many times the memory of rows in pieces, which are computed twice
_BYTES_A_POSITIVE = {"cpu": 80, "cuda": 72}  # scores, levels, item numbers, what a sort needs, counts and places
_BYTES_IN_ONE_PASS = {"positive": 36, "item": 4}  # held by each thread, for one query at a time


def default_budget(device: torch.device) -> int:
    """The bytes that a search may hold if the caller names no budget."""
    if device.type != "cuda":
        return _DEFAULT_BUDGET["cpu"] * max(2, torch.get_num_threads())
    free, _ = torch.cuda.mem_get_info(device)
    return min(_DEFAULT_BUDGET["cuda"], int(0.7 * free))


@dataclass(frozen=True)
class SearchShape:
    """What the plan depends on. `positives` is about how many a query has; `dim` is padded.

    `contiguous` says whether the positives of a query are next to each other, `compiled` whether ranks are computed by
    `OnePassOrdering`, and `on_disk` whether the gallery is a file.
    """

    queries: int
    items: int
    dim: int
    positives: int
    contiguous: bool
    compiled: bool
    on_disk: bool


class MemoryPlan:
    """The division of `budget` bytes.

    resident: the gallery stays in memory.
    whole:    a row of scores is held whole; otherwise the scores of a chunk, and they are computed twice.
    threads:  threads that rank.
    divided:  the threads read one part of the gallery each; otherwise one thread reads.
    chunk:    items that are read at a time.
    workers:  blocks of queries that are ranked at a time.
    """

    def __init__(self, shape: SearchShape, budget: int, device: torch.device):
        kind = "cuda" if device.type == "cuda" else "cpu"
        positives, items = shape.positives, round_up(shape.items, TILE)
        self._items = shape.items
        self.resident = items * shape.dim * 4 <= 0.6 * budget
        enough = max(_LEAST_STREAMED[kind], positives * _BYTES_A_POSITIVE[kind] // 4)
        in_pieces = 4 * enough + positives * _BYTES_A_POSITIVE[kind]
        self.whole = self.resident or 4 * items <= _READINGS * in_pieces
        in_one_pass = self.whole and shape.contiguous and shape.compiled
        self._thread_bytes = _BYTES_IN_ONE_PASS if in_one_pass else dict.fromkeys(_BYTES_IN_ONE_PASS, 0)
        thread_bytes = positives * self._thread_bytes["positive"] + items * self._thread_bytes["item"]
        affordable = max(1, budget // 4 // max(1, thread_bytes))
        self.threads = min(torch.get_num_threads(), affordable) if shape.compiled else 1
        # Threads divide a gallery in memory; a file is read by one of them, from its beginning to its end.
        self.divided = shape.compiled and self.whole and not self.resident and not shape.on_disk
        # A chunk is held as it was read and as it is used. The smaller it is, the more queries fit into a block and the fewer
        # times the gallery is read; but each of their positives is looked for in every chunk, and takes memory as well.
        readers = self.threads if self.divided else 1
        longest = _SHARED_CHUNK if self.divided else _LEAST_STREAMED[kind] if self.whole else enough
        most = min(budget // 8 // readers // (8 * shape.dim), longest)
        self.chunk = items if self.resident else min(max(1, most // TILE) * TILE, items)
        gallery_bytes = items * shape.dim * 4 if self.resident else readers * self.chunk * shape.dim * 8
        self._score_bytes = 4 * self.chunk * readers
        self._row_bytes = 4 * items if self.whole and not self.resident else 0
        self._positive_bytes = 0 if in_one_pass else _BYTES_A_POSITIVE[kind]
        # Blocks that are ranked at a time, of a tile of queries at least. Where the gallery is streamed, it is read for one
        # block at a time, which the threads share: the more queries it has, the fewer times the gallery is read.
        free = max(0, budget - gallery_bytes)
        block = TILE * self._score_bytes + thread_bytes
        self.workers = min(self.threads, max(1, free // block)) if self.resident and in_one_pass else 1
        self._block_bytes = free // self.workers
        share = round_up(-(-shape.queries // self.workers), TILE)
        self._most_queries = min(share, _MOST_QUERIES[kind] if self.whole else _MOST_QUERIES_STREAMED)

    def blocks(self, positives: np.ndarray) -> list[slice]:
        """Cut the queries, given how many positives each has, into blocks that fit the budget; one query always does."""
        blocks, begin, widest = [], 0, 0
        threads = self.threads if self.workers == 1 else 1  # of a block
        for at, number in enumerate(positives.tolist()):
            grown = max(widest, number)
            padded = round_up(at + 1 - begin, TILE)
            needs = padded * self._score_bytes + (at + 1 - begin) * (self._row_bytes + grown * self._positive_bytes)
            needs += threads * (grown * self._thread_bytes["positive"] + self._items * self._thread_bytes["item"])
            if at > begin and (needs > self._block_bytes or at - begin >= self._most_queries):
                blocks.append(slice(begin, at))
                begin, grown = at, number
            widest = grown
        return [*blocks, slice(begin, len(positives))] if len(positives) else []
