"""Everything the report says about a run, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from suprank.evaluation import evaluate
from suprank.explorer.findings.class_means import MAX_CLASSES, class_map
from suprank.explorer.findings.confusions import nearest_items
from suprank.explorer.findings.curves import hierarchical_at_k, precision_recall_and_scores
from suprank.explorer.findings.training_run import training_history

if TYPE_CHECKING:
    from collections.abc import Callable

    from suprank.evaluation import Report
    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.explorer.findings.class_means import ClassMap
    from suprank.explorer.findings.confusions import NearestItems
    from suprank.explorer.findings.curves import HierarchicalAtK, PrecisionRecall, ScoreHistograms
    from suprank.explorer.findings.training_run import History

    StageProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class RunFindings:
    """Data with their findings; None where one does not apply, for example without a recipe or with only one level."""

    data: RetrievalData
    report: Report
    precision: PrecisionRecall
    scores: ScoreHistograms
    hierarchical_at_k: HierarchicalAtK | None
    map: ClassMap | None
    history: History | None
    nearest: NearestItems

    @property
    def name(self) -> str:
        return self.data.name


def collect_findings(
    data: RetrievalData,
    *,
    map_classes: int = MAX_CLASSES,
    map_images: int = 0,
    seed: int = 0,
    progress: StageProgress = lambda what, done, total: None,
) -> RunFindings:
    """Compute all findings; `progress(what, done, total)` is called along the way. `map_classes` and `map_images` are the
    numbers of classes (0 for all) and of single images on the map.
    """
    name = data.name
    report = evaluate(data, per_query=True, intervals=True, progress=partial(progress, f"{name}: metrics"))
    precision, scores = precision_recall_and_scores(data, seed=seed, progress=partial(progress, f"{name}: curves"))
    several = len(data.levels) > 1
    lists = hierarchical_at_k(data, progress=partial(progress, f"{name}: H-P and H-R")) if several else None
    nearest = nearest_items(data, seed=seed, progress=partial(progress, f"{name}: first items"))
    progress(f"{name}: map", 0, 1)
    classes = class_map(data, max_classes=map_classes, images=map_images, seed=seed)
    progress(f"{name}: map", 1, 1)
    return RunFindings(data, report, precision, scores, lists, classes, training_history(data), nearest)
