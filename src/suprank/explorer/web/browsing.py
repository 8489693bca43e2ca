"""Lists of images and labels by text, split and label, without a query to rank them by."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.explorer.web.ids import ImageId, Node

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.explorer.images import Images
    from suprank.explorer.source import Source

_CACHED = 16  # lists of rows, so that the next page of a list need not search again
_STRIDE = 0.618034  # of the list, so that neighbors on a page are far apart in the manifest


class ImageSelection(NamedTuple):
    """Which images to list: with a text in a label or the path, of a side and a split, and under a label."""

    text: str = ""
    side: str = "gallery"
    split: str | None = None
    node: Node | None = None


@dataclass(frozen=True)
class Listing:
    """A page of a list of `total` images."""

    images: tuple[ImageId, ...]
    total: int


class Browser:
    """Lists the images and labels of one source. Safe to call from several threads."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.sides: dict[str, Images] = {"gallery": source.gallery}
        if not source.against_each_other:
            self.sides = {"query": source.queries, "gallery": source.gallery}
        self.splits = {side: list(images.manifest.splits) for side, images in self.sides.items()}
        self._cache: OrderedDict[ImageSelection, NDArray[np.int64] | None] = OrderedDict()
        self._lock = threading.Lock()

    def list_images(self, selection: ImageSelection, *, offset: int = 0, limit: int = 48) -> Listing:
        """A page of the selected images, in a fixed mixed order, or for a text in manifest order.

        Most manifests are sorted by class, so the first page in manifest order would show only one class.
        """
        rows = self._rows(selection)
        total = len(self.sides[selection.side]) if rows is None else len(rows)
        at = np.arange(min(offset, total), min(offset + limit, total))
        if not selection.text:
            at = _mixed_order(at, total)
        chosen = at if rows is None else rows[at]
        return Listing(tuple(ImageId(0, selection.side, int(row)) for row in chosen), total)

    def labels(self, text: str, *, limit: int = 12) -> tuple[list[Node], int]:
        """Labels whose name contains the text, coarsest first and shortest first within a level; and their total number."""
        found = [
            Node(level, label)
            for level in reversed(range(len(self.source.levels)))
            for label in sorted(self._labels_with_text(level, text), key=lambda one, level=level: len(self._names(level)[one]))  # type: ignore[misc]
        ]
        return found[:limit], len(found)

    def _rows(self, selection: ImageSelection) -> NDArray[np.int64] | None:
        """The selected rows, ascending; None for all rows."""
        with self._lock:
            if selection in self._cache:
                self._cache.move_to_end(selection)
                return self._cache[selection]
        images = self.sides[selection.side]
        mask: NDArray[np.bool_] | None = None
        if selection.node is not None:
            mask = _and(mask, images.labels[:, selection.node.level] == selection.node.label)
        if selection.split is not None:
            mask = _and(mask, _bools(pc.equal(images.manifest.table["split"], selection.split)))
        if selection.text:
            mask = _and(mask, self._rows_with_text(images, selection.text))
        rows = None if mask is None else np.flatnonzero(mask)
        with self._lock:
            self._cache[selection] = rows
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return rows

    def _rows_with_text(self, images: Images, text: str) -> NDArray[np.bool_]:
        found = _bools(pc.match_substring(images.manifest.paths, text, ignore_case=True))
        for level in range(len(self.source.levels)):
            named = self._labels_with_text(level, text)
            if named:
                chosen = np.zeros(len(self._names(level)) + 1, bool)  # the last entry is for −1, no label
                chosen[named] = True
                found = found | chosen[images.labels[:, level]]
        return found

    def _labels_with_text(self, level: int, text: str) -> list[int]:
        names = pa.array(self._names(level), pa.string())
        return np.flatnonzero(_bools(pc.match_substring(names, text, ignore_case=True))).tolist()

    def _names(self, level: int) -> tuple[str, ...]:
        return self.source.names[self.source.levels[level]]


def _mixed_order(at: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Positions of a mixed list in the original one: a permutation, by steps whose length is coprime to the total.

    Example:
        >>> _mixed_order(np.arange(10), 10).tolist()
        [0, 7, 4, 1, 8, 5, 2, 9, 6, 3]
    """
    step = max(1, round(total * _STRIDE))
    while math.gcd(step, total) > 1:
        step += 1
    return at * step % max(total, 1)


def _and(one: NDArray[np.bool_] | None, other: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return other if one is None else one & other


def _bools(column: Any) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(column, False), bool)
