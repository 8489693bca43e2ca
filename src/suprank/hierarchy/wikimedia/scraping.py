"""Titles → items → types, request by request, such that a run that was killed goes on where it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from suprank.hierarchy.alone import alone
from suprank.hierarchy.project import as_json
from suprank.hierarchy.wikimedia.errors import BadReplyError, RefusedError
from suprank.hierarchy.wikimedia.outcome import Known, Outcome, settle
from suprank.hierarchy.wikimedia.queries import ITEM, MOVE, PAGE, TYPE, Asker, mark, write
from suprank.hierarchy.wikimedia.queue import Job, add_jobs, end_job, keep, next_job, waiting_keys
from suprank.hierarchy.wikimedia.titles import batches, title_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable

    from suprank.hierarchy.project import Project
    from suprank.hierarchy.wikimedia.client import Client

ATTEMPTS = 3
"""At a batch whose reply is bad, before it is halved."""

SERVERS = "scraped_from"  # in `meta`


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
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Outcome:
    """The types of the items of a project, by Wikimedia Commons and Wikidata.

    Only the first `limit` items are looked up, beside what waits from before; a later run without it goes on to the others.
    What is known already is not asked for again: not what failed, unless `retry_failed`, and all of it if `afresh`. `move_log`
    asks, of every title that is missing, where it was moved to. `ancestors` is how many steps above the types (P279) classes
    are asked for, of items that have several types; by default as in the recipe. Items without a source keep the types they
    have. At any moment the process may be killed: no more than the request under way is repeated.
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
        "rate": client.pace.rate,
    }
    run = _Run(project, client, Asker(client, recipe, **servers), progress)
    with alone(project.folder):  # two would ask for the same, at twice the rate
        with project.writing() as db:
            _begin(db, servers, recipe.commons, limit, retry_failed=retry_failed, afresh=afresh)
        run.all_of(PAGE, _pending_titles)
        if move_log:
            run.all_of(MOVE, _missing_titles)
        run.all_of(ITEM, lambda db: Known(db, recipe.topic_of).wanted_items())
        run.all_of(TYPE, lambda db: Known(db, recipe.topic_of).wanted_types())
        run.all_of(TYPE, lambda db: Known(db, recipe.topic_of).wanted_ancestors(settings["ancestors"]))
        return settle(project, settings, client.requests)


def _begin(
    db: sqlite3.Connection, servers: dict[str, str], site: str, limit: int | None, *, retry_failed: bool, afresh: bool
) -> None:
    """Titles of items that have none yet; a title that cannot be is known to be invalid without asking."""
    if afresh:
        for table in ("item_page", "page", "entity", "statement", "fetch_job", "meta WHERE key = 'scraped_from'"):
            db.execute(f"DELETE FROM {table}")
    items = db.execute("SELECT count(*), count(nullif(trim(source), '')) FROM item").fetchone()
    if not items[1]:
        there = f"none of the {items[0]:,} items says where to look it up" if items[0] else "the project has no items"
        raise ValueError(f"{there}; give addresses of Commons categories to `suprank hierarchy new --items`, or --from-csv.")
    before = db.execute("SELECT value FROM meta WHERE key = ?", (SERVERS,)).fetchone()
    if before is not None and (asked := json.loads(before[0])) != servers:
        raise ValueError(
            f"the project was scraped from {asked['commons']} and {asked['wikidata']}; give these (--commons, --wikidata), or "
            "--afresh to forget what they said and ask the others."
        )
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (SERVERS, as_json(servers)))
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
            page = (title_of(source, site), "pending", None)
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


class _Run:
    """Makes the jobs of a kind, and works them off."""

    def __init__(self, project: Project, client: Client, asker: Asker, progress: Callable[[str, int, int], None]) -> None:
        self.project, self.client, self.asker, self.progress = project, client, asker, progress

    def all_of(self, kind: str, wanted: Callable[[sqlite3.Connection], Iterable[str]]) -> None:
        """Ask for all that is wanted, and for what becomes wanted by that: the topic of a category item is another item."""
        while self._queued(kind, wanted):
            with self.project.reading() as db:
                total, done = len(waiting_keys(db, kind)), 0
            while True:
                with self.project.reading() as db:
                    job = next_job(db, kind)
                if job is None:
                    break
                self.progress(kind, done, total)
                done += self.work(job)
                self.progress(kind, done, total)

    def _queued(self, kind: str, wanted: Callable[[sqlite3.Connection], Iterable[str]]) -> bool:
        """Whether anything waits; where nothing does, what is wanted now is put into the queue.

        Jobs from before an interruption come first, by themselves: what is asked for together is then the same as without it.
        """
        recipe = self.project.recipe.scrape
        with self.project.writing() as db:
            if next_job(db, kind) is not None:
                return True
            keys = list(wanted(db))
            if kind in (ITEM, TYPE):
                db.executemany("INSERT OR IGNORE INTO entity (qid, kind) VALUES (?, ?)", [(key, kind) for key in keys])
            add_jobs(db, kind, batches(keys, 1 if kind == MOVE else recipe.batch))
            return bool(keys)

    def work(self, job: Job) -> int:
        """Answer a job, or put smaller ones in its place; how many of its keys are settled now."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = self.asker.answer(job.kind, job.keys)
            except RefusedError as error:
                self.client.answered()
                return self._refused(job, error, attempt)
            except BadReplyError as error:
                bad = str(error)
                if attempt < ATTEMPTS:
                    self.client.rest(bad)
                continue
            self.client.answered()
            with self.project.writing() as db:
                write(db, job.kind, answer.found, keep(db, answer.replies))
                end_job(db, job, "done", attempt)
            return len(job.keys)
        return self._halved(job, bad, ATTEMPTS)

    def _refused(self, job: Job, error: RefusedError, attempt: int) -> int:
        if error.code != "no-such-entity" or error.key not in job.keys:
            return self._halved(job, str(error), attempt)
        rest = [key for key in job.keys if key != error.key]
        with self.project.writing() as db:
            mark(db, job.kind, [error.key], "missing", str(error))
            add_jobs(db, job.kind, [rest] if rest else [])
            end_job(db, job, "split" if rest else "done", attempt, str(error))
        return 1

    def _halved(self, job: Job, why: str, attempts: int) -> int:
        half = len(job.keys) // 2
        with self.project.writing() as db:
            if half:
                add_jobs(db, job.kind, [job.keys[:half], job.keys[half:]])
                end_job(db, job, "split", attempts, why)
            else:
                mark(db, job.kind, job.keys, "failed", why)
                end_job(db, job, "failed", attempts, why)
        return 0 if half else 1
