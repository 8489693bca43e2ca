"""The report of one run, or of two runs side by side, as one HTML page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from suprank.explorer.findings.class_means import MAX_CLASSES
from suprank.explorer.findings.collect import collect_findings
from suprank.explorer.findings.query_metrics import reorder_queries
from suprank.explorer.report import figure_sections, table_sections
from suprank.explorer.report.example_sections import example_sections
from suprank.explorer.report.failures_section import MAX_IMAGES, failures_section
from suprank.explorer.report.header import header
from suprank.explorer.report.map_section import map_section
from suprank.explorer.report.page import Thumbnails, render_page
from suprank.explorer.report.verdict_section import verdict_section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.explorer.findings.collect import RunFindings, StageProgress


def report_page(
    data: RetrievalData,
    against: RetrievalData | None = None,
    *,
    title: str | None = None,
    summary: str | None = None,
    queries: int = 8,
    top: int = 10,
    map_classes: int = MAX_CLASSES,
    map_images: int = 0,
    seed: int = 0,
    progress: StageProgress = lambda what, done, total: None,
) -> str:
    """The report as HTML text. The same data, options and seed give the same page.

    The author's `summary` is shown above the verdict; blank lines separate its paragraphs.

    Each section of examples shows `queries` queries with their `top` best items; the map shows the `map_classes` classes with
    the most images, or all with 0, and on request `map_images` single images; `seed` draws the random samples and places the
    map. Two must have the same queries and equally many items; they are compared at the levels that both have. Images
    that cannot be read are shown as their paths.
    """
    for one in (data,) if against is None else (data, against):
        one.require_images("the report")
        one.require_single_labels("the report")
    same = None if against is None else data.match(against)
    if against is not None:
        # So that metrics mean the same in both; embeddings have no recipe.
        against = replace(against, defaults=data.defaults)
    data, against, omitted = _with_common_levels(data, against)
    runs = [
        collect_findings(one, map_classes=map_classes, map_images=map_images, seed=seed, progress=progress)
        for one in _with_distinct_names(data, against)
    ]
    reports = [runs[0].report, *(reorder_queries(run.report, same) for run in runs[1:] if same is not None)]
    most = _max_images(runs, queries, top)
    thumbnails = Thumbnails(on_new=lambda number: progress("images", number, most))
    failures = failures_section(runs, reports, thumbnails)
    shown = example_sections(runs, reports, same, thumbnails, queries=queries, top=top, seed=seed)
    sources, names = [run.data for run in runs], [run.name for run in runs]
    comparison = table_sections.compare_metrics(reports)
    warning = sources[0].comparison_warning(sources[1]) if len(sources) > 1 else None
    sections = (
        verdict_section(sources, reports, comparison, warning=warning, summary=summary),
        failures,
        table_sections.metrics_section(names, reports, comparison),
        *shown,
        figure_sections.levels_section(runs),
        figure_sections.training_section(runs),
        figure_sections.curves_section(runs),
        figure_sections.scores_section(runs),
        map_section(runs, thumbnails),  # made after the examples, which have the first claim on the image budget
        table_sections.recipe_section(sources),
    )
    progress("images", most, most)
    broken = [("Unreadable images", f"{thumbnails.broken:,}")] if thumbnails.broken else []
    return render_page(
        title or " against ".join(names),
        names,
        header(sources, [*omitted, *broken]),
        [section for section in sections if section is not None],
        thumbnails.embedded(),
        levels=len(data.levels),
    )


def _with_common_levels(
    data: RetrievalData, against: RetrievalData | None
) -> tuple[RetrievalData, RetrievalData | None, list[tuple[str, str]]]:
    """Both at the levels that both have, and a fact that names the other levels."""
    if against is None or data.levels == against.levels:
        return data, against, []
    common = data.common_levels(against)
    omitted = [f"{level} ({one.name} only)" for one in (data, against) for level in one.levels if level not in common]
    facts = [("Levels left out", ", ".join(omitted))] if omitted else []
    return data.at_levels(common), against.at_levels(common), facts


def _max_images(runs: Sequence[RunFindings], queries: int, top: int) -> int:
    """Upper bound on the images of the page, for the progress bar."""
    sections = 5 if len(runs) > 1 else 2
    marks = sum(len(run.map.positions) + len(run.map.image_rows) for run in runs if run.map is not None)
    shown = sections * queries * (1 + len(runs) * top) + marks + MAX_IMAGES
    return min(shown, len(runs[0].data.items) + len(runs[0].data.queries))


def _with_distinct_names(data: RetrievalData, against: RetrievalData | None) -> list[RetrievalData]:
    """Both; what the names of two runs of an experiment share, such as seed=0, is left out, and if they have the same name, the
    names of their parent folders are added.
    """
    if against is None:
        return [data]
    if data.name != against.name:
        parts = [one.name.split(",") for one in (data, against)]
        names = [",".join(part for part in own if part not in others) for own, others in (parts, parts[::-1])]
        return [replace(one, name=name or one.name) for one, name in zip((data, against), names, strict=True)]
    parents = [one.origin.place.resolve().parent.name if one.origin.place is not None else "" for one in (data, against)]
    names = [f"{data.name} (1)", f"{data.name} (2)"]
    if parents[0] != parents[1]:
        names = [f"{parent}/{data.name}" for parent in parents]
    return [replace(one, name=name) for one, name in zip((data, against), names, strict=True)]
