"""Everything behind the web page: search, lists, label tree and pictures of one run or two."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from suprank.explorer.source import levels_in_both
from suprank.explorer.web.browsing import Browser
from suprank.explorer.web.label_findings import LabelFindings
from suprank.explorer.web.searching import Searcher
from suprank.explorer.web.tree import NodeMetrics, Tree
from suprank.web.thumbnails import ThumbnailCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.explorer.web.searching import ExplorerRun


class Explorer:
    """One run, or two to compare. Lists and the label tree show the first run; the second is searched next to it.

    Two runs are shown at the levels that both have; if they share none, at those of the first.
    """

    def __init__(self, runs: Sequence[ExplorerRun]) -> None:
        self.searcher = Searcher(_with_common_levels(runs))
        self.runs = self.searcher.runs
        self.source = self.runs[0].source
        self.browser = Browser(self.source)
        self.node_metrics = tuple(NodeMetrics(run.source) for run in self.runs)
        self.tree = Tree(self.source, self.node_metrics)
        self.findings = tuple(LabelFindings(run.source) for run in self.runs)
        self.pictures = ThumbnailCache()
        # In addresses of pictures: a browser may have cached those of another run on this port.
        self.version = secrets.token_hex(4)
        self.can_embed = any(run.embed is not None for run in self.runs)

    def measure(self) -> None:
        """Measure what the tree and the label page show, one run after the other. This may take minutes: run it in a thread."""
        for metrics in self.node_metrics:
            metrics.measure()
        for findings in self.findings:
            findings.measure()


def _with_common_levels(runs: Sequence[ExplorerRun]) -> list[ExplorerRun]:
    if len(runs) != 2:
        return list(runs)
    one, other = runs
    common = levels_in_both(one.source, other.source)
    return [
        replace(one, source=one.source.with_levels(common or one.source.levels)),
        replace(other, source=other.source.with_levels(common)),
    ]
