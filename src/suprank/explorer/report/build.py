"""The report of a run, or of two beside each other, as one page."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from suprank.explorer.findings.metrics import in_order_of, same_queries
from suprank.explorer.report import sections as parts
from suprank.explorer.report.collect import gathered
from suprank.explorer.report.galleries import gallery_sections, label_of, line_of
from suprank.explorer.report.maps import drawn_map
from suprank.explorer.report.page import Section, rendered
from suprank.explorer.report.tables import plain
from suprank.explorer.report.thumbnails import Thumbnails
from suprank.explorer.source import common_to, comparison_warning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.explorer.report.collect import Progress, Run
    from suprank.explorer.report.maps import Map
    from suprank.explorer.source import Source


def report_page(
    source: Source,
    against: Source | None = None,
    *,
    title: str | None = None,
    queries: int = 8,
    top: int = 10,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> str:
    """The HTML text. The same sources, options and seed give the same page.

    `queries` are shown in each gallery, with the `top` best items; `seed` draws the random sample and places the map. Two
    sources must have the same queries and as many items; they are compared at the levels that both have. Images that cannot be
    read are shown as their paths.
    """
    same = None if against is None else same_queries(source, against)
    if against is not None:
        against = replace(against, decay=source.decay)  # H-AP of both means the same; a folder of embeddings has no recipe
    source, against, left_out = _at_common_levels(source, against)
    runs = [gathered(one, seed=seed, progress=progress) for one in _told_apart(source, against)]
    reports = [runs[0].report, *(in_order_of(run.report, same) for run in runs[1:] if same is not None)]
    most = _most_images(runs, queries, top)
    thumbnails = Thumbnails(made=lambda number: progress("images", number, most))
    shown = gallery_sections(runs, reports, same, thumbnails, queries=queries, top=top, seed=seed)
    found = (
        parts.metrics_section(runs, reports),
        parts.training_section(runs),
        parts.levels_section(runs),
        parts.curves_section(runs),
        parts.scores_section(runs),
        parts.gap_section(runs),
        _map_section(runs, thumbnails),  # after the galleries, which come first in taking images
        *shown,
        parts.step_section(runs),
        parts.recipe_section(runs),
    )
    progress("images", most, most)
    return rendered(
        title or " against ".join(run.name for run in runs),
        [run.name for run in runs],
        [
            *_facts(source),
            *_provenance_facts([run.source for run in runs]),
            *left_out,
            *([("Images that cannot be read", f"{thumbnails.broken:,}")] if thumbnails.broken else []),
        ],
        [section for section in found if section is not None],
        thumbnails.embedded(),
        levels=len(source.levels),
        warning=None if against is None else comparison_warning(source, against),
    )


def _provenance_facts(sources: Sequence[Source]) -> list[tuple[str, str]]:
    """Network and reading of the images; each side's own where there are two."""
    found = []
    for source in sources:
        if source.provenance is not None:
            whose = f" ({source.name})" if len(sources) > 1 else ""
            found += [(f"Backbone{whose}", source.provenance.network), (f"Images read{whose}", source.provenance.images)]
    return found


def _at_common_levels(source: Source, against: Source | None) -> tuple[Source, Source | None, list[tuple[str, str]]]:
    """Both at the levels that both have, and as a fact those that one of them has alone."""
    if against is None or source.levels == against.levels:
        return source, against, []
    common = common_to(source, against)
    if not common:
        own, theirs = (", ".join(one.levels) or "no levels" for one in (source, against))
        raise ValueError(
            f"{source.name} is judged at {own} and {against.name} at {theirs}, and nothing is the same there to be compared; "
            f"give runs that share a level."
        )
    alone = [f"{level} ({one.name} only)" for one in (source, against) for level in one.levels if level not in common]
    return source.at(common), against.at(common), [("Levels left out", ", ".join(alone))] if alone else []


def _map_section(runs: Sequence[Run], thumbnails: Thumbnails) -> Section | None:
    """The classes of each run on a plane; a class looks the same on both."""
    maps = [_map(run, thumbnails, named=len(runs) > 1) for run in runs if run.map is not None]
    first = runs[0].map
    if not maps or first is None:
        return None
    levels = runs[0].source.levels
    colors = f"colored by {levels[-1]}" if len(levels) > 1 else "each"
    how = "t-SNE places near each other what is near, and means nothing by its axes or by large distances."
    about = [
        f"The mean of each {levels[0]}, {colors}, on a plane. {how if first.method == 't-SNE' else 'Principal components.'}",
        "Point at a class, or tap it, to see its most typical image. With the keyboard: Tab to the map, then the arrow keys.",
    ]
    if len(first.places) < first.of:
        about.append(f"The {len(first.places):,} classes with the most images, of {first.of:,}.")
    return Section("map", "Map of the classes", "map.html", maps, tuple(about), "Map")


def _map(run: Run, thumbnails: Thumbnails, *, named: bool) -> Map:
    found, source = run.map, run.source
    assert found is not None
    several = len(source.levels) > 1
    coarse = source.names[source.levels[-1]]
    groups = [(coarse[one] if one >= 0 else "no label") if several else "" for one in found.coarse.tolist()]
    lines, images = [], []
    for row, count in zip(found.nearest.tolist(), found.images.tolist(), strict=True):
        above = (line_of(source, source.gallery, row, 1),) if several else ()
        lines.append((label_of(source, source.gallery, row), *above, f"{count:,} image{'s' if count != 1 else ''}"))
        image = thumbnails.get(source.gallery, row, needed=False)
        images.append(image.id if image is not None and image.uri else None)
    about = f"Map of {len(groups):,} classes by {run.name}; arrow keys go from class to class"
    return drawn_map(run.name if named else "", about, found.places, groups, lines, images)


def _most_images(runs: Sequence[Run], queries: int, top: int) -> int:
    """No fewer than the page shows: for the progress bar."""
    shown = 4 * queries * (1 + len(runs) * top) + sum(len(run.map.places) for run in runs if run.map is not None)
    return min(shown, len(runs[0].source.gallery) + len(runs[0].source.queries))


def _told_apart(source: Source, against: Source | None) -> list[Source]:
    """The sources, with their folders' parents in the names where these are the same."""
    if against is None:
        return [source]
    if source.name != against.name:
        return [source, against]
    above = [one.folder.resolve().parent.name if one.folder is not None else "" for one in (source, against)]
    names = (
        [f"{parent}/{source.name}" for parent in above]
        if above[0] != above[1]
        else [f"{source.name} (1)", f"{source.name} (2)"]
    )
    return [replace(one, name=name) for one, name in zip((source, against), names, strict=True)]


def _facts(source: Source) -> list[tuple[str, str]]:
    """What was looked at, in a few words each."""
    recipe = source.recipe or {}
    queries, items = len(source.queries), len(source.gallery)
    ranked = f"{items:,} images, each a query" if source.against_each_other else f"{queries:,} queries, {items:,} items"
    classes = ", ".join(
        f"{len(np.unique(column[column >= 0])):,} {level}"
        for level, column in zip(source.levels, source.gallery.labels.T, strict=True)
    )
    found = [("Test images", ranked), ("Classes", classes), ("Dimensions", f"{source.gallery.dim:,}")]
    manifest = recipe.get("data", {}).get("tests", {}).get(source.test) or recipe.get("data", {}).get("manifest")
    if manifest:
        found.insert(0, ("Data", plain(manifest)))
    entries = [("Loss", "loss", "name"), ("Epochs", "run", "epochs")]
    if source.provenance is None:
        entries.insert(1, ("Backbone", "model", "backbone"))
    for title, table, entry in entries:
        if entry in recipe.get(table, {}):
            found.append((title, plain(recipe[table][entry])))
    date = _date(source)
    return [*found, ("Trained", date)] if date else found


def _date(source: Source) -> str | None:
    """The day of the last line that training wrote, in UTC: that of making the page would make each one different."""
    times = [line["time"] for line in source.curves or () if isinstance(line.get("time"), int | float)]
    return datetime.fromtimestamp(max(times), UTC).strftime("%Y-%m-%d") if times else None
