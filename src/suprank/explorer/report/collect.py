"""Everything that the report says of a run, computed once: what takes time, with its progress."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from suprank.explorer.findings.curves import at_k, precision_recall_and_scores
from suprank.explorer.findings.gap import gap_by_size
from suprank.explorer.findings.history import history
from suprank.explorer.findings.map import class_map
from suprank.explorer.findings.metrics import metrics
from suprank.explorer.findings.step import step

if TYPE_CHECKING:
    from collections.abc import Callable

    from suprank.evaluation import Report
    from suprank.explorer.findings.curves import AtK, PrecisionRecall, ScoreHistograms
    from suprank.explorer.findings.gap import GapBySize
    from suprank.explorer.findings.history import History
    from suprank.explorer.findings.map import ClassMap
    from suprank.explorer.findings.step import StepFinding
    from suprank.explorer.source import Source

    Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Run:
    """A source with what was found of it; None where there is nothing to say: without a recipe, or with one level."""

    source: Source
    report: Report
    precision: PrecisionRecall
    scores: ScoreHistograms
    at_k: AtK | None
    gap: GapBySize
    map: ClassMap | None
    history: History | None
    step: StepFinding | None

    @property
    def name(self) -> str:
        return self.source.name


def gathered(source: Source, *, seed: int = 0, progress: Progress = lambda what, done, total: None) -> Run:
    """All findings. `progress(what, done, total)` is called on the way."""
    name = source.name
    report = metrics(source, progress=partial(progress, f"{name}: metrics"))
    precision, scores = precision_recall_and_scores(source, seed=seed, progress=partial(progress, f"{name}: curves"))
    several = len(source.levels) > 1
    lists = at_k(source, progress=partial(progress, f"{name}: H-P and H-R")) if several else None
    gap = gap_by_size(source, report, seed=seed, progress=partial(progress, f"{name}: decomposability gap"))
    progress(f"{name}: map", 0, 1)
    places = class_map(source, seed=seed)
    progress(f"{name}: map", 1, 1)
    return Run(source, report, precision, scores, lists, gap, places, history(source), step(source.recipe))
