"""AP and R@1 of every query, measured in the background, and their means over the labels of the tree."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.explorer.source import Source

MOST_PAIRS = 4_000_000_000
"""Of a query and an item, that are scored: all of 63,000 images against each other, or 4,000 queries against a million."""

_log = logging.getLogger(__name__)


class Values(NamedTuple):
    """Means over `queries` queries at the level named; NaN where none of them has a positive."""

    ap: float
    r1: float
    queries: int


class Judged:
    """The values of a source's queries, or of so many of them, spread evenly, that at most `MOST_PAIRS` pairs are scored."""

    def __init__(self, source: Source, *, most_pairs: int = MOST_PAIRS) -> None:
        self.source = source
        count = min(len(source.queries), max(1, most_pairs // max(1, len(source.gallery))))
        self.rows = np.unique(np.linspace(0, len(source.queries) - 1, count).round().astype(np.int64))
        self.done = not source.levels
        self.problem = "" if source.levels else "the images have no labels"
        self._values: dict[str, NDArray[np.float64]] = {}

    @property
    def sampled(self) -> bool:
        return len(self.rows) < len(self.source.queries)

    def measure(self) -> None:
        """Measure now; what is wrong with the labels is kept in `problem`, for the page to show."""
        if self.done:
            return
        source = self.source
        metrics = [f"{name}/{level}" for level in source.levels for name in ("AP", "R@1")]
        try:
            report = source.evaluated(self.rows if self.sampled else None, metrics=metrics, per_query=True)
            self._values = dict(report.per_query or {})
        except Exception as error:  # in a thread of its own nobody else would say it, and the page would wait for ever
            _log.warning("%s is not judged: %s", source.name, error)
            self.problem = str(error)
        self.done = True

    def of_labels(self, at: int, labels: NDArray[np.int64], level: int) -> list[Values] | None:
        """The means over the queries under each label of the level `at`, at a level (0: the finest); None while there are none.

        −1 stands for a label that is not here.
        """
        if not self._values:
            return None
        ap, r1 = self._columns(level)
        own = self.source.queries.labels[self.rows, at]
        valid = ~np.isnan(ap) & (own >= 0)
        size = len(self.source.names[self.source.levels[at]]) + 1  # the last is for −1, and has none
        counts = np.bincount(own[valid], minlength=size)
        with np.errstate(invalid="ignore"):
            means = [np.bincount(own[valid], one[valid], minlength=size) / counts for one in (ap, r1)]
        return [Values(float(means[0][label]), float(means[1][label]), int(counts[label])) for label in labels]

    def of_query(self, row: int) -> Values | None:
        """The values of one query at the finest level; None where it was not judged."""
        at = int(np.searchsorted(self.rows, row))
        if not self._values or at == len(self.rows) or self.rows[at] != row:
            return None
        one = np.zeros(len(self.rows), bool)
        one[at] = True
        return self._mean(one, 0)

    def _columns(self, level: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        name = self.source.levels[level]
        return self._values[f"AP/{name}"], self._values[f"R@1/{name}"]

    def _mean(self, chosen: NDArray[np.bool_], level: int) -> Values:
        ap, r1 = self._columns(level)
        chosen = chosen & ~np.isnan(ap)
        count = int(chosen.sum())
        return Values(float(ap[chosen].mean()), float(r1[chosen].mean()), count) if count else Values(np.nan, np.nan, 0)
