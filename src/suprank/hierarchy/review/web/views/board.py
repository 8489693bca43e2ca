"""All groups of a branch with what they hold: the list to work off, its progress, and the tree above."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from suprank.hierarchy.review.branch import Branch


@dataclass(frozen=True)
class Group:
    """A group. `labels` and `items` are all that stand below it, `groups` those that stand directly under it."""

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
    def tick(self) -> str:
        """What its checkbox sends: the group, and the version of it that is shown."""
        return f"{self.id}:{self.version}"


@dataclass(frozen=True)
class Progress:
    """How far the annotator is, in groups of the finest level and in labels."""

    done: int
    groups: int
    labels_done: int
    labels: int
    excluded: int


ORDERS: dict[str, Callable[[Group], object]] = {
    "size": lambda one: -one.labels,
    "items": lambda one: -one.items,
    "loosest": lambda one: math.inf if one.tightness is None else one.tightness,
    "tightest": lambda one: math.inf if one.tightness is None else -one.tightness,
    "stability": lambda one: math.inf if one.stability is None else one.stability,
    "name": lambda one: key_of(one.name),
    "state": lambda one: (one.done, one.named),
}
"""Ways to sort groups; equal ones stay by their name."""


@dataclass(frozen=True)
class Board:
    """The groups of a branch at one moment."""

    groups: dict[int, Group]
    newest: int
    """The last event of the branch."""
    excluded: int
    last_group: int | None

    def of_level(self, level: int) -> list[Group]:
        return [one for one in self.groups.values() if one.level == level]

    def get(self, number: int | None) -> Group | None:
        return None if number is None else self.groups.get(number)

    @property
    def progress(self) -> Progress:
        finest = self.of_level(1)
        done = [one for one in finest if one.done]
        labels_done, labels = (sum(one.labels for one in some) for some in (done, finest))
        return Progress(len(done), len(finest), labels_done, labels, self.excluded)

    def ordered(self, order: str, level: int = 1) -> list[Group]:
        """The groups of a level in an order of `ORDERS`."""
        by_name = sorted(self.of_level(level), key=lambda one: (key_of(one.name), one.id))
        return sorted(by_name, key=ORDERS[order])  # type: ignore[arg-type]

    def next_open(self, order: str, after: int | None = None, step: int = 1) -> Group | None:
        """The next open group of the finest level, beginning anew at the end; `step` −1 goes back. None where all are done."""
        groups = self.ordered(order)
        at = next((place for place, one in enumerate(groups) if one.id == after), -1 if step > 0 else 0)
        turned = [groups[(at + step * far) % len(groups)] for far in range(1, len(groups) + 1)]
        return next((one for one in turned if not one.done and one.id != after), None)

    def children(self, parent: int | None, level: int) -> list[Group]:
        """Groups of a level that stand under this one, or under none, the largest first."""
        return [one for one in self.ordered("size", level) if one.parent == parent]

    def called(self, text: str, level: int = 1) -> Group | None:
        """The group of this name, whatever its case; or else of this number, as 12 or #12."""
        key = key_of(text)
        for one in self.of_level(level):
            if key_of(one.name) == key:
                return one
        digits = key.removeprefix("#")
        found = self.groups.get(int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 16 else None
        return found if found is not None and found.level == level else None

    def like(self, text: str, level: int = 1, most: int = 6) -> list[Group]:
        """Groups whose names hold the text, or a word of it, the largest first."""
        key = key_of(text)
        names = {one: key_of(one.name) for one in self.ordered("size", level)}
        whole = [one for one, name in names.items() if key and (key in name or name in key)]
        words = [word for word in key.split() if len(word) > 2]
        return [*whole, *(one for one in names if one not in whole and any(word in names[one] for word in words))][:most]


def read_board(db: sqlite3.Connection, branch: Branch) -> Board:
    """The board as it is now."""
    held = {
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
    sums: dict[int, list[int]] = {row["id"]: [*held.get(row["id"], (0, 0)), 0] for row in rows}
    for row in rows:  # finest first, so that what a group holds is known when it is added to its parent
        if row["parent"] is not None:
            above, own = sums[row["parent"]], sums[row["id"]]
            above[0] += own[0]
            above[1] += own[1]
            above[2] += 1
    groups: dict[int, Group] = {}
    for row in rows:
        labels, items, below = sums[row["id"]]
        shown = {**dict(row), "named": bool(row["named"])}
        groups[row["id"]] = Group(**shown, labels=labels, items=items, groups=below)
    excluded = db.execute("SELECT count(*) FROM member WHERE branch = ? AND reason IS NOT NULL", (branch.id,)).fetchone()[0]
    last = db.execute("SELECT last_group FROM branch WHERE id = ?", (branch.id,)).fetchone()[0]
    newest = db.execute("SELECT coalesce(max(seq), 0) FROM event WHERE branch = ?", (branch.id,)).fetchone()[0]
    return Board(groups, newest, excluded, last)
