"""The state of a branch in the database, and changes to it: rows before and after, which undo, redo and replay work on."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import astuple, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping

Place = int | str | None
"""The place of a label: the id of its group, the reason why it is excluded, or None if it is not on the branch."""


@dataclass(frozen=True)
class GroupRow:
    """A group, without its id and version."""

    level: int
    name: str
    parent: int | None = None
    named: bool = True
    state: str = "open"
    note: str = ""
    cluster: int | None = None


_COLUMNS = [one.name for one in fields(GroupRow)]


@dataclass
class Changes:
    """Groups and labels that change, each with its value before and after; None where it does not exist."""

    groups: dict[int, tuple[GroupRow | None, GroupRow | None]] = field(default_factory=dict)
    labels: dict[int, tuple[Place, Place]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.groups or self.labels)

    def reversed(self) -> Changes:
        """The changes that take these back."""
        groups = {one: (after, before) for one, (before, after) in self.groups.items()}
        return Changes(groups, {one: (after, before) for one, (before, after) in self.labels.items()})

    def touched(self) -> set[int]:
        """Groups that change, and groups that labels or other groups leave or join."""
        left = self.reversed().joined()
        return set(self.groups) | self.joined() | left

    def joined(self) -> set[int]:
        """Groups that labels or other groups join."""
        places = {after for _, after in self.labels.values() if isinstance(after, int)}
        moved = [after for before, after in self.groups.values() if after and (before is None or before.parent != after.parent)]
        return places | {row.parent for row in moved if row.parent is not None}

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON. Labels with the same move share a list, because there may be thousands."""
        by_move: defaultdict[tuple[Place, Place], list[int]] = defaultdict(list)
        for label, move in sorted(self.labels.items()):
            by_move[move].append(label)
        rows = [[one, *(None if row is None else astuple(row) for row in pair)] for one, pair in sorted(self.groups.items())]
        return {"groups": rows, "labels": [[before, after, labels] for (before, after), labels in by_move.items()]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Changes:
        """Read changes that `to_dict` wrote."""
        groups = {
            one: (None if before is None else GroupRow(*before), None if after is None else GroupRow(*after))
            for one, before, after in values["groups"]
        }
        return cls(groups, {label: (before, after) for before, after, labels in values["labels"] for label in labels})


class BranchState:
    """The current groups and labels of a branch, read and written through one connection."""

    def __init__(self, db: sqlite3.Connection, branch: int) -> None:
        self.db, self.branch = db, branch

    def group(self, one: int) -> GroupRow | None:
        """The group with this id, or None."""
        row = self.db.execute(
            f'SELECT {", ".join(_COLUMNS)} FROM "group" WHERE branch = ? AND id = ?', (self.branch, one)
        ).fetchone()
        return None if row is None else _group(row)

    def groups(self) -> dict[int, GroupRow]:
        """All groups by id."""
        rows = self.db.execute(f'SELECT id, {", ".join(_COLUMNS)} FROM "group" WHERE branch = ?', (self.branch,))
        return {row["id"]: _group(row) for row in rows}

    def versions(self, groups: Iterable[int]) -> dict[int, int]:
        """The last event that changed each of these groups; missing groups are left out."""
        sql = 'SELECT version FROM "group" WHERE branch = ? AND id = ?'
        found = {one: self.db.execute(sql, (self.branch, one)).fetchone() for one in groups}
        return {one: row[0] for one, row in found.items() if row is not None}

    def places(self, labels: Iterable[int]) -> dict[int, Place]:
        """Where each label is: in a group, or excluded for a reason; None for a label that is not on the branch."""
        sql = 'SELECT "group", reason FROM member WHERE branch = ? AND label = ?'
        found = {one: self.db.execute(sql, (self.branch, one)).fetchone() for one in labels}
        return {one: None if row is None else _place(row) for one, row in found.items()}

    def all_places(self) -> dict[int, Place]:
        """Where each label of the branch is: in a group, or excluded for a reason."""
        rows = self.db.execute('SELECT label, "group", reason FROM member WHERE branch = ?', (self.branch,))
        return {row["label"]: _place(row) for row in rows}

    def labels_in(self, group: int) -> list[int]:
        """The labels in a group."""
        rows = self.db.execute('SELECT label FROM member WHERE branch = ? AND "group" = ?', (self.branch, group))
        return [row[0] for row in rows]

    def children_of(self, group: int) -> list[int]:
        """The groups directly under a group."""
        return [
            row[0] for row in self.db.execute('SELECT id FROM "group" WHERE branch = ? AND parent = ?', (self.branch, group))
        ]

    def next_id(self) -> int:
        """An id that no group of the branch has or ever had."""
        row = self.db.execute("SELECT next_group FROM branch WHERE id = ?", (self.branch,)).fetchone()
        used = self.db.execute('SELECT coalesce(max(id), 0) FROM "group" WHERE branch = ?', (self.branch,)).fetchone()
        return max(row[0], used[0] + 1)

    def conflicts(self, changes: Changes) -> tuple[list[int], list[int]]:
        """Groups and labels whose current value is not the `before` of the changes."""
        groups = [one for one, (before, _) in changes.groups.items() if self.group(one) != before]
        places = self.places(changes.labels)
        return groups, [one for one, (before, _) in changes.labels.items() if places[one] != before]

    def write(self, changes: Changes, version: int) -> None:
        """Write the changes, and set the version of every group they touch."""
        deleted = [one for one, (_, after) in changes.groups.items() if after is None]
        rows = [(self.branch, one, *astuple(after)) for one, (_, after) in changes.groups.items() if after is not None]
        assignments = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)
        placeholders = ", ".join("?" * (len(_COLUMNS) + 2))
        self.db.executemany(
            f'INSERT INTO "group" (branch, id, {", ".join(_COLUMNS)}) VALUES ({placeholders}) '
            f"ON CONFLICT DO UPDATE SET {assignments}",
            rows,
        )
        places = [(self.branch, label, *_columns(after)) for label, (_, after) in changes.labels.items() if after is not None]
        on_conflict = 'ON CONFLICT DO UPDATE SET "group" = excluded."group", reason = excluded.reason'
        self.db.executemany(f"INSERT INTO member VALUES (?, ?, ?, ?) {on_conflict}", places)
        removed_labels = [(self.branch, label) for label, (_, after) in changes.labels.items() if after is None]
        self.db.executemany("DELETE FROM member WHERE branch = ? AND label = ?", removed_labels)
        self.db.executemany('DELETE FROM "group" WHERE branch = ? AND id = ?', [(self.branch, one) for one in deleted])
        touched = [(version, self.branch, one) for one in changes.touched()]
        self.db.executemany('UPDATE "group" SET version = ? WHERE branch = ? AND id = ?', touched)
        highest = max(changes.groups, default=0) + 1
        self.db.execute("UPDATE branch SET next_group = max(next_group, ?) WHERE id = ?", (highest, self.branch))


def _group(row: sqlite3.Row) -> GroupRow:
    values = {name: row[name] for name in _COLUMNS}
    return GroupRow(**{**values, "named": bool(values["named"])})


def _place(row: sqlite3.Row) -> Place:
    return row["reason"] if row["group"] is None else row["group"]


def _columns(place: int | str) -> tuple[int | None, str | None]:
    return (place, None) if isinstance(place, int) else (None, place)
