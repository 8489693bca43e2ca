"""Where two branches differ: labels in other places, groups of other names, groups under other parents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from suprank.hierarchy.tree import Group, Hierarchy, Label

Kind = Literal["label", "name", "parent"]
KINDS: tuple[Kind, ...] = ("label", "name", "parent")
_NOTHING = {"label": "not looked at yet", "name": "", "parent": "no parent"}


@dataclass(frozen=True)
class View:
    """What one branch says: a group (the label's, the pair's, the parent), or a reason to exclude, or (neither) nothing."""

    group: int | None = None
    name: str = ""
    reason: str | None = None
    note: str = ""
    """On the group."""

    def said(self, kind: Kind) -> str:
        """In words."""
        if self.group is not None:
            return self.name
        return f"excluded: {self.reason}" if self.reason is not None else _NOTHING[kind]


@dataclass(frozen=True)
class Disagreement:
    """`subject` is the id of the label, or those of the two groups as "3|7"; `level` that of the group, 0 for a label."""

    kind: Kind
    subject: str
    about: str
    weight: int
    level: int
    first: View
    second: View

    @property
    def sides(self) -> tuple[str, str]:
        """What the two branches say, in words."""
        return self.first.said(self.kind), self.second.said(self.kind)


def disagreements(first: Hierarchy, second: Hierarchy, partners: Mapping[int, int]) -> list[Disagreement]:
    """All of them: labels, names, then parents, each the heaviest first."""
    found = [*_labels(first, second, partners), *_of_groups(first, second, partners)]
    return sorted(found, key=lambda one: (KINDS.index(one.kind), -one.weight, key_of(one.about), one.subject))


def _labels(first: Hierarchy, second: Hierarchy, partners: Mapping[int, int]) -> Iterator[Disagreement]:
    """Labels whose groups are no partners, that one branch alone excludes, or that a branch does not know yet."""
    for label in first.labels.values():
        other = second.labels.get(label.id)
        if other is None:
            continue  # cleaning ran between two readings
        if label.group is not None and other.group is not None and partners.get(label.group) == other.group:
            continue
        if label.reason is not None and other.reason is not None:
            continue
        views = _place(first, label), _place(second, other)
        yield Disagreement("label", str(label.id), label.text, label.weight, 0, *views)


def _of_groups(first: Hierarchy, second: Hierarchy, partners: Mapping[int, int]) -> Iterator[Disagreement]:
    for one, two in partners.items():
        left, right = first.groups[one], second.groups[two]
        about = left.name if left.name == right.name else f"{left.name} | {right.name}"
        subject, weight = f"{one}|{two}", max(first.weights[one], second.weights[two])
        if left.name != right.name:
            yield Disagreement("name", subject, about, weight, left.level, _view(left), _view(right))
        above = None if left.parent is None else partners.get(left.parent)
        if above != right.parent or (above is None and left.parent is not None):
            views = _parent(first, left), _parent(second, right)
            yield Disagreement("parent", subject, about, weight, left.level, *views)


def _place(hierarchy: Hierarchy, label: Label) -> View:
    return View(reason=label.reason) if label.group is None else _view(hierarchy.groups[label.group])


def _parent(hierarchy: Hierarchy, group: Group) -> View:
    return View(note=group.note) if group.parent is None else _view(hierarchy.groups[group.parent])


def _view(group: Group) -> View:
    return View(group.id, group.name, None, group.note)
