"""The act of settling: labels, names and parents in one go, with the groups that this needs. One event, one step of undo."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from suprank.hierarchy.review.acts import ConflictError, RefusedError, check_name
from suprank.hierarchy.review.changes import Changes, GroupRow, Place, State
from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suprank.hierarchy.agreement.disagreements import Kind


@dataclass(frozen=True)
class Called:
    """The group of this name: one of the branch, or of the plan, or else a new one."""

    name: str


Wanted = int | str | Called | None
"""A group, by its id in the plan or by its name; a text, which is a label's reason to be excluded or a name; or no parent."""


@dataclass(frozen=True)
class Settle:
    """Labels into groups or out, names and parents for groups: what is wanted of each, by the id of the label or group.

    Groups of the plan that are not there yet are made, with their parents. `seen` is how each subject stood for the one who
    decides; where that is no longer so, `ConflictError` is raised.
    """

    plan: Mapping[int, GroupRow]
    said: str
    wanted: Mapping[tuple[Kind, int], Wanted]
    seen: Mapping[tuple[Kind, int], str] = field(default_factory=dict)

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        draft = _Draft(state, self.plan)
        for (kind, subject), was in self.seen.items():
            if standing(state, draft.before, kind, subject) != was:
                raise ConflictError("This was decided meanwhile; nothing was saved.", ())
        targets: dict[int, Place] = {}
        for (kind, subject), wanted in self.wanted.items():
            if kind == "label":
                targets[subject] = wanted if isinstance(wanted, str) else draft.group(wanted, 1, depth)
            elif kind == "parent":
                row = draft.row(subject)
                assert not isinstance(wanted, str)
                draft.after[subject] = replace(row, parent=draft.group(wanted, row.level + 1, depth))
            else:
                assert isinstance(wanted, str)
                draft.rename(subject, wanted)
        return draft.changes(targets), self.said


def standing(state: State, groups: Mapping[int, GroupRow], kind: Kind, subject: int) -> str:
    """How a subject stands on the branch, as a text that changes whenever it does: where a label is, a name, a parent."""
    if kind == "label":
        place = state.places([subject])[subject]
        return f"#{place}" if isinstance(place, int) else place or ""
    row = groups.get(subject)
    if row is None:
        return ""
    return row.name if kind == "name" else f"#{row.parent or ''}"


class _Draft:
    """The groups of the branch as they are to become."""

    def __init__(self, state: State, plan: Mapping[int, GroupRow]) -> None:
        self.state, self.plan, self.before = state, plan, state.groups()
        self.after = dict(self.before)
        self._next = max(state.next_id(), max(plan, default=0) + 1)

    def row(self, group: int) -> GroupRow:
        if group not in self.after:
            raise ConflictError("A group is no longer there: it was merged, emptied or removed meanwhile.", (group,))
        return self.after[group]

    def group(self, wanted: int | Called | None, level: int, depth: int) -> int | None:
        """The group that is wanted, made where it is not there."""
        if isinstance(wanted, Called):
            return self._called(wanted.name, level, depth)
        return None if wanted is None else self._there(wanted)

    def _there(self, group: int) -> int:
        """A group of the branch, or of the plan: made if it is not there, unless another has its name, which is it then."""
        if group in self.after:
            return group
        row = self.plan.get(group)
        if row is None:
            raise ConflictError("A group is no longer there: it was merged, emptied or removed meanwhile.", (group,))
        if (same := self._namesake(row.name, row.level)) is not None:
            return same
        self.after[group] = row  # before its parent, which is of another level and never below it
        self.after[group] = replace(row, parent=None if row.parent is None else self._there(row.parent))
        return group

    def _called(self, name: str, level: int, depth: int) -> int:
        """The group of this name, new where there is none."""
        check_name(name)
        if level > depth:
            raise RefusedError(f"There is no level {level}; this project has {depth} levels of groups.")
        if (same := self._namesake(name, level)) is not None:
            return same
        for one, row in self.plan.items():
            if row.level == level and key_of(row.name) == key_of(name):
                return self._there(one)
        made, self._next = self._next, self._next + 1
        self.after[made] = GroupRow(level, name)
        return made

    def rename(self, group: int, name: str) -> None:
        check_name(name)
        row = self.row(group)
        same = self._namesake(name, row.level)
        if same is not None and same != group:
            found = self.after[same].name
            raise RefusedError(f"There is a group called {found!r} already; merge with it, or choose another name.", same)
        self.after[group] = replace(row, name=name, named=True)

    def changes(self, targets: Mapping[int, Place]) -> Changes:
        """With the labels on their ways, and without the groups that are empty then."""
        places = self.state.places(targets)
        if None in places.values():
            raise RefusedError("A label is not on this branch.")
        ways = {label: (places[label], target) for label, target in targets.items() if places[label] != target}
        leaving = Counter(before for before, _ in ways.values() if isinstance(before, int))
        coming = {after for _, after in ways.values()}
        for group, count in leaving.items():
            if group not in coming and count == len(self.state.labels_of(group)):
                del self.after[group]
        ids = sorted(self.before.keys() | self.after)
        rows = {one: (self.before.get(one), self.after.get(one)) for one in ids}
        return Changes({one: pair for one, pair in rows.items() if pair[0] != pair[1]}, ways)

    def _namesake(self, name: str, level: int) -> int | None:
        wanted = key_of(name)
        return next((one for one, row in self.after.items() if row.level == level and key_of(row.name) == wanted), None)
