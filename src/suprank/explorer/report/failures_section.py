"""The section "Where it fails": first items by level, weakest classes, confused classes, and gains and losses by class."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.evaluation.report_text import pluralize
from suprank.evaluation.verdict import percent
from suprank.explorer.findings.confusions import (
    class_metrics,
    count_confusions,
    first_item_levels,
    nearest_items,
    weakest_classes,
    with_positives,
)
from suprank.explorer.report.confusion_parts import SHOWN_PAIRS, Part, level_parts, pair_image, pairs_part
from suprank.explorer.report.page import Section, label_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.evaluation import Report
    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.explorer.findings.collect import RunFindings
    from suprank.explorer.findings.confusions import ClassMetrics, Confusions
    from suprank.explorer.report.confusion_parts import PairImage
    from suprank.explorer.report.page import Thumbnail, Thumbnails

WEAKEST = 10
"""Rows of the table of weakest classes."""

CHANGED = 8
"""Classes with the largest gains, and as many with the largest losses."""

MIN_QUERIES = 2
"""Queries that a class of these tables has at least; 1 if no class has that many."""

MAX_IMAGES = 2 * WEAKEST + 2 * SHOWN_PAIRS + 2 * CHANGED
"""Images of the section at most."""


class WeakClass(NamedTuple):
    """A class with a low AP: the values of each run, its worst query beside the first item, and its most frequent mistake."""

    name: str
    path: str
    images: str
    ap: tuple[str, ...]
    r1: tuple[str, ...]
    example: PairImage
    mistaken_for: str
    times: str


class ChangedClass(NamedTuple):
    """A class with its mean AP in both runs, and the image of the query that differs most."""

    name: str
    path: str
    queries: str
    ap: tuple[str, ...]
    difference: str
    image: Thumbnail | None


def failures_section(runs: Sequence[RunFindings], reports: Sequence[Report], thumbnails: Thumbnails) -> Section | None:
    """Where the first run fails; None without labels. `reports` have their queries in the order of the first run."""
    if not runs[0].data.levels:
        return None
    parts: list[Part] = [first_items_part(runs, reports)]
    if first_item_levels(reports[0]).sum():
        parts += [weakest_part(runs, reports, thumbnails), pairs_part(runs, thumbnails)]
    parts += level_parts(runs)
    if len(runs) > 1:
        parts += changes_part(runs, reports, thumbnails)
    about = [
        f"These are the mistakes of {runs[0].name}, with the numbers of {other.name} for comparison." for other in runs[1:]
    ]
    return Section("failures", "Where it fails", "failures.html", parts, tuple(about))


def first_items_part(runs: Sequence[RunFindings], reports: Sequence[Report]) -> Part:
    """How many queries find the right class first, how many a class nearby, and how many the wrong coarsest label."""
    levels = runs[0].data.levels
    counts = [first_item_levels(report) for report in reports]
    queries = int(counts[0].sum())
    title = "What is found first"
    without = reports[0].n_queries - queries
    if not queries:
        return Part(title, None, None, (f"No query has another image of its {levels[0]} to find.",))
    relations = _relations(levels)
    shares = [f"{percent(count / queries)} % {words}" for count, (_, words) in zip(counts[0][::-1], relations, strict=True)]
    sentence = f"Of the {queries:,} queries, {', '.join(shares[:-1])}{',' if len(shares) > 2 else ''} and {shares[-1]}."
    if counts[0][-1] == queries:
        sentence = f"Each of the {queries:,} queries finds an image of the right {levels[0]} first."
    about = [sentence if len(runs) == 1 else f"{runs[0].name}: {sentence[0].lower()}{sentence[1:]}"]
    if without:
        who = f"{without:,} queries have" if without > 1 else "One query has"
        about.append(f"{who} no other image of the same {levels[0]} to find and {'are' if without > 1 else 'is'} left out.")
    content = {"relations": [name for name, _ in relations], "runs": [one[::-1].tolist() for one in counts]}
    return Part(title, "first_items.html", content, tuple(about))


def _relations(levels: Sequence[str]) -> list[tuple[str, str]]:
    """A short name and the words of a sentence for what a first item may share, from all levels to none."""
    relations = [(f"right {levels[0]}", f"find an image of the right {levels[0]} first")]
    for finer, level in pairwise(levels):
        relations.append((f"wrong {finer}, right {level}", f"another {finer} of the right {level}"))
    return [*relations, (f"wrong {levels[-1]}", f"an image of the wrong {levels[-1]}")]


def weakest_part(runs: Sequence[RunFindings], reports: Sequence[Report], thumbnails: Thumbnails) -> Part:
    """The classes with the lowest mean AP, and what they are mistaken for."""
    data, report = runs[0].data, reports[0]
    metrics = [class_metrics(data, one) for one in reports]
    required = _min_queries(metrics[0])
    valid = metrics[0].queries >= required
    weakest = weakest_classes(metrics[0], WEAKEST, required)
    title = "Weakest classes"
    if (metrics[0].ap[valid] == 1).all():
        words = f"There is no weak class: every query finds all images of its {data.levels[0]} first."
        return Part(title, None, None, (words,))
    confusions, firsts = _first_items_of(runs[0], report, weakest)
    values = _query_ap(report)
    rows = []
    for label in weakest.tolist():
        own = np.flatnonzero((data.queries.labels[:, 0] == label) & ~np.isnan(values))
        worst = int(own[values[own].argmin()])
        found, times = next(iter(confusions.mistaken_for(label)), (None, 0))
        rows.append(
            WeakClass(
                data.names[data.levels[0]][label],
                label_path(data, data.queries, worst, 1),
                f"{metrics[0].images[label]:,}",
                tuple(percent(one.ap[label]) for one in metrics),
                tuple(percent(one.r1[label]) for one in metrics),
                pair_image(data, worst, firsts[worst], thumbnails),
                "" if found is None else _name(data, found),
                f"{times:,} of {pluralize(int(confusions.queries[label]), 'query', 'queries')}",
            )
        )
    about = (
        f"The {len(rows):,} classes with the lowest mean AP, of {valid.sum():,} {_rule(required)}. The pictures show the query "
        f"of the class with the lowest AP, and the image that it finds first.",
    )
    return Part(title, "weakest.html", rows, about)


def _first_items_of(run: RunFindings, report: Report, labels: NDArray[np.int64]) -> tuple[Confusions, dict[int, int]]:
    """What the queries of these classes find first: counts, and the gallery row of each query. All of them are searched."""
    data, nearest = run.data, run.nearest
    if nearest.sampled:
        nearest = nearest_items(data, queries=np.flatnonzero(np.isin(data.queries.labels[:, 0], labels)))
    nearest = with_positives(data, report, nearest)
    rows = dict(zip(nearest.queries.tolist(), nearest.items.tolist(), strict=True))
    return count_confusions(data, nearest), rows


def changes_part(runs: Sequence[RunFindings], reports: Sequence[Report], thumbnails: Thumbnails) -> list[Part]:
    """The classes on which the first run gains most over the second, and those on which it loses most."""
    data = runs[0].data
    metrics = [class_metrics(data, one) for one in reports]
    required = _min_queries(metrics[0])
    by_query = _query_ap(reports[0]) - _query_ap(reports[1])
    compared = data.queries.labels[~np.isnan(by_query), 0]
    labels = np.intersect1d(np.flatnonzero(metrics[0].queries >= required), compared)
    if not len(labels):
        return []
    changes = np.round(metrics[0].ap[labels] - metrics[1].ap[labels], 9)  # sums in another order differ by less
    tables, ahead = [], []
    for run, sign in enumerate((1, -1)):
        order = np.lexsort((labels, -metrics[0].queries[labels], -sign * changes))
        ahead.append(int((sign * changes > 0).sum()))
        rows = []
        for at in order[: min(CHANGED, ahead[run])].tolist():
            label = int(labels[at])
            own = np.flatnonzero((data.queries.labels[:, 0] == label) & ~np.isnan(by_query))
            query = int(own[(sign * by_query[own]).argmax()])
            rows.append(
                ChangedClass(
                    data.names[data.levels[0]][label],
                    label_path(data, data.queries, query, 1),
                    f"{metrics[0].queries[label]:,}",
                    tuple(percent(one.ap[label]) for one in metrics),
                    percent(changes[at], sign=True),
                    thumbnails.get(data.queries, query),
                )
            )
        tables.append({"title": f"{runs[run].name} is ahead", "verdict": ("better", "worse")[run], "rows": rows})
    equal = len(labels) - sum(ahead)
    about = (
        f"By mean AP, {runs[0].name} is ahead in {ahead[0]:,} of the {len(labels):,} classes {_rule(required)}, "
        f"{runs[1].name} in {ahead[1]:,}, and {equal:,} are equal. These have the largest differences.",
    )
    if equal == len(labels):
        about = (f"Both runs have the same mean AP in each of the {equal:,} classes {_rule(required)}.",)
    shown = [table for table in tables if table["rows"]]
    return [Part("Largest gains and losses by class", "changes.html" if shown else None, shown, about)]


def _min_queries(metrics: ClassMetrics) -> int:
    return MIN_QUERIES if (metrics.queries >= MIN_QUERIES).any() else 1


def _rule(required: int) -> str:
    return f"that have at least {required} queries" if required > 1 else "that have a query (no class has two)"


def _query_ap(report: Report) -> NDArray[np.float64]:
    """AP of every query at the finest level."""
    assert report.per_query is not None
    return np.asarray(report.per_query["AP"])


def _name(data: RetrievalData, label: int) -> str:
    return data.names[data.levels[0]][label] if label >= 0 else "images without a label"
