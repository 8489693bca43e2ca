"""The label tree as the page shows it: labels above and below a label, their images, and AP and R@1 of their queries."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.evaluation import evaluate
from suprank.explorer.web.ids import Node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import RetrievalData


MAX_PAIRS = 4_000_000_000
"""Query-item pairs that are scored at most: all of 63,000 images, or 4,000 queries against a million images."""

_log = logging.getLogger(__name__)


class MeanMetrics(NamedTuple):
    """Mean AP and R@1 over `queries` queries at some level; NaN if none of them has a positive."""

    ap: float
    r1: float
    queries: int


class NotMeasuredError(RuntimeError):
    """AP and R@1 are not measured yet. The message is a sentence for the page, which says what to do."""


class NodeMetrics:
    """AP and R@1 of the queries, measured in the background, and their means over labels.

    With more than `max_pairs` query-item pairs, only some queries, evenly spaced, are measured; `rows` names others instead.
    """

    def __init__(self, data: RetrievalData, *, max_pairs: int = MAX_PAIRS, rows: NDArray[np.int64] | None = None) -> None:
        self.data = data
        count = min(len(data.queries), max(1, max_pairs // max(1, len(data.items))))
        evenly = np.linspace(0, len(data.queries) - 1, count).round().astype(np.int64)
        self.rows = np.unique(evenly if rows is None else rows)
        self.done = not data.levels
        self.problem = "" if data.levels else "the images have no labels"
        self._values: dict[str, NDArray[np.float64]] = {}

    @property
    def sampled(self) -> bool:
        return len(self.rows) < len(self.data.queries)

    def measure(self) -> None:
        """Measure now; if the labels are invalid, `problem` says why, for the page to show."""
        if self.done:
            return
        data = self.data
        metrics = [f"{name}/{level}" for level in data.levels for name in ("AP", "R@1")]
        try:
            report = evaluate(data.take(self.rows) if self.sampled else data, metrics=metrics, per_query=True, progress=False)
            self._values = dict(report.per_query or {})
        except Exception as error:  # in a background thread: otherwise nobody would see it, and the page would wait forever
            _log.warning("the metrics of %s cannot be measured: %s", data.name, error)
            self.problem = str(error)
        self.done = True

    def per_query(self, level: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """AP and R@1 of every query at a level (0: the finest), as soon as they are measured.

        NaN for a query without positives or outside the sample, and for all queries if there is a `problem`.
        """
        if not self.done:
            raise NotMeasuredError(f"AP and R@1 of {self.data.name} are being measured; reload this page in a while.")
        ap, r1 = np.full((2, len(self.data.queries)), np.nan)
        if self._values:
            ap[self.rows], r1[self.rows] = self._columns(level)
        return ap, r1

    def for_labels(self, at: int, labels: NDArray[np.int64], level: int) -> list[MeanMetrics] | None:
        """Means over the queries under each of these labels of level `at`, evaluated at `level` (0: the finest).

        None before they are measured. The label −1 has no queries.
        """
        if not self._values:
            return None
        ap, r1 = self._columns(level)
        own = self.data.queries.labels[self.rows, at]
        valid = ~np.isnan(ap) & (own >= 0)
        size = len(self.data.names[self.data.levels[at]]) + 1  # the last entry is for −1 and stays empty
        counts = np.bincount(own[valid], minlength=size)
        with np.errstate(invalid="ignore"):
            means = [np.bincount(own[valid], one[valid], minlength=size) / counts for one in (ap, r1)]
        return [MeanMetrics(float(means[0][label]), float(means[1][label]), int(counts[label])) for label in labels]

    def _columns(self, level: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        name = self.data.levels[level]
        return self._values[f"AP/{name}"], self._values[f"R@1/{name}"]


class LabelSummary(NamedTuple):
    """A label in a table: its images, and for each run the metrics of its queries at its own level and at the finest."""

    node: Node
    name: str
    images: int
    own: tuple[MeanMetrics | None, ...]
    finest: tuple[MeanMetrics | None, ...]

    @property
    def ap(self) -> float:
        """AP of the first run at the finest level; NaN if it is unknown."""
        return np.nan if self.finest[0] is None else self.finest[0].ap

    def difference(self, *, own: bool = False) -> float:
        """AP of the first run minus that of the second, at the finest level or the label's own; NaN if one is unknown."""
        known = [value.ap for value in (self.own if own else self.finest) if value is not None]
        return known[0] - known[1] if len(known) == 2 else np.nan


_SORT_KEYS: dict[str, Callable[[LabelSummary], float]] = {
    "name": lambda label: 0,
    "images": lambda label: -label.images,
    "worst": lambda label: label.ap,
    "best": lambda label: -label.ap,
    "first_better": lambda label: -label.difference(),
    "second_better": lambda label: label.difference(),
}
LABEL_ORDERS = tuple(_SORT_KEYS)
"""Orders of labels; the last two, by the difference of AP, need two runs."""


@dataclass(frozen=True)
class LabelListing:
    """A page of the labels below another one, of `total`."""

    labels: tuple[LabelSummary, ...]
    total: int


class Tree:
    """The labels. A label with two parents (then it is not a tree) is listed under both."""

    def __init__(self, data: RetrievalData, metrics: Sequence[NodeMetrics] = ()) -> None:
        self.data, self.node_metrics = data, tuple(metrics)

    def has(self, node: Node) -> bool:
        """Whether the label exists."""
        return node.level < len(self.data.levels) and node.label < len(self.names(node.level))

    def names(self, level: int) -> Sequence[str]:
        return self.data.names[self.data.levels[level]]

    def name(self, node: Node) -> str:
        return self.names(node.level)[node.label]

    def address(self, node: Node) -> str:
        """A label in words, such as `species:jay`, for an address that means the same if labels are numbered differently."""
        return f"{self.data.levels[node.level]}:{self.name(node)}"

    def find(self, text: str) -> Node | None:
        """The label that `str(node)` or `address(node)` describes; None if there is none."""
        node = Node.parse(text)
        if node is not None:
            return node if self.has(node) else None
        for level, name in enumerate(self.data.levels):
            if text.startswith(f"{name}:") and text[len(name) + 1 :] in self.names(level):
                return Node(level, self.names(level).index(text[len(name) + 1 :]))
        return None

    def class_sizes(self, level: int) -> NDArray[np.int64]:
        """The number of images of each label of a level, queries and gallery together."""
        count = len(self.names(level))
        return sum(
            (np.bincount(side[side[:, level] >= 0, level], minlength=count) for side in self._label_arrays()),
            np.zeros(count, np.int64),
        )

    def ancestors(self, node: Node) -> list[Node]:
        """The labels above a label, coarsest first, taken from its first image."""
        for side in self._label_arrays():
            rows = np.flatnonzero(side[:, node.level] == node.label)
            if len(rows):
                labels = side[rows[0]]
                return [one for one in self.label_path(labels) if one.level > node.level]
        return []

    def label_path(self, labels: NDArray[np.int64]) -> list[Node]:
        """The labels of an image, coarsest first."""
        return [Node(level, int(labels[level])) for level in reversed(range(len(labels))) if labels[level] >= 0]

    def summary(self, node: Node) -> LabelSummary:
        """One label with its images and metrics."""
        own = tuple(self._label_metrics(run, node, node.level) for run in range(len(self.node_metrics)))
        finest = tuple(self._label_metrics(run, node, 0) for run in range(len(self.node_metrics)))
        images = sum(int((side[:, node.level] == node.label).sum()) for side in self._label_arrays())
        return LabelSummary(node, self.name(node), images, own, finest)

    def children(self, node: Node | None, *, order: str = "name", offset: int = 0, limit: int = 100) -> LabelListing:
        """The labels directly below a label, or the coarsest labels for None; what an order does not know is last, by name."""
        level = (len(self.data.levels) if node is None else node.level) - 1
        if level < 0:
            return LabelListing((), 0)
        counts = np.zeros(len(self.names(level)), np.int64)
        for side in self._label_arrays():
            labels = side[:, level] if node is None else side[side[:, node.level] == node.label, level]
            counts += np.bincount(labels[labels >= 0], minlength=len(counts))
        present = np.flatnonzero(counts)
        own = [self._metrics(run, level, present, level) for run in self.node_metrics]
        finest = [self._metrics(run, level, present, 0) for run in self.node_metrics]
        labels = [
            LabelSummary(
                Node(level, label),
                self.names(level)[label],
                int(counts[label]),
                tuple(values[at] for values in own),
                tuple(values[at] for values in finest),
            )
            for at, label in enumerate(present.tolist())
        ]
        labels.sort(key=lambda label: label.name.casefold())
        labels.sort(key=lambda label: (math.isnan(value := _SORT_KEYS[order](label)), value))
        return LabelListing(tuple(labels[offset : offset + limit]), len(labels))

    def _metrics(self, run: NodeMetrics, at: int, labels: NDArray[np.int64], level: int) -> Sequence[MeanMetrics | None]:
        """The metrics of a run, matched by label name, since another run may number its labels differently."""
        name, levels = self.data.levels[at], run.data.levels
        if name not in levels or self.data.levels[level] not in levels:
            return [None] * len(labels)
        theirs = {one: number for number, one in enumerate(run.data.names[name])}
        numbers = np.array([theirs.get(self.names(at)[label], -1) for label in labels], np.int64)
        found = run.for_labels(levels.index(name), numbers, levels.index(self.data.levels[level]))
        return found or [None] * len(labels)

    def _label_metrics(self, run: int, node: Node, level: int) -> MeanMetrics | None:
        return self._metrics(self.node_metrics[run], node.level, np.array([node.label]), level)[0]

    def _label_arrays(self) -> list[NDArray[np.int64]]:
        """The labels of the gallery and, unless they are the same images, of the queries."""
        data = self.data
        return [data.items.labels] if data.gallery is None else [data.items.labels, data.queries.labels]
