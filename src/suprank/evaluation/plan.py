"""How long an evaluation will take, and what it reads: from a short measurement, before it starts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.search import Search

    RankBlock = Callable[[NDArray[np.int64]], Any]

_CHUNKS = 4  # of the gallery that are ranked for the measurement


@dataclass(frozen=True)
class EvaluationPlan:
    """What an evaluation will do, and about how many seconds it will take. `print(plan)` says it in a line."""

    queries: int
    items: int
    dim: int
    seconds: float
    """About how long it takes, reading and checking all embeddings included."""
    gallery_bytes: int
    """The size of the gallery's embeddings as they are stored."""
    on_disk: bool
    reads: int
    """How many times the gallery is read, by all processes together."""
    blocks: int
    """Blocks of queries that are ranked one after the other, or one on each process or thread."""
    memory_budget: int
    device: str
    processes: int = 1

    def __str__(self) -> str:
        times = "once" if self.reads == 1 else f"{self.reads:,} times"
        where = "files" if self.on_disk else "memory"
        shared = f" by {self.processes} processes" if self.processes > 1 else ""
        return (
            f"about {_duration(self.seconds)}: {self.queries:,} queries × {self.items:,} items, read {times}{shared} from "
            f"{_size(self.gallery_bytes)} of {where}, {self.memory_budget / 2**20:,.0f} MiB of memory ({self.device})"
        )


def measure_seconds(search: Search, rank_block: RankBlock, blocks: Sequence[NDArray[np.int64]], *, passes: int) -> float:
    """About how long it takes to check the embeddings and to rank all blocks, on one process.

    If the gallery is streamed, a few of its chunks are ranked for the first block of queries, whose time grows with the number
    of chunks and of queries. Otherwise as many blocks as are ranked at a time are. What is found is thrown away.
    """
    if search.whole:
        return _seconds_of_whole_rows(search, rank_block, blocks)
    last = -(-len(search.gallery) // search.chunk)
    tried = min(_CHUNKS, last)

    def rank_first_block() -> None:
        list(search.map_blocks(rank_block, blocks[:1]))

    search.last_chunk = tried
    try:
        rank_first_block()  # compiles loops, and brings the chunks into the system's cache
        search.last_chunk = 1
        least = _seconds(rank_first_block)
        search.last_chunk = tried
        most = _seconds(rank_first_block) if tried > 1 else least
        reading = _seconds(lambda: [None for _ in search.chunks()]) / tried
    finally:
        search.last_chunk = None
    per_chunk = (most - least) / (tried - 1) if tried > 1 else least
    fixed = max(0.0, least - per_chunk)
    from_disk = max(0.0, _seconds_of_new_chunk(search, last) - reading) if search.gallery.on_disk else 0.0
    ranking = max(0.0, per_chunk - passes * reading)
    # What the system cannot keep in its cache comes from the disk each time.
    again = reading + (from_disk if search.gallery.nbytes > _available_memory() else 0.0)
    share = sum(map(len, blocks)) / len(blocks[0])  # ranking grows with the queries, and reading with the blocks
    total = share * (fixed + last * ranking) + len(blocks) * passes * last * again
    return total + last * from_disk + _seconds_of_check(search.gallery, search.device)


def _seconds_of_whole_rows(search: Search, rank_block: RankBlock, blocks: Sequence[NDArray[np.int64]]) -> float:
    seconds_before = _seconds(search.check)
    if search.resident:
        seconds_before += _seconds(lambda: next(search.chunks()))
    rank_block(blocks[0])  # compiles loops, and brings buffers into memory
    some = blocks[: search.workers]
    seconds = _seconds(lambda: list(search.map_blocks(rank_block, some)))
    return seconds_before + seconds * sum(map(len, blocks)) / sum(map(len, some))


def _seconds_of_new_chunk(search: Search, last: int) -> float:
    """How long it takes to read a chunk that was not read before, after the one before it."""
    if last <= _CHUNKS + 2:
        return 0.0
    chunks = search.chunks(search.chunk * (_CHUNKS + (last - _CHUNKS) // 2))
    next(chunks)
    return _seconds(lambda: next(chunks, None))


def _seconds_of_check(source: Embeddings, device: torch.device) -> float:
    """How long the norms of all rows take, of which some are computed."""
    rows = min(len(source), max(1, 2**24 // (4 * source.dim)))
    source.rows(slice(0, rows), device)

    def norms() -> None:
        values = source.rows(slice(0, rows), device)
        torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64).sum().item()

    return _seconds(norms) * len(source) / rows


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _available_memory() -> float:
    """Bytes that programs and the cache of files could use; 0 if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 0.0


def _duration(seconds: float) -> str:
    """`40 s`, `12 min`, `2 h 10 min`, `3 days 4 h`."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"


def _size(number: float) -> str:
    """`51 GB`, in powers of 1000, as disks and file managers count."""
    power = min(4, int(math.log(max(number, 1), 1000)))
    return f"{number / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"
