"""What the label page shows of one run: whom its queries find first, its nearest classes, and its images at the border."""

from __future__ import annotations

import logging
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from suprank.explorer.findings.class_means import unit_means
from suprank.explorer.findings.confusions import (
    Border,
    Confusions,
    NearestItems,
    count_confusions,
    measure_border,
    nearest_items,
)
from suprank.explorer.web.tree import MAX_PAIRS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import RetrievalData

BORDER_PAIRS = 8_000_000
"""Image-item pairs that are compared for the border of one label: a tenth of a second."""

BORDER_IMAGES = 50
"""Images of a label that are compared at least, even in a gallery of millions."""

_CACHED = 64  # borders of labels, so that a page that is opened again need not compare again

_log = logging.getLogger(__name__)


class ClassMeans(NamedTuple):
    """The unit mean of the gallery's images of each label `[labels, dim]`, and the row closest to it (−1: no images)."""

    means: NDArray[np.float32]
    typical_rows: NDArray[np.int64]


class BorderSample(NamedTuple):
    """The border of a label, measured on `len(border.queries)` of its `total` queries.

    If those are not all, the first `mistaken` of them find another label first, and the rest are evenly spaced.
    """

    border: Border
    total: int
    mistaken: int


class LabelFindings:
    """Finds them for any label, and computes what several labels need only once. Safe to call from several threads.

    The first items of the queries take a search of the whole collection, so `measure` runs in the background. With more than
    `max_pairs` query-item pairs, a random sample of the queries is searched.
    """

    def __init__(self, data: RetrievalData, *, max_pairs: int = MAX_PAIRS) -> None:
        self.data = data
        self.done = not data.levels
        self.problem = "" if data.levels else "the images have no labels"
        self.nearest: NearestItems | None = None
        self._max_pairs = max_pairs
        self.class_means = cache(self._class_means)
        self._counted = cache(self._count)
        self._measured_border = lru_cache(_CACHED)(self._measure_border)

    def measure(self) -> None:
        """Search the first items and compute the class means now; if that fails, `problem` says why, for the page to show."""
        if self.done:
            return
        try:
            for level in range(len(self.data.levels)):
                self.class_means(level)
            self.nearest = nearest_items(self.data, pairs=self._max_pairs)
        except Exception as error:  # in a background thread: otherwise nobody would see it, and the page would wait forever
            _log.warning("the confusions of %s cannot be counted: %s", self.data.name, error)
            self.problem = str(error)
        self.done = True

    def confusions(self, level: int) -> Confusions | None:
        """Whom the queries of each label find first; None before `measure`."""
        return None if self.nearest is None else self._counted(level)

    def _count(self, level: int) -> Confusions:
        assert self.nearest is not None
        return count_confusions(self.data, self.nearest, level)

    def _class_means(self, level: int) -> ClassMeans:
        """The means of the labels of a level."""
        gallery, number = self.data.items, len(self.data.names[self.data.levels[level]])
        means, typical = unit_means(gallery, gallery.labels[:, level], number)
        return ClassMeans(means.astype(np.float32), typical)

    def nearest_classes(self, level: int, label: int, number: int) -> list[tuple[int, float]]:
        """Labels of the level with the highest cosine of the means, best first; none for a label without gallery images."""
        means, typical = self.class_means(level)
        if typical[label] < 0:
            return []
        scores = np.where(typical >= 0, means @ means[label], -np.inf)
        scores[label] = -np.inf
        best = np.argsort(-scores, kind="stable")[:number]
        return [(int(one), float(scores[one])) for one in best if scores[one] > -np.inf]

    def border(self, level: int, label: int) -> BorderSample:
        """Compare the queries of a label, or some if there are many, with their best items of this label and of the others."""
        return self._measured_border(level, label, "mistaken first" if self.nearest is not None else "evenly spaced")

    def _measure_border(self, level: int, label: int, which: Literal["mistaken first", "evenly spaced"]) -> BorderSample:
        rows = np.flatnonzero(self.data.queries.labels[:, level] == label)
        most = max(BORDER_IMAGES, BORDER_PAIRS // max(len(self.data.items), 1))
        chosen, mistaken = rows, 0
        if len(rows) > most:
            known = self._mistaken_queries(level) if which == "mistaken first" else rows[:0]
            wrong = _spaced(np.intersect1d(rows, known), most)
            chosen = np.concatenate([wrong, _spaced(np.setdiff1d(rows, wrong), most - len(wrong))])
            mistaken = len(wrong)
        return BorderSample(measure_border(self.data, chosen, level), len(rows), mistaken)

    def _mistaken_queries(self, level: int) -> NDArray[np.int64]:
        """Rows of the queries whose first item has another label."""
        assert self.nearest is not None
        queries, items = (part[self.nearest.items >= 0] for part in (self.nearest.queries, self.nearest.items))
        return queries[self.data.queries.labels[queries, level] != self.data.items.labels[items, level]]


def _spaced(rows: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """At most `number` of the rows, evenly spaced.

    Example:
        >>> _spaced(np.arange(10), 3).tolist(), _spaced(np.arange(2), 3).tolist(), _spaced(np.arange(2), 0).tolist()
        ([0, 4, 9], [0, 1], [])
    """
    if len(rows) <= number:
        return rows
    return rows[np.linspace(0, len(rows) - 1, number).round().astype(np.int64)]
