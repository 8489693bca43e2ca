"""Sections with examples: a query, and next to it the items that one or two runs find, each with its level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.explorer.colors import level_names
from suprank.explorer.findings.mistakes import both_fail, count_first_items, misses_class
from suprank.explorer.findings.query_metrics import (
    examples,
    main_metric,
    most_different_queries,
    random_queries,
    worst_queries,
)
from suprank.explorer.report.page import LegendEntry, Section, label_name, label_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.evaluation import Report
    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.explorer.findings.collect import RunFindings
    from suprank.explorer.findings.query_metrics import Example
    from suprank.explorer.report.page import Thumbnail, Thumbnails


class ExampleItem(NamedTuple):
    """An item of a list: image, label, score, and its relation to the query, as a CSS class and in words."""

    image: Thumbnail | None
    label: str
    score: str
    level: str
    relation: str


class ExampleList(NamedTuple):
    """The items that a run finds for a query, best first."""

    run: int
    numbers: str
    items: tuple[ExampleItem, ...]


@dataclass(frozen=True)
class ExampleQuery:
    """A query with the lists of all runs."""

    image: Thumbnail | None
    heading: str
    label: str
    path: str
    lists: tuple[ExampleList, ...]


class _Selection(NamedTuple):
    """Which queries a section shows, and what it says about them."""

    id: str
    title: str
    rows: NDArray[np.int64]
    about: str
    if_empty: str
    short: str = ""


def example_sections(
    runs: Sequence[RunFindings],
    reports: Sequence[Report],
    same: NDArray[np.int64] | None,
    thumbnails: Thumbnails,
    *,
    queries: int,
    top: int,
    seed: int,
) -> list[Section]:
    """Sections with the queries on which the runs differ most, the worst, those on which both fail, and a random sample.

    `reports` have their queries in the order of the first run; `same` gives the row of each query in the second run.
    """
    data, metric = runs[0].data, main_metric(runs[0].report)
    names = level_names(data.levels)
    legend = tuple(LegendEntry(f"level-{level}", name) for level, name in enumerate(names))[::-1]
    sections = []
    selections = _selections(runs, reports, metric, queries, seed)
    if same is not None:
        selections.insert(3, _both_fail(runs, reports, same, queries, top, seed))
    for selection in selections:
        chosen, lists = selection, [examples(data, runs[0].report, selection.rows, top)]
        if same is not None:
            lists.append(examples(runs[1].data, runs[1].report, same[chosen.rows], top))
            chosen = _with_near_misses(chosen, runs, lists)
        shown = [_example_query(runs, pair, metric, names, thumbnails) for pair in zip(*lists, strict=True)]
        content = {"legend": legend, "queries": shown, "if_empty": chosen.if_empty}
        sections.append(Section(chosen.id, chosen.title, "examples.html", content, (chosen.about,), chosen.short))
    return sections


def _selections(
    runs: Sequence[RunFindings], reports: Sequence[Report], metric: str, queries: int, seed: int
) -> list[_Selection]:
    selections = []
    if len(runs) > 1:
        first, second = (run.name for run in runs)
        ahead, behind = most_different_queries(reports[0], reports[1], queries)
        about = f"The queries on which {first} exceeds {second} in {metric} by the most."
        title, none = f"Where {first} is ahead", f"{first} is ahead on no query."
        selections.append(_Selection("better", title, ahead, about, none, "Where ahead"))
        about = f"The queries on which {second} exceeds {first} in {metric} by the most."
        title, none = f"Where {second} is ahead", f"{second} is ahead on no query."
        selections.append(_Selection("behind", title, behind, about, none, "Where behind"))
    about = f"The queries with the lowest {metric} in {runs[0].name}, among those that have a positive."
    selections.append(
        _Selection("worst", "Worst failures", worst_queries(reports[0], queries), about, "No query has a positive.")
    )
    about = f"Queries drawn at random (seed {seed}), to show what to expect."
    sample = random_queries(runs[0].data, queries, seed)
    return [*selections, _Selection("random", "Random sample", sample, about, "There are no queries.")]


def _with_near_misses(chosen: _Selection, runs: Sequence[RunFindings], lists: Sequence[Sequence[Example]]) -> _Selection:
    """Where the runs differ most and labels form a tree: how many mistakes of each run share a coarser label.

    The section is called "Better mistakes" only if the share is higher in the first run.
    """
    levels = runs[0].data.levels
    if chosen.id not in ("better", "behind") or len(levels) == 1 or not lists[0]:
        return chosen
    shared = [[int(level) for example in one for level in example.levels if level < len(levels)] for one in lists]
    near = [sum(level > 0 for level in one) for one in shared]
    counts = [f"{close:,} of {len(one):,} mistakes of {run.name}" for close, one, run in zip(near, shared, runs, strict=True)]
    about = f"{chosen.about} In these lists, {' and '.join(counts)} share at least the {levels[-1]} with the query."
    better = chosen.id == "better" and near[0] * len(shared[1]) > near[1] * len(shared[0])
    named = chosen._replace(title="Better mistakes", short="") if better else chosen
    return named._replace(about=about)


def _both_fail(
    runs: Sequence[RunFindings], reports: Sequence[Report], same: NDArray[np.int64], queries: int, top: int, seed: int
) -> _Selection:
    """The queries for which neither run retrieves the finest class, with how close their mistakes are."""
    data, other = (run.data for run in runs)
    rows = np.flatnonzero(misses_class(reports[0], top) & misses_class(reports[1], top))
    items = count_first_items(data, other, same, top, seed=seed, queries=rows)
    ranking = both_fail(items)
    failing = ranking.order[: ranking.matches]
    searched = reports[0].n_queries - reports[0].without_positives.get(data.levels[0], 0)
    about = (
        f"Queries for which neither run has an item of the same {data.levels[0]} among the first {top}: {len(rows):,} of "
        f"{searched:,} that have one to find."
    )
    if len(data.levels) > 1 and len(failing):
        coarsest = data.levels[-1]
        own, theirs = (100 * counts.near_miss_share(failing) for counts in (items.own, items.other))
        about += (
            f" The first are those where {data.name} has fewer items of another {coarsest} than {other.name}. Share of items "
            f"with the same {coarsest} over {'a random sample' if items.sampled else 'all'} of them: {own:.1f} % "
            f"({data.name}), {theirs:.1f} % ({other.name})."
        )
    if_empty = f"There is no query for which both runs fail in the first {top} items."
    return _Selection("failing", "Where both fail", items.queries[failing[:queries]], about, if_empty, "Both fail")


def _example_query(
    runs: Sequence[RunFindings], lists: Sequence[Example], metric: str, names: Sequence[str], thumbnails: Thumbnails
) -> ExampleQuery:
    data, query = runs[0].data, lists[0].query
    image = thumbnails.get(data.queries, query)
    return ExampleQuery(
        image,
        label_path(data, data.queries, query),
        label_name(data, data.queries, query),
        image.path if image else "",
        tuple(
            _example_list(run.data, number, one, metric, names, thumbnails)
            for number, (run, one) in enumerate(zip(runs, lists, strict=True))
        ),
    )


def _example_list(
    data: RetrievalData, number: int, example: Example, metric: str, names: Sequence[str], thumbnails: Thumbnails
) -> ExampleList:
    labeled = bool((data.queries.labels[example.query] >= 0).any())
    items = []
    for row, score, level in zip(example.rows.tolist(), example.scores.tolist(), example.levels.tolist(), strict=True):
        image = thumbnails.get(data.items, row)
        label = label_name(data, data.items, row)
        relation = (str(level), names[level]) if labeled else ("none", "query has no label")
        items.append(ExampleItem(image, label, f"{score:.3f}".replace("-", "−"), *relation))
    value = "no relevant items" if math.isnan(example.value) else f"{metric} {100 * example.value:.1f}"
    return ExampleList(number, value, tuple(items))
