"""Search behind the web page: an image or a picture in, ranked images out, for one run or two."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.explorer.images import shared_levels, unit_embeddings
from suprank.explorer.web.ids import ImageId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from PIL.Image import Image

    from suprank.evaluation.retrieval_data import Items, RetrievalData
    from suprank.explorer.index import Index

DEPTH = 1_000
"""Longest list that the page shows; galleries of up to `WHOLE` images are shown completely."""

WHOLE = 10_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ExplorerRun:
    """Data to explore, the index of its gallery, and a function that embeds uploaded images, if there is a model.

    `no_model` tells readers of the page why there is none, and how to get one.
    """

    data: RetrievalData
    index: Index
    embed: Callable[[Image], NDArray[Any]] | None = None
    no_model: str = "There is no model to embed the image; explore a run, or name one: `suprank explore DATA --model MODEL`."


class Hit(NamedTuple):
    """An image in a list: its rank (from 1), its cosine, the number of levels it shares with the query (None: unknown), and its
    rank in the other run's list (None: not in it, or no other run)."""

    image: ImageId
    rank: int
    score: float
    level: int | None
    other_rank: int | None = None


@dataclass(frozen=True)
class Ranking:
    """A page of a list: `total` hits match the filters among the first `depth` of `gallery_size`; searched in `seconds`.

    `missing` says why a run has no list at all.
    """

    run: int
    hits: tuple[Hit, ...]
    total: int
    depth: int
    gallery_size: int
    seconds: float
    missing: str = ""

    @property
    def deep(self) -> bool:
        """Whether the gallery is larger than the list can be long."""
        return self.gallery_size > WHOLE


class Filters(NamedTuple):
    """Which hits to show: those that share exactly `level` levels with the query, and those of one split; None for all."""

    level: int | None = None
    split: str | None = None


class Searcher:
    """Ranks the gallery of one run, or of two runs side by side. Safe to call from several threads."""

    def __init__(self, runs: Sequence[ExplorerRun]) -> None:
        if not 1 <= len(runs) <= 2:
            raise ValueError(f"{len(runs)} runs were given; give one, or two to compare.")
        self.runs = tuple(runs)
        self._same = cache(self._match)

    def side_images(self, image: ImageId) -> Items:
        """The queries or gallery that contain an image; IndexError if there is no such image."""
        if not 0 <= image.run < len(self.runs):
            raise IndexError(f"there is no run {image.run}")
        data = self.runs[image.run].data
        side = data.queries if image.side == "query" and data.gallery is not None else data.items
        if (image.side == "query" and data.gallery is None) or not 0 <= image.row < len(side):
            raise IndexError(f"there is no image {image}")
        return side

    def labels(self, image: ImageId) -> NDArray[np.int64]:
        return self.side_images(image).labels[image.row]

    def counterpart(self, image: ImageId, run: int) -> ImageId | None:
        """The same image in another run, by its path (and box); None if it is not there."""
        if image.run == run:
            return image
        row = int(self._same(image.run, run, image.side)[image.row])
        return (
            None
            if row < 0 or (image.side == "query" and self.runs[run].data.gallery is None)
            else ImageId(run, image.side, row)
        )

    def counterpart_rows(self, side: str, run: int) -> NDArray[np.int64]:
        """For each image of a side of the first run, its row in that side of another run; −1 if it is not there."""
        return self._same(0, run, side) if run else np.arange(len(_side(self.runs[0].data, side)))

    def _match(self, one: int, other: int, side: str) -> NDArray[np.int64]:
        """For each image of a side of one run, its row in the other, with the same path and box; −1 if it is not there.

        For two runs of a million images this takes a second, less if both have the same rows.
        """
        ours, theirs = (pa.array(_side(self.runs[run].data, side).manifest.keys, pa.string()) for run in (one, other))
        if ours.equals(theirs):
            return np.arange(len(ours))
        return np.asarray(pc.fill_null(pc.index_in(ours, value_set=theirs), -1), np.int64)

    def neighbors(self, image: ImageId, filters: Filters = Filters(), *, offset: int = 0, limit: int = 48) -> list[Ranking]:
        """One list per run for an image of the collection, without the image itself; runs that lack the image are left out."""
        self.side_images(image)
        found = []
        for run in range(len(self.runs)):
            own = self.counterpart(image, run)
            if own is not None:
                images = self.side_images(own)
                found.append(
                    _RunQuery(run, unit_embeddings(images, [own.row])[0], images.labels[own.row], self._self_rows(own))
                )
        return self._rankings(found, filters, offset, limit)

    def rank_picture(self, picture: Image, *, limit: int = 48) -> list[Ranking]:
        """One list per run, for a picture that is not in the collection. Levels are unknown.

        The list of a run that cannot embed pictures is empty and says why. Raises the error of the first model if none can.
        """
        queries, missing = [], {}
        errors: list[Exception] = []
        for run, one in enumerate(self.runs):
            if one.embed is None:
                missing[run] = one.no_model
                continue
            try:
                queries.append(_RunQuery(run, _picture_vector(one, picture), None, np.empty(0, np.int64)))
            except WrongModelError as error:
                errors.append(error)
                missing[run] = str(error)
            except Exception as error:  # a model that cannot be loaded, for example: the other run may have one that can
                errors.append(error)
                _log.warning("the model of %s cannot embed the image: %r", one.data.name, error)
                missing[run] = "Its model cannot embed the image; the terminal that runs `suprank explore` shows the error."
        if errors and not queries:
            raise errors[0]
        empty = [Ranking(run, (), 0, 0, len(self.runs[run].data.items), 0.0, missing=reason) for run, reason in missing.items()]
        return sorted([*self._rankings(queries, Filters(), 0, limit), *empty], key=lambda one: one.run)

    def _rankings(self, queries: Sequence[_RunQuery], filters: Filters, offset: int, limit: int) -> list[Ranking]:
        # Filters and ranks in the other list need the complete list.
        needed = offset + limit if filters == Filters() and len(queries) == 1 else None
        lists = [self._list(query, needed) for query in queries]
        return [self._page(one, lists, filters, offset, limit, needed=needed) for one in lists]

    def _page(
        self, one: _RunRanking, lists: Sequence[_RunRanking], filters: Filters, offset: int, limit: int, *, needed: int | None
    ) -> Ranking:
        gallery = self.runs[one.query.run].data.items
        level = self._levels(one)
        keep = np.ones(len(one.rows), bool)
        if filters.level is not None:
            keep &= level == filters.level
        if filters.split is not None:
            keep &= np.asarray(gallery.manifest.table["split"].take(one.rows).to_pylist(), object) == filters.split
        shown = np.flatnonzero(keep)[offset : offset + limit]
        others = self._other_ranks(one, shown, lists)
        hits = tuple(
            Hit(
                ImageId(one.query.run, "gallery", int(one.rows[at])),
                int(at) + 1,
                float(one.scores[at]),
                None if level[at] < 0 else int(level[at]),
                other,
            )
            for at, other in zip(shown, others, strict=True)
        )
        depth = min(_depth(len(gallery)), len(gallery) - len(one.query.self_rows))
        total = int(keep.sum()) if needed is None else depth
        return Ranking(one.query.run, hits, total, depth, len(gallery), one.seconds)

    def _levels(self, one: _RunRanking) -> NDArray[np.int64]:
        """Number of levels each hit shares with the query; −1 if unknown."""
        labels = self.runs[one.query.run].data.items.labels
        if one.query.labels is None or not labels.shape[1] or one.query.labels[-1] < 0:
            return np.full(len(one.rows), -1, np.int64)
        return shared_levels(one.query.labels, labels[one.rows])

    def _list(self, query: _RunQuery, needed: int | None) -> _RunRanking:
        run = self.runs[query.run]
        items = len(run.data.items)
        depth = _depth(items) if needed is None else min(needed, _depth(items))
        start = time.perf_counter()
        rows, scores = _nearest(run.index, query.vector, min(depth + len(query.self_rows), items))
        seconds = time.perf_counter() - start
        keep = ~np.isin(rows, query.self_rows)
        return _RunRanking(query, rows[keep][:depth], scores[keep][:depth], seconds)

    def _other_ranks(self, one: _RunRanking, shown: NDArray[np.int64], lists: Sequence[_RunRanking]) -> list[int | None]:
        other = next((other for other in lists if other is not one), None)
        if other is None:
            return [None] * len(shown)
        rows = self._same(one.query.run, other.query.run, "gallery")[one.rows[shown]]
        ranks = {int(row): rank for rank, row in enumerate(other.rows, start=1)}
        return [ranks.get(int(row)) for row in rows]

    def _self_rows(self, image: ImageId) -> NDArray[np.int64]:
        data = self.runs[image.run].data
        if image.side == "query" or data.gallery is None:
            return data.self_rows(image.row)
        return np.array([image.row], np.int64)


class _RunQuery(NamedTuple):
    """A query in one run: its unit vector, its labels if known, and the gallery rows that are the query itself."""

    run: int
    vector: NDArray[np.float32]
    labels: NDArray[np.int64] | None
    self_rows: NDArray[np.int64]


class _RunRanking(NamedTuple):
    """The gallery rows found for a query, best first, without the query itself."""

    query: _RunQuery
    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    seconds: float


def _nearest(index: Index, vector: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows and cosines of the k best, best first; of an embedding of zeros, whose cosines are 0, the first rows."""
    if not vector.any():
        return np.arange(k), np.zeros(k, np.float32)
    hits = index.search(vector, k)
    return hits.rows[0], hits.scores[0]


class WrongModelError(ValueError):
    """A model embeds pictures, but not like the gallery."""


def _picture_vector(run: ExplorerRun, picture: Image) -> NDArray[np.float32]:
    """The unit embedding of a picture."""
    assert run.embed is not None
    vector = np.asarray(run.embed(picture), np.float32).reshape(-1)
    name, dim = run.data.name, run.data.items.embeddings.dim
    if len(vector) != dim:
        raise WrongModelError(
            f"The model embeds images in {len(vector):,} dimensions, but the gallery of {name} has {dim:,}; start with the "
            f"model that embedded the gallery: `suprank explore DATA --model MODEL`."
        )
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length):
        raise WrongModelError(f"The model of {name} embeds this image as NaN or infinite values; check its weights.")
    return vector / (length or 1)


def _side(data: RetrievalData, side: str) -> Items:
    return data.queries if side == "query" else data.items


def _depth(items: int) -> int:
    return items if items <= WHOLE else DEPTH
