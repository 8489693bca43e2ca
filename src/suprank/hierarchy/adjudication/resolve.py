"""The action that carries out decisions: labels, names and parents at once, as one event and one step of undo."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from suprank.hierarchy.review.actions import ConflictError, RefusedError, check_name, name_taken
from suprank.hierarchy.review.state import BranchState, Changes, GroupRow, Place
from suprank.hierarchy.text import label_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suprank.hierarchy.agreement.disagreements import Kind


@dataclass(frozen=True)
class GroupNamed:
    """The group with this name: one of the branch, one of the plan, or else a new group."""

    name: str


Target = int | str | GroupNamed | None
"""What a subject becomes: a group by its id in the plan or by name; a text (the reason to exclude a label, or the new name of a
group); or None for no parent."""


@dataclass(frozen=True)
class Resolve:
    """Put labels into groups or exclude them, and set names and parents of groups.

    Groups of the plan that do not exist yet are created, with their parents. `seen` is the fingerprint of each subject as the
    adjudicator saw it; if one differs now, `ConflictError` is raised.
    """

    plan: Mapping[int, GroupRow]
    summary: str
    targets: Mapping[tuple[Kind, int], Target]
    """By the kind of subject and the id of its label or group."""
    seen: Mapping[tuple[Kind, int], str] = field(default_factory=dict)

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        draft = _Draft(state, self.plan)
        for (kind, subject), seen in self.seen.items():
            if fingerprint(state, draft.before, kind, subject) != seen:
                raise ConflictError("This was decided in the meantime; nothing was saved.", ())
        places: dict[int, Place] = {}
        for (kind, subject), target in self.targets.items():
            if kind == "label":
                places[subject] = target if isinstance(target, str) else draft.group(target, 1, depth)
            elif kind == "parent":
                row = draft.row(subject)
                assert not isinstance(target, str)
                draft.after[subject] = replace(row, parent=draft.group(target, row.level + 1, depth))
            else:
                assert isinstance(target, str)
                draft.rename(subject, target)
        return draft.changes(places), self.summary


def fingerprint(state: BranchState, groups: Mapping[int, GroupRow], kind: Kind, subject: int) -> str:
    """A text that changes whenever the subject does: the place of a label, or the name or parent of a group."""
    if kind == "label":
        place = state.places([subject])[subject]
        return f"#{place}" if isinstance(place, int) else place or ""
    row = groups.get(subject)
    if row is None:
        return ""
    return row.name if kind == "name" else f"#{row.parent or ''}"


class _Draft:
    """The groups of the branch before and after the decisions."""

    def __init__(self, state: BranchState, plan: Mapping[int, GroupRow]) -> None:
        self.state, self.plan, self.before = state, plan, state.groups()
        self.after = dict(self.before)
        self._next_id = max(state.next_id(), max(plan, default=0) + 1)

    def row(self, group: int) -> GroupRow:
        if group not in self.after:
            raise _missing(group)
        return self.after[group]

    def group(self, target: int | GroupNamed | None, level: int, depth: int) -> int | None:
        """The id of the target group, which is created if it does not exist."""
        if isinstance(target, GroupNamed):
            return self._group_named(target.name, level, depth)
        return None if target is None else self._planned_group(target)

    def _planned_group(self, group: int) -> int:
        """A group of the branch or the plan, created if it does not exist; a group that already has its name replaces it."""
        if group in self.after:
            return group
        row = self.plan.get(group)
        if row is None:
            raise _missing(group)
        if (same := self._find_name(row.name, row.level)) is not None:
            return same
        self.after[group] = row  # before its parent, which is at another level and never below it
        self.after[group] = replace(row, parent=None if row.parent is None else self._planned_group(row.parent))
        return group

    def _group_named(self, name: str, level: int, depth: int) -> int:
        """The group with this name, created if there is none."""
        check_name(name)
        if level > depth:
            raise RefusedError(f"There is no level {level}; this project has {depth} levels of groups.")
        if (same := self._find_name(name, level)) is not None:
            return same
        for one, row in self.plan.items():
            if row.level == level and label_key(row.name) == label_key(name):
                return self._planned_group(one)
        new, self._next_id = self._next_id, self._next_id + 1
        self.after[new] = GroupRow(level, name)
        return new

    def rename(self, group: int, name: str) -> None:
        check_name(name)
        row = self.row(group)
        same = self._find_name(name, row.level)
        if same is not None and same != group:
            raise name_taken(self.after[same].name, same)
        self.after[group] = replace(row, name=name, named=True)

    def changes(self, targets: Mapping[int, Place]) -> Changes:
        """All changes: the moves of labels, and the groups without those that are empty afterwards."""
        places = self.state.places(targets)
        if None in places.values():
            raise RefusedError("A label is not on this branch.")
        moves = {label: (places[label], target) for label, target in targets.items() if places[label] != target}
        leaving = Counter(before for before, _ in moves.values() if isinstance(before, int))
        joined = {after for _, after in moves.values()}
        for group, count in leaving.items():
            if group not in joined and count == len(self.state.labels_in(group)):
                del self.after[group]
        ids = sorted(self.before.keys() | self.after)
        rows = {one: (self.before.get(one), self.after.get(one)) for one in ids}
        return Changes({one: pair for one, pair in rows.items() if pair[0] != pair[1]}, moves)

    def _find_name(self, name: str, level: int) -> int | None:
        key = label_key(name)
        return next((one for one, row in self.after.items() if row.level == level and label_key(row.name) == key), None)


def _missing(group: int) -> ConflictError:
    return ConflictError("A group no longer exists: it was merged, emptied or deleted in the meantime.", (group,))
