"""Parts of "Where it fails" about labels that are mistaken for each other: pairs with images, and a matrix for each level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.explorer.colors import level_names
from suprank.explorer.findings.confusions import confused_queries, count_confusions, with_positives
from suprank.explorer.images import shared_levels
from suprank.explorer.report.page import label_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.explorer.findings.collect import RunFindings
    from suprank.explorer.findings.confusions import ConfusedPair, Confusions
    from suprank.explorer.report.page import Thumbnail, Thumbnails

SHOWN_PAIRS = 8
"""Confused pairs that are shown at each level."""

MATRIX_LABELS = 15
"""A level with more labels is shown as its most confused pairs instead of a matrix."""

SHADES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
"""A cell of a matrix is shaded by the number of these that its share exceeds."""


class Part(NamedTuple):
    """A part of the section: heading, template (None if the sentences say it all) with its content, and sentences."""

    title: str
    template: str | None
    content: Any
    about: tuple[str, ...]


class PairImage(NamedTuple):
    """A query and the item that it finds first, with their labels and their relation, as a CSS class and in words."""

    query: Thumbnail | None
    query_label: str
    item: Thumbnail | None
    item_label: str
    look: str
    relation: str


class Pair(NamedTuple):
    """Two labels that are confused, what they have in common, and an example if there is one.

    For each of the runs: how many queries of the one find the other first, of how many, and the same the other way.
    """

    one: str
    other: str
    runs: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    common: str
    example: PairImage | None = None


class Matrix(NamedTuple):
    """Confusions of a run: the names of the labels, and for each label of queries its number and its row of counts.

    If `unlabeled`, the last column counts the items without a label.
    """

    names: tuple[str, ...]
    unlabeled: bool
    rows: tuple[tuple[int, list[int]], ...]


def pairs_part(runs: Sequence[RunFindings], thumbnails: Thumbnails) -> Part:
    """The pairs of classes that the first run confuses most often, each with a query and the wrong item it finds first."""
    run = runs[0]
    data = run.data
    confusions = [_confusions(one, 0) for one in runs]
    found = confusions[0].pairs()
    title = "Most confused classes"
    if not found:
        words = f"No class is mistaken for another: {_no_pairs(confusions[0], data.levels[0])}"
        if len(np.unique(data.items.labels[:, 0])) == 1:
            words = "There is only one class, so none can be confused."
        return Part(title, None, None, (words, *_sampled(run)))
    nearest = with_positives(data, run.report, run.nearest)
    pairs = []
    for one, other in (_stronger_first(pair) for pair in found[:SHOWN_PAIRS]):
        at = int(confused_queries(data, nearest, one, other)[0])
        example = pair_image(data, int(nearest.queries[at]), int(nearest.items[at]), thumbnails)
        pairs.append(_pair(runs, confusions, 0, one, other)._replace(example=example))
    words = f"{_pairs_words('classes', len(found), len(pairs))} The left picture is a query, the right one what it finds first."
    return Part(title, "pairs.html", pairs, (words, *_sampled(run)))


def level_parts(runs: Sequence[RunFindings]) -> list[Part]:
    """For each level a matrix, or if it has many labels its most confused pairs; the finest level has its own part then."""
    data = runs[0].data
    parts = []
    for level, name in enumerate(data.levels):
        confusions = [_confusions(run, level) for run in runs]
        labels = len(_matrix_labels(confusions[0]))
        title, sampled = f"Which {name} is mistaken for which", _sampled(runs[0])
        if 1 < labels <= MATRIX_LABELS:
            about = (
                f"Rows are the {name} of the query and columns that of the image it finds first, in percent of the row's "
                f"queries; the diagonal is right."
            )
            matrices = [_matrix(run.data, counts) for run, counts in zip(runs, confusions, strict=True)]
            content = {"level": name, "matrices": matrices, "shades": SHADES}
            parts.append(Part(title, "matrix.html", content, (about, *sampled)))
        elif labels > 1 and level > 0:
            found = confusions[0].pairs()
            shown = [_pair(runs, confusions, level, *_stronger_first(pair)) for pair in found[:SHOWN_PAIRS]]
            words = _pairs_words(f"{name} labels", len(found), len(shown))
            if not found:
                words = f"None is: {_no_pairs(confusions[0], name)}"
            parts.append(Part(title, "level_pairs.html" if shown else None, {"level": name, "pairs": shown}, (words, *sampled)))
    return parts


def pair_image(data: RetrievalData, query: int, item: int, thumbnails: Thumbnails) -> PairImage:
    """A query and the item that it finds first."""
    shared = int(shared_levels(data.queries.labels[query], data.items.labels[[item]])[0])
    return PairImage(
        thumbnails.get(data.queries, query),
        label_name(data, data.queries, query),
        thumbnails.get(data.items, item),
        label_name(data, data.items, item),
        f"level-{shared}",
        level_names(data.levels)[shared],
    )


def _confusions(run: RunFindings, level: int) -> Confusions:
    """Confusions of the queries that have a positive at the level, so that the diagonal agrees with R@1."""
    return count_confusions(run.data, with_positives(run.data, run.report, run.nearest, level), level)


def _stronger_first(pair: ConfusedPair) -> tuple[int, int]:
    """The two labels, in the direction that is more frequent."""
    return (pair.one, pair.other) if pair.one_as_other >= pair.other_as_one else (pair.other, pair.one)


def _pair(runs: Sequence[RunFindings], confusions: Sequence[Confusions], level: int, one: int, other: int) -> Pair:
    data = runs[0].data
    names = data.names[data.levels[level]]
    directions = []
    for run, counts in zip(runs, confusions, strict=True):
        numbers = {name: label for label, name in enumerate(run.data.names[data.levels[level]])}
        labels = [numbers.get(names[label], -1) for label in (one, other)]  # runs may number their labels differently
        directions.append((_direction(counts, *labels), _direction(counts, *labels[::-1])))
    return Pair(names[one], names[other], tuple(directions), _common(data, level, one, other))


def _direction(confusions: Confusions, label: int, found: int) -> tuple[int, int]:
    """How many queries of a label find the other first, of how many."""
    times = dict(confusions.mistaken_for(label)).get(found, 0) if min(label, found) >= 0 else 0
    return times, int(confusions.queries[label]) if label >= 0 else 0


def _common(data: RetrievalData, level: int, one: int, other: int) -> str:
    """The finest coarser label that two labels share, in words; nothing at the coarsest level."""
    if level + 1 == len(data.levels):
        return ""
    for finer, name in zip(data.levels[level:], data.levels[level + 1 :], strict=False):
        one, other = _parent(data, finer, one), _parent(data, finer, other)
        if one == other >= 0:
            return f"Both are in the {name} {data.names[name][one]}."
    names = [data.names[name][label] if label >= 0 else "none" for label in (one, other)]
    return f"They differ in {name}: {names[0]} and {names[1]}."


def _parent(data: RetrievalData, level: str, label: int) -> int:
    """The next coarser label of a label, −1 for none."""
    column = data.levels.index(level)
    rows = (side.labels[side.labels[:, column] == label, column + 1] for side in data.sides)
    return next((int(labels[-1]) for labels in rows if len(labels) and label >= 0), -1)


def _pairs_words(noun: str, found: int, shown: int) -> str:
    words = f"{found:,} pairs of {noun} are confused" if found > 1 else f"One pair of {noun} is confused"
    most = f" These {shown} are confused most often." if found > shown else ""
    return f"{words}: a query of one finds an image of the other first.{most}"


def _no_pairs(confusions: Confusions, level: str) -> str:
    if (confusions.found < 0).any():
        return "where a query does not find its own, an image without a label is first."
    return f"every query finds its own {level} first."


def _sampled(run: RunFindings) -> tuple[str, ...]:
    """What to say if only some queries were searched."""
    if not run.nearest.sampled:
        return ()
    return (f"Counted on a random sample of {len(run.nearest.queries):,} of {len(run.data.queries):,} queries.",)


def _matrix_labels(confusions: Confusions) -> NDArray[np.int64]:
    """Labels of queries, and of the items that they find first."""
    return np.union1d(np.flatnonzero(confusions.queries), confusions.found[confusions.found >= 0])


def _matrix(data: RetrievalData, confusions: Confusions) -> Matrix:
    labels = _matrix_labels(confusions)
    counts = confusions.matrix(labels)
    names = data.names[data.levels[confusions.level]]
    unlabeled = bool(counts[:, -1].any())
    rows = [(number, row[: len(labels) + unlabeled]) for number, row in enumerate(counts.tolist(), start=1) if sum(row)]
    return Matrix(tuple(names[label] for label in labels.tolist()), unlabeled, tuple(rows))
