"""Labels → which items each query looks for, and at which level, without a matrix of queries × items.

The gallery is put in the order of its label tree, so that the items under any node stand side by side: a query's positives
of level l or deeper are one range of that order, [start, end), and the ranges of its levels lie within each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from suprank.ranking.relevance import classes_with_two_parents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Integer
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor


class Wanted(NamedTuple):
    """What a block of queries looks for."""

    item: Tensor  # [positives], if every query of the block has the same, or [queries, positives] with −1 for padding
    level: Tensor  # int8 [queries, positives]; 0 in the padding and for items that are not in the query's list
    ignored: Tensor  # [queries, ignored]: items that are not in the query's list; −1 for padding


class LabelTargets:
    """Items wanted because they share labels with the query; `ignored[q]` are the items not in the list of query q.

    Labels are the finest first, form a tree (see `check_tree`), and are −1 where there is none.
    """

    def __init__(
        self, labels: Integer[Tensor, "queries depth"], gallery: Integer[Tensor, "items depth"], ignored: Integer[Tensor, "..."]
    ):
        mine, theirs = _nodes(labels, gallery)
        self.depth = labels.shape[1]
        self.items = len(gallery)
        self.order = _sorted_rows(theirs)
        self.position = torch.empty_like(self.order)
        self.position[self.order] = torch.arange(self.items, device=labels.device)
        self.start, self.end = _ranges(mine, theirs[self.order])
        self.ignored = ignored
        # Queries that want the same items are judged side by side.
        self.queries = _sorted_rows(self.start).cpu().numpy()
        self._outer = torch.stack([self.start[:, 0], self.end[:, 0]]).cpu().numpy()

    def arrange(self) -> Tensor:
        """From now on, call items by their places in the tree's order, in which the searcher is to keep its gallery.

        Gives that order: the former number of every item. Items wanted together then lie side by side in memory.
        """
        order, self.order = self.order, torch.arange(self.items, device=self.order.device)
        self.ignored = self.position[self.ignored.clamp(min=0)].where(self.ignored >= 0, -1)
        self.position = self.order
        return order

    def positives(self) -> NDArray[np.int64]:
        """How many items of the query's tree there are, before any is ignored; for the queries in `self.queries`' order."""
        return (self._outer[1] - self._outer[0])[self.queries]

    def wanted(self, numbers: NDArray[np.int64]) -> Wanted:
        """What the queries of these numbers look for."""
        rows = torch.from_numpy(numbers).to(self.start.device)
        start, end = self.start[rows], self.end[rows]
        ignored = self.ignored[rows]
        offset, outer = start[:, :1], self._outer[:, numbers]
        width = int((outer[1] - outer[0]).max())
        # +1 where a level's range begins and −1 where it ends; the last column takes the ends that lie at the edge.
        level = torch.zeros(len(rows), width + 1, dtype=torch.int8, device=rows.device)
        for edge, step in ((start, 1), (end, -1)):
            level.scatter_add_(1, edge - offset, torch.full_like(edge, step, dtype=torch.int8))
        level = level.cumsum(1, dtype=torch.int8)
        at = self.position[ignored.clamp(min=0)]
        within = (ignored >= 0) & (at >= offset) & (at < end[:, :1])
        level.scatter_(1, (at - offset).where(within, width), 0)
        level = level[:, :width].contiguous()
        if (outer == outer[:, :1]).all():
            item = self.order[outer[0, 0] : outer[1, 0]]
        else:
            where = offset + torch.arange(width, device=rows.device)
            item = self.order[where.clamp(max=self.items - 1)].where(where < end[:, :1], -1)
        return Wanted(item, level, ignored)

    def sizes(self, rows: Integer[Tensor, " queries"]) -> tuple[Tensor, Tensor]:
        """How many items of level l or deeper are in these queries' lists (int32, the coarsest first), and `Wanted.ignored`."""
        start, end, ignored = self.start[rows], self.end[rows], self.ignored[rows]
        at = self.position[ignored.clamp(min=0)][..., None]
        held = (ignored >= 0)[..., None] & (at >= start[:, None]) & (at < end[:, None])
        return (end - start - held.sum(1)).int(), ignored

    def levels(self, rows: Integer[Tensor, " queries"], item: Integer[Tensor, "queries k"]) -> Integer[Tensor, "queries k"]:
        """The level of any items for these queries; nothing is said on ignored ones. 0 for the item −1."""
        at = self.position[item.clamp(min=0)].where(item >= 0, -1)
        start, end = self.start[rows], self.end[rows]
        level = torch.zeros(item.shape, dtype=torch.int8, device=item.device)
        for current in range(self.depth):
            level += (at >= start[:, current, None]) & (at < end[:, current, None])
        return level


class ListedTargets:
    """Items wanted because they are listed, all of one level: a protocol with ground truth a query. −1 is padding."""

    def __init__(self, listed: Integer[Tensor, "queries positives"], ignored: Integer[Tensor, "queries ignored"]):
        self.listed, self.ignored = listed, ignored
        self.queries = np.arange(len(listed))

    def positives(self) -> NDArray[np.int64]:
        """How many items each query wants."""
        return (self.listed >= 0).sum(1).cpu().numpy()

    def wanted(self, numbers: NDArray[np.int64]) -> Wanted:
        """What the queries of these numbers look for."""
        rows = torch.from_numpy(numbers).to(self.listed.device)
        item = self.listed[rows]
        level = (item >= 0).to(torch.int8)
        return Wanted(item, level, self.ignored[rows])


def padded(lists: Sequence[ArrayLike]) -> NDArray[np.int64]:
    """Lists of item numbers as one array, each without repetition, −1 for padding."""
    unique = [np.unique(np.asarray(one, dtype=np.int64)) for one in lists]
    filled = np.full((len(unique), max((len(one) for one in unique), default=0)), -1, np.int64)
    for row, one in zip(filled, unique, strict=True):
        row[: len(one)] = one
    return filled


def check_tree(labels: Integer[Tensor, "rows depth"], names: Sequence[str]) -> None:
    """Refuse a label that stands under two parents, and one whose parent is unknown."""
    for column in range(labels.shape[1] - 1):
        child, parent = labels[:, column], labels[:, column + 1]
        orphans = ((child >= 0) & (parent < 0)).nonzero()[:, 0]
        if len(orphans):
            row = int(orphans[0])
            raise ValueError(
                f"{names[column]}={int(child[row])} has no parent: its {names[column + 1]} is {int(parent[row])} in "
                f"{len(orphans)} row(s), and −1 means unlabeled; label the parent too, or set the finer label to −1."
            )
        twice = classes_with_two_parents(child, parent).tolist()
        if twice:
            parents = parent[child == twice[0]].unique().tolist()
            way_out = "give a label that occurs under two parents an id for each of them."
            if not len(classes_with_two_parents(parent, child)):
                way_out = f"{names[column + 1]} looks finer than {names[column]}: give the columns finest first."
            raise ValueError(
                f"labels must form a tree, but {names[column]}={twice[0]} stands under {names[column + 1]} "
                f"{' and '.join(map(str, parents[:3]))}{' and more' if len(parents) > 3 else ''} ({len(twice)} such label(s)); "
                f"{way_out}"
            )


def _nodes(labels: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor]:
    """The tree node of every query and item at every level, the coarsest first: in a tree, a label names its node.

    Ids far larger than the number of rows are numbered anew, since tables are made of them.
    """
    mine, theirs = labels.flip(1).clone(), gallery.flip(1).clone()
    for depth in range(labels.shape[1]):
        both = torch.cat([mine[:, depth], theirs[:, depth]])
        if both.max() > 4 * len(both) + 1024:
            _, code = torch.cat([both.new_full((1,), -1), both]).unique(return_inverse=True)  # −1, the lowest, gets 0
            mine[:, depth], theirs[:, depth] = (code[1:] - 1).split([len(labels), len(gallery)])
    return mine, theirs


def _sorted_rows(keys: Tensor) -> Tensor:
    """The order of the rows by their columns, the first telling most; −1, the unknown, comes last; else stable."""
    keys = keys.where(keys >= 0, torch.iinfo(keys.dtype).max)
    if not keys.is_cuda:
        return torch.from_numpy(np.lexsort(keys.numpy().T[::-1]))
    order = torch.arange(len(keys), device=keys.device)
    for column in reversed(range(keys.shape[1])):
        order = order[keys[order, column].argsort(stable=True)]
    return order


def _ranges(mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Where the items under each query's nodes begin and end in the gallery's order; an empty range where there are none.

    An empty range lies at the start of the range around it, so that ranges lie within each other.
    """
    start, end = torch.zeros_like(mine), torch.zeros_like(mine)
    for depth in range(mine.shape[1]):
        nodes = theirs[:, depth]
        begins = nodes.new_ones(len(nodes), dtype=torch.bool)
        begins[1:] = nodes[1:] != nodes[:-1]
        begins = (begins & (nodes >= 0)).nonzero()[:, 0]
        # One entry more, for nodes that the gallery does not have, and for the unknown, −1, which reads it too.
        most = 1 + max(int(mine[:, depth].max()), int(nodes.max()), 0)
        first = nodes.new_zeros(most + 1)
        first[nodes[begins]] = begins
        number = nodes[nodes >= 0].bincount(minlength=most + 1)
        own = mine[:, depth]
        around = start[:, depth - 1] if depth else torch.zeros_like(own)
        start[:, depth] = first[own].where(number[own] > 0, around)
        end[:, depth] = start[:, depth] + number[own]
    return start, end
