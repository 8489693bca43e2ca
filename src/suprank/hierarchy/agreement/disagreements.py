"""Match the groups of two branches, and list where the branches differ: places of labels, names and parents of groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from suprank.hierarchy.text import label_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from suprank.hierarchy.tree import Group, Hierarchy, Label

Kind = Literal["label", "name", "parent"]
KINDS: tuple[Kind, ...] = ("label", "name", "parent")
_MISSING = {"label": "not looked at yet", "name": "", "parent": "no parent"}


@dataclass(frozen=True)
class Annotation:
    """What one branch says about a subject.

    Either a group (the one a label is in, the group whose name is in question, or the parent), or the reason why a label is
    excluded, or neither where the branch says nothing yet.
    """

    group: int | None = None
    name: str = ""
    reason: str | None = None
    note: str = ""
    """The annotator's note on the group."""

    def description(self, kind: Kind) -> str:
        """The annotation in words."""
        if self.group is not None:
            return self.name
        return f"excluded: {self.reason}" if self.reason is not None else _MISSING[kind]


@dataclass(frozen=True)
class Disagreement:
    """One subject on which two branches differ.

    `subject` is the id of the label, or the ids of the two matched groups as "3|7". `level` is the level of the group, 0 for a
    label.
    """

    kind: Kind
    subject: str
    about: str
    weight: int
    level: int
    first: Annotation
    second: Annotation

    @property
    def descriptions(self) -> tuple[str, str]:
        """What the first and the second branch say, in words."""
        return self.first.description(self.kind), self.second.description(self.kind)


def match_groups(first: Hierarchy, second: Hierarchy) -> dict[int, int]:
    """Match groups of the first branch one to one with groups of the second; groups without a partner are left out.

    Groups of one level with the same name (`label_key`) are partners. The remaining groups of level 1 are paired so that the
    pairs share the largest total number of items, and at least one label each; a label without items counts as one item.
    Coarser groups are matched by name only.
    """
    partners: dict[int, int] = {}
    for level in range(1, first.depth + 1):
        by_name = {label_key(group.name): group.id for group in second.groups_at(level)}
        for group in first.groups_at(level):
            if (same := by_name.get(label_key(group.name))) is not None:
                partners[group.id] = same
    taken = set(partners.values())
    left = [group for group in first.groups_at(1) if group.id not in partners]
    right = [group for group in second.groups_at(1) if group.id not in taken]
    return dict(sorted({**partners, **_match_by_contents(first, second, left, right)}.items()))


def _match_by_contents(first: Hierarchy, second: Hierarchy, left: list[Group], right: list[Group]) -> dict[int, int]:
    """The one-to-one pairs whose shared weight is largest in total."""
    rows, columns = ({group.id: index for index, group in enumerate(groups)} for groups in (left, right))
    shared: Counter[tuple[int, int]] = Counter()
    for label in first.labels.values():
        other = second.labels.get(label.id)
        if other is not None and label.group in rows and other.group in columns:
            shared[rows[label.group], columns[other.group]] += max(label.weight, 1)
    if not shared:
        return {}
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    weights = np.zeros((len(left), len(right)))
    for cell, weight in shared.items():
        weights[cell] = weight
    pairs = zip(*linear_sum_assignment(weights, maximize=True), strict=True)
    return {left[row].id: right[column].id for row, column in pairs if weights[row, column] > 0}


def disagreements(first: Hierarchy, second: Hierarchy, partners: Mapping[int, int]) -> list[Disagreement]:
    """All disagreements: labels, then names, then parents, each sorted by weight, largest first."""
    found = [*_label_disagreements(first, second, partners), *_group_disagreements(first, second, partners)]
    return sorted(found, key=lambda one: (KINDS.index(one.kind), -one.weight, label_key(one.about), one.subject))


def _label_disagreements(first: Hierarchy, second: Hierarchy, partners: Mapping[int, int]) -> Iterator[Disagreement]:
    """Labels in groups that are not partners, excluded by one branch only, or not yet known to one branch."""
    for label in first.labels.values():
        other = second.labels.get(label.id)
        if other is None:
            continue  # cleaning ran between reading the two branches
        if label.group is not None and other.group is not None and partners.get(label.group) == other.group:
            continue
        if label.reason is not None and other.reason is not None:
            continue
        annotations = _place(first, label), _place(second, other)
        yield Disagreement("label", str(label.id), label.text, label.weight, 0, *annotations)


def _group_disagreements(first: Hierarchy, second: Hierarchy, partners: Mapping[int, int]) -> Iterator[Disagreement]:
    for one, two in partners.items():
        left, right = first.groups[one], second.groups[two]
        about = left.name if left.name == right.name else f"{left.name} | {right.name}"
        subject, weight = f"{one}|{two}", max(first.weights[one], second.weights[two])
        if left.name != right.name:
            yield Disagreement("name", subject, about, weight, left.level, _annotation(left), _annotation(right))
        parent = None if left.parent is None else partners.get(left.parent)
        if parent != right.parent or (parent is None and left.parent is not None):
            annotations = _parent(first, left), _parent(second, right)
            yield Disagreement("parent", subject, about, weight, left.level, *annotations)


def _place(hierarchy: Hierarchy, label: Label) -> Annotation:
    return Annotation(reason=label.reason) if label.group is None else _annotation(hierarchy.groups[label.group])


def _parent(hierarchy: Hierarchy, group: Group) -> Annotation:
    return Annotation(note=group.note) if group.parent is None else _annotation(hierarchy.groups[group.parent])


def _annotation(group: Group) -> Annotation:
    return Annotation(group.id, group.name, None, group.note)
