"""Lists of images by text, split, label, tag and result, and of labels by text, without a query to rank them by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.explorer.tags import TagFile
from suprank.explorer.web.ids import ImageId, Node
from suprank.explorer.web.image_metrics import ImageMetrics, result_mask
from suprank.explorer.web.tree import NotMeasuredError, Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import Items, RetrievalData

_CACHED = 16  # lists of rows, so that the next page of a list need not search again
_STRIDE = 0.618034  # of the list, so that neighbors on a page are far apart in the manifest


ORDERS = ("mixed", "lowest", "highest", "first_better", "second_better", "fewest", "most")
"""Orders of images: mixed; by AP; by the difference of AP between two runs; by the number of images of the same class."""


class ImageSelection(NamedTuple):
    """Which images to list, and in which order.

    With a text in a label or the path, of a side and a split, under a label, with a tag (`WITH_TAG` for any, `WITHOUT_TAG` for
    none), and of one of `RESULTS` for the first run and for the second, all of them by default. Results and orders are those
    at `level`, 0 the finest.
    """

    text: str = ""
    side: str = "gallery"
    split: str | None = None
    node: Node | None = None
    tag: str = ""
    level: int = 0
    results: tuple[str, str] = ("", "")
    order: str = ORDERS[0]


WITH_TAG, WITHOUT_TAG = "+", "-"
"""No tag begins with these."""


@dataclass(frozen=True)
class Listing:
    """A page of a list of `total` images. If the list needs metrics that are not measured, `problem` says so."""

    images: tuple[ImageId, ...]
    total: int
    problem: str = ""


class Browser:
    """Lists images and labels. Safe to call from several threads."""

    def __init__(self, data: RetrievalData, metrics: ImageMetrics | None = None, tags: TagFile | None = None) -> None:
        self.data = data
        self.sides: dict[str, Items] = {"gallery": data.items}
        if data.gallery is not None:
            self.sides = {"query": data.queries, "gallery": data.items}
        self.splits = {side: list(images.manifest.splits) for side, images in self.sides.items()}
        self._metrics, self._tags, self._tree = metrics, tags or TagFile(None), Tree(data)
        self._cached_rows = lru_cache(_CACHED)(self._find_rows)

    def list_images(self, selection: ImageSelection, *, offset: int = 0, limit: int = 48) -> Listing:
        """A page of the selected images.

        The default order is a fixed mixed one, or for a text that of the manifest: most manifests are sorted by class, so the
        first page in manifest order would show only one class. In orders by metrics, unmeasured images are last.
        """
        try:
            rows = self._rows(selection)
        except NotMeasuredError as error:
            return Listing((), 0, str(error))
        total = len(self.sides[selection.side]) if rows is None else len(rows)
        at = np.arange(min(offset, total), min(offset + limit, total))
        chosen = self._in_order(selection, rows, at, total)
        return Listing(tuple(ImageId(0, selection.side, int(row)) for row in chosen), total)

    def rows(self, selection: ImageSelection) -> NDArray[np.int64]:
        """All selected rows in order; `NotMeasuredError` if that needs metrics that are not measured."""
        rows = self._rows(selection)
        total = len(self.sides[selection.side]) if rows is None else len(rows)
        return self._in_order(selection, rows, np.arange(total), total)

    def _in_order(
        self, selection: ImageSelection, rows: NDArray[np.int64] | None, at: NDArray[np.int64], total: int
    ) -> NDArray[np.int64]:
        if selection.order == ORDERS[0] and not selection.text:
            at = _mixed_order(at, total)
        return at if rows is None else rows[at]

    def labels(self, text: str, *, limit: int = 12) -> tuple[list[Node], int]:
        """Labels of images whose name contains the text, coarsest first, then shortest first; and their total number.

        Labels without an image, such as the train classes of a manifest, are left out.
        """
        sizes = [self._tree.class_sizes(level) for level in range(len(self.data.levels))]
        found = [
            Node(level, label)
            for level in reversed(range(len(self.data.levels)))
            for label in sorted(self._labels_with_text(level, text), key=lambda one, level=level: len(self._names(level)[one]))  # type: ignore[misc]
            if sizes[level][label]
        ]
        return found[:limit], len(found)

    def _rows(self, selection: ImageSelection) -> NDArray[np.int64] | None:
        """The selected rows: ascending, or sorted if the order needs it; None for all rows."""
        return self._cached_rows(selection, self._tags.version if selection.tag else None)

    def _find_rows(self, selection: ImageSelection, _: object) -> NDArray[np.int64] | None:
        mask = self._mask(selection)
        rows = None if mask is None else np.flatnonzero(mask)
        if selection.order != ORDERS[0]:
            values = self._sort_values(selection)
            rows = np.arange(len(values)) if rows is None else rows
            rows = rows[np.argsort(values[rows], kind="stable")]  # NaN last
        return rows

    def _mask(self, selection: ImageSelection) -> NDArray[np.bool_] | None:
        images = self.sides[selection.side]
        mask: NDArray[np.bool_] | None = None
        if selection.node is not None:
            mask = _and(mask, images.labels[:, selection.node.level] == selection.node.label)
        if selection.split is not None:
            mask = _and(mask, _bools(pc.equal(images.manifest.table["split"], selection.split)))
        if selection.text:
            mask = _and(mask, self._rows_with_text(images, selection.text))
        if selection.tag:
            tags = self._tags.row_tags(images.manifest)
            tagged = tags.tagged if selection.tag in (WITH_TAG, WITHOUT_TAG) else tags.mask(selection.tag)
            mask = _and(mask, ~tagged if selection.tag == WITHOUT_TAG else tagged)
        for run, result in enumerate(selection.results):
            if result:
                mask = _and(mask, result_mask(self._columns(selection, run)[1], result))
        return mask

    def _sort_values(self, selection: ImageSelection) -> NDArray[np.float64]:
        """A number for each image of the side, smallest first; NaN last."""
        if selection.order in ("fewest", "most"):
            sizes = self._tree.class_sizes(selection.level).astype(np.float64)
            values = np.append(sizes, np.nan)[self.sides[selection.side].labels[:, selection.level]]  # −1: no label
            return values if selection.order == "fewest" else -values
        first = self._columns(selection, 0)[0]
        if selection.order in ("lowest", "highest"):
            return first if selection.order == "lowest" else -first
        difference = first - self._columns(selection, 1)[0]
        return -difference if selection.order == "first_better" else difference

    def _columns(self, selection: ImageSelection, run: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self._metrics is None:
            raise NotMeasuredError("There are no metrics.")
        return self._metrics.columns(run, selection.side, self.data.levels[selection.level])

    def _rows_with_text(self, images: Items, text: str) -> NDArray[np.bool_]:
        found = _bools(pc.match_substring(images.manifest.paths, text, ignore_case=True))
        for level in range(len(self.data.levels)):
            named = self._labels_with_text(level, text)
            if named:
                chosen = np.zeros(len(self._names(level)) + 1, bool)  # the last entry is for −1, no label
                chosen[named] = True
                found = found | chosen[images.labels[:, level]]
        return found

    def _labels_with_text(self, level: int, text: str) -> list[int]:
        names = pa.array(self._names(level), pa.string())
        return np.flatnonzero(_bools(pc.match_substring(names, text, ignore_case=True))).tolist()

    def _names(self, level: int) -> Sequence[str]:
        return self.data.names[self.data.levels[level]]


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
