"""AP of each listed image as a query, and whether its first item is right, for one run or two."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.explorer.web.ids import ImageId
    from suprank.explorer.web.searching import Searcher
    from suprank.explorer.web.tree import NodeMetrics

RESULTS = ("right", "wrong", "unmeasured")
"""What the first item of a query may be. A query is unmeasured outside of the sample, or if no item has its label."""


class QueryResult(NamedTuple):
    """The AP of a query, NaN if unmeasured, and one of `RESULTS`."""

    ap: float
    result: str


class ImageMetrics:
    """Metrics of the images of the first run. Another run is looked up by path; images that it does not have are unmeasured.

    Only queries have metrics: all images if they rank each other, else those of the side `query`.
    """

    def __init__(self, searcher: Searcher, node_metrics: Sequence[NodeMetrics]) -> None:
        self._searcher, self._node_metrics = searcher, tuple(node_metrics)

    @property
    def runs(self) -> int:
        return len(self._node_metrics)

    def columns(self, run: int, side: str, level: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """AP and R@1 of every image of a side of the first run, NaN where unmeasured; `NotMeasuredError` if it is too early."""
        metrics = self._node_metrics[run]
        levels = metrics.data.levels
        ap, r1 = metrics.per_query(levels.index(level) if level in levels else 0)
        rows = self._searcher.counterpart_rows(side, run)
        if (side == "query") == (metrics.data.gallery is None) or level not in levels:
            rows = np.full_like(rows, -1)
        return np.append(ap, np.nan)[rows], np.append(r1, np.nan)[rows]

    def of_image(self, image: ImageId, run: int) -> QueryResult | None:
        """The result of an image of either run as a query of this one, at the finest level; None if it is not measured."""
        own, metrics = self._searcher.counterpart(image, run), self._node_metrics[run]
        if own is None or not metrics.done or (own.side == "gallery" and metrics.data.gallery is not None):
            return None
        ap, r1 = (float(values[own.row]) for values in metrics.per_query(0))
        return None if math.isnan(r1) else QueryResult(ap, result_of(r1))

    def results(self, images: Sequence[ImageId], level: str) -> list[list[QueryResult]]:
        """For each run, the results of these images of one side of the first run; `NotMeasuredError` if it is too early."""
        rows = np.array([image.row for image in images], np.int64)
        found = []
        for run in range(self.runs if images else 0):
            ap, r1 = self.columns(run, images[0].side, level)
            pairs = zip(ap[rows].tolist(), r1[rows].tolist(), strict=True)
            found.append([QueryResult(one, result_of(first)) for one, first in pairs])
        return found


def result_of(r1: float) -> str:
    """One of `RESULTS` for the R@1 of a query.

    Example:
        >>> result_of(1.0), result_of(0.0), result_of(float("nan"))
        ('right', 'wrong', 'unmeasured')
    """
    return "unmeasured" if math.isnan(r1) else "right" if r1 > 0 else "wrong"


def result_mask(r1: NDArray[np.float64], result: str) -> NDArray[np.bool_]:
    """Which images have this result."""
    return np.isnan(r1) if result == "unmeasured" else r1 > 0 if result == "right" else r1 == 0
