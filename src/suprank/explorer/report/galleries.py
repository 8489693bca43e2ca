"""Galleries as the page shows them: a query, and beside it the lists that one or two runs give, each item with its level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from suprank.explorer.colors import level_names
from suprank.explorer.findings.galleries import at_random, galleries, most_different, worst
from suprank.explorer.report.page import Section
from suprank.explorer.report.sections import KeyEntry, measure_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from suprank.evaluation import Report
    from suprank.explorer.findings.galleries import Gallery
    from suprank.explorer.images import Images
    from suprank.explorer.report.collect import Run
    from suprank.explorer.report.thumbnails import Thumbnail, Thumbnails
    from suprank.explorer.source import Source


class Hit(NamedTuple):
    """An item of a list: its image, label, score, and what it is to the query, as a class of the style and in words."""

    image: Thumbnail | None
    label: str
    score: str
    level: str
    relation: str


class ShownList(NamedTuple):
    """What a run finds for a query, best first."""

    run: int
    numbers: str
    hits: tuple[Hit, ...]


@dataclass(frozen=True)
class ShownQuery:
    """A query, with the lists of all runs."""

    image: Thumbnail | None
    heading: str
    label: str
    path: str
    lists: tuple[ShownList, ...]


def gallery_sections(
    runs: Sequence[Run],
    reports: Sequence[Report],
    same: NDArray[np.int64] | None,
    thumbnails: Thumbnails,
    *,
    queries: int,
    top: int,
    seed: int,
) -> list[Section]:
    """Queries where the runs differ most, the worst ones, and some at random.

    `reports` have their queries in one order, the first run's; `same` is where the second has each of them.
    """
    measure = measure_of(runs[0])
    chosen: list[tuple[str, str, str, NDArray[np.int64], str, str]] = []
    if len(runs) > 1:
        here, there = (run.name for run in runs)
        ahead, behind = most_different(reports[0], reports[1], queries)
        words = "Better mistakes are errors that stay near the query in the label tree." if measure == "H-AP" else ""
        about = f"Queries whose {measure} in {here} is higher than in {there} by the most. {words}".strip()
        chosen.append(("better", "Better mistakes", "", ahead, about, f"{here} is ahead on no query."))
        about = f"And the other way round: queries whose {measure} in {there} is higher by the most."
        chosen.append(("behind", f"Where {there} is ahead", "Worse mistakes", behind, about, f"{there} is ahead on no query."))
    about = f"The queries of the lowest {measure} in {runs[0].name}, among those that have a positive."
    chosen.append(("worst", "Worst failures", "", worst(reports[0], queries), about, "No query has a positive."))
    about = f"Queries drawn at random, with the seed {seed}: what to expect."
    chosen.append(("random", "Random sample", "", at_random(runs[0].source, queries, seed), about, "There are no queries."))

    source = runs[0].source
    names = level_names(source.levels)
    key = tuple(KeyEntry(f"level-{level}", name) for level, name in enumerate(names))[::-1]
    sections = []
    for name, title, short, rows, about, empty in chosen:
        found = [galleries(source, runs[0].report, rows, top)]
        if same is not None:
            found.append(galleries(runs[1].source, runs[1].report, same[rows], top))
        shown = [_shown(runs, lists, measure, names, thumbnails) for lists in zip(*found, strict=True)]
        content = {"key": key, "queries": shown, "empty": empty}
        sections.append(Section(name, title, "galleries.html", content, (about,), short))
    return sections


def label_of(source: Source, images: Images, row: int, level: int = 0) -> str:
    """What the image is, at a level."""
    number = int(images.labels[row, level]) if source.levels else -1
    return source.names[source.levels[level]][number] if number >= 0 else "no label"


def line_of(source: Source, images: Images, row: int, first: int = 0) -> str:
    """The image's labels, from the finest, or the `first`, to the coarsest."""
    return " · ".join(label_of(source, images, row, level) for level in range(first, len(source.levels)))


def _shown(
    runs: Sequence[Run], lists: Sequence[Gallery], measure: str, names: Sequence[str], thumbnails: Thumbnails
) -> ShownQuery:
    source, query = runs[0].source, lists[0].query
    path = thumbnails.get(source.queries, query)
    return ShownQuery(
        path,
        line_of(source, source.queries, query),
        label_of(source, source.queries, query),
        path.path if path else "",
        tuple(
            _list(run.source, number, one, measure, names, thumbnails)
            for number, (run, one) in enumerate(zip(runs, lists, strict=True))
        ),
    )


def _list(source: Source, number: int, found: Gallery, measure: str, names: Sequence[str], thumbnails: Thumbnails) -> ShownList:
    judged = bool((source.queries.labels[found.query] >= 0).any())
    hits = []
    for row, score, level in zip(found.rows.tolist(), found.scores.tolist(), found.levels.tolist(), strict=True):
        image = thumbnails.get(source.gallery, row)
        label = label_of(source, source.gallery, row)
        relation = (str(level), names[level]) if judged else ("none", "not judged")
        hits.append(Hit(image, label, f"{score:.3f}".replace("-", "−"), *relation))
    value = "nothing is relevant to it" if math.isnan(found.value) else f"{measure} {100 * found.value:.1f}"
    return ShownList(number, value, tuple(hits))
