"""The page of one label: how well it is found, what it is confused with, its nearest classes, and its images at the border."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from fastapi import Request
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from suprank.explorer.findings.confusions import confused_queries
from suprank.explorer.images import shared_levels
from suprank.explorer.web.ids import ImageId, Node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI
    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import Items
    from suprank.explorer.findings.confusions import Border, Confusions
    from suprank.explorer.web.explorer import Explorer
    from suprank.explorer.web.pages import Pages

SHOWN = 6
"""Labels in a table and images in a list; the page says how many there are."""


class ItemView(NamedTuple):
    """An image beside a query: the number of levels that they share (None: unknown), and the cosine."""

    image: ImageId
    level: int | None
    score: float


class LabelView(NamedTuple):
    """A label as the page names it; `node` is None if the first run does not have it, `name` if the images have no label."""

    name: str | None
    node: Node | None


class ConfusionView(NamedTuple):
    """A label that is found instead of another: by `mistakes` of the `queries` of one of the two, with an example.

    `unavoidable` says that the gallery has no image of the queries' own label to find.
    """

    label: LabelView
    mistakes: int
    queries: int
    query: ImageId
    item: ItemView
    unavoidable: bool


class ConfusionTable(NamedTuple):
    """The labels that are confused with one most often, of `labels` in all, with `queries` mistakes."""

    rows: tuple[ConfusionView, ...] = ()
    labels: int = 0
    queries: int = 0


class NearestClassView(NamedTuple):
    """A class nearby: its most typical image, with the cosine of the means and the levels that it shares."""

    label: LabelView
    typical: ItemView


class BorderView(NamedTuple):
    """An image between two labels: its best item of its own label, and its best item of another one."""

    query: ImageId
    own: ItemView
    other: ItemView
    label: LabelView

    @property
    def margin(self) -> float:
        """How much closer its own label is."""
        return self.own.score - self.other.score


class RunView:
    """A label in one run, which may number its labels differently; `label` is its number there, or None if it is not there.

    `queries` and `gallery_images` are the images that have the label.
    """

    def __init__(self, explorer: Explorer, run: int, node: Node) -> None:
        self.explorer, self.run, self.level = explorer, run, node.level
        self.data, self.findings = explorer.runs[run].data, explorer.findings[run]
        # Once and in this order, since the search may end while a page is rendered.
        self.searching, self.nearest = not self.findings.done, self.findings.nearest
        self.label = self._number(node)
        self.queries = self._count(self.data.queries)
        self.gallery_images = self._count(self.data.items)

    def _count(self, images: Items) -> int:
        return 0 if self.label is None else int((images.labels[:, self.level] == self.label).sum())

    def _number(self, node: Node) -> int | None:
        level = self.explorer.data.levels[node.level]
        names = self.data.names[level] if level in self.data.levels else ()
        name = self.explorer.tree.name(node)
        return names.index(name) if name in names else None

    @cached_property
    def typical(self) -> ImageId | None:
        """The gallery's image that is closest to the mean of the label."""
        if self.label is None:
            return None
        row = int(self.findings.class_means(self.level).typical_rows[self.label])
        return None if row < 0 else ImageId(self.run, "gallery", row)

    @property
    def searched(self) -> int:
        """How many queries of the label were searched for the confusions."""
        confusions = self._counts
        return 0 if confusions is None or self.label is None else int(confusions.queries[self.label])

    @property
    def alone(self) -> bool:
        """Whether the gallery has no other image of the label, so that its queries have nothing to find."""
        return self.gallery_images <= int(self.data.gallery is None)

    @cached_property
    def found_instead(self) -> ConfusionTable:
        """What queries of the label find first instead, most frequent first."""
        return self._confusions(of_label=True)

    @cached_property
    def found_by(self) -> ConfusionTable:
        """Whose queries find the label first by mistake, most frequent first."""
        return self._confusions(of_label=False)

    @property
    def _counts(self) -> Confusions | None:
        return None if self.nearest is None else self.findings.confusions(self.level)

    def _confusions(self, *, of_label: bool) -> ConfusionTable:
        confusions, nearest = self._counts, self.nearest
        if confusions is None or nearest is None or self.label is None:
            return ConfusionTable()
        own, other = (confusions.labels, confusions.found) if of_label else (confusions.found, confusions.labels)
        chosen = np.flatnonzero((own == self.label) & (other != self.label))
        chosen = chosen[np.lexsort((other[chosen], -confusions.counts[chosen]))]
        rows = []
        for at in chosen[:SHOWN]:
            label, found, count = (int(part[at]) for part in (confusions.labels, confusions.found, confusions.counts))
            place = confused_queries(self.data, nearest, label, found, self.level)[0]
            query, item, score = nearest.queries[place], nearest.items[place], nearest.scores[place]
            rows.append(
                ConfusionView(
                    self._label_view(int(other[at])),
                    count,
                    int(confusions.queries[label]),
                    self._query(query),
                    self._item(query, item, score),
                    bool(self._gallery_sizes[label] <= int(self.data.gallery is None)),
                )
            )
        return ConfusionTable(tuple(rows), len(chosen), int(confusions.counts[chosen].sum()))

    @cached_property
    def _gallery_sizes(self) -> NDArray[np.int64]:
        labels = self.data.items.labels[:, self.level]
        return np.bincount(labels[labels >= 0], minlength=len(self.data.names[self.data.levels[self.level]]))

    @cached_property
    def nearest_classes(self) -> list[NearestClassView]:
        """The classes of the same level whose mean embedding is closest."""
        if self.label is None or self.typical is None:
            return []
        labels, typical = self.data.items.labels, self.findings.class_means(self.level).typical_rows
        views = []
        for label, score in self.findings.nearest_classes(self.level, self.label, SHOWN):
            row = int(typical[label])
            shared = int(shared_levels(labels[self.typical.row], labels[row]))
            view = ItemView(ImageId(self.run, "gallery", row), shared, score)
            views.append(NearestClassView(self._label_view(label), view))
        return views

    @cached_property
    def border(self) -> BorderSummary | None:
        """Images between this label and others; None if the run has no query of the label."""
        if self.label is None or not self.queries:
            return None
        sample = self.findings.border(self.level, self.label)
        margin = sample.border.margin.astype(np.float64)
        comparable = np.flatnonzero(np.isfinite(margin))
        by_margin = comparable[np.argsort(margin[comparable], kind="stable")]
        by_distance = comparable[np.argsort(np.abs(margin[comparable]), kind="stable")]
        beyond = by_margin[margin[by_margin] < 0]
        few = len(comparable) <= SHOWN
        return BorderSummary(
            self._border_views(sample.border, (by_margin if few else by_distance)[:SHOWN]),
            () if few else self._border_views(sample.border, beyond[:SHOWN]),
            len(beyond),
            len(comparable),
            len(margin),
            sample.total,
            sample.mistaken,
        )

    def _border_views(self, border: Border, places: NDArray[np.int64]) -> tuple[BorderView, ...]:
        return tuple(
            BorderView(
                self._query(border.queries[at]),
                self._item(border.queries[at], border.own_items[at], border.own_scores[at]),
                self._item(border.queries[at], border.other_items[at], border.other_scores[at]),
                self._label_view(int(self.data.items.labels[border.other_items[at], self.level])),
            )
            for at in places
        )

    def _query(self, row: int) -> ImageId:
        return ImageId(self.run, "gallery" if self.data.gallery is None else "query", int(row))

    def _item(self, query: int, row: int, score: float) -> ItemView:
        own = self.data.queries.labels[query]
        level = None if own[-1] < 0 else int(shared_levels(own, self.data.items.labels[row]))
        return ItemView(ImageId(self.run, "gallery", int(row)), level, float(score))

    def _label_view(self, label: int) -> LabelView:
        """A label of this run, by its name in the first run; −1 is no label."""
        if label < 0:
            return LabelView(None, None)
        name = self.data.names[self.data.levels[self.level]][label]
        if self.run == 0:
            return LabelView(name, Node(self.level, label))
        names = self.explorer.tree.names(self.level)
        return LabelView(name, Node(self.level, names.index(name)) if name in names else None)


class BorderSummary(NamedTuple):
    """Images at the border, the smallest margin first, and images that lie `beyond` it, the farthest first.

    Of `total` images with the label, `compared` were compared (`mistaken` of them because they find another label first, if not
    all were), and `comparable` have both an item of their own label and one of another. If these fit into one list, it is
    `close`, with the farthest beyond the border first.
    """

    close: tuple[BorderView, ...]
    beyond: tuple[BorderView, ...]
    beyond_total: int
    comparable: int
    compared: int
    total: int
    mistaken: int


def label_views(explorer: Explorer, node: Node) -> Sequence[RunView]:
    """A label in each run."""
    return [RunView(explorer, run, node) for run in range(len(explorer.runs))]


def add_label_routes(app: FastAPI, explorer: Explorer, pages: Pages) -> None:
    """Add the page `/label?node=...`."""

    @app.get("/label", response_class=HTMLResponse)
    def label(request: Request) -> str:
        node = Node.parse(request.query_params.get("node", ""))
        if node is None or not explorer.tree.has(node):
            raise HTTPException(404, "There is no such label.")
        here = explorer.data.levels[node.level]
        return pages.render("label.html", node=node, here=here, views=label_views(explorer, node), shown=SHOWN)
