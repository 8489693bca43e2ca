"""A hierarchy as a label tree, whose finest classes are items, or labels where there are no items."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from suprank.data.tree import NO_PARENT, LabelTree
from suprank.hierarchy.tree import Group, Hierarchy


def label_tree(tree: Hierarchy, items: Mapping[str, int] | None = None) -> LabelTree:
    """Classes in alphabetical order of their names, as in a manifest. What has no group is not in the tree.

    `items` are names of items with the ids of their labels; without them the labels are the finest classes, with their
    weights for images. An item counts as one image. Of two groups of one name on one level, which lint reports, the second
    is called by its number, too.
    """
    names: list[list[str]] = []
    places: dict[int, int] = {}  # of a group in its level
    ordered: list[list[Group]] = []
    for level in range(1, tree.depth + 1):
        called: dict[str, Group] = {}
        for group in tree.of_level(level):
            called[f"{group.name} #{group.id}" if group.name in called else group.name] = group
        names.append(sorted(called))
        ordered.append([called[name] for name in names[-1]])
        places.update({group.id: place for place, group in enumerate(ordered[-1])})
    if items is None:
        fine = {one.text: (places[one.group], one.weight) for one in tree.labels.values() if one.group is not None}
    else:
        within = {one.id: places[one.group] for one in tree.labels.values() if one.group is not None}
        fine = {name: (within[label], 1) for name, label in items.items() if label in within}
    finest = sorted(fine)
    parents = [np.array([fine[name][0] for name in finest], np.int64)]
    images = [np.array([fine[name][1] for name in finest], np.int64)]
    for level, some in enumerate(ordered):
        weight = np.zeros(len(some), np.int64)
        np.add.at(weight, parents[level][parents[level] != NO_PARENT], images[level][parents[level] != NO_PARENT])
        images.append(weight)
        parents.append(np.array([NO_PARENT if one.parent is None else places[one.parent] for one in some], np.int64))
    return LabelTree(tree.levels, (tuple(finest), *(tuple(some) for some in names)), tuple(parents[:-1]), tuple(images))
