"""A block of queries × the gallery → scores, in float32 and in bounded memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from suprank.evaluation.matrix_product import TILE, full_precision, product, round_up, write_product
from suprank.ranking.exact import OnePassOrdering, choose_ordering

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.evaluation.checkpoint import BlockCheckpoint
    from suprank.evaluation.embeddings import Embeddings

T = TypeVar("T")

_DIM_TILE = 16
_LARGEST = float(np.finfo(np.float32).max)
_MOST_ITEMS = np.iinfo(np.int32).max
_DEFAULT_BUDGET = {"cpu": 256 * 2**20, "cuda": 4 * 2**30}  # on a CPU for each thread, and for two at least
_MOST_QUERIES = {"cpu": 512, "cuda": 8192}
_LEAST_STREAMED = {"cpu": 16384, "cuda": 65536}  # items in a chunk of a gallery that does not stay, if it fits
_MOST_QUERIES_STREAMED = 16384
_SHARED_CHUNK = 4096  # items in a chunk where threads divide the gallery: it stays in a core's cache
_PIECE_BYTES = {"cpu": 2**21, "cuda": 2**24}  # of embeddings that are read, normalized and copied at a time
_READINGS = 2  # whole rows of scores may take so many times the memory of rows in pieces, which are computed twice
_BYTES_A_POSITIVE = {"cpu": 80, "cuda": 72}  # scores, levels, item numbers, what a sort needs, counts and places
_BYTES_IN_ONE_PASS = {"positive": 36, "item": 4}  # held by each thread, for one query at a time


class Search:
    """Scores of queries against a gallery: the inner product, of normalized embeddings unless `normalize` is off.

    The gallery stays on the device if it fits into a good half of the memory budget (`resident`); otherwise it is streamed
    in chunks for every block of queries. `positives_per_query` is about how many positives a query has: with many, a row of
    scores is held whole (`whole`), because looking for each of them in every chunk would cost more. `contiguous` says whether
    a query's positives will be, after `arrange`. Without `check` the embeddings are not read yet, and scores are good for
    measuring the time only, until `check` is called.
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
        check: bool = True,
    ):
        check_dimensions(queries, gallery)
        if len(gallery) > _MOST_ITEMS:
            raise ValueError(
                f"{gallery.name} has {len(gallery)} items, but places in a list are counted up to {_MOST_ITEMS}; divide it."
            )
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
        self._norms: dict[int, Tensor] = {}
        self.dim = round_up(gallery.dim, _DIM_TILE)
        self._plan_memory(int(positives_per_query), contiguous=contiguous)
        self._resident_gallery: Tensor | None = None
        self._thread_buffers = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self.on_chunk: Callable[[int], None] | None = None
        """Called with the number of items of every chunk that was ranked, if the gallery is streamed."""
        self.open_checkpoint: Callable[[NDArray[np.int64]], BlockCheckpoint] | None = None
        """What keeps the state of a block of queries while the gallery is streamed, given the queries."""
        self.last_chunk: int | None = None
        """The number of chunks after which `chunks` ends, for a measurement; None for all."""
        if check:
            self.check()

    def check(self, digests: Mapping[Embeddings, hashlib._Hash] | None = None) -> None:
        """Compute the norms of all rows, in one pass; refuse embeddings whose products could exceed float32.

        The `digests` of the queries and of the gallery are updated with them.
        """
        norms = {}
        for source in dict.fromkeys((self.gallery, self.queries)):
            digest = None if digests is None else digests[source]
            norms[id(source)] = source.norms(zero_allowed=not self.normalize, device=self.device, digest=digest)
        longest, longest_item = (float(norms[id(source)].max()) for source in (self.queries, self.gallery))
        if not self.normalize and longest * longest_item > _LARGEST:
            raise ValueError(
                f"{self.queries.name} reach a length of {longest:.3g} and {self.gallery.name} {longest_item:.3g}, so their "
                f"products can exceed float32; scale them down, or normalize."
            )
        self._norms = norms  # by the `id` of their source

    def _plan_memory(self, positives: int, *, contiguous: bool) -> None:
        """Divide the budget: does the gallery stay, are rows of scores whole, and how large are chunks and blocks?"""
        kind = "cuda" if self.device.type == "cuda" else "cpu"
        items = round_up(len(self.gallery), TILE)
        self.resident = items * self.dim * 4 <= 0.6 * self.budget
        enough = max(_LEAST_STREAMED[kind], positives * _BYTES_A_POSITIVE[kind] // 4)
        in_pieces = 4 * enough + positives * _BYTES_A_POSITIVE[kind]
        self.whole = self.resident or 4 * items <= _READINGS * in_pieces
        compiled = isinstance(self.ordering, OnePassOrdering)
        in_one_pass = self.whole and contiguous and compiled
        self._thread_bytes = _BYTES_IN_ONE_PASS if in_one_pass else dict.fromkeys(_BYTES_IN_ONE_PASS, 0)
        thread_bytes = positives * self._thread_bytes["positive"] + items * self._thread_bytes["item"]
        affordable = max(1, self.budget // 4 // max(1, thread_bytes))
        self.threads = threads = min(torch.get_num_threads(), affordable) if compiled else 1
        # Threads divide a gallery in memory; a file is read by one of them, from its beginning to its end.
        self.divided = compiled and self.whole and not self.resident and not self.gallery.on_disk
        # A chunk is held as it was read and as it is used. The smaller it is, the more queries fit into a block and the fewer
        # times the gallery is read; but each of their positives is looked for in every chunk, and takes memory as well.
        readers = threads if self.divided else 1
        longest = _SHARED_CHUNK if self.divided else _LEAST_STREAMED[kind] if self.whole else enough
        most = min(self.budget // 8 // readers // (8 * self.dim), longest)
        self.chunk = items if self.resident else min(max(1, most // TILE) * TILE, items)
        gallery_bytes = items * self.dim * 4 if self.resident else readers * self.chunk * self.dim * 8
        self._score_bytes = 4 * self.chunk * readers
        self._row_bytes = 4 * items if self.whole and not self.resident else 0
        self._positive_bytes = 0 if in_one_pass else _BYTES_A_POSITIVE[kind]
        # Blocks that are ranked at a time, of a tile of queries at least. Where the gallery is streamed, it is read for one
        # block at a time, which the threads share: the more queries it has, the fewer times the gallery is read.
        free = max(0, self.budget - gallery_bytes)
        block = TILE * self._score_bytes + thread_bytes
        self.workers = min(threads, max(1, free // block)) if self.resident and in_one_pass else 1
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
        threads = self.threads if self.workers == 1 else 1  # of a block
        for at, number in enumerate(positives.tolist()):
            grown = max(widest, number)
            padded = round_up(at + 1 - begin, TILE)
            needs = padded * self._score_bytes + (at + 1 - begin) * (self._row_bytes + grown * self._positive_bytes)
            needs += threads * (grown * self._thread_bytes["positive"] + len(self.gallery) * self._thread_bytes["item"])
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

        Otherwise the threads share each block (`share_rows`). Products run on one thread each as well: BLAS's own threads would
        keep cores busy waiting for the next product.
        """
        if self.threads == 1:
            yield from map(function, blocks)
            return
        from threadpoolctl import ThreadpoolController

        controller = ThreadpoolController()

        def use_one_thread() -> None:
            torch.get_num_threads()  # sets the number of this thread's threads, which would undo the limit later
            controller.limit(limits=1, user_api="openmp")

        # The precision is set here for all threads: if each set it for itself, they would undo it for the others, and for good.
        pool = ThreadPoolExecutor(self.threads, initializer=use_one_thread)
        with full_precision(), controller.limit(limits=1, user_api="blas"), pool:
            try:
                if self.workers == 1 or len(blocks) == 1:
                    self._pool = pool
                    yield from map(function, blocks)
                else:
                    if self.resident:
                        next(self.chunks())  # load the gallery once, before the threads start
                    yield from pool.map(function, blocks)
            finally:
                self._pool = None
                pool.shutdown(cancel_futures=True)

    def share_rows(self, function: Callable[[slice], T], number: int, tile: int = 1) -> list[T]:
        """`function` of slices that divide so many rows among the threads that share a block, in order; whole tiles each."""
        tiles = -(-number // tile)
        threads = 1 if self._pool is None else min(self.threads, tiles)
        if self._pool is None or threads <= 1:
            return [function(slice(0, number))]
        bounds = [min(number, thread * tiles // threads * tile) for thread in range(threads + 1)]
        return list(self._pool.map(function, [slice(*bound) for bound in pairwise(bounds)]))

    def chunks(self, start: int = 0) -> Iterator[tuple[slice | Tensor, Tensor, int]]:
        """The gallery in pieces: which items they are, their padded embeddings, and how many of the rows are items.

        A file that is streamed is read in its own order, everything else in the order of the items. `start` is the first item
        of a piece.
        """
        for part in self.parts(start):
            yield self.load(part)
            if self.on_chunk is not None:
                self.on_chunk(part.stop - part.start)

    def parts(self, start: int = 0) -> list[slice]:
        """Where the pieces of the gallery begin and end, from the item `start` on."""
        number = len(self.gallery)
        last = number if self.last_chunk is None else min(number, self.last_chunk * self.chunk)
        return [slice(first, min(first + self.chunk, number)) for first in range(start, last, self.chunk)]

    def load(self, part: slice) -> tuple[slice | Tensor, Tensor, int]:
        """One piece of the gallery, as `chunks` returns it; unless the gallery stays, the thread's next piece replaces it."""
        number = part.stop - part.start
        as_stored = self.order is None or (self.gallery.on_disk and not self.resident)
        rows = part if self.order is None or self.gallery.on_disk else self.order[part]
        piece = self._resident_gallery
        if piece is None and self.resident:
            # A file is read in its own order, and each row is put in its place.
            place = self._place if self.gallery.on_disk else None
            piece = self._resident_gallery = self._padded(self.gallery, rows, place=place)
        elif piece is None:
            piece = self._padded(self.gallery, rows, self.buffer("chunk", round_up(number, TILE), self.dim))
        return self._place[part] if as_stored and self._place is not None else part, piece, number

    def product(self, queries: Tensor, items: Tensor, number: int) -> Tensor:
        """queries · itemsᵀ, perhaps in a buffer that the thread's next product reuses; the columns of the padding hold −∞."""
        scores = product(queries, items, self.buffer("product", len(queries), len(items)))
        scores[:, number:] = -torch.inf
        return scores

    def shared_product(self, queries: Tensor, items: Tensor, number: int) -> Tensor:
        """`product`, by all threads that share the block."""
        scores = self.buffer("product", len(queries), len(items))
        self.share_rows(lambda part: write_product(queries, items[part], scores[:, part]), len(items), TILE)
        scores[:, number:] = -torch.inf
        return scores

    def map_parts(self, function: Callable[[slice], None]) -> None:
        """Call `function` with every part of the gallery, on the threads that share the block."""
        parts = self.parts()
        done = map(function, parts) if self._pool is None else self._pool.map(function, parts)
        for part, _ in zip(parts, done, strict=True):
            if self.on_chunk is not None:
                self.on_chunk(part.stop - part.start)

    def buffer(self, name: str, rows: int, columns: int) -> Tensor:
        """Memory of this thread that is reused: fresh memory would first have to be cleared by the system."""
        buffer = getattr(self._thread_buffers, name, None)
        if buffer is None or buffer.numel() < rows * columns:
            buffer = torch.empty(rows * columns, device=self.device)
            setattr(self._thread_buffers, name, buffer)
        return buffer[: rows * columns].view(rows, columns)

    def _padded(
        self, source: Embeddings, rows: Tensor | slice, out: Tensor | None = None, *, place: Tensor | None = None
    ) -> Tensor:
        """The rows on the device, normalized, and zeros up to whole tiles; in this order, or each in its `place`."""
        number = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        padded = torch.empty(round_up(number, TILE), self.dim, device=self.device) if out is None else out
        padded[number:], padded[:, source.dim :] = 0, 0
        # In pieces: no second copy of a large gallery is held, and a piece is in a CPU's cache when it is normalized.
        piece = max(TILE, _PIECE_BYTES["cuda" if self.device.type == "cuda" else "cpu"] // (4 * self.dim))
        for first in range(0, number, piece):
            part = slice(first, min(first + piece, number))
            index = slice(rows.start + part.start, rows.start + part.stop) if isinstance(rows, slice) else rows[part]
            values = padded[part, : source.dim]
            if place is not None:
                values = torch.empty_like(values)
            source.read_into(index, values)
            if not self._norms:  # a measurement before `check`: NaN or infinity would lead the loops out of their arrays
                torch.nn.functional.normalize(values, dim=1, out=values).nan_to_num_(0, 0, 0)
            elif self.normalize:
                norms = self._norms[id(source)][index if isinstance(index, slice) else index.to(self.device)][:, None]
                if values.is_cuda:
                    values /= norms
                else:  # numpy's operations stay in the calling thread
                    np.divide(values.numpy(), norms.numpy(), out=values.numpy())
            if place is not None:
                padded[place[part], : source.dim] = values
        return padded


class ScoreBlock:
    """Scores of a block of queries: whole rows, which stay in memory, or pieces, which are computed anew each time."""

    def __init__(self, search: Search, rows: NDArray[np.int64], embeddings: Tensor):
        self.search, self.rows = search, rows
        self.checkpoint = None if search.open_checkpoint is None else search.open_checkpoint(rows)
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

    def resumable(self, stage: str, *state: Tensor) -> Iterator[tuple[int, Tensor]]:
        """As `__iter__`, but if a checkpoint has this `stage` of the block, fill `state` from it and go on from there.

        The state is all that the loop over the pieces changes, in place.
        """
        if self.in_memory or self.checkpoint is None:
            yield from self
            return
        start = self.checkpoint.load(stage, state)
        if start and self.search.on_chunk is not None:
            self.search.on_chunk(start)
        for which, piece in self._pieces(start):
            assert isinstance(which, slice)
            yield which.start, piece
            self.checkpoint.maybe_save(stage, which.stop, state)

    def _pieces(self, start: int = 0) -> Iterator[tuple[slice | Tensor, Tensor]]:
        for which, items, number in self.search.chunks(start):
            yield which, self.search.shared_product(self._embeddings, items, number)[: len(self.rows)]

    def _whole_rows(self) -> Tensor:
        if self.search.resident:
            ((_, piece),) = self._pieces()
            return piece
        scores = self.search.buffer("rows", len(self.rows), len(self.search.gallery))
        if not self.search.divided:
            for which, piece in self._pieces():
                if isinstance(which, slice):
                    scores[:, which] = piece[:, : which.stop - which.start]
                else:
                    scores.scatter_(1, which.expand(len(scores), -1), piece[:, : len(which)])
            return scores

        def fill(part: slice) -> None:
            _, items, number = self.search.load(part)
            piece = self.search.product(self._embeddings, items, number)[: len(scores), :number]
            np.copyto(scores.numpy()[:, part], piece.numpy())  # numpy's operations stay in the calling thread

        self.search.map_parts(fill)
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
