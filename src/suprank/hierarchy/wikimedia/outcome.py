"""What the replies come to: the types of every item, or why it has none."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.hierarchy.project import as_json, digest_of, record_step
from suprank.hierarchy.text import key_of
from suprank.hierarchy.wikimedia.replies import HOPS, INSTANCE_OF, SUBCLASS_OF

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping

    from suprank.hierarchy.project import Project

NOT_ASKED = "not_asked"
"""Of an item that was left for a later run."""

_NOT_IN_THE_OUTCOME = ("rate",)


class Type(NamedTuple):
    """A type of an item. Without a QID it comes from a file; where its text is its QID, nobody has named it."""

    text: str
    qid: str | None
    ended: bool


@dataclass(frozen=True)
class Outcome:
    """How a run ended, in numbers of items. `changed`: whether other than before. `failed`: keys that did, for good."""

    items: int
    typed: int
    types: int
    several: int
    nameless: int
    untyped: dict[str, int]
    failed: int
    requests: int
    changed: bool


class End(NamedTuple):
    """Where the way from an item ends, and why it has no type there; `pending` where one must ask first."""

    qid: str
    reason: str | None


class Known:
    """What the tables know of entities."""

    def __init__(self, db: sqlite3.Connection, topic_of: Mapping[str, str]) -> None:
        self.db, self.topic_of = db, topic_of
        self._items = {row[0]: (row[1], row[2]) for row in self._rows("qid, state, merged_into", "entity WHERE kind = 'item'")}
        self._best: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
        for qid, name, value, ended in self._rows(
            "qid, property, value, ended", "statement WHERE best AND value IS NOT NULL ORDER BY qid, property, position"
        ):
            values = self._best[qid, name]
            values[value] = bool(ended) and values.get(value, True)  # given twice, it has ended where both have

    def _rows(self, columns: str, of: str) -> Iterable[Any]:
        return self.db.execute(f"SELECT {columns} FROM {of}")

    def types(self, qid: str) -> dict[str, bool]:
        """Best types in their order, and whether each has ended."""
        return self._best.get((qid, INSTANCE_OF), {})

    def end_of(self, qid: str) -> End:
        """Follow merged items, and items that stand for another, from a page's item to the one whose types count."""
        for _ in range(HOPS + 1):
            state, merged = self._items.get(qid, ("pending", None))
            if state != "ok":
                return End(qid, "item_missing" if state == "missing" else state)
            qid = merged or qid
            types = self.types(qid)
            stands = next((self.topic_of[one] for one in types if one in self.topic_of), None)
            if stands is None:
                return End(qid, None if types else "no_type")
            topics = self._best.get((qid, stands), {})
            if not topics:
                return End(qid, "category_item_without_topic" if self.topic_of.keys() >= types.keys() else None)
            qid = next(iter(topics))
        return End(qid, "topic_loop")

    def wanted_items(self) -> list[str]:
        """Items that must be asked for."""
        ends = (self.end_of(row[0]) for row in self._rows("DISTINCT qid", "page WHERE state = 'ok'"))
        return in_order({end.qid for end in ends if end.reason == "pending"})

    def wanted_types(self) -> list[str]:
        """Types of items whose names must be asked for."""
        ends = (self.end_of(row[0]) for row in self._rows("DISTINCT qid", "page WHERE state = 'ok'"))
        known = {row[0] for row in self._rows("qid", "entity WHERE kind = 'type' AND state != 'pending'")}
        return in_order({one for end in ends if end.reason is None for one in self.types(end.qid)} - known)

    def wanted_ancestors(self, steps: int) -> list[str]:
        """Classes that must be asked for, up to so many steps above the types of items that have several; the nearest first."""
        ends = (self.end_of(row[0]) for row in self._rows("DISTINCT qid", "page WHERE state = 'ok'"))
        several = [types for end in ends if end.reason is None and len(types := self.types(end.qid)) > 1]
        known = {row[0] for row in self._rows("qid", "entity WHERE kind = 'type' AND state != 'pending'")}
        classes = {one for types in several for one in types}
        for _ in range(steps):
            classes = {above for one in classes for above in self._best.get((one, SUBCLASS_OF), {})}
            if unknown := classes - known:
                return in_order(unknown)
        return []

    def of_items(self) -> Iterable[tuple[int, str, str, list[Type] | str]]:
        """(id, split, key, its types or the reason why it has none) of every item; one without a source keeps what it has."""
        named: dict[str, tuple[str, str | None]] = {
            row[0]: (row[1] or row[0], row[2]) for row in self._rows("qid, merged_into, text", "entity WHERE kind = 'type'")
        }
        ends: dict[str, list[Type] | str] = {}
        for (qid,) in self._rows("DISTINCT qid", "page WHERE state = 'ok'"):
            end = self.end_of(qid)
            ends[qid] = end.reason or _named(self.types(end.qid), named)
        rows = self._rows(
            "item.id, split, key, trim(source) = '', page.state, page.qid",
            "item LEFT JOIN item_page ON item_page.item = item.id LEFT JOIN page USING (title) ORDER BY item.id",
        )
        kept = types_now(self.db)
        for item, split, key, unasked, state, qid in rows:
            if unasked:
                yield item, split, key, kept.get(item, "invalid")
            else:
                yield item, split, key, ends[qid] if state == "ok" else state or NOT_ASKED


def types_now(db: sqlite3.Connection) -> dict[int, list[Type] | str]:
    """Item → its types as they are recorded, or the reason why it has none; items of no run are left out."""
    found: dict[int, list[Type] | str] = dict(db.execute("SELECT item, reason FROM item_untyped").fetchall())
    for item, text, qid, ended in db.execute("SELECT item, text, qid, ended FROM item_type ORDER BY item, position"):
        types = found.setdefault(item, [])
        assert isinstance(types, list)  # an item with a type is not in `item_untyped`
        types.append(Type(text, qid, bool(ended)))
    return found


def _named(types: Mapping[str, bool], named: Mapping[str, tuple[str, str | None]]) -> list[Type]:
    """Types with their names; those merged into one are one."""
    found: dict[str, Type] = {}
    for qid, ended in types.items():
        there = named[qid][0]
        before = found.get(there)
        found[there] = Type(named[there][1] or there, there, ended and (before is None or before.ended))
    return list(found.values())


def in_order(qids: Iterable[str]) -> list[str]:
    """By their numbers: the order in which they were made, and always the same."""
    return sorted(qids, key=lambda qid: int(qid[1:]))


def settle(project: Project, settings: dict[str, Any], requests: int) -> Outcome:
    """Write the types of all items and record the step; nothing, where all is as it was."""
    with project.writing() as db:
        rows = list(Known(db, project.recipe.scrape.topic_of).of_items())
        failed = db.execute(
            "SELECT (SELECT count(*) FROM page WHERE state = 'failed') + (SELECT count(*) FROM entity WHERE state = 'failed')"
        ).fetchone()[0]
        above = "SELECT qid, value FROM statement WHERE property = ? AND best ORDER BY qid, position"
        classes = db.execute(above, (SUBCLASS_OF,)) if settings["ancestors"] else ()
        return record_types(db, rows, settings, failed=failed, requests=requests, beside=classes)


def record_types(
    db: sqlite3.Connection,
    rows: Iterable[tuple[int, str, str, list[Type] | str]],
    settings: dict[str, Any],
    *,
    failed: int = 0,
    requests: int = 0,
    beside: Iterable[Any] = (),
    **counts: int,
) -> Outcome:
    """Replace `item_type` and `item_untyped` by rows of all items, in the transaction of `db`.

    `beside` are other rows that `clean` reads: where they change, it is stale.
    """
    rows = list(rows)
    typed = {item: types for item, _, _, types in rows if not isinstance(types, str)}
    untyped = Counter(reason for _, _, _, reason in rows if isinstance(reason, str))
    digest = digest_of((*((split, key, types) for _, split, key, types in rows), *beside))
    before = db.execute(
        "SELECT settings_json, inputs, result_json FROM step WHERE name = 'scrape' ORDER BY id DESC LIMIT 1"
    ).fetchone()
    made = db.execute("SELECT result_json FROM step WHERE name = 'new' ORDER BY id DESC LIMIT 1").fetchone()
    inputs = "" if made is None else json.loads(made[0])["digest"]
    same = (
        before is not None
        and before["inputs"] == inputs
        and json.loads(before["result_json"])["digest"] == digest
        and _lasting(json.loads(before["settings_json"])) == _lasting(json.loads(as_json(settings)))
    )
    different = {(one.qid or key_of(one.text)): one for types in typed.values() for one in types}
    outcome = Outcome(
        items=len(rows),
        typed=len(typed),
        types=len(different),
        several=sum(len(types) > 1 for types in typed.values()),
        nameless=sum(one.text == one.qid for one in different.values()),
        untyped=dict(sorted(untyped.items())),
        failed=failed,
        requests=requests,
        changed=not same,
    )
    if same:
        return outcome
    db.execute("DELETE FROM item_type")
    db.execute("DELETE FROM item_untyped")
    db.executemany(
        "INSERT INTO item_type VALUES (?, ?, ?, ?, ?)",
        [(item, place, *one) for item, types in typed.items() for place, one in enumerate(types)],
    )
    db.executemany("INSERT INTO item_untyped VALUES (?, ?)", [(item, why) for item, _, _, why in rows if isinstance(why, str)])
    numbers = {name: value for name, value in asdict(outcome).items() if name not in ("requests", "changed")}
    record_step(db, "scrape", settings, inputs=inputs, result={**numbers, **counts}, digest=digest)
    return outcome


def _lasting(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _NOT_IN_THE_OUTCOME}
