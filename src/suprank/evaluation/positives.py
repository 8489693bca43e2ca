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


_ROWS = 2**18  # of labels whose nodes are found at once
_PAIRS = 2**24  # of queries and items whose levels are computed at once where labels are sets


class PositiveItems(NamedTuple):
    """The positives of a block of queries, and the items excluded from its lists."""

    item: Tensor  # [positives] if all queries of the block have the same, else [queries, positives] with −1 for padding
    level: Tensor  # int8 [queries, positives]; 0 in the padding and for excluded items
    excluded: Tensor  # [queries, excluded]: items that are not in the query's list; −1 for padding


class LabelPositives:
    """Items that share labels with the query; `excluded[q]` are the items that are not in the list of query q.

    Labels are finest first, form a tree (see `check_tree`), and −1 is no label. They may be on another device than `excluded`,
    where everything else is: they are read some rows at a time. Only items that share a label with some query are in the
    order; the others are distractors. It takes 8 bytes per item, and up to 30 while it is built.
    """

    def __init__(
        self,
        labels: Integer[Tensor, "queries depth"],
        gallery: Integer[Tensor, "items depth"],
        excluded: Integer[Tensor, "queries excluded"],
    ):
        self.depth = labels.shape[1]
        self.items = len(gallery)
        tree = _QueryTree(labels)
        nodes, counts = tree.find_nodes(gallery, excluded.device)
        self.order, self.position = _order_by_node(nodes, tree.size, self.items - int(counts[-1]))
        self.start, self.end = tree.ranges(counts, excluded.device)
        self.excluded = excluded
        # Queries with the same positives are ranked in one block.
        self.queries = np.lexsort(self.start.cpu().numpy().T[::-1])
        self._coarsest = torch.stack([self.start[:, 0], self.end[:, 0]]).cpu().numpy()

    def arrange(self) -> Tensor:
        """Renumber the items by their places in the tree's order, and return that order: the former number of every item.

        The search has to keep its gallery in the same order (`Search.arrange`); a query's positives are then contiguous.
        """
        order = torch.cat([self.order.long(), (self.position < 0).nonzero()[:, 0]])
        self.order = torch.arange(self.items, device=order.device)
        self.position = torch.empty_like(order)
        self.position[order] = self.order
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
            item = self.order[coarsest[0, 0] : coarsest[1, 0]].long()
        else:
            where = offset + torch.arange(width, device=rows.device)
            item = self.order[where.clamp(max=len(self.order) - 1)].long().where(where < end[:, :1], -1)
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


class _QueryTree:
    """The label tree of the queries: its nodes are numbered in depth-first order, each after the nodes under it.

    An item belongs to the deepest node whose label it has. So the items under a node are those of a range of node numbers, and
    an item with no query's label belongs to none: its number is `size`.
    """

    def __init__(self, labels: Integer[Tensor, "queries depth"]):
        own = labels.flip(1).cpu().numpy()  # the coarsest level first
        known, paths = [], []
        last = np.iinfo(np.int64).max
        for depth in range(own.shape[1]):
            label, row = np.unique(own[:, depth], return_index=True)  # in a tree, a label identifies its node
            label, row = label[label >= 0], row[label >= 0]
            path = np.full((len(label), own.shape[1]), last)
            path[:, : depth + 1] = own[row, : depth + 1]
            known.append(label)
            paths.append(path)
        every = np.concatenate(paths)
        order = np.lexsort(every.T[::-1])
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        self.size = len(order)
        self.known = known
        """The labels at each level, ascending, coarsest level first."""
        self.numbers = np.split(number, np.cumsum([len(label) for label in known])[:-1])
        """The nodes of these labels."""
        self._labels, ordered = own, every[order]
        self._first = []  # the first node under each of these nodes
        for depth in range(own.shape[1]):
            inside = np.flatnonzero(ordered[:, depth] != last)
            self._first.append(inside[np.unique(ordered[inside, depth], return_index=True)[1]])

    def find_nodes(self, gallery: Integer[Tensor, "items depth"], device: torch.device) -> tuple[Tensor, Tensor]:
        """The node of every item, in the smallest type of integers, and how many items each node has, and no node."""
        dtype = next(one for one in (torch.int16, torch.int32, torch.int64) if self.size <= torch.iinfo(one).max)
        nodes = torch.empty(len(gallery), dtype=dtype, device=device)
        counts = torch.zeros(self.size + 1, dtype=torch.int64, device=device)
        # A table, where labels are small enough to index one, is faster than a search.
        tables = [self._table(depth, len(gallery) + len(self._labels), device) for depth in range(len(self.known))]
        for first in range(0, len(gallery), _ROWS):
            rows = gallery[first : first + _ROWS].to(device)
            node = torch.full((len(rows),), self.size, device=device)
            for depth, (labels, numbers) in enumerate(tables):
                label = rows[:, len(tables) - 1 - depth].long().contiguous()
                if labels is None:
                    absent = len(numbers) - 1
                    found = numbers[label.where((label >= 0) & (label < absent), absent)]
                else:
                    at = torch.searchsorted(labels, label).clamp(max=len(labels) - 1)
                    found = numbers[at].where(labels[at] == label, self.size)
                node = found.where(found < self.size, node)
            nodes[first : first + _ROWS] = node
            counts += torch.bincount(node, minlength=self.size + 1)
        return nodes, counts

    def _table(self, depth: int, rows: int, device: torch.device) -> tuple[Tensor | None, Tensor]:
        """The node of every label up to the largest, then that of none; or, of few and large labels, the labels themselves."""
        labels, numbers = (torch.from_numpy(one[depth]).to(device) for one in (self.known, self.numbers))
        if len(labels) and int(labels[-1]) > rows + 1024:
            return labels.long(), numbers
        table = torch.full((int(labels[-1]) + 2 if len(labels) else 1,), self.size, device=device)
        table[labels.long()] = numbers
        return None, table

    def ranges(self, counts: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where the items under each query's nodes begin and end in the order; an empty range where there are none.

        An empty range lies at the start of the range around it, so that ranges are nested.
        """
        before = np.concatenate([[0], counts.cpu().numpy().cumsum()])
        start, end = np.zeros(self._labels.shape, np.int64), np.zeros(self._labels.shape, np.int64)
        for depth, (label, number, first) in enumerate(zip(self.known, self.numbers, self._first, strict=True)):
            around = start[:, depth - 1] if depth else 0
            own = self._labels[:, depth]
            at = np.searchsorted(label, own).clip(max=len(label) - 1)
            size = np.zeros(len(own), np.int64)
            if len(label):
                size = np.where(own >= 0, before[number[at] + 1] - before[first[at]], 0)
            start[:, depth] = np.where(size > 0, before[first[at]] if len(label) else 0, around)
            end[:, depth] = start[:, depth] + size
        return torch.from_numpy(start).to(device), torch.from_numpy(end).to(device)


def _order_by_node(nodes: Integer[Tensor, " items"], none: int, number: int) -> tuple[Tensor, Tensor]:
    """The items by their nodes, those of one node by their numbers, without those of node `none`; and every item's place in it.

    `number` items are in the order; the place of the others is −1. Both are int32 if that holds the number of items.
    """
    some = (nodes < none).nonzero()[:, 0] if 2 * number < len(nodes) else None  # else sorting all takes less memory
    keys = nodes if some is None else nodes[some]
    # On a CPU numpy's, which sorts int16 by radix.
    order = keys.argsort(stable=True) if keys.is_cuda else torch.from_numpy(np.argsort(keys.numpy(), kind="stable"))
    order = order[:number] if some is None else some[order]
    dtype = torch.int32 if len(nodes) < 2**31 else torch.int64
    position = torch.full((len(nodes),), -1, dtype=dtype, device=nodes.device)
    position[order] = torch.arange(number, dtype=dtype, device=nodes.device)
    return order.to(dtype), position
