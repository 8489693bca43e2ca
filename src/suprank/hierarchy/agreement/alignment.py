"""Which group of one branch is which of the other: by name, then by what they hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    from suprank.hierarchy.tree import Group, Hierarchy


def aligned_groups(first: Hierarchy, second: Hierarchy) -> dict[int, int]:
    """Group of the first → its partner in the second, one to one, groups without one left out.

    Groups of one level with the same name (`key_of`) are partners. The rest of level 1 are paired so that the pairs hold as
    many items in common as can be, and at least one label; a label without items counts as one. Coarser groups go by name
    alone.
    """
    partners: dict[int, int] = {}
    for level in range(1, first.depth + 1):
        named = {key_of(group.name): group.id for group in second.of_level(level)}
        for group in first.of_level(level):
            if (same := named.get(key_of(group.name))) is not None:
                partners[group.id] = same
    taken = set(partners.values())
    left = [group for group in first.of_level(1) if group.id not in partners]
    right = [group for group in second.of_level(1) if group.id not in taken]
    return dict(sorted({**partners, **_by_contents(first, second, left, right)}.items()))


def _by_contents(first: Hierarchy, second: Hierarchy, left: list[Group], right: list[Group]) -> dict[int, int]:
    """The pairs with the largest weight in common, all together."""
    rows, columns = ({group.id: place for place, group in enumerate(groups)} for groups in (left, right))
    common: Counter[tuple[int, int]] = Counter()
    for label in first.labels.values():
        other = second.labels.get(label.id)
        if other is not None and label.group in rows and other.group in columns:
            common[rows[label.group], columns[other.group]] += max(label.weight, 1)
    if not common:
        return {}
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    weights = np.zeros((len(left), len(right)))
    for cell, weight in common.items():
        weights[cell] = weight
    chosen = zip(*linear_sum_assignment(weights, maximize=True), strict=True)
    return {left[row].id: right[column].id for row, column in chosen if weights[row, column] > 0}
