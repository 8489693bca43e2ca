"""A block of queries × the gallery → scores, in float32 and in bounded memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from suprank.evaluation.matrix_product import TILE, full_precision, product, round_up, write_product
from suprank.evaluation.memory_plan import MemoryPlan, SearchShape, default_budget
from suprank.ranking.exact import OnePassOrdering, choose_ordering

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import Embeddings

T = TypeVar("T")

_DIM_TILE = 16
_LARGEST = float(np.finfo(np.float32).max)
_MOST_ITEMS = np.iinfo(np.int32).max
_PIECE_BYTES = {"cpu": 2**21, "cuda": 2**24}  # of embeddings that are read, normalized and copied at a time


class Search:
    """Scores of queries against a gallery: the inner product, of normalized embeddings unless `normalize` is off.

    The gallery stays on the device if it fits into a good half of the memory budget (`resident`); otherwise it is streamed
    in chunks for every block of queries. `positives_per_query` is about how many positives a query has: with many, a row of
    scores is held whole (`whole`), because looking for each of them in every chunk would cost more. `contiguous` says whether
    a query's positives will be, after `arrange`. `digests` of the queries and of the gallery are updated with their embeddings.
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
        digests: Mapping[Embeddings, hashlib._Hash] | None = None,
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
        self.budget = default_budget(device) if memory_budget is None else int(memory_budget)
        if self.budget < 1:
            raise ValueError(
                f"memory_budget={memory_budget} must be at least 1 byte; leave it out for {default_budget(device)}."
            )
        self.dim = round_up(gallery.dim, _DIM_TILE)
        shape = SearchShape(
            queries=len(queries),
            items=len(gallery),
            dim=self.dim,
            positives=int(positives_per_query),
            contiguous=contiguous,
            compiled=isinstance(self.ordering, OnePassOrdering),
            on_disk=gallery.on_disk,
        )
        plan = MemoryPlan(shape, self.budget, device)
        self.resident, self.whole, self.divided = plan.resident, plan.whole, plan.divided
        self.threads, self.workers, self.chunk = plan.threads, plan.workers, plan.chunk
        self.blocks = plan.blocks
        self._resident_gallery: Tensor | None = None
        self._thread_buffers = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self.on_chunk: Callable[[int], None] | None = None
        """Called with the number of items of every chunk that was ranked, if the gallery is streamed."""
        self._norms = self._checked_norms(digests)

    def _checked_norms(self, digests: Mapping[Embeddings, hashlib._Hash] | None) -> dict[int, Tensor]:
        """The norms of all rows, by the `id` of their source; embeddings whose products could exceed float32 are refused."""
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
        return norms

    def arrange(self, order: Tensor) -> None:
        """Renumber the items by this order, and return scores in it; only where rows of scores are whole."""
        assert self.whole and self._resident_gallery is None
        self.order = order.to(self.gallery.device)
        self._place = torch.empty_like(order)
        self._place[order] = torch.arange(len(order), device=order.device)

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

    def chunks(self) -> Iterator[tuple[slice | Tensor, Tensor, int]]:
        """The gallery in pieces: which items they are, their padded embeddings, and how many of the rows are items.

        A file that is streamed is read in its own order, everything else in the order of the items.
        """
        for part in self.parts():
            yield self.load(part)
            if self.on_chunk is not None:
                self.on_chunk(part.stop - part.start)

    def parts(self) -> list[slice]:
        """Where the pieces of the gallery begin and end."""
        number = len(self.gallery)
        return [slice(first, min(first + self.chunk, number)) for first in range(0, number, self.chunk)]

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
            if self.normalize:
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
