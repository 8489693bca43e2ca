"""All groups of a branch with their sizes: to list, sort and find them, and to show progress."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suprank.hierarchy.text import label_key

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from suprank.hierarchy.review.branch import Branch


@dataclass(frozen=True)
class GroupView:
    """A group as pages show it. `labels` and `items` count everything below it, `groups` only its direct children."""

    id: int
    level: int
    name: str
    parent: int | None
    named: bool
    state: str
    note: str
    cluster: int | None
    version: int
    tightness: float | None
    stability: float | None
    labels: int
    items: int
    groups: int

    @property
    def done(self) -> bool:
        return self.state == "done"

    @property
    def checkbox_value(self) -> str:
        """What its checkbox sends: the group, and the version that is shown."""
        return f"{self.id}:{self.version}"


@dataclass(frozen=True)
class ReviewProgress:
    """How far the review is, in groups of the finest level and in labels."""

    done: int
    groups: int
    labels_done: int
    labels: int
    excluded: int


SORT_KEYS: dict[str, Callable[[GroupView], object]] = {
    "size": lambda one: -one.labels,
    "items": lambda one: -one.items,
    "loosest": lambda one: math.inf if one.tightness is None else one.tightness,
    "tightest": lambda one: math.inf if one.tightness is None else -one.tightness,
    "stability": lambda one: math.inf if one.stability is None else one.stability,
    "name": lambda one: label_key(one.name),
    "state": lambda one: (one.done, one.named),
}
"""Ways to sort groups; groups with equal keys are sorted by name."""


@dataclass(frozen=True)
class GroupIndex:
    """The groups of a branch at one moment."""

    groups: dict[int, GroupView]
    newest: int
    """The last event of the branch."""
    excluded: int
    last_group: int | None

    def at_level(self, level: int) -> list[GroupView]:
        return [one for one in self.groups.values() if one.level == level]

    def get(self, number: int | None) -> GroupView | None:
        return None if number is None else self.groups.get(number)

    @property
    def progress(self) -> ReviewProgress:
        finest = self.at_level(1)
        done = [one for one in finest if one.done]
        labels_done, labels = (sum(one.labels for one in some) for some in (done, finest))
        return ReviewProgress(len(done), len(finest), labels_done, labels, self.excluded)

    def sorted_by(self, order: str, level: int = 1) -> list[GroupView]:
        """The groups of a level, sorted by a key of `SORT_KEYS`."""
        by_name = sorted(self.at_level(level), key=lambda one: (label_key(one.name), one.id))
        return sorted(by_name, key=SORT_KEYS[order])  # type: ignore[arg-type]

    def next_open(self, order: str, after: int | None = None, step: int = 1) -> GroupView | None:
        """The next open group of the finest level, starting over at the end; `step` −1 goes back. None if all are done."""
        groups = self.sorted_by(order)
        at = next((place for place, one in enumerate(groups) if one.id == after), -1 if step > 0 else 0)
        following = [groups[(at + step * distance) % len(groups)] for distance in range(1, len(groups) + 1)]
        return next((one for one in following if not one.done and one.id != after), None)

    def children(self, parent: int | None, level: int) -> list[GroupView]:
        """The groups of a level under this parent, or under none, largest first."""
        return [one for one in self.sorted_by("size", level) if one.parent == parent]

    def find(self, text: str, level: int = 1) -> GroupView | None:
        """The group with this name, ignoring case, or else with this number, written as 12 or #12."""
        key = label_key(text)
        for one in self.at_level(level):
            if label_key(one.name) == key:
                return one
        digits = key.removeprefix("#")
        found = self.groups.get(int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 16 else None
        return found if found is not None and found.level == level else None

    def similar(self, text: str, level: int = 1, limit: int = 6) -> list[GroupView]:
        """Groups whose names contain the text or one of its words, largest first."""
        key = label_key(text)
        names = {one: label_key(one.name) for one in self.sorted_by("size", level)}
        whole = [one for one, name in names.items() if key and (key in name or name in key)]
        words = [word for word in key.split() if len(word) > 2]
        return [*whole, *(one for one in names if one not in whole and any(word in names[one] for word in words))][:limit]


def read_groups(db: sqlite3.Connection, branch: Branch) -> GroupIndex:
    """Read the groups of a branch as they are now."""
    members = {
        row[0]: (row[1], row[2])
        for row in db.execute(
            'SELECT m."group", count(*), sum(l.weight) FROM member m JOIN label l ON l.id = m.label '
            'WHERE m.branch = ? AND m."group" IS NOT NULL GROUP BY m."group"',
            (branch.id,),
        )
    }
    rows = db.execute(
        "SELECT g.id, g.level, g.name, g.parent, g.named, g.state, g.note, g.cluster, g.version, c.tightness, c.stability "
        'FROM "group" g LEFT JOIN cluster c ON c.clustering = ? AND c.number = g.cluster WHERE g.branch = ? '
        "ORDER BY g.level, g.id",
        (branch.clustering, branch.id),
    ).fetchall()
    sums: dict[int, list[int]] = {row["id"]: [*members.get(row["id"], (0, 0)), 0] for row in rows}
    for row in rows:  # finest first, so that the sums of a group are complete when they are added to its parent
        if row["parent"] is not None:
            parent, own = sums[row["parent"]], sums[row["id"]]
            parent[0] += own[0]
            parent[1] += own[1]
            parent[2] += 1
    groups: dict[int, GroupView] = {}
    for row in rows:
        labels, items, children = sums[row["id"]]
        values = {**dict(row), "named": bool(row["named"])}
        groups[row["id"]] = GroupView(**values, labels=labels, items=items, groups=children)
    excluded = db.execute("SELECT count(*) FROM member WHERE branch = ? AND reason IS NOT NULL", (branch.id,)).fetchone()[0]
    last = db.execute("SELECT last_group FROM branch WHERE id = ?", (branch.id,)).fetchone()[0]
    newest = db.execute("SELECT coalesce(max(seq), 0) FROM event WHERE branch = ?", (branch.id,)).fetchone()[0]
    return GroupIndex(groups, newest, excluded, last)
