"""What a branch says: which group each label is in, which group stands under which. Read in one go, never written."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from suprank.hierarchy.project import Project

FINAL = "final"
UNSETTLED = "unsettled"
"""The reason of labels that two annotators put in different places and nobody has decided on yet."""


@dataclass(frozen=True)
class Group:
    """A group of level 1 holds labels; one of level n holds groups of level n − 1. `parent` is None where none was assigned."""

    id: int
    level: int
    name: str
    parent: int | None = None
    state: str = "done"
    note: str = ""
    named: bool = True
    """False while the name is a suggestion that nobody has taken."""


@dataclass(frozen=True)
class Label:
    """A label and its place: in a group, or excluded for a reason, or (neither) not yet known to the branch."""

    id: int
    key: str
    text: str
    weight: int = 1
    group: int | None = None
    reason: str | None = None


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Groups and labels by their ids, in the order of these.

    `levels[0]` names what is labeled and `levels[n]` the groups of level n. `branch` and `seq` say what it was read from:
    a branch, and the last event in its log.

    Example:
        >>> birds = Hierarchy.of({"jay": ("Corvidae", "songbird"), "crow": ("Corvidae", "songbird"), "rook": None},
        ...                      levels=("species", "family", "order"), weights={"jay": 3})
        >>> [group.name for group in birds.path(birds.labeled["jay"])], birds.weights
        (['Corvidae', 'songbird'], {1: 4, 2: 4})
        >>> birds.labeled["rook"].reason
        'no group is named'
    """

    levels: tuple[str, ...]
    groups: dict[int, Group]
    labels: dict[int, Label]
    branch: str = ""
    seq: int = 0

    @classmethod
    def of(
        cls,
        paths: Mapping[str, Sequence[str | None] | None],
        *,
        levels: Sequence[str],
        weights: Mapping[str, int] | None = None,
        excluded: Mapping[str, str] | None = None,
    ) -> Hierarchy:
        """The hierarchy of labels whose groups are given by name, finest first; None, or a blank first name, for no group.

        Labels and groups are numbered from 1 in the order in which they come. A name under two parents is two groups. A path
        may end early, in None or "": its last group then has no parent.
        """
        numbers: dict[tuple[str, ...], int] = {}
        groups: dict[int, Group] = {}
        labels: dict[int, Label] = {}
        for number, (text, path) in enumerate(paths.items(), start=1):
            names: list[str] = []
            for name in path or ():
                if not name:
                    break
                names.append(name)
            if len(names) >= len(levels):
                raise ValueError(
                    f"{text!r} has {len(names)} groups above it, but levels {tuple(levels)} have {len(levels) - 1}."
                )
            reason = (excluded or {}).get(text, None if names else "no group is named")
            weight = (weights or {}).get(text, 1)
            if reason is not None:
                labels[number] = Label(number, key_of(text), text, weight, None, reason)
                continue
            places = []
            for level in range(1, len(names) + 1):
                path_up = tuple(names[level - 1 :])
                places.append(numbers.setdefault((str(level), *path_up), len(numbers) + 1))
            for level, (place, name) in enumerate(zip(places, names, strict=True), start=1):
                parent = places[level] if level < len(places) else None
                groups.setdefault(place, Group(place, level, name, parent))
            labels[number] = Label(number, key_of(text), text, weight, places[0])
        return cls(tuple(levels), dict(sorted(groups.items())), labels)

    @property
    def depth(self) -> int:
        """How many levels of groups there are."""
        return len(self.levels) - 1

    @cached_property
    def labeled(self) -> dict[str, Label]:
        """Labels by their text. Two labels may share a text (two types of one name): the heavier, or else the first, counts."""
        found: dict[str, Label] = {}
        for label in self.labels.values():
            if label.text not in found or label.weight > found[label.text].weight:
                found[label.text] = label
        return found

    @cached_property
    def members(self) -> dict[int, list[Label]]:
        """Group of level 1 → its labels, in the order of their ids; groups without labels have an empty list."""
        found: dict[int, list[Label]] = {group.id: [] for group in self.of_level(1)}
        for label in self.labels.values():
            if label.group is not None:
                found[label.group].append(label)
        return found

    @cached_property
    def children(self) -> dict[int | None, list[Group]]:
        """Group → the groups under it. Under None: the groups without a parent, of whatever level."""
        found: dict[int | None, list[Group]] = defaultdict(list)
        for group in self.groups.values():
            found[group.parent].append(group)
        return {None: found.pop(None, []), **{group: found.get(group, []) for group in self.groups}}

    @cached_property
    def weights(self) -> dict[int, int]:
        """Group → the sum of the weights of the labels under it."""
        return self._sums({group: sum(label.weight for label in labels) for group, labels in self.members.items()})

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Group → the number of labels under it."""
        return self._sums({group: len(labels) for group, labels in self.members.items()})

    def of_level(self, level: int) -> list[Group]:
        """The groups of a level, counted from 1."""
        return [group for group in self.groups.values() if group.level == level]

    def path(self, label: Label) -> tuple[Group, ...]:
        """The groups above a label, finest first; fewer than there are levels where a parent is missing, none if excluded."""
        found: list[Group] = []
        group = label.group
        while group is not None and len(found) < len(self.groups):
            found.append(self.groups[group])
            group = found[-1].parent
        return tuple(found)

    def names(self, label: Label) -> tuple[str, ...]:
        """The names of the groups above a label, one a level, "" where there is none."""
        found = [group.name for group in self.path(label)]
        return tuple(found + [""] * (self.depth - len(found)))

    def _sums(self, finest: dict[int, int]) -> dict[int, int]:
        found = {group: finest.get(group, 0) for group in self.groups}
        for level in range(1, self.depth):
            for group in self.of_level(level):
                if group.parent is not None:
                    found[group.parent] += found[group.id]
        return found


def branch_names(project: Project) -> list[str]:
    """The branches of a project, `final` last, else in the order in which they were made."""
    with project.reading() as db:
        return [row[0] for row in db.execute("SELECT name FROM branch ORDER BY kind = 'final', id")]


def chosen_branch(project: Project, name: str | None = None) -> str:
    """The branch of this name; without one `final` where it is there, else the only one."""
    there = branch_names(project)
    if not there:
        raise ValueError(f"{project.folder} has no branch yet; review its labels with `suprank hierarchy review`.")
    if name is not None and name not in there:
        raise ValueError(f"there is no branch {name!r}; choose from {', '.join(there)}.")
    if name is None and FINAL not in there and len(there) > 1:
        raise ValueError(f"there are several branches and no {FINAL!r}; choose with --branch from {', '.join(there)}.")
    return name or (FINAL if FINAL in there else there[0])


def read_hierarchy(project: Project, branch: str) -> Hierarchy:
    """What a branch says now. Labels that cleaning has removed since are left out; labels that came since have no place yet."""
    with project.reading() as db:
        return hierarchy_in(db, branch, project.recipe.levels)


def hierarchy_in(db: sqlite3.Connection, branch: str, levels: tuple[str, ...]) -> Hierarchy:
    """What a branch says, read through a connection that is open: for those who read or write more in one transaction."""
    found = db.execute("SELECT id FROM branch WHERE name = ?", (branch,)).fetchone()
    if found is None:
        there = [row[0] for row in db.execute("SELECT name FROM branch ORDER BY id")]
        raise ValueError(f"there is no branch {branch!r}; choose from {', '.join(there) or 'none: there are none yet'}.")
    number = found[0]
    rows = db.execute(
        'SELECT id, level, name, parent, state, note, named FROM "group" WHERE branch = ? ORDER BY id', (number,)
    ).fetchall()
    groups = {row[0]: Group(**{**dict(row), "named": bool(row["named"])}) for row in rows}
    rows = db.execute(
        'SELECT label.id, key, text, weight, member."group", member.reason FROM label '
        "LEFT JOIN member ON member.label = label.id AND member.branch = ? WHERE state = 'active' ORDER BY label.id",
        (number,),
    ).fetchall()
    labels = {row[0]: Label(*row) for row in rows}
    (seq,) = db.execute("SELECT coalesce(max(seq), 0) FROM event WHERE branch = ?", (number,)).fetchone()
    return Hierarchy(levels, groups, labels, branch, seq)
