"""Everything behind the web page: search, lists, label tree, pictures and tags of one run or two."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from suprank.evaluation.retrieval_data import OWN_TEST
from suprank.explorer.images import list_archives
from suprank.explorer.tags import TagFile, tag_order
from suprank.explorer.web.browsing import Browser
from suprank.explorer.web.image_metrics import ImageMetrics
from suprank.explorer.web.label_findings import LabelFindings
from suprank.explorer.web.searching import Searcher
from suprank.explorer.web.tree import NodeMetrics, Tree
from suprank.web.thumbnails import ThumbnailCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.explorer.web.searching import ExplorerRun


class Explorer:
    """One run, or two to compare. Lists and the label tree show the first run; the second is searched next to it.

    Two runs are shown at the levels that both have; if they share none, at those of the first. Tags are kept in the file
    `tags` (default: `tags.csv` in the folder of the first run); with `read_only`, nobody can change them. Without a folder and
    a file, there is no place for them.
    """

    def __init__(self, runs: Sequence[ExplorerRun], *, tags: Path | None = None, read_only: bool = False) -> None:
        for run in runs:
            run.data.require_images("the explorer page")
            run.data.require_single_labels("the explorer page")
        self.searcher = Searcher(_with_common_levels(runs))
        self.runs = self.searcher.runs
        self.data = self.runs[0].data
        self.node_metrics = _node_metrics(self.searcher)
        self.image_metrics = ImageMetrics(self.searcher, self.node_metrics)
        file = default_tags_file(self.data) if tags is None else tags
        manifests = [side.manifest for side in self.data.sides]
        self.tags = TagFile(file, initial=manifests)
        self.can_change = file is not None and not read_only
        self.browser = Browser(self.data, self.image_metrics, self.tags)
        self.tree = Tree(self.data, self.node_metrics)
        self.findings = tuple(LabelFindings(run.data) for run in self.runs)
        self.pictures = ThumbnailCache()
        # In addresses of pictures: a browser may have cached those of another run on this port.
        self.version = secrets.token_hex(4)
        self.can_embed = any(run.embed is not None for run in self.runs)

    def tag_counts(self) -> dict[str, int]:
        """Tag → number of images, queries and gallery together, in alphabetical order."""
        counts: Counter[str] = Counter()
        for images in self.browser.sides.values():
            counts.update(self.tags.row_tags(images.manifest).counts())
        return {tag: counts[tag] for tag in sorted(counts, key=tag_order)}

    def measure(self) -> None:
        """Measure what the tree and the label page show, one run after the other. This may take minutes: run it in a thread.

        Before that, the archives of the pictures are listed, for the first page.
        """
        for run in self.searcher.runs:
            for images in reversed(run.data.sides):
                list_archives(images)
        for metrics in self.node_metrics:
            metrics.measure()
        for findings in self.findings:
            findings.measure()


def _node_metrics(searcher: Searcher) -> tuple[NodeMetrics, ...]:
    """The metrics of each run; if only some queries are measured, of the same images in both, so that the runs compare."""
    first, *others = (NodeMetrics(run.data) for run in searcher.runs)
    if others and first.sampled:
        rows = searcher.counterpart_rows("query", 1)[first.rows]
        if (rows >= 0).any():
            others = [NodeMetrics(others[0].data, rows=rows[rows >= 0])]
    return first, *others


def default_tags_file(data: RetrievalData) -> Path | None:
    """`tags.csv` in the folder of a run or of embeddings, `tags-NAME.csv` for another test set, `NAME.tags.csv` beside a file;
    None for what is in neither."""
    place, test = data.origin.place, data.origin.test
    if place is None or place.is_file():
        return place and place.with_suffix(".tags.csv")
    return place / ("tags.csv" if test == OWN_TEST else f"tags-{quote(test, safe='')}.csv")


def _with_common_levels(runs: Sequence[ExplorerRun]) -> list[ExplorerRun]:
    if len(runs) != 2:
        return list(runs)
    one, other = runs
    common = one.data.common_levels(other.data)
    return [
        replace(one, data=one.data.at_levels(common or one.data.levels)),
        replace(other, data=other.data.at_levels(common)),
    ]
