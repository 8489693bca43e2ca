"""The four questions: pages of titles, the log of moves, items, and types. Keys → replies, and the rows that come of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from suprank.hierarchy.wikimedia.errors import BadReplyError
from suprank.hierarchy.wikimedia.replies import (
    INSTANCE_OF,
    SUBCLASS_OF,
    EntityFound,
    PageFound,
    entities_of,
    moved_to,
    pages_of,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from suprank.hierarchy.recipe import ScrapeRecipe
    from suprank.hierarchy.wikimedia.client import Client, Reply

PAGE, MOVE, ITEM, TYPE = "page", "move", "item", "type"
MOST_PARTS = 100
"""Of one reply that is continued; more than this goes in circles."""

NO_MOVE = "the log of moves has none"


@dataclass(frozen=True)
class Answer:
    """Replies to one job, and what they say."""

    replies: list[Reply]
    found: Sequence[PageFound | EntityFound]


class Asker:
    """Asks for keys of each kind, at two endpoints."""

    def __init__(self, client: Client, recipe: ScrapeRecipe, commons: str, wikidata: str) -> None:
        self.client, self.recipe, self.commons, self.wikidata = client, recipe, commons, wikidata

    def answer(self, kind: str, keys: list[str]) -> Answer:
        """What is said of each key; `BadReplyError` where it cannot be read, or does not speak of all of them."""
        return {PAGE: self._pages, MOVE: self._moved, ITEM: self._items, TYPE: self._types}[kind](keys)

    def _pages(self, titles: list[str]) -> Answer:
        form = {
            "action": "query",
            "formatversion": "2",
            "prop": "pageprops",
            "ppprop": "wikibase_item",
            "redirects": "1",
            "titles": "|".join(titles),
        }
        replies: list[Reply] = []
        more: dict[str, str] = {}
        while True:
            replies.append(self.client.reply(self.commons, {**form, **more}, post=True))
            after = replies[-1].payload.get("continue")
            if after is None:
                return Answer(replies, pages_of(titles, [one.payload for one in replies]))
            if not isinstance(after, dict) or len(replies) == MOST_PARTS:
                raise BadReplyError(f"a reply goes on and on: {after!r}")
            more = {str(name): str(value) for name, value in after.items()}

    def _moved(self, titles: list[str]) -> Answer:
        """Of one title that is missing: whether what it was moved to is there."""
        (title,) = titles
        form = {
            "action": "query",
            "formatversion": "2",
            "list": "logevents",
            "letype": "move",
            "letitle": title,
            "lelimit": "1",
        }
        log = self.client.reply(self.commons, form)
        target = moved_to(log.payload)
        if target is None:
            return Answer([log], [PageFound(title, "missing", title, reason=NO_MOVE)])
        there = self._pages([target])
        (page,) = there.found
        assert isinstance(page, PageFound)
        moved = PageFound(title, page.state, page.resolved, page.qid, f"moved to {target}")
        return Answer([log, *there.replies], [moved])

    def _items(self, qids: list[str]) -> Answer:
        return self._entities(qids, {"props": "info|claims"}, (INSTANCE_OF, *dict.fromkeys(self.recipe.topic_of.values())))

    def _types(self, qids: list[str]) -> Answer:
        languages = self.recipe.languages
        form = {"props": "info|claims|labels|descriptions", "languages": "|".join(languages)}
        return self._entities(qids, form, (SUBCLASS_OF,), languages)

    def _entities(
        self, qids: list[str], form: dict[str, str], properties: Sequence[str], languages: Sequence[str] = ()
    ) -> Answer:
        asked: dict[str, Any] = {"action": "wbgetentities", "ids": "|".join(qids), "redirects": "yes", **form}
        reply = self.client.reply(self.wikidata, asked)
        return Answer([reply], entities_of(qids, reply.payload, properties, languages))


def write(db: sqlite3.Connection, kind: str, found: Sequence[PageFound | EntityFound], reply: str | None = None) -> None:
    """What was found, in the rows that waited for it."""
    for one in found:
        if isinstance(one, PageFound):
            db.execute(
                "UPDATE page SET state = ?, resolved = ?, qid = ?, reason = ?, reply = ? WHERE title = ?",
                (one.state, one.resolved, one.qid, one.reason, reply, one.title),
            )
        else:
            _write_entity(db, kind, one, reply)


def _write_entity(db: sqlite3.Connection, kind: str, one: EntityFound, reply: str | None) -> None:
    if one.id != one.asked:  # both are remembered: the old one says where to look
        db.execute(
            "UPDATE entity SET state = 'ok', merged_into = ?, reason = NULL, reply = ? WHERE qid = ? AND kind = ?",
            (one.id, reply, one.asked, kind),
        )
    row = (one.id, kind, one.state, one.revision, one.text, one.language, one.description, reply)
    db.execute(
        "INSERT OR REPLACE INTO entity (qid, kind, state, revision, text, language, description, reply) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        row,
    )
    for name in dict.fromkeys(statement.property for statement in one.statements):
        db.execute("DELETE FROM statement WHERE qid = ? AND property = ?", (one.id, name))
    db.executemany(
        "INSERT INTO statement VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(one.id, it.property, it.position, it.value, it.rank, it.ended, it.best) for it in one.statements],
    )


def mark(db: sqlite3.Connection, kind: str, keys: Sequence[str], state: str, reason: str) -> None:
    """Keys that were not answered, and why."""
    if kind in (PAGE, MOVE):
        db.executemany("UPDATE page SET state = ?, reason = ? WHERE title = ?", [(state, reason, key) for key in keys])
    else:
        rows = [(state, reason, key, kind) for key in keys]
        db.executemany("UPDATE entity SET state = ?, reason = ? WHERE qid = ? AND kind = ?", rows)
