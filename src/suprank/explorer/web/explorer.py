"""All that the page can be asked, put together: search, listing, tree and pictures of one run, or of two."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from suprank.explorer.source import common_to
from suprank.explorer.web.browsing import Browser
from suprank.explorer.web.node_metrics import Judged
from suprank.explorer.web.searching import Searcher
from suprank.explorer.web.tree import Tree
from suprank.web.thumbnails import ThumbnailCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.explorer.web.searching import Run


class Explorer:
    """What is looked at. The first run's images and labels are listed and walked; the second is searched beside it.

    Two runs are looked at with the levels that both have; where they share none, with those of the first.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.searcher = Searcher(_at_common_levels(runs))
        self.runs = self.searcher.runs
        self.source = self.runs[0].source
        self.browser = Browser(self.source)
        self.judged = tuple(Judged(run.source) for run in self.runs)
        self.tree = Tree(self.source, self.judged)
        self.pictures = ThumbnailCache()
        self.version = secrets.token_hex(4)  # in addresses of pictures: a browser keeps those of another run on this port
        self.can_embed = any(run.embed is not None for run in self.runs)

    def measure(self) -> None:
        """Measure what the tree shows, one run after the other; it may take minutes, so do it in a thread."""
        for one in self.judged:
            one.measure()


def _at_common_levels(runs: Sequence[Run]) -> list[Run]:
    if len(runs) != 2:
        return list(runs)
    one, other = runs
    common = common_to(one.source, other.source)
    return [replace(one, source=one.source.at(common or one.source.levels)), replace(other, source=other.source.at(common))]
