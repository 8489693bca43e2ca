"""Scrape the types of items, page title → item → types, so that an interrupted run continues where it stopped.

Pending requests are rows of the table `fetch_job`. A job is marked done in the transaction that saves its reply.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from suprank.files.locking import lock_folder
from suprank.hierarchy.errors import BadReplyError, RequestRefusedError
from suprank.hierarchy.project import canonical_json, utc_now
from suprank.hierarchy.wikimedia.item_types import EntityGraph, ScrapeResult, record_scrape
from suprank.hierarchy.wikimedia.queries import (
    ITEM,
    MOVE,
    PAGE,
    TYPE,
    QueryRunner,
    key_batches,
    page_title,
    write_infos,
    write_state,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence

    from suprank.hierarchy.project import Project
    from suprank.hierarchy.wikimedia.client import Client, Reply

ATTEMPTS = 3
"""How often a batch with a bad reply is requested before it is halved."""

SERVERS = "scraped_from"  # a key of the table `meta`


def scrape(
    project: Project,
    client: Client,
    *,
    commons: str | None = None,
    wikidata: str | None = None,
    limit: int | None = None,
    retry_failed: bool = False,
    move_log: bool = False,
    ancestors: int | None = None,
    afresh: bool = False,
    progress: Callable[[str, int, int], None] = lambda kind, done, total: None,
) -> ScrapeResult:
    """Look up the types of a project's items at Wikimedia Commons and Wikidata.

    Only the first `limit` items are looked up, in addition to what is pending; a later run without a limit continues. What is
    known is not requested again: failed keys only with `retry_failed`, everything with `afresh`. `move_log` asks where missing
    titles were moved to. `ancestors` is the number of steps of superclasses (P279) to fetch for items with several types; the
    default is the recipe's. Items without a source keep their types. The process may be killed at any moment: at most the
    current request is repeated.
    """
    recipe = project.recipe.scrape
    servers = {"commons": commons or recipe.commons, "wikidata": wikidata or recipe.wikidata}
    for name, url in servers.items():
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise ValueError(f"--{name} {url!r} is not the address of an api.php, such as {getattr(recipe, name)}.")
    settings: dict[str, Any] = {
        "from": "wikimedia",
        **servers,
        "languages": list(recipe.languages),
        "topic_of": recipe.topic_of,
        "limit": limit,
        "move_log": move_log,
        "ancestors": recipe.ancestors if ancestors is None else ancestors,
        "rate": client.rate_limiter.rate,
    }
    worker = _JobWorker(project, client, QueryRunner(client, recipe, **servers), progress)
    # Two processes would make the same requests, at twice the rate.
    with lock_folder(project.folder, "scraping for", "let it end, or stop it"):
        with project.transaction() as db:
            _prepare(db, servers, recipe.commons, limit, retry_failed=retry_failed, afresh=afresh)
        worker.fetch_all(PAGE, _pending_titles)
        if move_log:
            worker.fetch_all(MOVE, _missing_titles)
        worker.fetch_all(ITEM, lambda db: EntityGraph(db, recipe.topic_of).wanted_items())
        worker.fetch_all(TYPE, lambda db: EntityGraph(db, recipe.topic_of).wanted_types())
        worker.fetch_all(TYPE, lambda db: EntityGraph(db, recipe.topic_of).wanted_ancestors(settings["ancestors"]))
        return record_scrape(project, settings, client.requests)


def _prepare(
    db: sqlite3.Connection, servers: dict[str, str], site: str, limit: int | None, *, retry_failed: bool, afresh: bool
) -> None:
    """Add the titles of items that have none yet. An impossible title is marked invalid without a request."""
    if afresh:
        for table in ("item_page", "page", "entity", "statement", "fetch_job", "meta WHERE key = 'scraped_from'"):
            db.execute(f"DELETE FROM {table}")
    items, sources = db.execute("SELECT count(*), count(nullif(trim(source), '')) FROM item").fetchone()
    if not sources:
        problem = f"none of the {items:,} items has a page to look it up on" if items else "the project has no items"
        raise ValueError(
            f"{problem}; give URLs of Commons categories to `suprank hierarchy new --items`, or items from a table (from_csv)."
        )
    row = db.execute("SELECT value FROM meta WHERE key = ?", (SERVERS,)).fetchone()
    if row is not None and (previous := json.loads(row[0])) != servers:
        raise ValueError(
            f"the project was scraped from {previous['commons']} and {previous['wikidata']}; give these (commons, "
            "wikidata), or scrape afresh, to forget their replies and ask the new servers."
        )
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (SERVERS, canonical_json(servers)))
    if retry_failed:
        for table in ("page", "entity"):
            db.execute(f"UPDATE {table} SET state = 'pending', reason = NULL WHERE state = 'failed'")
    new = db.execute(
        "SELECT id, source FROM (SELECT id, source FROM item WHERE trim(source) != '' ORDER BY id LIMIT ?) "
        "WHERE id NOT IN (SELECT item FROM item_page)",
        (-1 if limit is None else limit,),
    ).fetchall()
    for item, source in new:
        page: tuple[str, str, str | None]
        try:
            page = (page_title(source, site), "pending", None)
        except ValueError as error:
            page = (source, "invalid", str(error))
        db.execute("INSERT OR IGNORE INTO page (title, state, reason) VALUES (?, ?, ?)", page)
        db.execute("INSERT INTO item_page VALUES (?, ?)", (item, page[0]))


def _pending_titles(db: sqlite3.Connection) -> list[str]:
    rows = db.execute(
        "SELECT title FROM page JOIN item_page USING (title) WHERE state = 'pending' GROUP BY title ORDER BY min(item)"
    )
    return [row[0] for row in rows]


def _missing_titles(db: sqlite3.Connection) -> list[str]:
    rows = db.execute(
        "SELECT title FROM page JOIN item_page USING (title) WHERE state = 'missing' AND page.reason IS NULL "
        "GROUP BY title ORDER BY min(item)"
    )
    return [row[0] for row in rows]


class _JobWorker:
    """Queues the jobs of a kind and works through them."""

    def __init__(
        self, project: Project, client: Client, queries: QueryRunner, progress: Callable[[str, int, int], None]
    ) -> None:
        self.project, self.client, self.queries, self.progress = project, client, queries, progress

    def fetch_all(self, kind: str, wanted: Callable[[sqlite3.Connection], Iterable[str]]) -> None:
        """Fetch all wanted keys, and those that become wanted by that: the topic of a category item is another item."""
        while self._fill_queue(kind, wanted):
            with self.project.snapshot() as db:
                total, done = len(waiting_keys(db, kind)), 0
            while True:
                with self.project.snapshot() as db:
                    job = next_job(db, kind)
                if job is None:
                    break
                self.progress(kind, done, total)
                done += self.run_job(job)
                self.progress(kind, done, total)

    def _fill_queue(self, kind: str, wanted: Callable[[sqlite3.Connection], Iterable[str]]) -> bool:
        """If the queue is empty, fill it with the wanted keys. Return whether anything waits.

        Jobs from before an interruption are finished first, so that the batches are the same as without it.
        """
        recipe = self.project.recipe.scrape
        with self.project.transaction() as db:
            if next_job(db, kind) is not None:
                return True
            keys = list(wanted(db))
            if kind in (ITEM, TYPE):
                db.executemany("INSERT OR IGNORE INTO entity (qid, kind) VALUES (?, ?)", [(key, kind) for key in keys])
            add_jobs(db, kind, key_batches(keys, 1 if kind == MOVE else recipe.batch))
            return bool(keys)

    def run_job(self, job: Job) -> int:
        """Run a job, or replace it by smaller ones. Return how many of its keys are finished."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                result = self.queries.run(job.kind, job.keys)
            except RequestRefusedError as error:
                self.client.reset_patience()
                return self._handle_refusal(job, error, attempt)
            except BadReplyError as error:
                reason = str(error)
                if attempt < ATTEMPTS:
                    self.client.back_off(reason)
                continue
            self.client.reset_patience()
            with self.project.transaction() as db:
                write_infos(db, job.kind, result.infos, save_replies(db, result.replies))
                end_job(db, job, "done", attempt)
            return len(job.keys)
        return self._halve(job, reason, ATTEMPTS)

    def _handle_refusal(self, job: Job, error: RequestRefusedError, attempt: int) -> int:
        if error.code != "no-such-entity" or error.key not in job.keys:
            return self._halve(job, str(error), attempt)
        rest = [key for key in job.keys if key != error.key]
        with self.project.transaction() as db:
            write_state(db, job.kind, [error.key], "missing", str(error))
            add_jobs(db, job.kind, [rest] if rest else [])
            end_job(db, job, "split" if rest else "done", attempt, str(error))
        return 1

    def _halve(self, job: Job, reason: str, attempts: int) -> int:
        half = len(job.keys) // 2
        with self.project.transaction() as db:
            if half:
                add_jobs(db, job.kind, [job.keys[:half], job.keys[half:]])
                end_job(db, job, "split", attempts, reason)
            else:
                write_state(db, job.kind, job.keys, "failed", reason)
                end_job(db, job, "failed", attempts, reason)
        return 0 if half else 1


@dataclass(frozen=True)
class Job:
    """A batch of keys that are requested together; `kind` is the kind of query."""

    id: int
    kind: str
    keys: list[str]


def add_jobs(db: sqlite3.Connection, kind: str, batches: Iterable[Sequence[str]]) -> None:
    """Append batches of keys to the queue."""
    rows = ((kind, canonical_json(list(keys))) for keys in batches)
    db.executemany("INSERT INTO fetch_job (kind, keys_json) VALUES (?, ?)", rows)


def next_job(db: sqlite3.Connection, kind: str) -> Job | None:
    """The first waiting job of this kind."""
    row = db.execute(
        "SELECT id, keys_json FROM fetch_job WHERE state = 'waiting' AND kind = ? ORDER BY id LIMIT 1", (kind,)
    ).fetchone()
    return None if row is None else Job(row["id"], kind, json.loads(row["keys_json"]))


def waiting_keys(db: sqlite3.Connection, kind: str) -> set[str]:
    """The keys of all waiting jobs of this kind."""
    rows = db.execute("SELECT keys_json FROM fetch_job WHERE state = 'waiting' AND kind = ?", (kind,))
    return {key for row in rows for key in json.loads(row["keys_json"])}


def end_job(db: sqlite3.Connection, job: Job, state: str, attempts: int, error: str | None = None) -> None:
    """Mark a job as `done`, as `split` if smaller ones replace it, or as `failed`."""
    db.execute("UPDATE fetch_job SET state = ?, attempts = ?, error = ? WHERE id = ?", (state, attempts, error, job.id))


def save_replies(db: sqlite3.Connection, replies: Iterable[Reply]) -> str:
    """Store replies as received, and return the SHA-256 of the first."""
    rows = [
        (
            sha256(reply.body).hexdigest(),
            reply.url,
            reply.status,
            canonical_json(reply.headers),
            zlib.compress(reply.body),
            utc_now(),
        )
        for reply in replies
    ]
    db.executemany("INSERT OR IGNORE INTO reply VALUES (?, ?, ?, ?, ?, ?)", rows)
    return rows[0][0]
