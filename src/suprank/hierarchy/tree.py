"""The hierarchy of a branch: the group of each label and the parent of each group. It is read at once and never written."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from suprank.hierarchy.text import label_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from suprank.hierarchy.project import Project

FINAL = "final"
"""The branch that is exported if there are several."""


@dataclass(frozen=True)
class Group:
    """A group of level 1 holds labels; one of level n holds groups of level n − 1. `parent` is None if none was assigned."""

    id: int
    level: int
    name: str
    parent: int | None = None
    state: str = "done"
    note: str = ""
    named: bool = True
    """False while the name is a suggestion that nobody has accepted."""


@dataclass(frozen=True)
class Label:
    """A label and its place: in a group, excluded for a reason, or neither if the branch does not know it yet."""

    id: int
    key: str
    text: str
    weight: int = 1
    group: int | None = None
    reason: str | None = None
    doubt: str | None = None
    """What another annotator says, while it is not decided; see `open_branch`."""


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Groups and labels by their ids, in ascending order.

    `levels[0]` names what is labeled and `levels[n]` the groups of level n. `branch` is the branch it was read from, and
    `seq` the last event in its log at that time.

    Example:
        >>> birds = Hierarchy.from_paths({"jay": ("Corvidae", "songbird"), "crow": ("Corvidae", "songbird"), "rook": None},
        ...                      levels=("species", "family", "order"), weights={"jay": 3})
        >>> [group.name for group in birds.path(birds.labels_by_text["jay"])], birds.weights
        (['Corvidae', 'songbird'], {1: 4, 2: 4})
        >>> birds.labels_by_text["rook"].reason
        'no group is named'
    """

    levels: tuple[str, ...]
    groups: dict[int, Group]
    labels: dict[int, Label]
    branch: str = ""
    seq: int = 0

    @classmethod
    def from_paths(
        cls,
        paths: Mapping[str, Sequence[str | None] | None],
        *,
        levels: Sequence[str],
        weights: Mapping[str, int] | None = None,
        excluded: Mapping[str, str] | None = None,
    ) -> Hierarchy:
        """Build a hierarchy from the names of each label's groups, finest first; None or an empty first name means no group.

        Labels and groups are numbered from 1 in the order given. The same name under two parents makes two groups. A path may
        end early, in None or "": its last group then has no parent.
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
                labels[number] = Label(number, label_key(text), text, weight, None, reason)
                continue
            places = []
            for level in range(1, len(names) + 1):
                path_up = tuple(names[level - 1 :])
                places.append(numbers.setdefault((str(level), *path_up), len(numbers) + 1))
            for level, (place, name) in enumerate(zip(places, names, strict=True), start=1):
                parent = places[level] if level < len(places) else None
                groups.setdefault(place, Group(place, level, name, parent))
            labels[number] = Label(number, label_key(text), text, weight, places[0])
        return cls(tuple(levels), dict(sorted(groups.items())), labels)

    @property
    def depth(self) -> int:
        """The number of levels of groups."""
        return len(self.levels) - 1

    @cached_property
    def labels_by_text(self) -> dict[str, Label]:
        """Labels by their text. Two labels may share a text (two types of one name): the heavier, or else the first, counts."""
        labels: dict[str, Label] = {}
        for label in self.labels.values():
            if label.text not in labels or label.weight > labels[label.text].weight:
                labels[label.text] = label
        return labels

    @cached_property
    def members(self) -> dict[int, list[Label]]:
        """Group of level 1 → its labels, in the order of their ids; an empty list for a group without labels."""
        members: dict[int, list[Label]] = {group.id: [] for group in self.groups_at(1)}
        for label in self.labels.values():
            if label.group is not None:
                members[label.group].append(label)
        return members

    @cached_property
    def children(self) -> dict[int | None, list[Group]]:
        """Group → the groups under it; None → the groups without a parent, whatever their level."""
        children: dict[int | None, list[Group]] = defaultdict(list)
        for group in self.groups.values():
            children[group.parent].append(group)
        return {None: children.pop(None, []), **{group: children.get(group, []) for group in self.groups}}

    @cached_property
    def weights(self) -> dict[int, int]:
        """Group → the sum of the weights of the labels under it."""
        return self._sums({group: sum(label.weight for label in labels) for group, labels in self.members.items()})

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Group → the number of labels under it."""
        return self._sums({group: len(labels) for group, labels in self.members.items()})

    def groups_at(self, level: int) -> list[Group]:
        """The groups of a level, counted from 1."""
        return [group for group in self.groups.values() if group.level == level]

    def path(self, label: Label) -> tuple[Group, ...]:
        """The groups above a label, finest first: none if it is excluded, fewer than `depth` if a parent is missing."""
        path: list[Group] = []
        group = label.group
        while group is not None and len(path) < len(self.groups):
            path.append(self.groups[group])
            group = path[-1].parent
        return tuple(path)

    def names(self, label: Label) -> tuple[str, ...]:
        """The name of the label's group on each level, finest first; "" if there is none."""
        names = [group.name for group in self.path(label)]
        return tuple(names + [""] * (self.depth - len(names)))

    def _sums(self, finest: dict[int, int]) -> dict[int, int]:
        sums = {group: finest.get(group, 0) for group in self.groups}
        for level in range(1, self.depth):
            for group in self.groups_at(level):
                if group.parent is not None:
                    sums[group.parent] += sums[group.id]
        return sums


def branch_names(project: Project) -> list[str]:
    """The branches of a project in the order of their creation, those that adjudicate others last."""
    with project.snapshot() as db:
        return [row[0] for row in db.execute("SELECT name FROM branch ORDER BY origin IS NOT NULL, id")]


def choose_branch(project: Project, name: str | None = None) -> str:
    """Check that the project has this branch, and return it; without a name, return `final` or else the only branch."""
    branches = branch_names(project)
    if not branches:
        raise ValueError(f"{project.folder} has no branch yet; review its labels with `suprank hierarchy review`.")
    if name is not None and name not in branches:
        raise ValueError(f"there is no branch {name!r}; choose from {', '.join(branches)}.")
    if name is None and FINAL not in branches and len(branches) > 1:
        raise ValueError(f"there are several branches and no {FINAL!r}; choose a branch from {', '.join(branches)}.")
    return name or (FINAL if FINAL in branches else branches[0])


def read_hierarchy(project: Project, branch: str) -> Hierarchy:
    """Read the hierarchy of a branch. Labels that cleaning has removed are left out; labels added since have no place yet."""
    with project.snapshot() as db:
        return hierarchy_from_db(db, branch, project.recipe.levels)


def hierarchy_from_db(db: sqlite3.Connection, branch: str, levels: tuple[str, ...]) -> Hierarchy:
    """`read_hierarchy` on an open connection, for callers that read or write more in the same transaction."""
    row = db.execute("SELECT id FROM branch WHERE name = ?", (branch,)).fetchone()
    if row is None:
        branches = [row[0] for row in db.execute("SELECT name FROM branch ORDER BY id")]
        raise ValueError(f"there is no branch {branch!r}; choose from {', '.join(branches) or 'none: there are none yet'}.")
    number = row[0]
    rows = db.execute(
        'SELECT id, level, name, parent, state, note, named FROM "group" WHERE branch = ? ORDER BY id', (number,)
    ).fetchall()
    groups = {row[0]: Group(**{**dict(row), "named": bool(row["named"])}) for row in rows}
    rows = db.execute(
        'SELECT label.id, key, text, weight, member."group", member.reason, about FROM label '
        "LEFT JOIN member ON member.label = label.id AND member.branch = ?1 "
        "LEFT JOIN open_doubt d ON d.label = label.id AND d.branch = ?1 WHERE state = 'active' ORDER BY label.id",
        (number,),
    ).fetchall()
    labels = {row[0]: Label(*row) for row in rows}
    (seq,) = db.execute("SELECT coalesce(max(seq), 0) FROM event WHERE branch = ?", (number,)).fetchone()
    return Hierarchy(levels, groups, labels, branch, seq)
