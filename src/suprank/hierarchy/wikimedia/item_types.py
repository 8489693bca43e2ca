"""Resolve the fetched entities into the types of every item, or the reason why it has none, and record them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.hierarchy.project import canonical_json, digest_rows, record_step
from suprank.hierarchy.text import label_key
from suprank.hierarchy.wikimedia.replies import HOPS, INSTANCE_OF, SUBCLASS_OF

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping

    from suprank.hierarchy.project import Project

NOT_ASKED = "not_asked"
"""The reason of items that were left for a later run."""

_IRRELEVANT_SETTINGS = ("rate",)  # for the result


class ItemType(NamedTuple):
    """A type of an item. It has no QID if it comes from a file; its text is its QID if it has no name."""

    text: str
    qid: str | None
    ended: bool


@dataclass(frozen=True)
class ScrapeResult:
    """The result of a run, in numbers of items. `failed` counts keys that failed for good, `changed` compares with before."""

    items: int
    typed: int
    types: int
    several: int
    nameless: int
    untyped: dict[str, int]
    failed: int
    requests: int
    changed: bool


class Resolution(NamedTuple):
    """The item whose types count, and why it has none: `pending` if it must be fetched first, None if it has types."""

    qid: str
    reason: str | None


class EntityGraph:
    """The entities in the database, with the best values of their properties."""

    def __init__(self, db: sqlite3.Connection, topic_of: Mapping[str, str]) -> None:
        self.db, self.topic_of = db, topic_of
        self._items = {row[0]: (row[1], row[2]) for row in self._rows("qid, state, merged_into", "entity WHERE kind = 'item'")}
        self._best: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)  # value → whether it has ended
        for qid, name, value, ended in self._rows(
            "qid, property, value, ended", "statement WHERE best AND value IS NOT NULL ORDER BY qid, property, position"
        ):
            values = self._best[qid, name]
            values[value] = bool(ended) and values.get(value, True)  # a value given twice has ended if both have

    def _rows(self, columns: str, source: str) -> Iterable[Any]:
        return self.db.execute(f"SELECT {columns} FROM {source}")

    def _resolutions(self) -> list[Resolution]:
        return [self.resolve(qid) for (qid,) in self._rows("DISTINCT qid", "page WHERE state = 'ok'")]

    def _known_types(self) -> set[str]:
        return {qid for (qid,) in self._rows("qid", "entity WHERE kind = 'type' AND state != 'pending'")}

    def types(self, qid: str) -> dict[str, bool]:
        """The best types of an item in order, and whether each has ended."""
        return self._best.get((qid, INSTANCE_OF), {})

    def resolve(self, qid: str) -> Resolution:
        """Follow merged items, and items that stand for another, from a page's item to the one whose types count."""
        for _ in range(HOPS + 1):
            state, merged = self._items.get(qid, ("pending", None))
            if state != "ok":
                return Resolution(qid, "item_missing" if state == "missing" else state)
            qid = merged or qid
            types = self.types(qid)
            topic_property = next((self.topic_of[type_qid] for type_qid in types if type_qid in self.topic_of), None)
            if topic_property is None:
                return Resolution(qid, None if types else "no_type")
            topics = self._best.get((qid, topic_property), {})
            if not topics:
                return Resolution(qid, "category_item_without_topic" if self.topic_of.keys() >= types.keys() else None)
            qid = next(iter(topics))
        return Resolution(qid, "topic_loop")

    def wanted_items(self) -> list[str]:
        """Items that must be fetched."""
        return sorted_qids({end.qid for end in self._resolutions() if end.reason == "pending"})

    def wanted_types(self) -> list[str]:
        """Types whose names must be fetched."""
        types = {one for end in self._resolutions() if end.reason is None for one in self.types(end.qid)}
        return sorted_qids(types - self._known_types())

    def wanted_ancestors(self, steps: int) -> list[str]:
        """Classes that must be fetched, up to this many steps above the types of items with several; the nearest first."""
        resolutions = self._resolutions()
        several = [types for end in resolutions if end.reason is None and len(types := self.types(end.qid)) > 1]
        known = self._known_types()
        classes = {one for types in several for one in types}
        for _ in range(steps):
            classes = {above for one in classes for above in self._best.get((one, SUBCLASS_OF), {})}
            if unknown := classes - known:
                return sorted_qids(unknown)
        return []

    def item_types(self) -> Iterable[tuple[int, str, str, list[ItemType] | str]]:
        """(id, split, key, types or the reason why there are none) of every item. An item without a source keeps its types."""
        names: dict[str, tuple[str, str | None]] = {
            row[0]: (row[1] or row[0], row[2]) for row in self._rows("qid, merged_into, text", "entity WHERE kind = 'type'")
        }
        by_qid: dict[str, list[ItemType] | str] = {}
        for (qid,) in self._rows("DISTINCT qid", "page WHERE state = 'ok'"):
            end = self.resolve(qid)
            by_qid[qid] = end.reason or _name_types(self.types(end.qid), names)
        rows = self._rows(
            "item.id, split, key, trim(source) = '', page.state, page.qid",
            "item LEFT JOIN item_page ON item_page.item = item.id LEFT JOIN page USING (title) ORDER BY item.id",
        )
        recorded = recorded_types(self.db)
        for item, split, key, without_source, state, qid in rows:
            if without_source:
                yield item, split, key, recorded.get(item, "invalid")
            else:
                yield item, split, key, by_qid[qid] if state == "ok" else state or NOT_ASKED


def recorded_types(db: sqlite3.Connection) -> dict[int, list[ItemType] | str]:
    """Item → its recorded types, or the reason why it has none; items that no run has looked up are left out."""
    recorded: dict[int, list[ItemType] | str] = dict(db.execute("SELECT item, reason FROM item_untyped").fetchall())
    for item, text, qid, ended in db.execute("SELECT item, text, qid, ended FROM item_type ORDER BY item, position"):
        types = recorded.setdefault(item, [])
        assert isinstance(types, list)  # an item with a type is not in `item_untyped`
        types.append(ItemType(text, qid, bool(ended)))
    return recorded


def _name_types(types: Mapping[str, bool], names: Mapping[str, tuple[str, str | None]]) -> list[ItemType]:
    """Types with their names; types that were merged are one. `names` maps a QID to the QID it was merged into and its text."""
    named: dict[str, ItemType] = {}
    for qid, ended in types.items():
        target = names[qid][0]
        previous = named.get(target)
        named[target] = ItemType(names[target][1] or target, target, ended and (previous is None or previous.ended))
    return list(named.values())


def sorted_qids(qids: Iterable[str]) -> list[str]:
    """Sort QIDs by their numbers."""
    return sorted(qids, key=lambda qid: int(qid[1:]))


def record_scrape(project: Project, settings: dict[str, Any], requests: int) -> ScrapeResult:
    """Write the types of all items and record the step. If nothing has changed, nothing is written."""
    with project.transaction() as db:
        rows = list(EntityGraph(db, project.recipe.scrape.topic_of).item_types())
        failed = db.execute(
            "SELECT (SELECT count(*) FROM page WHERE state = 'failed') + (SELECT count(*) FROM entity WHERE state = 'failed')"
        ).fetchone()[0]
        query = "SELECT qid, value FROM statement WHERE property = ? AND best ORDER BY qid, position"
        superclasses = db.execute(query, (SUBCLASS_OF,)) if settings["ancestors"] else ()
        return record_types(db, rows, settings, failed=failed, requests=requests, further_rows=superclasses)


def record_types(
    db: sqlite3.Connection,
    rows: Iterable[tuple[int, str, str, list[ItemType] | str]],
    settings: dict[str, Any],
    *,
    failed: int = 0,
    requests: int = 0,
    further_rows: Iterable[Any] = (),
    **counts: int,
) -> ScrapeResult:
    """Replace the tables `item_type` and `item_untyped` by rows of all items, in the transaction of `db`.

    `further_rows` are other rows that `clean` reads: if they change, it becomes stale.
    """
    rows = list(rows)
    typed = {item: types for item, _, _, types in rows if not isinstance(types, str)}
    untyped = Counter(reason for _, _, _, reason in rows if isinstance(reason, str))
    digest = digest_rows((*((split, key, types) for _, split, key, types in rows), *further_rows))
    last = db.execute(
        "SELECT settings_json, inputs, result_json FROM step WHERE name = 'scrape' ORDER BY id DESC LIMIT 1"
    ).fetchone()
    created = db.execute("SELECT result_json FROM step WHERE name = 'new' ORDER BY id DESC LIMIT 1").fetchone()
    inputs = "" if created is None else json.loads(created[0])["digest"]
    same = (
        last is not None
        and last["inputs"] == inputs
        and json.loads(last["result_json"])["digest"] == digest
        and _relevant(json.loads(last["settings_json"])) == _relevant(json.loads(canonical_json(settings)))
    )
    distinct = {(one.qid or label_key(one.text)): one for types in typed.values() for one in types}
    result = ScrapeResult(
        items=len(rows),
        typed=len(typed),
        types=len(distinct),
        several=sum(len(types) > 1 for types in typed.values()),
        nameless=sum(one.text == one.qid for one in distinct.values()),
        untyped=dict(sorted(untyped.items())),
        failed=failed,
        requests=requests,
        changed=not same,
    )
    if same:
        return result
    db.execute("DELETE FROM item_type")
    db.execute("DELETE FROM item_untyped")
    db.executemany(
        "INSERT INTO item_type VALUES (?, ?, ?, ?, ?)",
        [(item, position, *one) for item, types in typed.items() for position, one in enumerate(types)],
    )
    reasons = [(item, reason) for item, _, _, reason in rows if isinstance(reason, str)]
    db.executemany("INSERT INTO item_untyped VALUES (?, ?)", reasons)
    numbers = {name: value for name, value in asdict(result).items() if name not in ("requests", "changed")}
    record_step(db, "scrape", settings, inputs=inputs, result={**numbers, **counts}, digest=digest)
    return result


def _relevant(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _IRRELEVANT_SETTINGS}
