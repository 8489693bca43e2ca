"""Whether label columns form a tree, finest level first: a class has one parent at the next level."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from suprank.ranking.relevance import NO_LABEL

if TYPE_CHECKING:
    from jaxtyping import Integer
    from torch import Tensor


def label_tree_error(labels: Integer[Tensor, "rows depth *set"]) -> str | None:
    """What is wrong with the columns as a tree, or None. It waits for a GPU."""
    columns = labels.cpu().unbind(1)
    for fine, (child, parent) in enumerate(pairwise(columns)):
        unknown = parent < 0 if parent.ndim == 1 else (parent < 0).all(1)[:, None]
        for orphan in child[(child >= 0) & unknown][:1].tolist():
            return (
                f"class {orphan} of column {fine} has no parent: column {fine + 1} is −1, no label, so nothing shares its "
                f"class; label the parent too, or read the manifest with fill_gaps=True."
            )
        twice = classes_with_two_parents(child, parent)
        if not len(twice):
            continue
        first = int(twice[0])
        if child.ndim == 2:
            return (
                f"the columns do not form a tree: images of class {first} of column {fine} have no class of column "
                f"{fine + 1} in common, so it has no parent there; add its parent to the labels of each."
            )
        above = " and ".join(map(str, parent[child == first].unique()[:2].tolist()))
        if not len(classes_with_two_parents(parent, child)):
            return (
                f"column {fine + 1} is finer than column {fine}: class {first} of column {fine} holds classes {above} of "
                f"column {fine + 1}. Column 0 must be the finest level; reverse the columns: labels.flip(1)."
            )
        return (
            f"the columns do not form a tree: class {first} of column {fine} stands under {above} of column {fine + 1} "
            f"({len(twice)} such class(es)), and counts as one class under each; give it an id for each parent, or order "
            f"the columns finest first."
        )
    return None


def classes_with_two_parents(
    child: Integer[Tensor, "rows *set"], parent: Integer[Tensor, "rows *set"]
) -> Integer[Tensor, " classes"]:
    """The classes of `child` that have more than one parent in `parent`, ascending; rows without a class do not count.

    Of sets, `[rows, M]`, these are the classes without a parent that is in the sets of all their rows: which of an image's
    parents belongs to which of its classes is not known, but one that fits all images of the class must exist.
    """
    if child.ndim == 2:
        return _classes_without_common_parent(child, parent)
    ordered, order = child.sort(stable=True)
    above = parent[order]
    differing = (ordered[1:] == ordered[:-1]) & (above[1:] != above[:-1]) & (ordered[1:] >= 0)
    return ordered[1:][differing].unique()


def _classes_without_common_parent(child: Tensor, parent: Tensor) -> Tensor:
    (classes, own), (parents, above) = (_distinct_members(sets).unique(return_inverse=True) for sets in (child, parent))
    rows = own.flatten().bincount(minlength=len(classes))  # of each class
    pairs = (own[:, :, None] * len(parents) + above[:, None, :])[
        (classes[own] >= 0)[:, :, None] & (parents[above] >= 0)[:, None, :]
    ]
    pair, shared = pairs.unique(return_counts=True)
    most = torch.zeros_like(rows).scatter_reduce(0, pair // len(parents), shared, "amax")
    return classes[(classes >= 0) & (most < rows)]


def _distinct_members(sets: Tensor) -> Tensor:
    """The sets `[rows, M]` with each member once, −1 in place of a repeated one."""
    ordered = sets.sort(dim=1).values
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return ordered.masked_fill(repeated, NO_LABEL)
