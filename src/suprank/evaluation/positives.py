"""Labels → the positives of each query and their levels, without a matrix of queries × items.

The gallery is sorted by its label tree, so that the items under any node are contiguous: a query's positives of level l or
deeper are one range of that order, [start, end), and the ranges of its levels are nested. Images with several labels at a level
are in no such order: their levels are computed for some queries at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Integer
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor


_PAIRS = 2**24  # of queries and items whose levels are computed at once where labels are sets


class PositiveItems(NamedTuple):
    """The positives of a block of queries, and the items excluded from its lists."""

    item: Tensor  # [positives] if all queries of the block have the same, else [queries, positives] with −1 for padding
    level: Tensor  # int8 [queries, positives]; 0 in the padding and for excluded items
    excluded: Tensor  # [queries, excluded]: items that are not in the query's list; −1 for padding


class LabelPositives:
    """Items that share labels with the query; `excluded[q]` are the items that are not in the list of query q.

    Labels are finest first, form a tree (see `check_tree`), and −1 is no label.
    """

    def __init__(
        self,
        labels: Integer[Tensor, "queries depth"],
        gallery: Integer[Tensor, "items depth"],
        excluded: Integer[Tensor, "..."],
    ):
        mine, theirs = _tree_nodes(labels, gallery)
        self.depth = labels.shape[1]
        self.items = len(gallery)
        self.order = _sort_rows(theirs)
        self.position = torch.empty_like(self.order)
        self.position[self.order] = torch.arange(self.items, device=labels.device)
        self.start, self.end = _node_ranges(mine, theirs[self.order])
        self.excluded = excluded
        # Queries with the same positives are ranked in one block.
        self.queries = _sort_rows(self.start).cpu().numpy()
        self._coarsest = torch.stack([self.start[:, 0], self.end[:, 0]]).cpu().numpy()

    def arrange(self) -> Tensor:
        """Renumber the items by their places in the tree's order, and return that order: the former number of every item.

        The search has to keep its gallery in the same order (`Search.arrange`); a query's positives are then contiguous.
        """
        order, self.order = self.order, torch.arange(self.items, device=self.order.device)
        self.excluded = self.position[self.excluded.clamp(min=0)].where(self.excluded >= 0, -1)
        self.position = self.order
        return order

    def counts(self) -> NDArray[np.int64]:
        """How many positives each query has, excluded ones counted; for the queries in the order of `self.queries`."""
        return (self._coarsest[1] - self._coarsest[0])[self.queries]

    def items_of(self, numbers: NDArray[np.int64]) -> PositiveItems:
        """The positives of the queries of these numbers."""
        rows = torch.from_numpy(numbers).to(self.start.device)
        start, end = self.start[rows], self.end[rows]
        excluded = self.excluded[rows]
        offset, coarsest = start[:, :1], self._coarsest[:, numbers]
        width = int((coarsest[1] - coarsest[0]).max())
        # +1 where a level's range begins and −1 where it ends; the last column takes the ends that lie at the edge.
        level = torch.zeros(len(rows), width + 1, dtype=torch.int8, device=rows.device)
        for edge, step in ((start, 1), (end, -1)):
            level.scatter_add_(1, edge - offset, torch.full_like(edge, step, dtype=torch.int8))
        level = level.cumsum(1, dtype=torch.int8)
        at = self.position[excluded.clamp(min=0)]
        within = (excluded >= 0) & (at >= offset) & (at < end[:, :1])
        level.scatter_(1, (at - offset).where(within, width), 0)
        level = level[:, :width].contiguous()
        if (coarsest == coarsest[:, :1]).all():
            item = self.order[coarsest[0, 0] : coarsest[1, 0]]
        else:
            where = offset + torch.arange(width, device=rows.device)
            item = self.order[where.clamp(max=self.items - 1)].where(where < end[:, :1], -1)
        return PositiveItems(item, level, excluded)

    def sizes(self, rows: Integer[Tensor, " queries"]) -> tuple[Tensor, Tensor]:
        """How many items of level l or deeper are in these queries' lists (int32, coarsest first), and the excluded items."""
        start, end, excluded = self.start[rows], self.end[rows], self.excluded[rows]
        at = self.position[excluded.clamp(min=0)][..., None]
        inside = (excluded >= 0)[..., None] & (at >= start[:, None]) & (at < end[:, None])
        return (end - start - inside.sum(1)).int(), excluded

    @property
    def device(self) -> torch.device:
        return self.start.device

    def levels(self, rows: Integer[Tensor, " queries"], item: Integer[Tensor, "queries k"]) -> Integer[Tensor, "queries k"]:
        """The level of any items for these queries, excluded or not; 0 for the item −1."""
        at = self.position[item.clamp(min=0)].where(item >= 0, -1)
        start, end = self.start[rows], self.end[rows]
        level = torch.zeros(item.shape, dtype=torch.int8, device=item.device)
        for current in range(self.depth):
            level += (at >= start[:, current, None]) & (at < end[:, current, None])
        return level


class SetPositives:
    """Items whose sets of labels meet the query's, `[N, L, M]` with −1 for padding; otherwise as `LabelPositives`.

    A level takes one look-up for each of the M labels of an item, in a table of which classes a query has. Levels of at most
    `_PAIRS` pairs are computed at once, and once more when the queries are ranked.
    """

    def __init__(
        self,
        labels: Integer[Tensor, "queries depth set"],
        gallery: Integer[Tensor, "items depth set"],
        excluded: Integer[Tensor, "queries excluded"],
    ):
        self.depth, self.items = labels.shape[1], len(gallery)
        self.queries = np.arange(len(labels))
        self.excluded = excluded
        self._labels, self._gallery, self._classes = _number_members(labels, gallery)
        self._sizes = torch.cat(
            [self._count(level) for _, level in self._in_parts(torch.arange(len(labels)).to(labels.device))]
        )

    @property
    def device(self) -> torch.device:
        return self._labels.device

    def counts(self) -> NDArray[np.int64]:
        """How many positives each query has."""
        return self._sizes[:, 0].cpu().numpy().astype(np.int64)

    def items_of(self, numbers: NDArray[np.int64]) -> PositiveItems:
        """The positives of the queries of these numbers."""
        rows = torch.from_numpy(numbers).to(self.device)
        width = int(self._sizes[rows, 0].max())
        item = torch.full((len(rows), width), -1, device=self.device)
        level = torch.zeros(len(rows), width, dtype=torch.int8, device=self.device)
        for part, found in self._in_parts(rows):
            query, number = found.nonzero(as_tuple=True)
            count = self._sizes[rows[part], 0]
            at = torch.arange(len(query), device=self.device) - (count.cumsum(0) - count)[query]
            item[part[query], at] = number
            level[part[query], at] = found[query, number]
        return PositiveItems(item, level, self.excluded[rows])

    def sizes(self, rows: Integer[Tensor, " queries"]) -> tuple[Tensor, Tensor]:
        """How many items of level l or deeper are in these queries' lists (int32, coarsest first), and the excluded items."""
        return self._sizes[rows], self.excluded[rows]

    def levels(self, rows: Integer[Tensor, " queries"], item: Integer[Tensor, "queries k"]) -> Integer[Tensor, "queries k"]:
        """The level of any items for these queries, excluded or not; 0 for the item −1."""
        own = self._labels[rows].where(self._labels[rows] > 0, -1)
        theirs = self._gallery[item.clamp(min=0)].where((item >= 0)[..., None, None], 0)
        level, shared = torch.zeros_like(item, dtype=torch.int8), torch.ones_like(item, dtype=torch.bool)
        for column in reversed(range(self.depth)):
            meet = torch.zeros_like(shared)
            for member in own[:, column].unbind(1):
                meet |= (theirs[:, :, column] == member[:, None, None]).any(-1)
            shared &= meet
            level += shared
        return level

    def _in_parts(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Which of the rows, and the level of every item for them, 0 for excluded ones: `[queries, items]`."""
        for part in torch.arange(len(rows), device=self.device).split(max(1, _PAIRS // max(self.items, self._classes))):
            level = self._all_levels(rows[part])
            excluded = self.excluded[rows[part]]
            query, place = (excluded >= 0).nonzero(as_tuple=True)
            level[query, excluded[query, place]] = 0
            yield part, level

    def _all_levels(self, rows: Tensor) -> Tensor:
        level = torch.zeros(len(rows), self.items, dtype=torch.int8, device=self.device)
        shared = torch.ones_like(level, dtype=torch.bool)
        for column in reversed(range(self.depth)):
            has_class = torch.zeros(len(rows), self._classes, dtype=torch.bool, device=self.device)
            has_class.scatter_(1, self._labels[rows, column], True)
            has_class[:, 0] = False  # no label
            meet = torch.zeros_like(shared)
            for member in self._gallery[:, column].unbind(1):
                meet |= has_class[:, member]
            shared &= meet
            level += shared
        return level

    def _count(self, level: Tensor) -> Tensor:
        return torch.stack([(level >= current).sum(1, dtype=torch.int32) for current in range(1, self.depth + 1)], 1)


class ListedPositives:
    """Positives that are listed for each query, all of one level, as in a protocol with ground truth. −1 is padding."""

    def __init__(self, listed: Integer[Tensor, "queries positives"], excluded: Integer[Tensor, "queries excluded"]):
        self.listed, self.excluded = listed, excluded
        self.queries = np.arange(len(listed))

    def counts(self) -> NDArray[np.int64]:
        """How many positives each query has."""
        return (self.listed >= 0).sum(1).cpu().numpy()

    def items_of(self, numbers: NDArray[np.int64]) -> PositiveItems:
        """The positives of the queries of these numbers."""
        rows = torch.from_numpy(numbers).to(self.listed.device)
        item = self.listed[rows]
        level = (item >= 0).to(torch.int8)
        return PositiveItems(item, level, self.excluded[rows])


def pad_lists(lists: Sequence[ArrayLike]) -> NDArray[np.int64]:
    """Lists of item numbers as one array, each without duplicates, −1 for padding."""
    unique = [np.unique(np.asarray(one, dtype=np.int64)) for one in lists]
    filled = np.full((len(unique), max((len(one) for one in unique), default=0)), -1, np.int64)
    for row, one in zip(filled, unique, strict=True):
        row[: len(one)] = one
    return filled


def _number_members(labels: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor, int]:
    """The sets with their members numbered from 1 on, 0 for no label; and one more than the largest number."""
    mine, theirs, most = labels.clone(), gallery.clone(), 0
    for column in range(labels.shape[1]):
        both = torch.cat([labels[:, column].flatten(), gallery[:, column].flatten()])
        _, code = torch.cat([both.new_full((1,), -1), both]).unique(return_inverse=True)  # −1, the lowest, gets 0
        own, other = code[1:].split([labels[:, column].numel(), gallery[:, column].numel()])
        mine[:, column], theirs[:, column] = own.view_as(labels[:, column]), other.view_as(gallery[:, column])
        most = max(most, int(code.max()))
    return mine, theirs, most + 1


def _tree_nodes(labels: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor]:
    """The tree node of every query and item at every level, coarsest first: in a tree, a label identifies its node.

    Ids far larger than the number of rows are renumbered, because they index tables.
    """
    mine, theirs = labels.flip(1).clone(), gallery.flip(1).clone()
    for depth in range(labels.shape[1]):
        both = torch.cat([mine[:, depth], theirs[:, depth]])
        if both.max() > 4 * len(both) + 1024:
            _, code = torch.cat([both.new_full((1,), -1), both]).unique(return_inverse=True)  # −1, the lowest, gets 0
            mine[:, depth], theirs[:, depth] = (code[1:] - 1).split([len(labels), len(gallery)])
    return mine, theirs


def _sort_rows(keys: Tensor) -> Tensor:
    """The stable order of the rows by their columns, the first column first; −1 comes last."""
    keys = keys.where(keys >= 0, torch.iinfo(keys.dtype).max)
    if not keys.is_cuda:
        return torch.from_numpy(np.lexsort(keys.numpy().T[::-1]))
    order = torch.arange(len(keys), device=keys.device)
    for column in reversed(range(keys.shape[1])):
        order = order[keys[order, column].argsort(stable=True)]
    return order


def _node_ranges(mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Where the items under each query's nodes begin and end in the gallery's order; an empty range where there are none.

    An empty range lies at the start of the range around it, so that ranges are nested.
    """
    start, end = torch.zeros_like(mine), torch.zeros_like(mine)
    for depth in range(mine.shape[1]):
        nodes = theirs[:, depth]
        begins = nodes.new_ones(len(nodes), dtype=torch.bool)
        begins[1:] = nodes[1:] != nodes[:-1]
        begins = (begins & (nodes >= 0)).nonzero()[:, 0]
        # One more entry, for nodes that are not in the gallery, and for −1, which reads it too.
        most = 1 + max(int(mine[:, depth].max()), int(nodes.max()), 0)
        first = nodes.new_zeros(most + 1)
        first[nodes[begins]] = begins
        number = nodes[nodes >= 0].bincount(minlength=most + 1)
        own = mine[:, depth]
        around = start[:, depth - 1] if depth else torch.zeros_like(own)
        start[:, depth] = first[own].where(number[own] > 0, around)
        end[:, depth] = start[:, depth] + number[own]
    return start, end
