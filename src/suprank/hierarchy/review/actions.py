"""What an annotator can do to groups and labels. Each action reads the branch and returns what changes, or refuses."""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from suprank.hierarchy.review.state import BranchState, Changes, GroupRow, Place
from suprank.hierarchy.text import label_key, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NAME, MAX_TEXT = 200, 2000
"""Longest name (or reason) and longest note, in characters."""


class RefusedError(ValueError):
    """The action breaks a rule; nothing was saved. `merge_with` is the group that already has the requested name."""

    def __init__(self, message: str, merge_with: int | None = None) -> None:
        super().__init__(message)
        self.merge_with = merge_with


class ConflictError(ValueError):
    """The branch has changed since the annotator saw it; nothing was saved. `groups` are the ids of those that changed."""

    def __init__(self, message: str, groups: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.groups = groups


class Action(Protocol):
    """One step of an annotator. Its lowercase class name and a summary go into the log."""

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        """Return the changes to a branch with `depth` levels of groups, and a summary for the log."""
        ...


@dataclass(frozen=True)
class Merge:
    """Merge groups of one level: everything in `groups` goes into the group `into`."""

    groups: tuple[int, ...]
    into: int

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        target = existing_group(state, self.into)
        others = {one: existing_group(state, one) for one in dict.fromkeys(self.groups) if one != self.into}
        if not others:
            raise RefusedError("Choose at least one other group to merge.")
        if mismatched := [row.name for row in others.values() if row.level != target.level]:
            raise RefusedError(f"{mismatched[0]!r} and {target.name!r} are at different levels; merge groups of one level.")
        changes = Changes()
        for one, row in others.items():
            changes.labels.update(dict.fromkeys(state.labels_in(one), (one, self.into)))
            for child in state.children_of(one):
                child_row = existing_group(state, child)
                changes.groups[child] = (child_row, replace(child_row, parent=self.into))
            changes.groups[one] = (row, None)
        return changes, f"merged {quote_names(row.name for row in others.values())} into {target.name!r}"


@dataclass(frozen=True)
class Rename:
    """Give a group a name, saved exactly as typed; the current name accepts a suggestion."""

    group: int
    name: str

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        row = existing_group(state, self.group)
        name = unused_name(state, self.name, row.level, ignore=self.group)
        summary = f"named {name!r}" if row.name == name else f"renamed {row.name!r} to {name!r}"
        return _group_change(self.group, row, replace(row, name=name, named=True)), summary


@dataclass(frozen=True)
class SetParent:
    """Put groups of one level under a group of the next level, or under no group if `parent` is None."""

    groups: tuple[int, ...]
    parent: int | None

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        parent_row = None if self.parent is None else existing_group(state, self.parent)
        changes, names = Changes(), []
        for one in dict.fromkeys(self.groups):
            row = existing_group(state, one)
            if parent_row is not None and parent_row.level != row.level + 1:
                raise RefusedError(
                    f"{row.name!r} (level {row.level}) cannot go under {parent_row.name!r} (level {parent_row.level}); "
                    f"a parent is exactly one level up."
                )
            names.append(row.name)
            if row.parent != self.parent:
                changes.groups[one] = (row, replace(row, parent=self.parent))
        where = "under no group" if parent_row is None else f"under {parent_row.name!r}"
        return changes, f"put {quote_names(names)} {where}"


@dataclass(frozen=True)
class Create:
    """Create an empty group."""

    level: int
    name: str
    parent: int | None = None

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        if not 1 <= self.level <= depth:
            raise RefusedError(f"There is no level {self.level}; this project has {depth} levels of groups.")
        parent_row = None if self.parent is None else existing_group(state, self.parent)
        if parent_row is not None and parent_row.level != self.level + 1:
            raise RefusedError(
                f"A group of level {self.level} cannot go under {parent_row.name!r} (level {parent_row.level}); "
                f"a parent is exactly one level up."
            )
        name = unused_name(state, self.name, self.level)
        return Changes({state.next_id(): (None, GroupRow(self.level, name, self.parent))}), f"created {name!r}"


@dataclass(frozen=True)
class Delete:
    """Delete an empty group."""

    group: int

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        row = existing_group(state, self.group)
        if size := len(state.labels_in(self.group)) + len(state.children_of(self.group)):
            raise RefusedError(f"{row.name!r} is not empty, it still has {size:,} in it; merge it or move these first.")
        return _group_change(self.group, row, None), f"deleted {row.name!r}"


@dataclass(frozen=True)
class Note:
    """Write a note on a group, for yourself or for the other annotator."""

    group: int
    text: str

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        row = existing_group(state, self.group)
        text = self.text.strip()
        if len(text) > MAX_TEXT:
            raise RefusedError(f"The note has {len(text):,} characters; at most {MAX_TEXT:,} are allowed.")
        return _group_change(self.group, row, replace(row, note=text)), f"wrote a note on {row.name!r}"


@dataclass(frozen=True)
class Mark:
    """Mark groups as done, or as open again. A suggested name has to be accepted or changed first."""

    groups: tuple[int, ...]
    state: str

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        if self.state not in ("open", "done"):
            raise RefusedError(f"{self.state!r} is not a state; choose open or done.")
        changes, names = Changes(), []
        for one in dict.fromkeys(self.groups):
            row = existing_group(state, one)
            if self.state == "done" and not row.named:
                raise RefusedError(f"{row.name!r} is only a suggested name; accept or change it before you mark it done.")
            names.append(row.name)
            if row.state != self.state:
                changes.groups[one] = (row, replace(row, state=self.state))
        return changes, f"marked {quote_names(names)} {self.state}"


@dataclass(frozen=True)
class Split:
    """Move some labels of a group into a new group under the same parent."""

    group: int
    labels: tuple[int, ...]
    name: str

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        row = existing_group(state, self.group)
        places = places_of(state, self.labels)
        _check_in_group(state, places, self.group)
        if len(places) == len(state.labels_in(self.group)):
            raise RefusedError(f"These are all labels of {row.name!r}; rename it instead.")
        name, new = unused_name(state, self.name, 1), state.next_id()
        new_row = GroupRow(1, name, row.parent, cluster=row.cluster)
        changes = Changes({new: (None, new_row)}, dict.fromkeys(places, (self.group, new)))
        return changes, f"split {name!r} ({count_labels(places)}) off {row.name!r}"


@dataclass(frozen=True)
class Gather:
    """Collect labels from any groups, excluded ones too, in a new group. Groups left empty are deleted."""

    labels: tuple[int, ...]
    name: str

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        name, new = unused_name(state, self.name, 1), state.next_id()
        changes = _moves(state, {label: (place, new) for label, place in places_of(state, self.labels).items()})
        deleted = _deleted_groups(changes)
        changes.groups[new] = (None, GroupRow(1, name))
        return changes, f"gathered {count_labels(changes.labels)} as {name!r}{deleted}"


@dataclass(frozen=True)
class Move:
    """Move labels to another group; this also brings back excluded ones. Groups left empty are deleted.

    If `source` is given, all labels must be in that group.
    """

    labels: tuple[int, ...]
    to: int
    source: int | None = None

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        target = existing_group(state, self.to)
        if target.level != 1:
            raise RefusedError(f"{target.name!r} contains groups, not labels; choose a group of the finest level.")
        places = places_of(state, self.labels)
        _check_in_group(state, places, self.source)
        changes = _moves(state, {label: (place, self.to) for label, place in places.items()})
        return changes, f"moved {count_labels(changes.labels)} to {target.name!r}{_deleted_groups(changes)}"


@dataclass(frozen=True)
class Exclude:
    """Take labels out of the tree, for a reason. Groups left empty are deleted. `source` is as for `Move`."""

    labels: tuple[int, ...]
    reason: str
    source: int | None = None

    def changes(self, state: BranchState, depth: int) -> tuple[Changes, str]:
        reason = self.reason.strip()
        if not _is_valid_line(reason):
            raise RefusedError(f"Give a reason of 1 to {MAX_NAME} characters, such as: not a kind of place.")
        places = places_of(state, self.labels)
        _check_in_group(state, places, self.source)
        changes = _moves(state, {label: (place, reason) for label, place in places.items()})
        return changes, f"excluded {count_labels(changes.labels)}: {reason}{_deleted_groups(changes)}"


def existing_group(state: BranchState, group: int) -> GroupRow:
    """The row of a group, or a `ConflictError` if it no longer exists."""
    row = state.group(group)
    if row is None:
        raise ConflictError("A group no longer exists: it was merged, emptied or deleted in the meantime.", (group,))
    return row


def places_of(state: BranchState, labels: Iterable[int]) -> dict[int, Place]:
    """The places of these labels. At least one is required, and all must be on the branch."""
    places = state.places(dict.fromkeys(labels))
    if not places:
        raise RefusedError("Choose at least one label.")
    if None in places.values():
        raise RefusedError("A label is not on this branch.")
    return places


def check_name(name: str) -> None:
    """Refuse an invalid name. Joiners and all kinds of spaces are allowed, because labels of Wikidata have them."""
    if not _is_valid_line(name):
        raise RefusedError(f"A name must have 1 to {MAX_NAME} characters, on one line.")


def unused_name(state: BranchState, name: str, level: int, ignore: int | None = None) -> str:
    """Return the name as typed (lint reports surrounding spaces), or refuse it if another group of the level has it."""
    check_name(name)
    for one, row in state.groups().items():
        if one != ignore and row.level == level and label_key(row.name) == label_key(name):
            raise name_taken(row.name, one)
    return name


def name_taken(name: str, group: int) -> RefusedError:
    """The error for a name that a group already has."""
    return RefusedError(f"There is already a group called {name!r}; merge with it, or choose another name.", group)


def count_labels(labels: Iterable[int]) -> str:
    """The number of labels in words, such as "3 labels"."""
    return pluralize(len(list(labels)), "label")


def quote_names(names: Iterable[str]) -> str:
    """The first three names in quotes, and how many more there are."""
    quoted = [repr(name) for name in names]
    return ", ".join(quoted[:3]) + (f" and {len(quoted) - 3:,} more" if len(quoted) > 3 else "")


def _check_in_group(state: BranchState, places: dict[int, Place], group: int | None) -> None:
    """Refuse labels that have left the group since they were selected there; None skips the check."""
    if group is None:
        return
    row = existing_group(state, group)
    if moved := [label for label, place in places.items() if place != group]:
        verb = "is" if len(moved) == 1 else "are"
        raise ConflictError(f"{count_labels(moved)} {verb} no longer in {row.name!r}; nothing was saved.", (group,))


def _is_valid_line(text: str) -> bool:
    """Whether a text can be a name or a reason: not blank, not too long, on one line, without control characters."""
    control = {"Cc", "Cs", "Zl", "Zp"}
    return bool(text.strip()) and len(text) <= MAX_NAME and not any(unicodedata.category(one) in control for one in text)


def _group_change(group: int, before: GroupRow, after: GroupRow | None) -> Changes:
    """The change of one group; empty if it stays the same."""
    return Changes({} if before == after else {group: (before, after)})


def _moves(state: BranchState, moves: dict[int, tuple[Place, Place]]) -> Changes:
    """The moves of labels to other places, and the deletion of groups that are empty afterwards."""
    moves = {label: move for label, move in moves.items() if move[0] != move[1]}
    changes = Changes(labels=moves)
    leaving = Counter(before for before, _ in moves.values() if isinstance(before, int))
    for source, count in leaving.items():
        if count == len(state.labels_in(source)):
            changes.groups[source] = (existing_group(state, source), None)
    return changes


def _deleted_groups(changes: Changes) -> str:
    """The end of a summary that names the groups that are deleted because they are empty."""
    names = [before.name for before, after in changes.groups.values() if before is not None and after is None]
    return f"; deleted {quote_names(names)}, now empty" if names else ""
