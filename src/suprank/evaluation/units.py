"""`Units`: the groups of queries that tests and intervals take as independent of one another.

Images of a class rise and fall together, and each is an item of the others' lists. So the unit is not the query but a class, of
the coarsest level that still has enough of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.report_text import in_words, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

MIN_UNITS = 8
"""Fewer units allow no test and no interval: the least p of 7 is 2⁻⁶, which no correction for several metrics survives."""

MIN_EFFECTIVE = 20
"""A level is the unit if its effective number of classes is at least this."""

SHARED_POSITIVES = "shared positives"
"""The level of queries that have no classes, but share positives."""

TRAINING = "training"
"""The key in `Report.settings` of what is known about the training of the model: {"classes_seen": how many of the finest
classes of the queries it was trained on}. Embeddings of a model whose training is not known have none."""

_PLURALS = {
    **{"species": "species", "genus": "genera", "family": "families", "order": "orders", "phylum": "phyla"},
    **{"kingdom": "kingdoms", "class": "classes", "landmark": "landmarks", "category": "categories"},
    **{SHARED_POSITIVES: "groups that share positives", "": "queries"},
}


@dataclass(frozen=True, eq=False)
class Units:
    """The unit of each query, and how many there are.

        level       the level whose classes are the units; "" if each query is one
        of_query    int64 [queries]: 0, 1, … or −1 for a query without any value
        count       the number of units
        effective   (Σn)²/Σn² with n the queries of each unit: as many units of one size would weigh as these do
        classes     for each level of the data, finest first, how many classes its queries have

    Example:
        >>> units = Units.choose({"species": np.arange(40) // 2, "order": np.arange(40) // 20}, np.full(40, True))
        >>> units.level, units.count, units.effective, units.classes
        ('species', 20, 20.0, {'species': 20, 'order': 2})
    """

    level: str
    of_query: NDArray[np.int64]
    count: int
    effective: float
    classes: Mapping[str, int]

    @classmethod
    def choose(cls, classes: Mapping[str, NDArray[np.int64]] | None, has_value: NDArray[np.bool_]) -> Units:
        """The coarsest level with an effective number of `MIN_EFFECTIVE` classes or more among the queries that have a value;
        the finest if there is none; each query if there are no `classes` (see `Report`).

        A query that is unlabeled at that level (−1) is in a unit with the others of its finer class, or else on its own.
        """
        counts = {level: len(np.unique(own[has_value & (own >= 0)])) for level, own in (classes or {}).items()}
        if not classes:
            return cls._number("", np.arange(len(has_value)), has_value, counts)
        chosen = None
        finer = np.arange(len(has_value))  # on its own
        for level, own in classes.items():
            # Negative numbers are those of the finer level.
            finer = np.where(own >= 0, own, -1 - np.unique(finer, return_inverse=True)[1])
            units = cls._number(level, finer, has_value, counts)
            if chosen is None or units.effective >= MIN_EFFECTIVE:
                chosen = units
        assert chosen is not None
        return chosen

    @classmethod
    def _number(cls, level: str, groups: NDArray[np.int64], has_value: NDArray[np.bool_], counts: Mapping[str, int]) -> Units:
        of_query = np.full(len(groups), -1, np.int64)
        of_query[has_value] = np.unique(groups[has_value], return_inverse=True)[1]
        sizes = np.bincount(of_query[has_value]).astype(np.float64)
        effective = float(sizes.sum() ** 2 / (sizes**2).sum()) if len(sizes) else 0.0
        return cls(level, of_query, len(sizes), effective, counts)

    @property
    def enough(self) -> bool:
        return self.count >= MIN_UNITS

    def __str__(self) -> str:
        if not self.level:
            return pluralize(self.count, "query", "queries")
        return f"{self.level}: {pluralize(self.count, 'class', 'classes')}, effectively {self.effective:.0f}"

    def summary(self) -> dict[str, Any]:
        """For files: the level, how many units, and effectively how many."""
        return {"level": self.level or "query", "count": self.count, "effective": round(self.effective, 2)}

    def sentence(
        self, metric_levels: Iterable[str] = (), trainings: Sequence[Mapping[str, Any]] = (), *, seeds: bool = False
    ) -> str:
        """What tests and intervals speak about: which classes, in which units, and what they do not cover.

        `metric_levels` are those of the metrics, `trainings` what is known of each trained model: see `TRAINING`. `seeds`: each
        method was trained with several.
        """
        levels, models = list(self.classes), len(trainings)
        basis = f"{_count(self.count, '')}, which are taken as independent of one another"
        if self.level:
            basis = _count(self.classes[levels[0]], levels[0])
            if models and all(one.get("classes_seen") == 0 for one in trainings):
                nobody = "the model has not" if models == 1 else "no model has" if seeds else "neither model has"
                basis += f" that {nobody} seen"
            if self.level != levels[0]:
                basis += f", in {_count(self.count, self.level)}"
            uneven = round(self.effective) != self.count
            basis += f" (unit: {self.level}{f', effectively {self.effective:.0f}' if uneven else ''})"
        if not self.enough:
            basis += f"; {self.count} are too few for a test or an interval, which need {MIN_UNITS}"
        sentences = [f"Measured on {basis}."]
        above = levels[levels.index(self.level) + 1 :] if self.level and self.enough else []
        if coarse := [_count(self.classes[level], level) for level in above if level in set(metric_levels)]:
            sentences.append(f"Metrics with coarser levels are about these {in_words(coarse)}, not about new ones.")
        if models and not seeds:
            trained = "One trained model" if models == 1 else "Two trained models, one training each"
            sentences.append(f"{trained}: another training of the same recipe may differ; compare several seeds of each.")
        return " ".join(sentences)


def _count(number: int, level: str) -> str:
    """As many classes of a level: "56 genera", "1 class of genus", "780 classes of emoji"."""
    if number != 1 and level in _PLURALS:
        return f"{number:,} {_PLURALS[level]}"
    return f"{pluralize(number, 'class', 'classes')} of {level}" if level else pluralize(number, "query", "queries")


def same_classes(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Whether two label columns sort the same rows into the same classes, whatever their numbers; −1 is no class.

    Example:
        >>> same_classes(np.array([0, 0, 1, -1]), np.array([7, 7, 3, -1])), same_classes(np.array([0, 0]), np.array([0, 1]))
        (True, False)
    """
    pairs = len(np.unique(np.stack([one, other]), axis=1).T)
    return pairs == len(np.unique(one)) == len(np.unique(other)) and np.array_equal(one < 0, other < 0)


def query_classes(levels: Mapping[str, Any], queries: int) -> dict[str, NDArray[np.int64]]:
    """The class of each query at each level, from labels `[queries]`, or from sets of labels `[queries, M]`."""
    found = {}
    for level, labels in levels.items():
        array = np.asarray(labels.cpu() if hasattr(labels, "cpu") else labels)
        if array.dtype.kind not in "iu" or array.ndim not in (1, 2) or len(array) != queries:
            raise ValueError(
                f"classes[{level!r}] have dtype {array.dtype} and shape {array.shape}, but must be integers [{queries}], one "
                f"for each query, or [{queries}, M] for sets of labels."
            )
        found[level] = connected_classes(array.astype(np.int64))
    return found


def connected_classes(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The class of each query at a level: its label, or of label sets `[queries, M]` the connected component of shared labels.

    Two queries with a common label are in one component, and so are those that others connect. −1 is no label.

    Example:
        >>> connected_classes(np.array([[4, 7], [7, -1], [5, -1], [-1, -1]])).tolist()
        [0, 0, 1, -1]
    """
    if labels.ndim == 1:
        return labels
    queries, places = np.nonzero(labels >= 0)
    groups = np.unique(labels[queries, places], return_inverse=True)[1]
    component = np.full(len(labels), -1, np.int64)
    component[queries] = queries
    least = np.empty(groups.max(initial=-1) + 1, np.int64)
    while True:  # every query takes the smallest number of its labels, and every label that of its queries
        least.fill(len(labels))
        np.minimum.at(least, groups, component[queries])
        smaller = component.copy()
        np.minimum.at(smaller, queries, least[groups])
        labeled = smaller >= 0
        smaller[labeled] = smaller[smaller[labeled]]
        if np.array_equal(smaller, component):
            break
        component = smaller
    component[component >= 0] = np.unique(component[component >= 0], return_inverse=True)[1]
    return component


def classes_of_positives(positives: Iterable[Iterable[Any]]) -> dict[str, NDArray[np.int64]]:
    """The classes of queries that have none, but lists of positives: those that share one, directly or through others."""
    numbers: dict[Any, int] = {}
    lists = [[numbers.setdefault(item, len(numbers)) for item in own] for own in positives]
    sets = np.full((len(lists), max(map(len, lists), default=0) or 1), -1, np.int64)
    for row, own in zip(sets, lists, strict=True):
        row[: len(own)] = own
    return {SHARED_POSITIVES: connected_classes(sets)}
