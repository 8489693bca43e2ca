"""The log as pages show it: what happened to a group, and what changed since an annotator looked at it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from suprank.hierarchy.review.branch import NOT_UNDONE, Event
from suprank.hierarchy.review.changes import Changes

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from suprank.hierarchy.review.branch import Branch

_COLUMNS = "seq, at, who, act, said, undoes"
_LOOKED_AT = 300  # events, newest first, among which those of a group are sought


@dataclass(frozen=True)
class Since:
    """What happened to a group since it was seen: events, labels that came, and labels that left."""

    events: tuple[Event, ...] = ()
    came: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()


def read_event(db: sqlite3.Connection, branch: Branch, seq: int | None) -> Event | None:
    """An event of the branch; None where it has none of this number."""
    row = db.execute(f"SELECT {_COLUMNS} FROM event WHERE branch = ? AND seq = ?", (branch.id, seq)).fetchone()
    return None if row is None else Event(**row)


def events_of(db: sqlite3.Connection, branch: Branch, group: int, most: int = 5) -> list[Event]:
    """The last acts that touched a group, newest first; those of long ago are left out."""
    return list(islice((event for event, _ in _touching(db, branch, group, "ORDER BY seq DESC LIMIT ?", _LOOKED_AT)), most))


def since(db: sqlite3.Connection, branch: Branch, group: int, version: int) -> Since:
    """What later events than `version` did to a group and to what it holds."""
    events, places = [], dict[int, tuple[bool, bool]]()
    for event, plain in _touching(db, branch, group, "AND seq > ? ORDER BY seq", version):
        events.append(event)
        for label, (before, after) in Changes.of_plain(plain).labels.items():
            if group in (before, after):
                was_in = places.get(label, (before == group, False))[0]
                places[label] = (was_in, after == group)
    came = frozenset(label for label, (before, after) in places.items() if after and not before)
    left = frozenset(label for label, (before, after) in places.items() if before and not after)
    return Since(tuple(events), came, left)


def places_now(db: sqlite3.Connection, branch: Branch, labels: list[int]) -> list[tuple[str, str, int | None]]:
    """Text, place in words and group of some labels."""
    asked = (
        "SELECT l.text, coalesce(g.name, 'excluded: ' || m.reason), g.id FROM member m JOIN label l ON l.id = m.label "
        'LEFT JOIN "group" g ON g.branch = m.branch AND g.id = m."group" WHERE m.branch = ? AND m.label = ?'
    )
    found = [db.execute(asked, (branch.id, label)).fetchone() for label in labels]
    return [tuple(row) for row in found if row is not None]


def undoable_of(db: sqlite3.Connection, branch: Branch) -> set[int]:
    """Events that are done and not undone."""
    return set(branch.stacks(db)[0])


def _touching(
    db: sqlite3.Connection, branch: Branch, group: int, end: str, value: int
) -> Iterator[tuple[Event, dict[str, Any]]]:
    """Events of people that touched a group, with their changes as they are written: there may be thousands of labels in one.

    Those of the tool itself, which are as large as the project, are left out.
    """
    rows = db.execute(f"SELECT {_COLUMNS}, changes_json FROM event WHERE branch = ? {end}", (branch.id, value))
    for row in rows:
        if row["act"] not in NOT_UNDONE:
            plain = json.loads(row["changes_json"])
            if any(group == one for one, *_ in plain["groups"]) or any(group in way[:2] for way in plain["labels"]):
                yield Event(*row[:6]), plain
