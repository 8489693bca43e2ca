"""Look up the types of items: Commons page → item of Wikidata → what that is an instance of → names of these types."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from suprank.files.locking import lock_folder
from suprank.hierarchy.item_types import NOT_ASKED, ItemType, TypeClass, TypesResult, record_types, recorded_types
from suprank.hierarchy.project import explain_sqlite_errors
from suprank.hierarchy.wikimedia.client import BadReplyError, Client
from suprank.hierarchy.wikimedia.replies import HOPS, Entity, is_qid, page_title, read_entities, read_move, read_pages

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from suprank.hierarchy.project import Project
    from suprank.hierarchy.recipe import ScrapeRecipe

    Progress = Callable[[str, int, int], None]

Answer = TypeVar("Answer")

INSTANCE_OF, SUBCLASS_OF = "P31", "P279"
REPLIES = "replies.sqlite"
"""The file of a project with all replies so far."""


def look_up_types(
    project: Project,
    contact: str,
    recipe: ScrapeRecipe | None = None,
    *,
    limit: int | None = None,
    move_log: bool = False,
    afresh: bool = False,
    progress: Progress = lambda kind, done, total: None,
    report_wait: Callable[[str], None] = lambda reason: None,
) -> TypesResult:
    """Look up the types of a project's items at Wikimedia Commons and Wikidata, by the project's recipe or another.

    Only the first `limit` items with a source are looked up; the others keep the types that they have. Every reply is saved in
    the project's folder, and no request is made that one of them answers: the process may be killed at any moment. `afresh`
    deletes them first. `move_log` asks where missing pages were moved to. `report_wait` hears why we wait.
    """
    recipe = recipe or project.recipe.scrape
    for name, url in (("commons", recipe.commons), ("wikidata", recipe.wikidata)):
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise ValueError(
                f"scrape.{name}={url} is not the address of an api.php, such as https://www.wikidata.org/w/api.php."
            )
    replies = project.folder / REPLIES
    # Two processes would make the same requests, at twice the rate.
    with lock_folder(project.folder, "scraping for", "let it end, or stop it"), explain_sqlite_errors(replies):
        with project.snapshot() as db:
            items = db.execute("SELECT id, split, key, source FROM item ORDER BY id").fetchall()
            recorded = recorded_types(db)
        titles = _page_titles(items, project.recipe.scrape.commons, limit)
        if afresh:
            replies.unlink(missing_ok=True)
        with Client(contact, replies, recipe, report_wait) as client:
            wikis = _Wikis(client, recipe, progress)
            ends = wikis.items(dict.fromkeys(title for title in titles.values() if title), move_log)
            types = wikis.types(ends.values())

        def types_of(item: int, source: str) -> list[ItemType] | str:
            if item not in titles:
                return recorded.get(item, NOT_ASKED if source.strip() else "invalid")
            end = ends[titles[item]] if titles[item] else "invalid"
            return end if isinstance(end, str) else _named_types(end, types)

        settings = {"from": "wikimedia", **recipe.model_dump(mode="json", exclude={"rate", "timeout", "patience"})}
        known = (one for one in types.values() if isinstance(one, Entity))
        classes = {one.qid: TypeClass(one.qid, one.description, tuple(one.values[SUBCLASS_OF])) for one in known}
        with project.transaction() as db:
            return record_types(
                db,
                [(row["id"], row["split"], row["key"], types_of(row["id"], row["source"])) for row in items],
                {**settings, "limit": limit, "move_log": move_log},
                classes=classes.values(),
                failures=wikis.failures,
                requests=client.requests_made,
            )


def _page_titles(items: Sequence[sqlite3.Row], site: str, limit: int | None) -> dict[int, str]:
    """Item → the title of its page, "" if it has an impossible one, of the first `limit` items with a source."""
    sources = {row["id"]: row["source"] for row in items if row["source"].strip()}
    if not sources:
        problem = f"none of the {len(items):,} items has a page to look it up on" if items else "the project has no items"
        raise ValueError(f"{problem}; give URLs of Commons categories to `suprank hierarchy new`, or a table with types.")
    titles = {}
    for item, source in list(sources.items())[:limit]:
        try:
            titles[item] = page_title(source, site)
        except ValueError:
            titles[item] = ""
    return titles


def _named_types(item: Entity, types: Mapping[str, Entity | str]) -> list[ItemType]:
    """The types of an item with their names. Types that were merged are one, which has ended if all of them have."""
    named: dict[str, ItemType] = {}
    for requested, ended in item.values[INSTANCE_OF].items():
        known = types[requested]
        qid, text = (requested, "") if isinstance(known, str) else (known.qid, known.text)
        previous = named.get(qid)
        named[qid] = ItemType(text or qid, qid, ended and (previous is None or previous.ended))
    return list(named.values())


def resolve(key: str, items: Mapping[str, Entity | str], topic_of: Mapping[str, str]) -> Entity | str:
    """Follow items that stand for another, such as one of a category, to the item whose types count.

    Instead of that item, it may return the QID of one that must be fetched first, or the reason why there is none. The keys
    are QIDs or such reasons, too.
    """
    for _ in range(HOPS + 1):
        item = items.get(key, key)
        if isinstance(item, str):
            return item
        types = item.values[INSTANCE_OF]
        topic_property = next((topic_of[qid] for qid in types if qid in topic_of), None)
        if topic_property is None:
            return item if types else "no_type"
        topics = item.values[topic_property]
        if not topics:
            return "category_item_without_topic" if topic_of.keys() >= types.keys() else item
        key = next(iter(topics))
    return "topic_loop"


class _Wikis:
    """Asks Commons and Wikidata in batches. `failures` has the keys that got no answer, each with the error."""

    def __init__(self, client: Client, recipe: ScrapeRecipe, progress: Progress) -> None:
        self.client, self.recipe, self.progress = client, recipe, progress
        self.failures: dict[str, str] = {}

    def items(self, titles: Iterable[str], move_log: bool) -> dict[str, Entity | str]:
        """Title → the item whose types count, or the reason why there is none."""
        pages = self._pages(titles)
        if move_log:
            moved = self._moves([title for title, page in pages.items() if page == "missing"])
            targets = self._pages(dict.fromkeys(to for title, to in moved.items() if to and title not in self.failures))
            pages |= {title: targets[target] for title, target in moved.items() if target in targets}
        topic_of = self.recipe.topic_of
        properties = (INSTANCE_OF, *dict.fromkeys(topic_of.values()))
        found: dict[str, Entity | str] = {}
        while True:
            ends = {title: resolve(page, found, topic_of) for title, page in pages.items()}
            wanted = dict.fromkeys(end for end in ends.values() if isinstance(end, str) and is_qid(end))
            if not wanted:
                return ends
            found |= self._entities("item", wanted, properties)

    def types(self, items: Iterable[Entity | str]) -> dict[str, Entity | str]:
        """The types of these items by QID, and the classes above the types of items with several, as far as the recipe says."""
        of_items = [item.values[INSTANCE_OF] for item in items if isinstance(item, Entity)]
        found = self._entities("type", dict.fromkeys(qid for types in of_items for qid in types), (SUBCLASS_OF,))
        classes = dict.fromkeys(qid for types in of_items if len(types) > 1 for qid in types)
        for _ in range(self.recipe.ancestors):
            known = [one for qid in classes if isinstance(one := found[qid], Entity)]
            classes = dict.fromkeys(above for one in known for above in one.values[SUBCLASS_OF])
            found |= self._entities("type", [qid for qid in classes if qid not in found], (SUBCLASS_OF,))
        return found

    def _pages(self, titles: Iterable[str]) -> dict[str, str]:
        form = {"action": "query", "formatversion": "2", "prop": "pageprops", "ppprop": "wikibase_item", "redirects": "1"}

        def ask(batch: list[str]) -> dict[str, str]:
            return self.client.ask(
                self.recipe.commons, {**form, "titles": "|".join(batch)}, lambda payloads: read_pages(batch, payloads)
            )

        return self._ask("page", titles, ask)

    def _moves(self, titles: Iterable[str]) -> dict[str, str]:
        """Title → the title that its page was moved to, "" if the log of moves has none."""
        form = {"action": "query", "formatversion": "2", "list": "logevents", "letype": "move", "lelimit": "1"}

        def ask(batch: list[str]) -> dict[str, str]:
            (title,) = batch
            return self.client.ask(
                self.recipe.commons, {**form, "letitle": title}, lambda payloads: {title: read_move(payloads[0])}
            )

        return self._ask("move", titles, ask, size=1)

    def _entities(self, kind: str, qids: Iterable[str], properties: Sequence[str]) -> dict[str, Entity | str]:
        languages = self.recipe.languages if kind == "type" else ()
        form = {"action": "wbgetentities", "redirects": "yes", "props": "info|claims"}
        if languages:
            form |= {"props": "info|claims|labels|descriptions", "languages": "|".join(languages)}

        def ask(batch: list[str]) -> dict[str, Entity | str]:
            return self.client.ask(
                self.recipe.wikidata,
                {**form, "ids": "|".join(batch)},
                lambda payloads: read_entities(batch, payloads[0], properties, languages),
            )

        return self._ask(kind, qids, ask)

    def _ask(
        self, kind: str, keys: Iterable[str], ask: Callable[[list[str]], Mapping[str, Answer]], size: int | None = None
    ) -> dict[str, Answer | str]:
        """The answers to all keys. Batches are always the same, so that replies to them are found again."""
        keys, size = list(keys), size or self.recipe.batch
        answers: dict[str, Answer | str] = {}
        for start in range(0, len(keys), size):
            self.progress(kind, start, len(keys))
            answers |= self._ask_batch(keys[start : start + size], ask)
            self.progress(kind, min(start + size, len(keys)), len(keys))
        return answers

    def _ask_batch(self, batch: list[str], ask: Callable[[list[str]], Mapping[str, Answer]]) -> dict[str, Answer | str]:
        """The answers to a batch. One that fails is halved, until only the keys remain that are to blame."""
        try:
            return dict(ask(batch))
        except BadReplyError as error:
            if len(batch) > 1:
                half = len(batch) // 2
                return self._ask_batch(batch[:half], ask) | self._ask_batch(batch[half:], ask)
            if error.code == "no-such-entity":
                return {batch[0]: "item_missing"}
            self.failures[batch[0]] = str(error)
            return {batch[0]: "failed"}
