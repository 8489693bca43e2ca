"""A block of queries × the gallery → scores, in float32 and in bounded memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from suprank.evaluation.matrix_product import TILE, full_precision, round_up, write_product
from suprank.ranking.exact import OnePassOrdering, choose_ordering

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import Embeddings

T = TypeVar("T")

_DIM_TILE = 16
_LARGEST = float(np.finfo(np.float32).max)
_DEFAULT_BUDGET = {"cpu": 256 * 2**20, "cuda": 4 * 2**30}  # on a CPU for each thread, and for two at least
_MOST_QUERIES = {"cpu": 512, "cuda": 8192}
_LEAST_STREAMED = {"cpu": 16384, "cuda": 65536}  # items in a chunk of a gallery that does not stay, if it fits
_MOST_QUERIES_STREAMED = 16384
_READINGS = 2  # whole rows of scores may take so many times the memory of rows in pieces, which are computed twice
_BYTES_A_POSITIVE = {"cpu": 80, "cuda": 72}  # scores, levels, item numbers, what a sort needs, counts and places


class Search:
    """Scores of queries against a gallery: the inner product, of normalized embeddings unless `normalize` is off.

    The gallery stays on the device if it fits into a good half of the memory budget (`resident`); otherwise it is streamed
    in chunks for every block of queries. `positives_per_query` is about how many positives a query has: with many, a row of
    scores is held whole (`whole`), because looking for each of them in every chunk would cost more. `contiguous` says whether
    a query's positives will be, after `arrange`.
    """

    def __init__(
        self,
        queries: Embeddings,
        gallery: Embeddings,
        *,
        device: torch.device,
        memory_budget: int | None = None,
        normalize: bool = True,
        positives_per_query: float = 0,
        contiguous: bool = True,
    ):
        check_dimensions(queries, gallery)
        self.queries, self.gallery, self.device = queries, gallery, device
        self.normalize = normalize
        self.order: Tensor | None = None
        self._place: Tensor | None = None
        self.ordering = choose_ordering(device, len(queries) * len(gallery), positives=len(queries) * positives_per_query)
        self.budget = _default_budget(device) if memory_budget is None else int(memory_budget)
        if self.budget < 1:
            raise ValueError(
                f"memory_budget={memory_budget} must be at least 1 byte; leave it out for {_default_budget(device)}."
            )
        self._norms = self._check_norms()
        self.dim = round_up(gallery.dim, _DIM_TILE)
        self._plan_memory(int(positives_per_query), contiguous=contiguous)
        self._resident_gallery: Tensor | None = None
        self._thread_buffers = threading.local()
        self.on_chunk: Callable[[int], None] | None = None
        """Called with the number of items of every chunk that was ranked, if the gallery is streamed."""

    def _check_norms(self) -> dict[int, Tensor]:
        """The norms of the rows by the `id` of their source; refused if products could exceed float32."""
        both = dict.fromkeys((self.gallery, self.queries))
        norms = {id(source): source.norms(zero_allowed=not self.normalize, device=self.device) for source in both}
        longest, longest_item = (float(norms[id(source)].max()) for source in (self.queries, self.gallery))
        if not self.normalize and longest * longest_item > _LARGEST:
            raise ValueError(
                f"{self.queries.name} reach a length of {longest:.3g} and {self.gallery.name} {longest_item:.3g}, so their "
                f"products can exceed float32; scale them down, or normalize."
            )
        return norms

    def _plan_memory(self, positives: int, *, contiguous: bool) -> None:
        """Divide the budget: does the gallery stay, are rows of scores whole, and how large are chunks and blocks?"""
        kind = "cuda" if self.device.type == "cuda" else "cpu"
        items = round_up(len(self.gallery), TILE)
        self.resident = items * self.dim * 4 <= 0.6 * self.budget
        enough = max(_LEAST_STREAMED[kind], positives * _BYTES_A_POSITIVE[kind] // 4)
        in_pieces = 4 * enough + positives * _BYTES_A_POSITIVE[kind]
        self.whole = self.resident or 4 * items <= _READINGS * in_pieces
        in_one_pass = self.whole and contiguous and isinstance(self.ordering, OnePassOrdering)
        threads = torch.get_num_threads() if in_one_pass else 1
        # A chunk is held as it was read and as it is used. The smaller it is, the more queries fit into a block and the fewer
        # times the gallery is read; but each of their positives is looked for in every chunk, and takes memory as well.
        most = min(self.budget // 8 // threads // (8 * self.dim), _LEAST_STREAMED[kind] if self.whole else enough)
        self.chunk = items if self.resident else min(max(1, most // TILE) * TILE, items)
        gallery_bytes = items * self.dim * 4 if self.resident else threads * self.chunk * self.dim * 8
        self._score_bytes = 4 * self.chunk if self.resident or not self.whole else 4 * (items + self.chunk)
        self._positive_bytes = 0 if in_one_pass else _BYTES_A_POSITIVE[kind]
        # Blocks that are ranked at a time, of a tile of queries at least.
        free = max(0, self.budget - gallery_bytes)
        self.workers = min(threads, max(1, free // (TILE * self._score_bytes)))
        self._block_bytes = free // self.workers
        share = round_up(-(-len(self.queries) // self.workers), TILE)
        self._most_queries = min(share, _MOST_QUERIES[kind] if self.whole else _MOST_QUERIES_STREAMED)

    def arrange(self, order: Tensor) -> None:
        """Renumber the items by this order, and return scores in it; only where rows of scores are whole."""
        assert self.whole and self._resident_gallery is None
        self.order = order.to(self.gallery.device)
        self._place = torch.empty_like(order)
        self._place[order] = torch.arange(len(order), device=order.device)

    def blocks(self, positives: np.ndarray) -> list[slice]:
        """Cut the queries, given how many positives each has, into blocks that fit the budget; one query always does."""
        blocks, begin, widest = [], 0, 0
        for at, number in enumerate(positives.tolist()):
            grown = max(widest, number)
            padded = round_up(at + 1 - begin, TILE)
            needs = padded * self._score_bytes + (at + 1 - begin) * grown * self._positive_bytes
            if at > begin and (needs > self._block_bytes or at - begin >= self._most_queries):
                blocks.append(slice(begin, at))
                begin, grown = at, number
            widest = grown
        return [*blocks, slice(begin, len(positives))] if len(positives) else []

    def score(self, rows: np.ndarray) -> ScoreBlock:
        """The scores of these queries, which are computed when they are read."""
        number = torch.from_numpy(rows)
        if self.queries is not self.gallery or self._resident_gallery is None or self._place is None:
            return ScoreBlock(self, rows, self._padded(self.queries, number))
        embeddings = torch.empty(round_up(len(rows), TILE), self.dim, device=self.device)
        torch.index_select(self._resident_gallery, 0, self._place[number.to(self.device)], out=embeddings[: len(rows)])
        embeddings[len(rows) :] = 0
        return ScoreBlock(self, rows, embeddings)

    def map_blocks(
        self, function: Callable[[NDArray[np.int64]], T], blocks: Sequence[NDArray[np.int64]]
    ) -> Generator[T, None, None]:
        """`function` of every block, in order; several at a time if each can be ranked by one thread from start to end.

        Products then run on one thread each as well: BLAS's own threads would keep cores busy waiting for the next product.
        """
        if self.workers == 1 or len(blocks) == 1:
            yield from map(function, blocks)
            return
        from threadpoolctl import threadpool_limits

        if self.resident:
            next(self.chunks())  # load the gallery once, before the threads start
        # The precision is set here for all threads: if each set it for itself, they would undo it for the others, and for good.
        with full_precision(), threadpool_limits(1, user_api="blas"):
            pool = ThreadPoolExecutor(self.workers)
            try:
                yield from pool.map(function, blocks)
            finally:
                pool.shutdown(cancel_futures=True)

    def chunks(self) -> Iterator[tuple[slice | Tensor, Tensor, int]]:
        """The gallery in pieces: which items they are, their padded embeddings, and how many of the rows are items.

        A file that is streamed is read in its own order, everything else in the order of the items.
        """
        number = len(self.gallery)
        as_stored = self.order is None or (self.gallery.on_disk and not self.resident)
        for first in range(0, number, self.chunk):
            part = slice(first, min(first + self.chunk, number))
            piece = self._resident_gallery
            if piece is None:
                piece = self._padded(self.gallery, part if self.order is None or as_stored else self.order[part])
            if self.resident:
                self._resident_gallery = piece
            yield self._place[part] if as_stored and self._place is not None else part, piece, part.stop - part.start
            if self.on_chunk is not None:
                self.on_chunk(part.stop - part.start)

    def product(self, queries: Tensor, items: Tensor, number: int) -> Tensor:
        """queries · itemsᵀ in a buffer that the next product reuses; the columns of the padding hold −∞."""
        scores = self.buffer("product", len(queries), len(items))
        write_product(queries, items, scores)
        scores[:, number:] = -torch.inf
        return scores

    def buffer(self, name: str, rows: int, columns: int) -> Tensor:
        """Memory of this thread that is reused: fresh memory would first have to be cleared by the system."""
        buffer = getattr(self._thread_buffers, name, None)
        if buffer is None or buffer.numel() < rows * columns:
            buffer = torch.empty(rows * columns, device=self.device)
            setattr(self._thread_buffers, name, buffer)
        return buffer[: rows * columns].view(rows, columns)

    def _padded(self, source: Embeddings, rows: Tensor | slice) -> Tensor:
        """The rows on the device, normalized, and zeros up to whole tiles."""
        number = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        padded = torch.empty(round_up(number, TILE), self.dim, device=self.device)
        padded[number:], padded[:, source.dim :] = 0, 0
        # In pieces, so that no second copy of a large gallery is held.
        piece = max(TILE, 2**24 // (4 * self.dim))
        for first in range(0, number, piece):
            part = slice(first, min(first + piece, number))
            index = slice(rows.start + part.start, rows.start + part.stop) if isinstance(rows, slice) else rows[part]
            values = source.rows(index, self.device)
            if self.normalize:
                norms = self._norms[id(source)][index if isinstance(index, slice) else index.to(self.device)]
                values = values / norms[:, None]
            padded[part, : source.dim] = values
        return padded


class ScoreBlock:
    """Scores of a block of queries: whole rows, which stay in memory, or pieces, which are computed anew each time."""

    def __init__(self, search: Search, rows: NDArray[np.int64], embeddings: Tensor):
        self.search, self.rows = search, rows
        self._embeddings = embeddings
        self._scores: Tensor | None = None

    @property
    def in_memory(self) -> bool:
        """Whether changes to the scores last until they are read again."""
        return self.search.whole

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """The number of the first item, and the scores from there on, `[queries, items]`, which may be written to."""
        if not self.in_memory:
            yield from ((which.start, piece) for which, piece in self._pieces() if isinstance(which, slice))
            return
        if self._scores is None:
            self._scores = self._whole_rows()
        yield 0, self._scores

    def _pieces(self) -> Iterator[tuple[slice | Tensor, Tensor]]:
        for which, items, number in self.search.chunks():
            yield which, self.search.product(self._embeddings, items, number)[: len(self.rows)]

    def _whole_rows(self) -> Tensor:
        if self.search.resident:
            ((_, piece),) = self._pieces()
            return piece
        scores = self.search.buffer("rows", len(self.rows), len(self.search.gallery))
        for which, piece in self._pieces():
            if isinstance(which, slice):
                scores[:, which] = piece[:, : which.stop - which.start]
            else:
                scores.scatter_(1, which.expand(len(scores), -1), piece[:, : len(which)])
        return scores


def check_dimensions(queries: Embeddings, gallery: Embeddings) -> None:
    """Refuse queries and items of different dimensions; padded to one length, they would get a score."""
    if queries.dim != gallery.dim:
        raise ValueError(
            f"{queries.name} have {queries.dim} dimensions and the gallery {gallery.dim}; embed both with one model."
        )


def choose_device(device: torch.device | str | None, source: Embeddings) -> torch.device:
    """The given device, else the one that the embeddings are on, else a GPU if there is one."""
    if device is not None:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise ValueError(f"device={str(device)!r} is not supported, because sums are in float64; use 'cpu' or 'cuda'.")
        return torch.device(device)
    if source.device.type != "cpu":
        return source.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _default_budget(device: torch.device) -> int:
    if device.type != "cuda":
        return _DEFAULT_BUDGET["cpu"] * max(2, torch.get_num_threads())
    free, _ = torch.cuda.mem_get_info(device)
    return min(_DEFAULT_BUDGET["cuda"], int(0.7 * free))
