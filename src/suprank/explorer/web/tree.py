"""The label tree as the page walks it: what stands above and below a label, how many images it has, how well it is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.explorer.web.ids import Node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.explorer.source import Source
    from suprank.explorer.web.node_metrics import Judged, Values

ORDERS = ("name", "images", "worst", "best")


class Branch(NamedTuple):
    """A label in a table: its images, and for each run the values of its queries at its own level and at the finest."""

    node: Node
    name: str
    images: int
    own: tuple[Values | None, ...]
    finest: tuple[Values | None, ...]


@dataclass(frozen=True)
class Branches:
    """A page of the labels below another, `total` in all."""

    branches: tuple[Branch, ...]
    total: int


class Tree:
    """The labels of a source. A label that stands under two others, which makes no tree, is listed under both."""

    def __init__(self, source: Source, judged: Sequence[Judged] = ()) -> None:
        self.source, self.judged = source, tuple(judged)

    def has(self, node: Node) -> bool:
        """Whether there is such a label."""
        return node.level < len(self.source.levels) and node.label < len(self.names(node.level))

    def names(self, level: int) -> tuple[str, ...]:
        return self.source.names[self.source.levels[level]]

    def name(self, node: Node) -> str:
        return self.names(node.level)[node.label]

    def above(self, node: Node) -> list[Node]:
        """The labels above one, coarsest first, by the first of its images."""
        for side in self._sides():
            rows = np.flatnonzero(side[:, node.level] == node.label)
            if len(rows):
                labels = side[rows[0]]
                return [one for one in self.path(labels) if one.level > node.level]
        return []

    def path(self, labels: NDArray[np.int64]) -> list[Node]:
        """The labels of an image, coarsest first."""
        return [Node(level, int(labels[level])) for level in reversed(range(len(labels))) if labels[level] >= 0]

    def branch(self, node: Node) -> Branch:
        """A label by itself."""
        own = tuple(self._at(run, node, node.level) for run in range(len(self.judged)))
        finest = tuple(self._at(run, node, 0) for run in range(len(self.judged)))
        images = sum(int((side[:, node.level] == node.label).sum()) for side in self._sides())
        return Branch(node, self.name(node), images, own, finest)

    def below(self, node: Node | None, *, order: str = "name", offset: int = 0, limit: int = 100) -> Branches:
        """The labels right under one, or the coarsest where None is given."""
        level = (len(self.source.levels) if node is None else node.level) - 1
        if level < 0:
            return Branches((), 0)
        counts = np.zeros(len(self.names(level)), np.int64)
        for side in self._sides():
            labels = side[:, level] if node is None else side[side[:, node.level] == node.label, level]
            counts += np.bincount(labels[labels >= 0], minlength=len(counts))
        there = np.flatnonzero(counts)
        own = [self._values(judged, level, there, level) for judged in self.judged]
        finest = [self._values(judged, level, there, 0) for judged in self.judged]
        shown = self._ordered(level, there, counts, finest, order)[offset : offset + limit]
        branches = (
            Branch(
                Node(level, int(there[at])),
                self.names(level)[there[at]],
                int(counts[there[at]]),
                tuple(values[at] for values in own),
                tuple(values[at] for values in finest),
            )
            for at in shown
        )
        return Branches(tuple(branches), len(there))

    def _ordered(
        self,
        level: int,
        there: NDArray[np.int64],
        counts: NDArray[np.int64],
        finest: Sequence[Sequence[Values | None]],
        by: str,
    ) -> list[int]:
        names = self.names(level)
        places = sorted(range(len(there)), key=lambda at: names[there[at]].casefold())
        if by == "images":
            return sorted(places, key=lambda at: -counts[there[at]])
        if by in ("worst", "best") and finest:
            sign = 1 if by == "worst" else -1
            known = {at: value.ap for at in places if (value := finest[0][at]) is not None and value.queries}
            return sorted(places, key=lambda at: sign * known[at] if at in known else np.inf)
        return places

    def _values(self, judged: Judged, at: int, labels: NDArray[np.int64], level: int) -> Sequence[Values | None]:
        """What a run found, by names: another run may number its labels differently."""
        name, levels = self.source.levels[at], judged.source.levels
        if name not in levels or self.source.levels[level] not in levels:
            return [None] * len(labels)
        theirs = {one: number for number, one in enumerate(judged.source.names[name])}
        numbers = np.array([theirs.get(self.names(at)[label], -1) for label in labels], np.int64)
        found = judged.of_labels(levels.index(name), numbers, levels.index(self.source.levels[level]))
        return found or [None] * len(labels)

    def _at(self, run: int, node: Node, level: int) -> Values | None:
        return self._values(self.judged[run], node.level, np.array([node.label]), level)[0]

    def _sides(self) -> list[NDArray[np.int64]]:
        source = self.source
        return [source.gallery.labels] if source.against_each_other else [source.gallery.labels, source.queries.labels]
