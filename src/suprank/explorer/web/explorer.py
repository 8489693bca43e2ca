"""Everything behind the web page: search, lists, label tree, pictures and tags of one run or two."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from suprank.explorer.source import OWN_TEST, levels_in_both
from suprank.explorer.tags import TagFile, tag_order
from suprank.explorer.web.browsing import Browser
from suprank.explorer.web.image_metrics import ImageMetrics
from suprank.explorer.web.label_findings import LabelFindings
from suprank.explorer.web.saved_selections import SavedSelections
from suprank.explorer.web.searching import Searcher
from suprank.explorer.web.tree import NodeMetrics, Tree
from suprank.web.thumbnails import ThumbnailCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.explorer.source import Source
    from suprank.explorer.web.searching import ExplorerRun


class Explorer:
    """One run, or two to compare. Lists and the label tree show the first run; the second is searched next to it.

    Two runs are shown at the levels that both have; if they share none, at those of the first. Tags are kept in the file
    `tags` (default: `tags.csv` in the folder of the first run) and saved selections beside it; with `read_only`, nobody can
    change them. Without a folder and a file, there is no place for them.
    """

    def __init__(self, runs: Sequence[ExplorerRun], *, tags: Path | None = None, read_only: bool = False) -> None:
        for run in runs:
            run.source.require_single_labels("the explorer page")
        self.searcher = Searcher(_with_common_levels(runs))
        self.runs = self.searcher.runs
        self.source = self.runs[0].source
        self.node_metrics = _node_metrics(self.searcher)
        self.image_metrics = ImageMetrics(self.searcher, self.node_metrics)
        file = default_tags_file(self.source) if tags is None else tags
        manifests = [side.manifest for side in dict.fromkeys((self.source.queries, self.source.gallery))]
        self.tags = TagFile(file, initial=manifests)
        self.selections = SavedSelections(None if file is None else selections_file(file))
        self.can_change = file is not None and not read_only
        self.browser = Browser(self.source, self.image_metrics, self.tags)
        self.tree = Tree(self.source, self.node_metrics)
        self.findings = tuple(LabelFindings(run.source) for run in self.runs)
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
            for images in (run.source.gallery, run.source.queries):
                images.list_archives()
        for metrics in self.node_metrics:
            metrics.measure()
        for findings in self.findings:
            findings.measure()


def _node_metrics(searcher: Searcher) -> tuple[NodeMetrics, ...]:
    """The metrics of each run; if only some queries are measured, of the same images in both, so that the runs compare."""
    first, *others = (NodeMetrics(run.source) for run in searcher.runs)
    if others and first.sampled:
        rows = searcher.counterpart_rows("query", 1)[first.rows]
        if (rows >= 0).any():
            others = [NodeMetrics(others[0].source, rows=rows[rows >= 0])]
    return first, *others


def default_tags_file(source: Source) -> Path | None:
    """`tags.csv` in the folder of a run or of embeddings, `tags-NAME.csv` for another test set; None without a folder."""
    if source.folder is None:
        return None
    return source.folder / ("tags.csv" if source.test == OWN_TEST else f"tags-{quote(source.test, safe='')}.csv")


def selections_file(tags: Path) -> Path:
    """The file of saved selections beside a file of tags.

    Example:
        >>> [selections_file(Path(name)).name for name in ("tags.csv", "tags-new.csv", "birds.csv")]
        ['selections.csv', 'selections-new.csv', 'birds-selections.csv']
    """
    stem = tags.stem.replace("tags", "selections", 1) if "tags" in tags.stem else f"{tags.stem}-selections"
    return tags.with_name(f"{stem}.csv")


def _with_common_levels(runs: Sequence[ExplorerRun]) -> list[ExplorerRun]:
    if len(runs) != 2:
        return list(runs)
    one, other = runs
    common = levels_in_both(one.source, other.source)
    return [
        replace(one, source=one.source.with_levels(common or one.source.levels)),
        replace(other, source=other.source.with_levels(common)),
    ]
