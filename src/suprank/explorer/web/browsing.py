"""Images and labels by text, split and label: what the page lists when there is no query to rank for."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.explorer.web.ids import Node, Place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.explorer.images import Images
    from suprank.explorer.source import Source

_REMEMBERED = 16  # lists of rows: the next page of one need not be sought again
_ALIKE = 0.618034  # of the way round, so that neighbors in a listing are strangers in the manifest


class Asked(NamedTuple):
    """Which images to list: those that have the text in a label or the path, are of a split, and stand under a label."""

    text: str = ""
    side: str = "gallery"
    split: str | None = None
    node: Node | None = None


@dataclass(frozen=True)
class Listing:
    """A page of a list of images, `total` long."""

    places: tuple[Place, ...]
    total: int


class Browser:
    """Lists the images and labels of one source. Any number of threads may ask at once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.sides: dict[str, Images] = {"gallery": source.gallery}
        if not source.against_each_other:
            self.sides = {"query": source.queries, "gallery": source.gallery}
        self.splits = {side: list(images.items.splits) for side, images in self.sides.items()}
        self._remembered: OrderedDict[Asked, NDArray[np.int64] | None] = OrderedDict()
        self._lock = threading.Lock()

    def images(self, asked: Asked, *, offset: int = 0, limit: int = 48) -> Listing:
        """A page of the images asked for, mixed, and in the same order every time; found by text, in the manifest's order.

        Manifests are mostly sorted by class, so that the first page in their order would show one class.
        """
        rows = self._rows(asked)
        total = len(self.sides[asked.side]) if rows is None else len(rows)
        at = np.arange(min(offset, total), min(offset + limit, total))
        if not asked.text:
            at = _mixed(at, total)
        chosen = at if rows is None else rows[at]
        return Listing(tuple(Place(0, asked.side, int(row)) for row in chosen), total)

    def labels(self, text: str, *, limit: int = 12) -> tuple[list[Node], int]:
        """Labels with the text in their name, coarsest first and shortest first in a level; and how many there are."""
        found = [
            Node(level, label)
            for level in reversed(range(len(self.source.levels)))
            for label in sorted(self._named(level, text), key=lambda one, level=level: len(self._names(level)[one]))  # type: ignore[misc]
        ]
        return found[:limit], len(found)

    def _rows(self, asked: Asked) -> NDArray[np.int64] | None:
        """The rows, ascending; None for all, which need no list."""
        with self._lock:
            if asked in self._remembered:
                self._remembered.move_to_end(asked)
                return self._remembered[asked]
        images = self.sides[asked.side]
        mask: NDArray[np.bool_] | None = None
        if asked.node is not None:
            mask = _and(mask, images.labels[:, asked.node.level] == asked.node.label)
        if asked.split is not None:
            mask = _and(mask, _bools(pc.equal(images.items.table["split"], asked.split)))
        if asked.text:
            mask = _and(mask, self._with_text(images, asked.text))
        rows = None if mask is None else np.flatnonzero(mask)
        with self._lock:
            self._remembered[asked] = rows
            while len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)
        return rows

    def _with_text(self, images: Images, text: str) -> NDArray[np.bool_]:
        found = _bools(pc.match_substring(images.items.paths, text, ignore_case=True))
        for level in range(len(self.source.levels)):
            named = self._named(level, text)
            if named:
                chosen = np.zeros(len(self._names(level)) + 1, bool)  # the last is for −1, no label
                chosen[named] = True
                found = found | chosen[images.labels[:, level]]
        return found

    def _named(self, level: int, text: str) -> list[int]:
        names = pa.array(self._names(level), pa.string())
        return np.flatnonzero(_bools(pc.match_substring(names, text, ignore_case=True))).tolist()

    def _names(self, level: int) -> tuple[str, ...]:
        return self.source.names[self.source.levels[level]]


def _mixed(at: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Where the places of a mixed list are in the list itself: every place once, by steps of a length that shares no divisor.

    Example:
        >>> _mixed(np.arange(10), 10).tolist()
        [0, 7, 4, 1, 8, 5, 2, 9, 6, 3]
    """
    step = max(1, round(total * _ALIKE))
    while math.gcd(step, total) > 1:
        step += 1
    return at * step % max(total, 1)


def _and(one: NDArray[np.bool_] | None, other: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return other if one is None else one & other


def _bools(column: Any) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(column, False), bool)
