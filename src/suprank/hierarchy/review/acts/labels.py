"""Acts on labels: they become a group, go into another, or leave the tree."""

from __future__ import annotations

from dataclasses import dataclass

from suprank.hierarchy.review.acts.rules import (
    LONGEST_NAME,
    RefusedError,
    check_inside,
    counted,
    emptied,
    free_name,
    gone,
    is_line,
    placed,
    there,
)
from suprank.hierarchy.review.changes import Changes, GroupRow, State
from suprank.hierarchy.tree import UNSETTLED


@dataclass(frozen=True)
class Split:
    """Some labels of a group become a group of their own, under the same parent."""

    group: int
    labels: tuple[int, ...]
    name: str

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        row = there(state, self.group)
        places = placed(state, self.labels)
        check_inside(state, places, self.group)
        if len(places) == len(state.labels_of(self.group)):
            raise RefusedError(f"These are all labels of {row.name!r}; rename it instead.")
        name, new = free_name(state, self.name, 1), state.next_id()
        made = GroupRow(1, name, row.parent, cluster=row.cluster)
        changes = Changes({new: (None, made)}, dict.fromkeys(places, (self.group, new)))
        return changes, f"split {name!r} ({counted(places)}) off {row.name!r}"


@dataclass(frozen=True)
class Gather:
    """Labels, from whichever groups or excluded, become a group of their own. A group that is empty then is removed."""

    labels: tuple[int, ...]
    name: str

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        name, new = free_name(state, self.name, 1), state.next_id()
        changes = emptied(state, {label: (place, new) for label, place in placed(state, self.labels).items()})
        removed = gone(changes)
        changes.groups[new] = (None, GroupRow(1, name))
        return changes, f"gathered {counted(changes.labels)} as {name!r}{removed}"


@dataclass(frozen=True)
class Move:
    """Labels go into another group; excluded ones come back by it. A group that is empty then is removed.

    `of`, if given, is the group that all of them must be in.
    """

    labels: tuple[int, ...]
    to: int
    of: int | None = None

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        target = there(state, self.to)
        if target.level != 1:
            raise RefusedError(f"{target.name!r} holds groups, not labels; choose a group of the finest level.")
        places = placed(state, self.labels)
        check_inside(state, places, self.of)
        changes = emptied(state, {label: (place, self.to) for label, place in places.items()})
        return changes, f"moved {counted(changes.labels)} to {target.name!r}{gone(changes)}"


@dataclass(frozen=True)
class Exclude:
    """Labels leave the tree, for a reason. A group that is empty then is removed. `of` is as for `Move`."""

    labels: tuple[int, ...]
    reason: str
    of: int | None = None

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        reason = self.reason.strip()
        if reason == UNSETTLED or not is_line(reason):
            raise RefusedError(f"Give a reason of 1 to {LONGEST_NAME} characters, such as: not a kind of place.")
        places = placed(state, self.labels)
        check_inside(state, places, self.of)
        changes = emptied(state, {label: (place, reason) for label, place in places.items()})
        return changes, f"excluded {counted(changes.labels)}: {reason}{gone(changes)}"
