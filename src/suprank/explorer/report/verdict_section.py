"""The section with the verdict: the author's summary, the verdict, and what it was measured on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from suprank.evaluation.report_comparison import SIGNIFICANT
from suprank.evaluation.report_text import counts_without_positives, in_words, interval_lines, pluralize
from suprank.evaluation.verdict import CLEAR, FAR, comparison_verdict, run_verdict
from suprank.explorer.report.page import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.evaluation import Report, ReportComparison
    from suprank.evaluation.retrieval_data import RetrievalData


def verdict_section(
    sources: Sequence[RetrievalData],
    reports: Sequence[Report],
    comparison: ReportComparison | None = None,
    *,
    warning: str | None = None,
    summary: str | None = None,
) -> Section:
    """The author's summary if there is one, a warning if the sides are not comparable, and the verdict.

    `reports` have their queries in the same order.
    """
    basis = [sample_sentence(sources[0], reports[0])]
    if comparison is None:
        verdict = run_verdict(reports[0], chance_of_first(sources[0]))
        basis += interval_lines(reports[0])
    else:
        names = (sources[0].name, sources[1].name)
        verdict = comparison_verdict(names, reports, comparison)
        basis += [
            f"Slightly: by less than {CLEAR:g} points; clearly: by less than {FAR:g}; far: by more. A difference counts if "
            f"p < {SIGNIFICANT} ({comparison.test()} of the table of metrics).",
            comparison.sentence(),
        ]
        if any("difference between" in point.text for point in verdict.points):
            basis.append("“Difference between” gives its 95 % interval, without that correction.")
    content = {"verdict": verdict, "basis": basis, "warning": warning, "summary": paragraphs(summary or "")}
    return Section("verdict", "Verdict", "verdict.html", content)


def paragraphs(text: str) -> tuple[str, ...]:
    """The paragraphs of a text, which are separated by blank lines.

    Example:
        >>> paragraphs("one,\\nstill one\\n \\n\\ntwo\\n")
        ('one,\\nstill one', 'two')
    """
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            found[-1].append(line.strip())
        elif found[-1]:
            found.append([])
    return tuple("\n".join(lines) for lines in found if lines)


def chance_of_first(data: RetrievalData) -> dict[str, float]:
    """R@1 of a random order at each level, over the queries that share their class with an item; NaN without such queries."""
    own = np.array([len(data.self_rows(query)) for query in range(len(data.queries))])
    chances = {}
    for level, queries, items in zip(data.levels, data.queries.labels.T, data.items.labels.T, strict=True):
        sizes = np.bincount(items[items >= 0], minlength=int(queries.max(initial=0)) + 1)
        positives = np.where(queries >= 0, sizes[queries] - own, 0)
        found = positives > 0
        chances[level] = float((positives[found] / (len(items) - own[found])).mean()) if found.any() else math.nan
    return chances


def sample_sentence(data: RetrievalData, report: Report) -> str:
    """How many images and queries the numbers come from, and which queries are left out."""
    if data.gallery is None:
        ranked = f"Measured on {pluralize(report.n_queries, 'test image')}, each a query against all others"
    else:
        ranked = f"Measured on {pluralize(report.n_queries, 'query', 'queries')} against {pluralize(report.n_items, 'item')}"
    left_out = in_words(counts_without_positives(report))
    return f"{ranked}." + (f" Queries that share their class with no item are left out: {left_out}." if left_out else "")
