"""Groups as new levels of a manifest, above the level whose names are items or labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from suprank.data.columns import PREFIX
from suprank.data.manifest import Manifest
from suprank.hierarchy.exporting.tables import Item
from suprank.hierarchy.text import key_of
from suprank.hierarchy.tree import Hierarchy

_NAMED = 3


@dataclass(frozen=True)
class Labeled:
    """The manifest with new levels; how many rows were left out; levels that stood above before and are replaced."""

    manifest: Manifest
    dropped: int
    replaced: tuple[str, ...]


def labeled_manifest(
    manifest: Manifest, level: str, tree: Hierarchy, items: Sequence[Item] = (), *, drop_unlabeled: bool = False
) -> Labeled:
    """Add the group of every level as `label_<level>`, above `level`; levels that stood above it are replaced.

    A name is an item's key where one split has it, its "SPLIT KEY", or ends in "(SPLIT KEY)"; in a project without items a
    label, in any of its spellings. Rows whose name is unknown or has no group on every level are refused, or left out with
    `drop_unlabeled`. Distractors without labels stay.
    """
    if level not in manifest.levels:
        raise ValueError(f"the manifest has no level {level!r}; choose from {', '.join(manifest.levels)}.")
    place = manifest.levels.index(level)
    clash = set(tree.levels[1:]) & set(manifest.levels[: place + 1])
    if clash:
        raise ValueError(f"{sorted(clash)[0]!r} is a level of the manifest that is labeled; call the groups otherwise.")
    names = manifest.names[level]
    found = _paths(names, tree, items)
    ids = manifest.labels[:, place]
    known = np.array([path is not None for path in found] + [True])  # the last for −1, of distractors without a label
    wrong = ~known[ids]
    if wrong.any() and not drop_unlabeled:
        missing = [names[one] for one in np.unique(ids[wrong])]
        some = ", ".join(map(repr, missing[:_NAMED])) + (", ..." if len(missing) > _NAMED else "")
        raise ValueError(
            f"{int(wrong.sum()):,} of {len(ids):,} rows have a {level} without a group ({len(missing):,}: {some}); leave them "
            f"out with --drop-unlabeled, or review on."
        )
    if wrong.all():
        raise ValueError(f"no {level} of the manifest is an item or label of the project; is it the right level?")
    kept = manifest.take(~wrong)
    below = manifest.levels[: place + 1]
    kept = Manifest.of(kept.table, root=manifest.root, levels=below, names={one: manifest.names[one] for one in below})
    codes = pa.array([None if one < 0 else int(one) for one in kept.labels[:, place]], pa.int32())
    columns = {}
    for number, name in enumerate(tree.levels[1:]):
        texts = pa.array([None if path is None else path[number] for path in found], pa.string())
        columns[PREFIX + name] = texts.take(codes).dictionary_encode()
    return Labeled(kept.with_columns(**columns), int(wrong.sum()), manifest.levels[place + 1 :])


def _paths(names: Sequence[str], tree: Hierarchy, items: Sequence[Item]) -> list[tuple[str, ...] | None]:
    """The groups of each name, finest first; None where it is unknown, or lacks a group on some level."""
    groups = {label.id: found for label in tree.labels.values() if all(found := tree.names(label))}
    if not items:
        labels = {label.key: label.id for label in tree.labels.values()}
        return [groups.get(labels.get(key_of(name), -1)) for name in names]
    called = {item.name: item.label for item in items}
    keys = Counter(item.key for item in items)
    called |= {item.key: item.label for item in items if keys[item.key] == 1 and item.key not in called}
    found_labels = (called.get(name if name in called else _in_brackets(name)) for name in names)
    return [None if label is None else groups.get(label) for label in found_labels]


def _in_brackets(name: str) -> str:
    """What stands in the brackets at the end: "Arena (train 7)" is "train 7"."""
    return name[name.rfind("(") + 1 : -1] if name.endswith(")") else ""
