"""Read what the pages show from the project: labels, a page at a time, and events of the log. Nothing here writes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from suprank.hierarchy.review.branch import EVENT_COLUMNS, SYSTEM_ACTIONS, Event
from suprank.hierarchy.review.opening import REMOVED_BY_CLEANING
from suprank.hierarchy.review.state import Changes
from suprank.hierarchy.text import label_key

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from suprank.hierarchy.review.branch import Branch

LABEL_ORDERS = {
    "items": "l.weight DESC",
    "nearness": "c.nearness IS NULL, c.nearness",
    "margin": "c.margin IS NULL, c.margin",
    "text": "l.text COLLATE NOCASE",
}
"""Ways to sort labels; by nearness and margin, the doubtful ones come first."""

_DOUBTFUL = 5
_MAX_SAMPLES = 3
_MAX_WORDS = 8
_MAX_EVENTS = 300  # newest events among which those of a group are looked for

Location = tuple[str, str, int | None]
"""The text of a label, its place in words, and the id of its group."""


@dataclass(frozen=True)
class SampleItem:
    """An item with the label, such as a landmark. `url` is its web page, if known."""

    split: str
    key: str
    name: str
    url: str | None


@dataclass(frozen=True)
class LabelView:
    """A label with what helps to judge it. It is in `group`, or excluded for `reason`; `doubt` is what an annotator says."""

    id: int
    text: str
    qid: str | None
    description: str
    weight: int
    nearness: float | None
    margin: float | None
    group: int | None
    reason: str | None
    doubt: str | None
    spellings: tuple[str, ...] = ()
    samples: tuple[SampleItem, ...] = ()


@dataclass(frozen=True)
class LabelQuery:
    """Which labels to list: those of one group, the excluded or the doubtful ones, or all; with every word of `text`.

    A word of a doubtful label may also be in what the other annotator says.
    """

    group: int | None = None
    excluded: bool = False
    text: str = ""
    doubtful: bool = False

    def where(self, branch: Branch) -> tuple[str, list[Any]]:
        """The SQL condition and its values."""
        parts, values = ["m.branch = ?"], list[Any]([branch.id])
        if self.group is not None:
            parts.append('m."group" = ?')
            values.append(self.group)
        if self.excluded:
            parts.append("m.reason IS NOT NULL")
        doubt = "SELECT 1 FROM open_doubt d WHERE d.branch = m.branch AND d.label = l.id"
        if self.doubtful:
            parts.append(f"EXISTS ({doubt})")
        for word in label_key(self.text).split()[:_MAX_WORDS]:
            # The key of a label without a Wikidata item is its normalized text; with one, several spellings may share the key.
            about = f" OR EXISTS ({doubt} AND instr(label_key(d.about), ?))" if self.doubtful else ""
            parts.append(
                "(CASE WHEN l.qid IS NULL THEN instr(l.key, ?) ELSE instr(label_key(l.text), ?) OR lower(l.qid) = ? "
                "OR EXISTS (SELECT 1 FROM label_spelling s WHERE s.label = l.id AND instr(label_key(s.text), ?)) "
                f"END{about})"
            )
            values += [word] * (5 if self.doubtful else 4)
        return " AND ".join(parts), values


@dataclass(frozen=True)
class LabelPage:
    """A page of labels, the number of labels on all pages, and the number of their items."""

    labels: list[LabelView]
    total: int
    items: int


def read_labels(
    db: sqlite3.Connection,
    branch: Branch,
    query: LabelQuery,
    *,
    sort: str = "items",
    offset: int = 0,
    limit: int = 200,
    first: Sequence[int] = (),
) -> LabelPage:
    """Read a page of labels with their spellings and sample items; the labels `first` come before all others."""
    db.create_function("label_key", 1, label_key, deterministic=True)
    where, values = query.where(branch)
    total, items = db.execute(
        f"SELECT count(*), coalesce(sum(l.weight), 0) FROM member m JOIN label l ON l.id = m.label WHERE {where}", values
    ).fetchone()
    rows = db.execute(
        'SELECT l.id, l.text, l.qid, l.description, l.weight, c.nearness, c.margin, m."group", m.reason, '
        "o.about AS doubt FROM member m JOIN label l ON l.id = m.label "
        "LEFT JOIN cluster_member c ON c.clustering = ? AND c.label = l.id "
        "LEFT JOIN open_doubt o ON o.branch = m.branch AND o.label = l.id "
        f"WHERE {where} ORDER BY l.id NOT IN (SELECT value FROM json_each(?)), o.about IS NULL, {LABEL_ORDERS[sort]}, "
        "l.weight DESC, l.id "
        "LIMIT ? OFFSET ?",
        [branch.clustering, *values, json.dumps(first), limit, offset],
    ).fetchall()
    labels = [LabelView(**dict(row), spellings=_spellings(db, row), samples=sample_items(db, row["id"])) for row in rows]
    return LabelPage(labels, total, items)


def label_ids(db: sqlite3.Connection, branch: Branch, query: LabelQuery) -> list[int]:
    """The ids of all labels of a query, not only of a page."""
    db.create_function("label_key", 1, label_key, deterministic=True)
    where, values = query.where(branch)
    return [row[0] for row in db.execute(f"SELECT l.id FROM member m JOIN label l ON l.id = m.label WHERE {where}", values)]


def groups_of_labels(db: sqlite3.Connection, branch: Branch, query: LabelQuery) -> dict[int, int]:
    """The groups of the labels of a query, with their versions."""
    db.create_function("label_key", 1, label_key, deterministic=True)
    where, values = query.where(branch)
    rows = db.execute(
        'SELECT g.id, g.version FROM "group" g WHERE g.branch = ? AND g.id IN '
        f'(SELECT m."group" FROM member m JOIN label l ON l.id = m.label WHERE {where})',
        [branch.id, *values],
    )
    return dict(rows.fetchall())


def doubtful_labels(db: sqlite3.Connection, branch: Branch, group: int) -> set[int]:
    """The labels of a group that are farthest from the center of their cluster; none if the group is small."""
    rows = db.execute(
        "SELECT m.label FROM member m JOIN cluster_member c ON c.clustering = ? AND c.label = m.label "
        'WHERE m.branch = ? AND m."group" = ? ORDER BY c.nearness, m.label LIMIT ?',
        (branch.clustering, branch.id, group, 2 * _DOUBTFUL),
    ).fetchall()
    return {row[0] for row in rows[:_DOUBTFUL]} if len(rows) == 2 * _DOUBTFUL else set()


def count_doubts(db: sqlite3.Connection, branch: Branch) -> int:
    """How many labels are doubtful, because two annotators differ on them and nobody has decided."""
    return int(db.execute("SELECT count(*) FROM open_doubt WHERE branch = ?", (branch.id,)).fetchone()[0])


def unsynced_labels(db: sqlite3.Connection, branch: Branch) -> int:
    """How many labels cleaning has added or removed since the branch was last synced."""
    added = "SELECT count(*) FROM label WHERE state = 'active' AND id NOT IN (SELECT label FROM member WHERE branch = ?)"
    removed = (
        "SELECT count(*) FROM member JOIN label ON label.id = label "
        "WHERE branch = ? AND state = 'removed' AND \"group\" IS NOT NULL"
    )
    return sum(db.execute(sql, (branch.id,)).fetchone()[0] for sql in (added, removed))


@dataclass(frozen=True)
class AnnotatorProgress:
    """How many groups of the finest level an annotator has done, and when they last changed something."""

    name: str
    done: int
    groups: int
    last: str | None


def annotator_progress(db: sqlite3.Connection) -> list[AnnotatorProgress]:
    """The progress of every annotator, in the order in which they began; branches that adjudicate are left out."""
    rows = db.execute(
        "SELECT name, (SELECT count(*) FROM \"group\" WHERE branch = b.id AND level = 1 AND state = 'done'), "
        '(SELECT count(*) FROM "group" WHERE branch = b.id AND level = 1), '
        "(SELECT at FROM event WHERE branch = b.id AND act NOT IN (?, ?) ORDER BY seq DESC LIMIT 1) "
        "FROM branch b WHERE origin IS NULL ORDER BY id",
        SYSTEM_ACTIONS,
    )
    return [AnnotatorProgress(*row) for row in rows]


def frequent_reasons(db: sqlite3.Connection, branch: Branch, limit: int = 8) -> list[str]:
    """Reasons that annotators gave to exclude labels, most frequent first."""
    rows = db.execute(
        "SELECT reason FROM member WHERE branch = ? AND reason IS NOT NULL AND reason NOT LIKE ? "
        "GROUP BY reason ORDER BY count(*) DESC, reason LIMIT ?",
        (branch.id, f"{REMOVED_BY_CLEANING}%", limit),
    )
    return [row[0] for row in rows]


def item_name(key: str, source: str) -> str:
    """The name to show for an item: the title of its web page, or else its key.

    Example:
        >>> item_name("7", "http://commons.wikimedia.org/wiki/Category:Sparkassen-Arena,_G%C3%B6ttingen"), item_name("7", "")
        ('Sparkassen-Arena, Göttingen', '7')
    """
    title = unquote(source.rpartition("/")[2]).removeprefix("Category:").replace("_", " ").strip()
    return title if _url(source) is not None and title else key


def current_places(db: sqlite3.Connection, branch: Branch, labels: list[int]) -> list[Location]:
    """The current places of these labels; those that are not on the branch are left out."""
    sql = (
        "SELECT l.text, coalesce(g.name, 'excluded: ' || m.reason), g.id FROM member m JOIN label l ON l.id = m.label "
        'LEFT JOIN "group" g ON g.branch = m.branch AND g.id = m."group" WHERE m.branch = ? AND m.label = ?'
    )
    rows = [db.execute(sql, (branch.id, label)).fetchone() for label in labels]
    return [tuple(row) for row in rows if row is not None]


@dataclass(frozen=True)
class GroupChanges:
    """What happened to a group since it was shown: events, and labels that came or left."""

    events: tuple[Event, ...] = ()
    came: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()


def read_event(db: sqlite3.Connection, branch: Branch, seq: int | None) -> Event | None:
    """The event of the branch with this number, or None."""
    row = db.execute(f"SELECT {EVENT_COLUMNS} FROM event WHERE branch = ? AND seq = ?", (branch.id, seq)).fetchone()
    return None if row is None else Event(**row)


def recent_events(db: sqlite3.Connection, branch: Branch, group: int, limit: int = 5) -> list[Event]:
    """The last events of annotators that touched a group, newest first; very old ones are left out."""
    events = (event for event, _ in _events_touching(db, branch, group, "ORDER BY seq DESC LIMIT ?", _MAX_EVENTS))
    return list(islice(events, limit))


def changes_since(db: sqlite3.Connection, branch: Branch, group: int, version: int) -> GroupChanges:
    """What the events after `version` did to a group and its labels."""
    events, places = [], dict[int, tuple[bool, bool]]()
    for event, values in _events_touching(db, branch, group, "AND seq > ? ORDER BY seq", version):
        events.append(event)
        for label, (before, after) in Changes.from_dict(values).labels.items():
            if group in (before, after):
                was_inside = places.get(label, (before == group, False))[0]
                places[label] = (was_inside, after == group)
    came = frozenset(label for label, (before, after) in places.items() if after and not before)
    left = frozenset(label for label, (before, after) in places.items() if before and not after)
    return GroupChanges(tuple(events), came, left)


def _events_touching(
    db: sqlite3.Connection, branch: Branch, group: int, end: str, value: int
) -> Iterator[tuple[Event, dict[str, Any]]]:
    """Events of annotators that touched a group, with their changes as JSON values: one may have thousands of labels.

    Events of suprank itself, which may be as large as the project, are left out.
    """
    rows = db.execute(f"SELECT {EVENT_COLUMNS}, changes_json FROM event WHERE branch = ? {end}", (branch.id, value))
    for row in rows:
        if row["action"] not in SYSTEM_ACTIONS:
            values = json.loads(row["changes_json"])
            if any(group == one for one, *_ in values["groups"]) or any(group in move[:2] for move in values["labels"]):
                yield Event(*row[:6]), values


def _spellings(db: sqlite3.Connection, row: sqlite3.Row) -> tuple[str, ...]:
    rows = db.execute("SELECT text FROM label_spelling WHERE label = ? AND text <> ? ORDER BY items DESC LIMIT 4", row[:2])
    return tuple(one[0] for one in rows)


def sample_items(db: sqlite3.Connection, label: int) -> tuple[SampleItem, ...]:
    """Some items with this label; none if the project has labels only."""
    rows = db.execute(
        "SELECT i.split, i.key, i.source FROM item_label o JOIN item i ON i.id = o.item WHERE o.label = ? "
        "ORDER BY i.id LIMIT ?",
        (label, _MAX_SAMPLES),
    )
    return tuple(SampleItem(row[0], row[1], item_name(row[1], row[2]), _url(row[2])) for row in rows)


def _url(source: str) -> str | None:
    return source if re.match(r"https?://[^\s]+$", source) else None
