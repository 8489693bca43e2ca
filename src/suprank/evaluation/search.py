"""A block of queries × the gallery → scores, in float32 and in bounded memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from suprank.evaluation.metrics import Found
from suprank.ranking.exact import OnePassOrdering, Places, Top, choose_ordering

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.metrics import MetricSettings
    from suprank.evaluation.targets import LabelTargets, Wanted

T = TypeVar("T")

_TILE = 64
"""Rows and columns of a product come in whole tiles. The edge of a product is computed by other code, which adds in another
order: two copies of an image would score differently, depending on where they stand in the gallery."""
_DIM_TILE = 16
_LARGEST = float(np.finfo(np.float32).max)
_DEFAULT_BUDGET = {"cpu": 256 * 2**20, "cuda": 4 * 2**30}  # on a CPU for each thread, and for two at least
_MOST_QUERIES = {"cpu": 512, "cuda": 8192}
_LEAST_STREAMED = {"cpu": 16384, "cuda": 65536}  # items in a chunk of a gallery that does not stay, if it fits
_MOST_QUERIES_STREAMED = 16384
_READINGS = 2  # of the gallery for a block of queries whose rows are held in pieces; whole rows may take so much more memory
_BYTES_A_POSITIVE = {"cpu": 80, "cuda": 72}  # scores, levels, item numbers, what a sort needs, counts and places


class Search:
    """Scores of queries against a gallery: the inner product, of normalized embeddings unless `normalize` is off.

    The gallery stays on the device where it fits into a good half of the memory budget; otherwise it passes through in chunks
    for every block of queries. `wanted` is about how many items a query looks for: with many, rows of scores are held whole.
    """

    def __init__(
        self,
        queries: Embeddings,
        gallery: Embeddings,
        *,
        device: torch.device,
        memory_budget: int | None = None,
        normalize: bool = True,
        wanted: float = 0,
    ):
        check_dimensions(queries, gallery)
        self.queries, self.gallery, self.device = queries, gallery, device
        self.normalize = normalize
        self.order: Tensor | None = None
        self._place: Tensor | None = None
        self.ordering = choose_ordering(device, len(queries) * len(gallery))
        kind = "cuda" if device.type == "cuda" else "cpu"
        self.budget = _default_budget(device) if memory_budget is None else int(memory_budget)
        if self.budget < 1:
            raise ValueError(
                f"memory_budget={memory_budget} must be at least 1 byte; leave it out for {_default_budget(device)}."
            )
        self._norms = {id(gallery): gallery.norms(zero_allowed=not normalize)}
        if queries is not gallery:
            self._norms[id(queries)] = queries.norms(zero_allowed=not normalize)
        longest, reach = (float(self._norms[id(source)].max()) for source in (queries, gallery))
        if not normalize and longest * reach > _LARGEST:
            raise ValueError(
                f"{queries.name} reach a length of {longest:.3g} and {gallery.name} {reach:.3g}, so that their products can "
                f"exceed float32; scale them down, or normalize."
            )
        self.dim = _whole(gallery.dim, _DIM_TILE)
        whole = _whole(len(gallery), _TILE)
        self.resident = whole * self.dim * 4 <= 0.6 * self.budget
        enough = max(_LEAST_STREAMED[kind], int(wanted) * _BYTES_A_POSITIVE[kind] // 4)
        in_pieces = 4 * enough + int(wanted) * _BYTES_A_POSITIVE[kind]
        self.whole = self.resident or 4 * whole <= _READINGS * in_pieces
        judging = self.whole and isinstance(self.ordering, OnePassOrdering)
        threads = torch.get_num_threads() if judging else 1
        # A chunk is held as it was read and as it is used. The smaller it is, the more queries fit into a block and the fewer
        # times the gallery is read; but each of their wanted items is looked for in every chunk, and takes memory as well.
        most = min(self.budget // 8 // threads // (8 * self.dim), _LEAST_STREAMED[kind] if self.whole else enough)
        self.chunk = whole if self.resident else min(max(1, most // _TILE) * _TILE, whole)
        held = whole * self.dim * 4 if self.resident else threads * self.chunk * self.dim * 8
        self._score_bytes = 4 * self.chunk if self.resident or not self.whole else 4 * (whole + self.chunk)
        self._positive_bytes = 0 if judging else _BYTES_A_POSITIVE[kind]
        # Blocks judged at a time, of a tile of queries at least.
        free = max(0, self.budget - held)
        self.workers = min(threads, max(1, free // (_TILE * self._score_bytes)))
        self._free = free // self.workers
        share = _whole(-(-len(queries) // self.workers), _TILE)
        self._most = min(share, _MOST_QUERIES[kind] if self.whole else _MOST_QUERIES_STREAMED)
        self._kept: Tensor | None = None
        self._own = threading.local()  # a worker's buffer

    def arrange(self, order: Tensor) -> None:
        """Give scores in this order of the items, which are numbered anew by it; for rows that are held whole."""
        assert self.whole and self._kept is None
        self.order = order.to(self.gallery.device)
        self._place = torch.empty_like(order)
        self._place[order] = torch.arange(len(order), device=order.device)

    def blocks(self, positives: np.ndarray) -> list[slice]:
        """Cut the queries, given how many items each wants, into blocks that fit the budget; one query always does."""
        blocks, begin, widest = [], 0, 0
        for at, number in enumerate(positives.tolist()):
            grown = max(widest, number)
            padded = _whole(at + 1 - begin, _TILE)
            needs = padded * self._score_bytes + (at + 1 - begin) * grown * self._positive_bytes
            if at > begin and (needs > self._free or at - begin >= self._most):
                blocks.append(slice(begin, at))
                begin, grown = at, number
            widest = grown
        return [*blocks, slice(begin, len(positives))] if len(positives) else []

    def scored(self, rows: np.ndarray) -> Scored:
        """The scores of these queries."""
        number = torch.from_numpy(rows)
        if self.queries is not self.gallery or self._kept is None or self._place is None:
            return Scored(self, rows, self._padded(self.queries, number))
        embeddings = torch.empty(_whole(len(rows), _TILE), self.dim, device=self.device)
        torch.index_select(self._kept, 0, self._place[number.to(self.device)], out=embeddings[: len(rows)])
        embeddings[len(rows) :] = 0
        return Scored(self, rows, embeddings)

    def chunks(self) -> Iterator[tuple[slice | Tensor, Tensor, int]]:
        """The gallery in pieces: which items they are, the padded embeddings, and how many of them are items.

        A file that does not stay is read in its own order, everything else in the order of the items.
        """
        number = len(self.gallery)
        as_stored = self.order is None or (self.gallery.on_disk and not self.resident)
        for first in range(0, number, self.chunk):
            part = slice(first, min(first + self.chunk, number))
            piece = self._kept
            if piece is None:
                piece = self._padded(self.gallery, part if self.order is None or as_stored else self.order[part])
            if self.resident:
                self._kept = piece
            yield self._place[part] if as_stored and self._place is not None else part, piece, part.stop - part.start

    def product(self, queries: Tensor, items: Tensor, number: int) -> Tensor:
        """queries · itemsᵀ into a buffer that is used again; the columns of the padding hold −∞."""
        scores = self.buffer("product", len(queries), len(items))
        if self.device.type == "cpu":
            _cpu_product(self.dim)(queries, items, scores)
        else:
            _torch_product(queries, items, scores)
        scores[:, number:] = -torch.inf
        return scores

    def buffer(self, name: str, rows: int, columns: int) -> Tensor:
        """Memory of this thread that is used again and again: what is fresh from the system has to be cleared by it first."""
        kept = getattr(self._own, name, None)
        if kept is None or kept.numel() < rows * columns:
            kept = torch.empty(rows * columns, device=self.device)
            setattr(self._own, name, kept)
        return kept[: rows * columns].view(rows, columns)

    def _padded(self, source: Embeddings, rows: Tensor | slice) -> Tensor:
        """Rows in whole tiles on the device, normalized; zeros pad."""
        number = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        padded = torch.empty(_whole(number, _TILE), self.dim, device=self.device)
        padded[number:], padded[:, source.dim :] = 0, 0
        # In pieces, so that no second copy of a large gallery is held.
        piece = max(_TILE, 2**24 // (4 * self.dim))
        for first in range(0, number, piece):
            part = slice(first, min(first + piece, number))
            index = slice(rows.start + part.start, rows.start + part.stop) if isinstance(rows, slice) else rows[part]
            values = source.rows(index).to(self.device)
            if self.normalize:
                values = values / self._norms[id(source)][index].to(self.device)[:, None]
            padded[part, : source.dim] = values
        return padded

    def each(self, judge: Callable[[NDArray[np.int64]], T], blocks: Sequence[NDArray[np.int64]]) -> Generator[T, None, None]:
        """`judge` of every block, in their order; several at a time where each is judged on one thread from beginning to end.

        Products are then computed on one thread each too: BLAS's own threads would keep cores busy waiting for the next.
        """
        if self.workers == 1 or len(blocks) == 1:
            yield from map(judge, blocks)
            return
        from threadpoolctl import threadpool_limits

        if self.resident:
            next(self.chunks())  # the gallery is put in place once, not by each of them
        # The precision is set for all of them: each for itself, they would undo it for the others, and for good.
        with _full_precision(), threadpool_limits(1, user_api="blas"):
            pool = ThreadPoolExecutor(self.workers)
            try:
                yield from pool.map(judge, blocks)
            finally:
                pool.shutdown(cancel_futures=True)


class Scored:
    """Scores of a block of queries: whole rows, which are kept, or piece by piece, each time computed again."""

    def __init__(self, search: Search, rows: NDArray[np.int64], embeddings: Tensor):
        self.search, self.rows = search, rows
        self._embeddings = embeddings
        self._kept: Tensor | None = None

    @property
    def kept(self) -> bool:
        """Whether what was taken out of the scores stays out of them."""
        return self.search.whole

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """The number of the first item, and the scores from there on, `[queries, items]`, which may be written to."""
        if not self.kept:
            yield from ((which.start, piece) for which, piece in self._pieces() if isinstance(which, slice))
            return
        if self._kept is None:
            self._kept = self._joined()
        yield 0, self._kept

    def _pieces(self) -> Iterator[tuple[slice | Tensor, Tensor]]:
        for which, items, number in self.search.chunks():
            yield which, self.search.product(self._embeddings, items, number)[: len(self.rows)]

    def _joined(self) -> Tensor:
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


def found_in_all(scored: Scored, targets: LabelTargets, meaning: MetricSettings, ks: Sequence[int]) -> Found:
    """What the full ranking of these queries holds."""
    rows = torch.from_numpy(scored.rows).to(scored.search.device)
    sizes, ignored = targets.sizes(rows)
    relevance, ordering = meaning.relevance(sizes), scored.search.ordering
    if scored.search.order is not None and isinstance(ordering, OnePassOrdering):
        ((_, scores),) = scored
        tallies, top = ordering.one_pass_sums(scores, targets.start[rows], targets.end[rows], ignored, sizes, relevance, ks)
        return Found(sizes, tallies, top)
    found = places(scored, targets.wanted(scored.rows))
    return Found(sizes, ordering.ranking_sums(found, sizes, relevance), ordering.top_sums(found, relevance, ks))


def found_in_top(scored: Scored, targets: LabelTargets, meaning: MetricSettings, ks: Sequence[int]) -> tuple[Found, Tensor]:
    """What the top k of these queries holds, and for which of them this is not known, as equal scores straddle a place k."""
    rows = torch.from_numpy(scored.rows).to(scored.search.device)
    (sizes, ignored), most = targets.sizes(rows), max(ks)
    best = top(scored, ignored, most + 1)
    level = targets.levels(rows, best.item)
    ordering = scored.search.ordering
    _, ordered = ordering.sort_positives(best.scores[:, :most].contiguous(), level[:, :most].contiguous())
    numbers = torch.arange(1, ordered.shape[1] + 1, dtype=torch.int32, device=ordered.device)
    found = ordering.top_sums(Places(ordered, numbers.expand_as(ordered)), meaning.relevance(sizes), ks)
    unknown = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    if best.scores.shape[1] > most:
        unknown = (best.scores[:, most] == best.scores[:, most - 1]) & (best.item[:, most] >= 0)
    return Found(sizes, None, found), unknown


def places(scored: Scored, wanted: Wanted) -> Places:
    """The places of the wanted items among all items that are not ignored, in the total order of evaluation."""
    ordering = scored.search.ordering
    scores = torch.full(wanted.level.shape, -torch.inf, device=wanted.level.device)
    for first, piece in scored:
        ordering.take(piece, wanted.item, first, scores)
    scores.masked_fill_(wanted.level == 0, -torch.inf)
    falling, level = ordering.sort_positives(scores, wanted.level)
    place = torch.arange(1, level.shape[1] + 1, dtype=torch.int32, device=level.device).repeat(len(level), 1)
    for first, piece in scored:
        if not scored.kept:
            ordering.take(piece, wanted.item, first, scores)
        ignore(scored.search, piece, wanted.ignored, first)
        place += ordering.count_at_or_above(falling, piece)
    return Places(level, place)


def top(scored: Scored, ignored: Tensor, k: int) -> Top:
    """The k items of the highest scores, in their order; of equal scores, the items of lower numbers come first."""
    best: Top | None = None
    for first, piece in scored:
        ignore(scored.search, piece, ignored, first)
        new = scored.search.ordering.top(piece, k)
        new = Top(new.scores, new.item + first)
        if best is not None:
            # What came before has lower numbers, and a stable sort keeps it before its equals.
            scores, order = torch.cat([best.scores, new.scores], 1).sort(dim=1, descending=True, stable=True)
            new = Top(scores[:, :k], torch.cat([best.item, new.item], 1).gather(1, order[:, :k]))
        best = new
    assert best is not None
    return Top(best.scores, best.item.where(best.scores > -torch.inf, -1))


def ignore(search: Search, scores: Tensor, ignored: Tensor, first: int) -> None:
    """Take the items that are not in the query's list out of its scores."""
    if ignored.shape[1]:
        search.ordering.take(scores, ignored, first, torch.empty(ignored.shape, device=scores.device))


def check_dimensions(queries: Embeddings, gallery: Embeddings) -> None:
    """Refuse vectors that have no inner product: padded to one length, they would be given one."""
    if queries.dim != gallery.dim:
        raise ValueError(
            f"{queries.name} have {queries.dim} dimensions and the gallery {gallery.dim}; embed both with one model."
        )


def device_for(device: torch.device | str | None, source: Embeddings) -> torch.device:
    """The device named, else the one that the embeddings are on, else a GPU if there is one."""
    if device is not None:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise ValueError(f"device={str(device)!r} is not one to evaluate on, as sums are in float64; use 'cpu' or 'cuda'.")
        return torch.device(device)
    if source.device.type != "cpu":
        return source.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _numpy_product(queries: Tensor, items: Tensor, out: Tensor) -> None:
    np.matmul(queries.numpy(), items.numpy().T, out=out.numpy())


def _torch_product(queries: Tensor, items: Tensor, out: Tensor) -> None:
    with _full_precision():
        torch.mm(queries, items.T, out=out)


@lru_cache
def _cpu_product(dim: int) -> Callable[[Tensor, Tensor, Tensor], None]:
    """numpy's product, twice as fast as torch's where we measured; torch's, where numpy's tells copies of a vector apart.

    Whole tiles see to it with numpy's BLAS (OpenBLAS) on processors with AVX-512, but not on all others, so it is tried out.
    """
    pairs = torch.randn(16, 2, 1, dim, generator=torch.Generator().manual_seed(0))
    for multiply in (_numpy_product, _torch_product):
        different = 0
        for (one, other), tiles in zip(pairs, [1] * 12 + [9] * 4, strict=True):
            scores = torch.empty(_TILE, tiles * _TILE)
            multiply(one.repeat(_TILE, 1), other.repeat(tiles * _TILE, 1), scores)
            different += int((scores != scores[0, 0]).sum())
        if not different:
            return multiply
    return _numpy_product


def _whole(number: int, tile: int) -> int:
    return -(-number // tile) * tile


def _default_budget(device: torch.device) -> int:
    if device.type != "cuda":
        return _DEFAULT_BUDGET["cpu"] * max(2, torch.get_num_threads())
    free, _ = torch.cuda.mem_get_info(device)
    return min(_DEFAULT_BUDGET["cuda"], int(0.7 * free))


@contextmanager
def _full_precision() -> Iterator[None]:
    """Products in float32 whatever the caller's setting for matrix products: tf32 makes ties and swaps near neighbors."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
