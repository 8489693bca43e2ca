"""The forms of an exported hierarchy, independent of the time: CSV tables, a label tree, and new levels of a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from suprank.data.columns import PREFIX
from suprank.data.manifest import Manifest
from suprank.data.tree import NO_PARENT, LabelTree
from suprank.files.spreadsheets import csv_bytes
from suprank.hierarchy.recipe import Recipe
from suprank.hierarchy.text import label_key
from suprank.hierarchy.tree import Group, Hierarchy

if TYPE_CHECKING:
    import sqlite3

_MAX_NAMED = 3  # missing names that a message lists


class ExportItem(NamedTuple):
    """An item with the id of its label, if it has one."""

    split: str
    key: str
    source: str
    label: int | None

    @property
    def name(self) -> str:
        """The item's name in manifests; the split is part of it, because keys of different splits are unrelated."""
        return f"{self.split} {self.key}"


def read_export_items(db: sqlite3.Connection) -> list[ExportItem]:
    """All items, in the order in which they were added."""
    rows = db.execute("SELECT split, key, source, label FROM item LEFT JOIN item_label ON item = item.id ORDER BY item.id")
    return [ExportItem(*row) for row in rows]


def published_csvs(tree: Hierarchy, items: Sequence[ExportItem], recipe: Recipe) -> dict[str, bytes]:
    """`<split>_label_to_hierarchical.csv` for every split, with the columns of the published H-GLDv2; cells are not escaped.

    Every item has a row: without a label its cells are empty; with an excluded label it has that label and no groups. The
    groups of a row are all present or all empty.
    """
    columns = (recipe.export.id, recipe.export.source, recipe.export.type, *recipe.levels[1:])
    groups = {label.id: tree.names(label) for label in tree.labels.values()}
    texts = {label.id: label.text for label in tree.labels.values()}
    empty = ("",) * tree.depth

    def rows(split: str) -> Iterator[Sequence[object]]:
        for item in items:
            if item.split == split:
                names = empty if item.label is None else groups.get(item.label, empty)
                text = "" if item.label is None else texts.get(item.label, "")
                yield item.key, item.source, text, *(names if all(names) else empty)

    splits = dict.fromkeys(item.split for item in items)
    return {f"{split}_label_to_hierarchical.csv": csv_bytes(columns, rows(split), raw=True) for split in splits}


def labels_csv(tree: Hierarchy, *, raw: bool = False) -> bytes:
    """Each label with its weight, its group on every level, and the reason if it is excluded."""
    rows = (
        (label.text, label.weight, *tree.names(label), _exclusion_reason(label.group, label.reason))
        for label in sorted(tree.labels.values(), key=lambda label: (label.text, label.id))
    )
    return csv_bytes(("label", "weight", *tree.levels[1:], "excluded"), rows, raw=raw)


def groups_csv(tree: Hierarchy, *, raw: bool = False) -> bytes:
    """Every group with its id in the branch, which stays when the group is renamed or moved."""
    rows = (
        (tree.levels[group.level], group.id, group.name, group.parent or "", tree.sizes[group.id], tree.weights[group.id])
        for group in sorted(tree.groups.values(), key=lambda group: (group.level, group.id))
    )
    return csv_bytes(("level", "id", "name", "parent", "labels", "items"), rows, raw=raw)


def _exclusion_reason(group: int | None, reason: str | None) -> str:
    return "" if group is not None else reason or "no place yet"


def label_tree(tree: Hierarchy, items: Mapping[str, int] | None = None) -> LabelTree:
    """The hierarchy as a label tree, with classes in alphabetical order as in a manifest. Labels without a group are left out.

    `items` maps the names of items to the ids of their labels, and makes them the finest classes, with one image each. Without
    it the labels are the finest classes, with their weights as numbers of images. If two groups of a level share a name, which
    lint reports, the second gets its id appended.
    """
    names: list[list[str]] = []
    index: dict[int, int] = {}  # group → its index in its level
    ordered: list[list[Group]] = []
    for level in range(1, tree.depth + 1):
        by_name: dict[str, Group] = {}
        for group in tree.groups_at(level):
            by_name[f"{group.name} #{group.id}" if group.name in by_name else group.name] = group
        names.append(sorted(by_name))
        ordered.append([by_name[name] for name in names[-1]])
        index.update({group.id: place for place, group in enumerate(ordered[-1])})
    if items is None:
        fine = {label.text: (index[label.group], label.weight) for label in tree.labels.values() if label.group is not None}
    else:
        parent_of_label = {label.id: index[label.group] for label in tree.labels.values() if label.group is not None}
        fine = {name: (parent_of_label[label], 1) for name, label in items.items() if label in parent_of_label}
    finest = sorted(fine)
    parents = [np.array([fine[name][0] for name in finest], np.int64)]
    images = [np.array([fine[name][1] for name in finest], np.int64)]
    for level, groups in enumerate(ordered):
        weight = np.zeros(len(groups), np.int64)
        np.add.at(weight, parents[level][parents[level] != NO_PARENT], images[level][parents[level] != NO_PARENT])
        images.append(weight)
        parents.append(np.array([NO_PARENT if group.parent is None else index[group.parent] for group in groups], np.int64))
    return LabelTree(tree.levels, (tuple(finest), *(tuple(some) for some in names)), tuple(parents[:-1]), tuple(images))


@dataclass(frozen=True)
class LabeledManifest:
    """A manifest with new levels, the number of rows that were dropped, and the previous levels that were replaced."""

    manifest: Manifest
    dropped: int
    replaced: tuple[str, ...]


def labeled_manifest(
    manifest: Manifest, level: str, tree: Hierarchy, items: Sequence[ExportItem] = (), *, drop_unlabeled: bool = False
) -> LabeledManifest:
    """Add the groups of every level to a manifest as `label_<level>`, above `level`; previous levels above it are replaced.

    A name on `level` is matched with an item: it is the item's key if only one split has that key, its "SPLIT KEY", or ends in
    "(SPLIT KEY)". In a project without items it is a label in any spelling. Rows whose name is unknown, or lacks a group on
    some level, are refused, or dropped with `drop_unlabeled`. Distractors without labels stay.
    """
    if level not in manifest.levels:
        raise ValueError(f"the manifest has no level {level!r}; choose from {', '.join(manifest.levels)}.")
    position = manifest.levels.index(level)
    clash = set(tree.levels[1:]) & set(manifest.levels[: position + 1])
    if clash:
        raise ValueError(f"{sorted(clash)[0]!r} is a level of the manifest that is labeled; call the groups otherwise.")
    names = manifest.names[level]
    paths = _paths(names, tree, items)
    ids = manifest.labels[:, position]
    known = np.array([path is not None for path in paths] + [True])  # the last for −1, of distractors without a label
    unlabeled = ~known[ids]
    if unlabeled.any() and not drop_unlabeled:
        missing = [names[name] for name in np.unique(ids[unlabeled])]
        examples = ", ".join(map(repr, missing[:_MAX_NAMED])) + (", ..." if len(missing) > _MAX_NAMED else "")
        raise ValueError(
            f"{int(unlabeled.sum()):,} of {len(ids):,} rows have a {level} without a group ({len(missing):,}: {examples}); "
            "drop them with drop_unlabeled, or continue the review."
        )
    if unlabeled.all():
        raise ValueError(f"no {level} of the manifest is an item or label of the project; is it the right level?")
    remaining = manifest.take(~unlabeled)
    below = manifest.levels[: position + 1]
    base = Manifest.from_columns(
        remaining.table, root=manifest.root, levels=below, names={one: manifest.names[one] for one in below}
    )
    codes = pa.array([None if code < 0 else int(code) for code in base.labels[:, position]], pa.int32())
    columns = {}
    for number, name in enumerate(tree.levels[1:]):
        texts = pa.array([None if path is None else path[number] for path in paths], pa.string())
        columns[PREFIX + name] = texts.take(codes).dictionary_encode()
    return LabeledManifest(base.with_columns(**columns), int(unlabeled.sum()), manifest.levels[position + 1 :])


def _paths(names: Sequence[str], tree: Hierarchy, items: Sequence[ExportItem]) -> list[tuple[str, ...] | None]:
    """The groups of each name, finest first; None if it is unknown, or lacks a group on some level."""
    groups = {label.id: path for label in tree.labels.values() if all(path := tree.names(label))}
    if not items:
        labels = {label.key: label.id for label in tree.labels.values()}
        return [groups.get(labels.get(label_key(name), -1)) for name in names]
    label_by_name = {item.name: item.label for item in items}
    keys = Counter(item.key for item in items)
    label_by_name |= {item.key: item.label for item in items if keys[item.key] == 1 and item.key not in label_by_name}
    found = (label_by_name.get(name if name in label_by_name else _last_brackets(name)) for name in names)
    return [None if label is None else groups.get(label) for label in found]


def _last_brackets(name: str) -> str:
    """The content of the brackets at the end: "train 7" for "Arena (train 7)"."""
    return name[name.rfind("(") + 1 : -1] if name.endswith(")") else ""
