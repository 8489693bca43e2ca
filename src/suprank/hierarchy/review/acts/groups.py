"""Acts on groups: they merge, get names, parents, notes and marks, come and go."""

from __future__ import annotations

from dataclasses import dataclass, replace

from suprank.hierarchy.review.acts.rules import (
    LONGEST_TEXT,
    RefusedError,
    free_name,
    of_group,
    quoted,
    there,
)
from suprank.hierarchy.review.changes import Changes, GroupRow, State


@dataclass(frozen=True)
class Merge:
    """Groups of one level become one: all that they hold goes into the last named."""

    groups: tuple[int, ...]
    into: int

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        target = there(state, self.into)
        others = {one: there(state, one) for one in dict.fromkeys(self.groups) if one != self.into}
        if not others:
            raise RefusedError("Choose at least one other group to merge.")
        if strange := [row.name for row in others.values() if row.level != target.level]:
            raise RefusedError(f"{strange[0]!r} is of another level than {target.name!r}; only groups of one level merge.")
        changes = Changes()
        for one, row in others.items():
            changes.labels.update(dict.fromkeys(state.labels_of(one), (one, self.into)))
            for child in state.children_of(one):
                below = there(state, child)
                changes.groups[child] = (below, replace(below, parent=self.into))
            changes.groups[one] = (row, None)
        return changes, f"merged {quoted(row.name for row in others.values())} into {target.name!r}"


@dataclass(frozen=True)
class Rename:
    """A group gets another name, kept as it is typed; or its suggested name is taken."""

    group: int
    name: str

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        row = there(state, self.group)
        name = free_name(state, self.name, row.level, but=self.group)
        said = f"named {name!r}" if row.name == name else f"renamed {row.name!r} to {name!r}"
        return of_group(self.group, row, replace(row, name=name, named=True)), said


@dataclass(frozen=True)
class SetParent:
    """Groups of one level go under a group of the next; or under none, where `parent` is None."""

    groups: tuple[int, ...]
    parent: int | None

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        above = None if self.parent is None else there(state, self.parent)
        changes, names = Changes(), []
        for one in dict.fromkeys(self.groups):
            row = there(state, one)
            if above is not None and above.level != row.level + 1:
                raise RefusedError(
                    f"{row.name!r} is of level {row.level}, and cannot stand under {above.name!r} of {above.level}."
                )
            names.append(row.name)
            if row.parent != self.parent:
                changes.groups[one] = (row, replace(row, parent=self.parent))
        where = "under nothing" if above is None else f"under {above.name!r}"
        return changes, f"put {quoted(names)} {where}"


@dataclass(frozen=True)
class Create:
    """A new group without anything in it."""

    level: int
    name: str
    parent: int | None = None

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        if not 1 <= self.level <= depth:
            raise RefusedError(f"There is no level {self.level}; this project has {depth} levels of groups.")
        above = None if self.parent is None else there(state, self.parent)
        if above is not None and above.level != self.level + 1:
            raise RefusedError(f"A group of level {self.level} cannot stand under {above.name!r} of level {above.level}.")
        name = free_name(state, self.name, self.level)
        return Changes({state.next_id(): (None, GroupRow(self.level, name, self.parent))}), f"made {name!r}"


@dataclass(frozen=True)
class Delete:
    """A group that holds nothing is removed."""

    group: int

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        row = there(state, self.group)
        if held := len(state.labels_of(self.group)) + len(state.children_of(self.group)):
            raise RefusedError(f"{row.name!r} still holds {held:,}; merge it into another, or move what it holds.")
        return of_group(self.group, row, None), f"removed {row.name!r}"


@dataclass(frozen=True)
class Note:
    """A remark on a group, for oneself or for the other annotator."""

    group: int
    text: str

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        row = there(state, self.group)
        text = self.text.strip()
        if len(text) > LONGEST_TEXT:
            raise RefusedError(f"The note has {len(text):,} characters; {LONGEST_TEXT:,} are kept at most.")
        return of_group(self.group, row, replace(row, note=text)), f"noted on {row.name!r}"


@dataclass(frozen=True)
class Mark:
    """Groups are done, or open again. A name that is merely suggested has to be taken or changed before."""

    groups: tuple[int, ...]
    state: str

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        if self.state not in ("open", "done"):
            raise RefusedError(f"{self.state!r} is no state; choose from open and done.")
        changes, names = Changes(), []
        for one in dict.fromkeys(self.groups):
            row = there(state, one)
            if self.state == "done" and not row.named:
                raise RefusedError(f"{row.name!r} is only a suggestion; take the name, or give another, and mark it done then.")
            names.append(row.name)
            if row.state != self.state:
                changes.groups[one] = (row, replace(row, state=self.state))
        return changes, f"marked {quoted(names)} {self.state}"
