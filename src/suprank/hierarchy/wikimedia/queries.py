"""The four queries (pages, moved pages, items, types): titles and batches of keys, requests, and rows for the database."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, unquote, urlsplit

from suprank.hierarchy.errors import BadReplyError
from suprank.hierarchy.wikimedia.replies import (
    INSTANCE_OF,
    SUBCLASS_OF,
    EntityInfo,
    PageInfo,
    parse_entities,
    parse_move,
    parse_pages,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence

    from suprank.hierarchy.recipe import ScrapeRecipe
    from suprank.hierarchy.wikimedia.client import Client, Reply

PAGE, MOVE, ITEM, TYPE = "page", "move", "item", "type"
MAX_PARTS = 100
"""A reply that is continued more often than this goes in circles."""

NO_MOVE = "the log of moves has none"


@dataclass(frozen=True)
class QueryResult:
    """The replies to a query, and what they say about each key."""

    replies: list[Reply]
    infos: Sequence[PageInfo | EntityInfo]


class QueryRunner:
    """Runs queries of each kind at Commons and Wikidata."""

    def __init__(self, client: Client, recipe: ScrapeRecipe, commons: str, wikidata: str) -> None:
        self.client, self.recipe, self.commons, self.wikidata = client, recipe, commons, wikidata

    def run(self, kind: str, keys: list[str]) -> QueryResult:
        """Query these keys; `BadReplyError` if the reply cannot be read or lacks some of them."""
        return {PAGE: self._pages, MOVE: self._moved_page, ITEM: self._items, TYPE: self._types}[kind](keys)

    def _pages(self, titles: list[str]) -> QueryResult:
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
            replies.append(self.client.fetch(self.commons, {**form, **more}, post=True))
            after = replies[-1].payload.get("continue")
            if after is None:
                return QueryResult(replies, parse_pages(titles, [reply.payload for reply in replies]))
            if not isinstance(after, dict) or len(replies) == MAX_PARTS:
                raise BadReplyError(f"a reply is continued without end: {after!r}")
            more = {str(name): str(value) for name, value in after.items()}

    def _moved_page(self, titles: list[str]) -> QueryResult:
        """Look for a missing title where it was moved to."""
        (title,) = titles
        form = {
            "action": "query",
            "formatversion": "2",
            "list": "logevents",
            "letype": "move",
            "letitle": title,
            "lelimit": "1",
        }
        log = self.client.fetch(self.commons, form)
        target = parse_move(log.payload)
        if target is None:
            return QueryResult([log], [PageInfo(title, "missing", title, reason=NO_MOVE)])
        target_result = self._pages([target])
        (page,) = target_result.infos
        assert isinstance(page, PageInfo)
        moved = PageInfo(title, page.state, page.resolved, page.qid, f"moved to {target}")
        return QueryResult([log, *target_result.replies], [moved])

    def _items(self, qids: list[str]) -> QueryResult:
        return self._entities(qids, {"props": "info|claims"}, (INSTANCE_OF, *dict.fromkeys(self.recipe.topic_of.values())))

    def _types(self, qids: list[str]) -> QueryResult:
        languages = self.recipe.languages
        form = {"props": "info|claims|labels|descriptions", "languages": "|".join(languages)}
        return self._entities(qids, form, (SUBCLASS_OF,), languages)

    def _entities(
        self, qids: list[str], form: dict[str, str], properties: Sequence[str], languages: Sequence[str] = ()
    ) -> QueryResult:
        form = {"action": "wbgetentities", "ids": "|".join(qids), "redirects": "yes", **form}
        reply = self.client.fetch(self.wikidata, form)
        return QueryResult([reply], parse_entities(qids, reply.payload, properties, languages))


def write_infos(db: sqlite3.Connection, kind: str, infos: Sequence[PageInfo | EntityInfo], reply: str | None = None) -> None:
    """Update the pending rows with the information from replies."""
    for info in infos:
        if isinstance(info, PageInfo):
            db.execute(
                "UPDATE page SET state = ?, resolved = ?, qid = ?, reason = ?, reply = ? WHERE title = ?",
                (info.state, info.resolved, info.qid, info.reason, reply, info.title),
            )
        else:
            _write_entity(db, kind, info, reply)


def _write_entity(db: sqlite3.Connection, kind: str, info: EntityInfo, reply: str | None) -> None:
    if info.id != info.requested_id:  # both are stored: the old one refers to the new one
        db.execute(
            "UPDATE entity SET state = 'ok', merged_into = ?, reason = NULL, reply = ? WHERE qid = ? AND kind = ?",
            (info.id, reply, info.requested_id, kind),
        )
    row = (info.id, kind, info.state, info.revision, info.text, info.language, info.description, reply)
    db.execute(
        "INSERT OR REPLACE INTO entity (qid, kind, state, revision, text, language, description, reply) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        row,
    )
    for name in dict.fromkeys(statement.property for statement in info.statements):
        db.execute("DELETE FROM statement WHERE qid = ? AND property = ?", (info.id, name))
    db.executemany(
        "INSERT INTO statement VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (info.id, claim.property, claim.position, claim.value, claim.rank, claim.ended, claim.best)
            for claim in info.statements
        ],
    )


def write_state(db: sqlite3.Connection, kind: str, keys: Sequence[str], state: str, reason: str) -> None:
    """Mark keys that were not answered, with the reason."""
    if kind in (PAGE, MOVE):
        db.executemany("UPDATE page SET state = ?, reason = ? WHERE title = ?", [(state, reason, key) for key in keys])
    else:
        rows = [(state, reason, key, kind) for key in keys]
        db.executemany("UPDATE entity SET state = ?, reason = ? WHERE qid = ? AND kind = ?", rows)


BATCH_BYTES = 6000
"""Limit on the encoded titles of a batch: fifty long ones in another script make 13 kB, more than servers accept in a URL."""

_URL = re.compile(r"(?:https?:)?//(?P<host>[^/?#]*)(?P<path>[^#]*)", re.IGNORECASE | re.DOTALL)
_ILLEGAL = re.compile(r"[#<>\[\]|{}\x00-\x1f\x7f\ufffd]|%[0-9A-Fa-f]{2}")
_MAX_TITLE_BYTES = 255  # bytes of a title without its namespace


def page_title(source: str, site: str) -> str:
    """The title of a page, from its URL at `site` (any URL there; only the host matters) or from `Category:X`.

    A title that no wiki can have is refused, because it would spoil its batch.

    Example:
        >>> page_title("http://commons.wikimedia.org/wiki/Category:Sparkassen-Arena,_G%C3%B6ttingen", "https://commons.wikimedia.org")
        'Category:Sparkassen-Arena, Göttingen'
    """
    text = source.strip()
    if not text:
        raise ValueError("it has no URL")
    url = _URL.match(text)
    encoded = _encoded_title(url["host"], url["path"], site) if url else text
    try:
        decoded = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{text!r} is not UTF-8 where it is percent-encoded") from None
    if illegal := _ILLEGAL.search(decoded):
        raise ValueError(f"{text!r} contains {illegal[0]!r}, which no title may contain")
    title = " ".join(unicodedata.normalize("NFC", decoded).replace("_", " ").split())
    space, colon, name = (part.strip() for part in title.partition(":"))
    if space.casefold() == "category" and colon:
        title = f"Category:{name}"
    elif not url:
        raise ValueError(f"{text!r} is neither a URL nor Category:...")
    else:
        name = title
    if not name:
        raise ValueError(f"{text!r} names no page")
    if len(name.encode()) > _MAX_TITLE_BYTES:
        raise ValueError(f"{text[:80]!r}... is longer than the {_MAX_TITLE_BYTES} bytes of a title")
    return title


def _encoded_title(host: str, path: str, site: str) -> str:
    """The part of a URL that is the title, still encoded."""
    wanted = urlsplit(site).netloc.casefold()
    if host.casefold().replace(".m.", ".", 1) != wanted:
        raise ValueError(f"it is a page of {host or 'no site'}, not of {wanted}")
    if not path.startswith("/wiki/"):
        raise ValueError(f"{path!r} is not /wiki/ and a title")
    title, _, query = path.removeprefix("/wiki/").partition("?")
    return title if "=" in query else path.removeprefix("/wiki/")  # a title may contain a question mark


def key_batches(keys: Iterable[str], size: int, most_bytes: int = BATCH_BYTES) -> Iterator[list[str]]:
    """Split keys in order into batches of at most `size` keys and `most_bytes` encoded bytes; a longer key gets its own batch.

    Example:
        >>> list(key_batches(["a", "b", "c"], 2)), list(key_batches(["aaa", "é", "b"], 50, 14))
        ([['a', 'b'], ['c']], [['aaa'], ['é', 'b']])
    """
    batch: list[str] = []
    length = 0
    for key in keys:
        encoded = len(quote_plus(key)) + 3  # and the | before the next
        if batch and (len(batch) == size or length + encoded > most_bytes):
            yield batch
            batch, length = [], 0
        batch.append(key)
        length += encoded
    if batch:
        yield batch
