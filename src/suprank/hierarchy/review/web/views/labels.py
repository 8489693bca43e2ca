"""Labels: of a group, of a search over all of them, or excluded ones; a page at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from suprank.hierarchy.review.starting import BY_CLEANING
from suprank.hierarchy.text import key_of
from suprank.hierarchy.tree import UNSETTLED

if TYPE_CHECKING:
    import sqlite3

    from suprank.hierarchy.review.branch import Branch

SORTS = {
    "items": "l.weight DESC",
    "nearness": "c.nearness IS NULL, c.nearness",
    "margin": "c.margin IS NULL, c.margin",
    "text": "l.text COLLATE NOCASE",
}
"""Ways to sort labels; by nearness and margin, the doubtful ones come first."""

DOUBTFUL = 5
_SAMPLES = 3
_WORDS = 8


@dataclass(frozen=True)
class Sample:
    """An item that has the label: a landmark. `address` is where its page is, where that is known."""

    split: str
    key: str
    name: str
    address: str | None


@dataclass(frozen=True)
class Label:
    """A label with what helps to judge it. It is in `group`, or excluded for `reason`."""

    id: int
    text: str
    qid: str | None
    description: str
    weight: int
    nearness: float | None
    margin: float | None
    group: int | None
    reason: str | None
    spellings: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Asked:
    """Which labels: of one group, or excluded ones, or all; whose text holds every word of `text`."""

    group: int | None = None
    excluded: bool = False
    text: str = ""

    def where(self, branch: Branch) -> tuple[str, list[Any]]:
        """The condition, and its values."""
        parts, values = ["m.branch = ?"], list[Any]([branch.id])
        if self.group is not None:
            parts.append('m."group" = ?')
            values.append(self.group)
        if self.excluded:
            parts.append("m.reason IS NOT NULL")
        for word in key_of(self.text).split()[:_WORDS]:
            # Without an item of Wikidata the key is the normalized text; with one, several spellings may share it.
            parts.append(
                "CASE WHEN l.qid IS NULL THEN instr(l.key, ?) ELSE instr(key_of(l.text), ?) OR lower(l.qid) = ? "
                "OR EXISTS (SELECT 1 FROM label_spelling s WHERE s.label = l.id AND instr(key_of(s.text), ?)) END"
            )
            values += [word, word, word, word]
        return " AND ".join(parts), values


@dataclass(frozen=True)
class Listing:
    """A page of labels, how many there are in all, and how many items these have."""

    labels: list[Label]
    total: int
    items: int


def read_labels(
    db: sqlite3.Connection, branch: Branch, asked: Asked, *, sort: str = "items", offset: int = 0, limit: int = 200
) -> Listing:
    """Labels with their spellings and samples."""
    db.create_function("key_of", 1, key_of, deterministic=True)
    where, values = asked.where(branch)
    total, items = db.execute(
        f"SELECT count(*), coalesce(sum(l.weight), 0) FROM member m JOIN label l ON l.id = m.label WHERE {where}", values
    ).fetchone()
    rows = db.execute(
        'SELECT l.id, l.text, l.qid, l.description, l.weight, c.nearness, c.margin, m."group", m.reason '
        "FROM member m JOIN label l ON l.id = m.label LEFT JOIN cluster_member c ON c.clustering = ? AND c.label = l.id "
        f"WHERE {where} ORDER BY {SORTS[sort]}, l.weight DESC, l.id LIMIT ? OFFSET ?",
        [branch.clustering, *values, limit, offset],
    ).fetchall()
    return Listing(
        [Label(**dict(row), spellings=_spellings(db, row), samples=_samples(db, row["id"])) for row in rows], total, items
    )


def label_ids(db: sqlite3.Connection, branch: Branch, asked: Asked) -> list[int]:
    """All labels that are asked for, beyond the page."""
    db.create_function("key_of", 1, key_of, deterministic=True)
    where, values = asked.where(branch)
    return [row[0] for row in db.execute(f"SELECT l.id FROM member m JOIN label l ON l.id = m.label WHERE {where}", values)]


def groups_asked(db: sqlite3.Connection, branch: Branch, asked: Asked) -> dict[int, int]:
    """The groups that hold labels that are asked for, with their versions."""
    db.create_function("key_of", 1, key_of, deterministic=True)
    where, values = asked.where(branch)
    rows = db.execute(
        'SELECT g.id, g.version FROM "group" g WHERE g.branch = ? AND g.id IN '
        f'(SELECT m."group" FROM member m JOIN label l ON l.id = m.label WHERE {where})',
        [branch.id, *values],
    )
    return dict(rows.fetchall())


def doubtful(db: sqlite3.Connection, branch: Branch, group: int) -> set[int]:
    """The labels of a group that were farthest from the center of their cluster; none where the group is small."""
    rows = db.execute(
        "SELECT m.label FROM member m JOIN cluster_member c ON c.clustering = ? AND c.label = m.label "
        'WHERE m.branch = ? AND m."group" = ? ORDER BY c.nearness, m.label LIMIT ?',
        (branch.clustering, branch.id, group, DOUBTFUL + DOUBTFUL),
    ).fetchall()
    return {row[0] for row in rows[:DOUBTFUL]} if len(rows) == DOUBTFUL + DOUBTFUL else set()


def waiting(db: sqlite3.Connection, branch: Branch) -> int:
    """How many labels cleaning has added or removed since the branch last took them in."""
    added = "SELECT count(*) FROM label WHERE state = 'active' AND id NOT IN (SELECT label FROM member WHERE branch = ?)"
    removed = (
        "SELECT count(*) FROM member JOIN label ON label.id = label "
        "WHERE branch = ? AND state = 'removed' AND \"group\" IS NOT NULL"
    )
    return sum(db.execute(asked, (branch.id,)).fetchone()[0] for asked in (added, removed))


def recent_reasons(db: sqlite3.Connection, branch: Branch, most: int = 8) -> list[str]:
    """Reasons that were given, the most frequent first."""
    rows = db.execute(
        "SELECT reason FROM member WHERE branch = ? AND reason IS NOT NULL AND reason NOT LIKE ? "
        "AND reason <> ? GROUP BY reason ORDER BY count(*) DESC, reason LIMIT ?",
        (branch.id, f"{BY_CLEANING}%", UNSETTLED, most),
    )
    return [row[0] for row in rows]


def _spellings(db: sqlite3.Connection, row: sqlite3.Row) -> tuple[str, ...]:
    rows = db.execute("SELECT text FROM label_spelling WHERE label = ? AND text <> ? ORDER BY items DESC LIMIT 4", row[:2])
    return tuple(one[0] for one in rows)


def _samples(db: sqlite3.Connection, label: int) -> tuple[Sample, ...]:
    rows = db.execute(
        "SELECT i.split, i.key, i.source FROM item_label o JOIN item i ON i.id = o.item WHERE o.label = ? "
        "ORDER BY i.id LIMIT ?",
        (label, _SAMPLES),
    )
    return tuple(Sample(row[0], row[1], item_name(row[1], row[2]), _address(row[2])) for row in rows)


def item_name(key: str, source: str) -> str:
    """What to call an item: the title of its page, or else its key.

    Example:
        >>> item_name("7", "http://commons.wikimedia.org/wiki/Category:Sparkassen-Arena,_G%C3%B6ttingen"), item_name("7", "")
        ('Sparkassen-Arena, Göttingen', '7')
    """
    title = unquote(source.rpartition("/")[2]).removeprefix("Category:").replace("_", " ").strip()
    return title if _address(source) is not None and title else key


def _address(source: str) -> str | None:
    return source if re.match(r"https?://[^\s]+$", source) else None
