"""The tables of an export, as bytes: nothing in them depends on when or where they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from suprank.hierarchy.recipe import Recipe
from suprank.hierarchy.strict import csv_bytes
from suprank.hierarchy.tree import Hierarchy

if TYPE_CHECKING:
    import sqlite3


class Item(NamedTuple):
    """An item with the id of its label, if it has one."""

    split: str
    key: str
    source: str
    label: int | None

    @property
    def name(self) -> str:
        """What manifests call it: the numbers of two splits are two number spaces."""
        return f"{self.split} {self.key}"


def items_in(db: sqlite3.Connection) -> list[Item]:
    """All items in the order in which they came."""
    rows = db.execute("SELECT split, key, source, label FROM item LEFT JOIN item_label ON item = item.id ORDER BY item.id")
    return [Item(*row) for row in rows]


def published(tree: Hierarchy, items: Sequence[Item], recipe: Recipe) -> dict[str, bytes]:
    """`<split>_label_to_hierarchical.csv` of every split, with the published columns; cells are as they are.

    Every item has its row: one without a label has empty cells, and one whose label is excluded has that label and no
    groups. The groups of a row are all there or all empty.
    """
    columns = (recipe.export.id, recipe.export.source, recipe.export.type, *recipe.levels[1:])
    groups = {label.id: tree.names(label) for label in tree.labels.values()}
    texts = {label.id: label.text for label in tree.labels.values()}
    nothing = ("",) * tree.depth

    def rows(split: str) -> Iterator[Sequence[object]]:
        for item in items:
            if item.split == split:
                found = nothing if item.label is None else groups.get(item.label, nothing)
                text = "" if item.label is None else texts.get(item.label, "")
                yield item.key, item.source, text, *(found if all(found) else nothing)

    splits = dict.fromkeys(item.split for item in items)
    return {f"{split}_label_to_hierarchical.csv": csv_bytes(columns, rows(split), raw=True) for split in splits}


def labels_csv(tree: Hierarchy, *, raw: bool = False) -> bytes:
    """label, weight, its group on every level, and why it is excluded, if it is."""
    rows = (
        (label.text, label.weight, *tree.names(label), _excluded(label.group, label.reason))
        for label in sorted(tree.labels.values(), key=lambda label: (label.text, label.id))
    )
    return csv_bytes(("label", "weight", *tree.levels[1:], "excluded"), rows, raw=raw)


def groups_csv(tree: Hierarchy, *, raw: bool = False) -> bytes:
    """Every group with its number in the branch, which stays when it is renamed or moved."""
    rows = (
        (tree.levels[group.level], group.id, group.name, group.parent or "", tree.sizes[group.id], tree.weights[group.id])
        for group in sorted(tree.groups.values(), key=lambda group: (group.level, group.id))
    )
    return csv_bytes(("level", "id", "name", "parent", "labels", "items"), rows, raw=raw)


def _excluded(group: int | None, reason: str | None) -> str:
    return "" if group is not None else reason or "no place yet"
