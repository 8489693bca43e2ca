"""Search as the page does it, without a page: an image or a vector in, ranked images out, of one run or of two."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.explorer.images import levels_between
from suprank.explorer.web.ids import SIDES, Place
from suprank.explorer.web.matching import Matching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from PIL.Image import Image

    from suprank.explorer.images import Images
    from suprank.explorer.source import Source
    from suprank.explorer.web.nearest import Nearest

DEPTH = 1_000
"""How far down a list the page can look; all the way in galleries of up to `WHOLE` images."""

WHOLE = 10_000


@dataclass(frozen=True, eq=False)
class Run:
    """What is looked at: a source, what searches its gallery, and what embeds an image that is not in it, if anything does."""

    source: Source
    index: Nearest
    embed: Callable[[Image], NDArray[Any]] | None = None


class Hit(NamedTuple):
    """An image in a list: its rank from 1 on, its cosine, the levels it shares with the query (None: not known), and its rank
    in the other run's list (None: not in it, or no other run)."""

    place: Place
    rank: int
    score: float
    level: int | None
    other: int | None = None


@dataclass(frozen=True)
class Ranking:
    """A page of a list: `total` hits pass the filters, among the first `depth` of the gallery's `of`; found in `seconds`."""

    run: int
    hits: tuple[Hit, ...]
    total: int
    depth: int
    of: int
    seconds: float

    @property
    def deep(self) -> bool:
        """Whether there is more than the page can look through."""
        return self.of > WHOLE


class Filters(NamedTuple):
    """Which hits to show: those that share exactly so many levels with the query, and those of one split; None for all."""

    level: int | None = None
    split: str | None = None


class Searcher:
    """Ranks the galleries of one run, or of two beside each other. Any number of threads may ask at once."""

    def __init__(self, runs: Sequence[Run]) -> None:
        if not 1 <= len(runs) <= 2:
            raise ValueError(f"{len(runs)} runs were given; one can be looked at, or two side by side.")
        self.runs = tuple(runs)
        pairs = [(one, 1 - one, side) for one in range(len(runs)) for side in SIDES if len(runs) == 2]
        self._same = {
            (one, other, side): Matching(_side(runs[one].source, side), _side(runs[other].source, side))
            for one, other, side in pairs
        }

    def images(self, place: Place) -> Images:
        """The side that a place is on; IndexError where there is no such image."""
        if not 0 <= place.run < len(self.runs):
            raise IndexError(f"there is no run {place.run}")
        source = self.runs[place.run].source
        side = source.queries if place.side == "query" and not source.against_each_other else source.gallery
        if (place.side == "query" and source.against_each_other) or not 0 <= place.row < len(side):
            raise IndexError(f"there is no image {place}")
        return side

    def labels(self, place: Place) -> NDArray[np.int64]:
        return self.images(place).labels[place.row]

    def counterpart(self, place: Place, run: int) -> Place | None:
        """The same image in another run, by its path (and box); None where it is not there."""
        if place.run == run:
            return place
        row = int(self._same[place.run, run, place.side](np.array([place.row]))[0])
        return (
            None
            if row < 0 or (place.side == "query" and self.runs[run].source.against_each_other)
            else Place(run, place.side, row)
        )

    def neighbors(self, place: Place, filters: Filters = Filters(), *, offset: int = 0, limit: int = 48) -> list[Ranking]:
        """The lists of an image that is in the collection, without itself; a run that does not have it gives none."""
        self.images(place)
        found = []
        for run in range(len(self.runs)):
            own = self.counterpart(place, run)
            if own is not None:
                images = self.images(own)
                found.append(_Asked(run, images.unit([own.row])[0], images.labels[own.row], self._itself(own)))
        return self._rankings(found, filters, offset, limit)

    def nearest(self, picture: Image, *, limit: int = 48) -> list[Ranking]:
        """The lists of a picture that is not in the collection, of the runs that can embed it. No level is known."""
        found = []
        for run, one in enumerate(self.runs):
            if one.embed is not None:
                vector = np.asarray(one.embed(picture), np.float32).reshape(-1)
                length = float(np.linalg.norm(vector))
                if vector.shape != (one.source.gallery.dim,) or not np.isfinite(length):
                    raise ValueError(
                        f"the model of {one.source.name} gives {vector.shape} numbers for an image, and its gallery has "
                        f"{one.source.gallery.dim} dimensions; embed the gallery with this model."
                    )
                found.append(_Asked(run, vector / (length or 1), None, np.empty(0, np.int64)))
        return self._rankings(found, Filters(), 0, limit)

    def _rankings(self, asked: Sequence[_Asked], filters: Filters, offset: int, limit: int) -> list[Ranking]:
        # To filter, or to know the rank in the other list, one has to look all the way down.
        needed = offset + limit if filters == Filters() and len(asked) == 1 else None
        lists = [self._list(one, needed) for one in asked]
        return [self._page(one, lists, filters, offset, limit, needed=needed) for one in lists]

    def _page(
        self, one: _List, lists: Sequence[_List], filters: Filters, offset: int, limit: int, *, needed: int | None
    ) -> Ranking:
        gallery = self.runs[one.asked.run].source.gallery
        level = self._levels(one)
        kept = np.ones(len(one.rows), bool)
        if filters.level is not None:
            kept &= level == filters.level
        if filters.split is not None:
            kept &= np.asarray(gallery.items.table["split"].take(one.rows).to_pylist(), object) == filters.split
        shown = np.flatnonzero(kept)[offset : offset + limit]
        others = self._ranks_elsewhere(one, shown, lists)
        hits = tuple(
            Hit(
                Place(one.asked.run, "gallery", int(one.rows[at])),
                int(at) + 1,
                float(one.scores[at]),
                None if level[at] < 0 else int(level[at]),
                other,
            )
            for at, other in zip(shown, others, strict=True)
        )
        depth = min(_depth(len(gallery)), len(gallery) - len(one.asked.hidden))
        if len(one.rows) < min(depth, needed or depth):  # an index may find no more
            depth = len(one.rows)
        total = int(kept.sum()) if needed is None else depth
        return Ranking(one.asked.run, hits, total, depth, len(gallery), one.seconds)

    def _levels(self, one: _List) -> NDArray[np.int64]:
        """How many levels each hit shares with the query; −1 where that is not known."""
        labels = self.runs[one.asked.run].source.gallery.labels
        if one.asked.labels is None or not labels.shape[1] or one.asked.labels[-1] < 0:
            return np.full(len(one.rows), -1, np.int64)
        return levels_between(one.asked.labels, labels[one.rows])

    def _list(self, asked: _Asked, needed: int | None) -> _List:
        run = self.runs[asked.run]
        items = len(run.source.gallery)
        depth = _depth(items) if needed is None else min(needed, _depth(items))
        began = time.perf_counter()
        rows, scores = run.index.nearest(asked.vector, min(depth + len(asked.hidden), items))
        seconds = time.perf_counter() - began
        kept = ~np.isin(rows, asked.hidden)
        return _List(asked, rows[kept][:depth], scores[kept][:depth], seconds)

    def _ranks_elsewhere(self, one: _List, shown: NDArray[np.int64], lists: Sequence[_List]) -> list[int | None]:
        other = next((other for other in lists if other is not one), None)
        if other is None:
            return [None] * len(shown)
        rows = self._same[one.asked.run, other.asked.run, "gallery"](one.rows[shown])
        ranks = {int(row): rank for rank, row in enumerate(other.rows, start=1)}
        return [ranks.get(int(row)) for row in rows]

    def _itself(self, place: Place) -> NDArray[np.int64]:
        source = self.runs[place.run].source
        if place.side == "query" or source.against_each_other:
            return source.itself(place.row)
        return np.array([place.row], np.int64)


class _Asked(NamedTuple):
    """One run's query: a vector of length 1, its labels if they are known, and the rows that are itself."""

    run: int
    vector: NDArray[np.float32]
    labels: NDArray[np.int64] | None
    hidden: NDArray[np.int64]


class _List(NamedTuple):
    """What was found for a query, best first, without itself."""

    asked: _Asked
    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    seconds: float


def _side(source: Source, side: str) -> Images:
    return source.queries if side == "query" else source.gallery


def _depth(items: int) -> int:
    return items if items <= WHOLE else DEPTH
