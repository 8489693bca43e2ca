"""Requests that are still to be made, as rows: what is done is written with the reply in one transaction, or not at all."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from suprank.hierarchy.project import as_json, now

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from suprank.hierarchy.wikimedia.client import Reply


@dataclass(frozen=True)
class Job:
    """Keys that are asked for together; `kind` says what they are and where."""

    id: int
    kind: str
    keys: list[str]


def add_jobs(db: sqlite3.Connection, kind: str, batches: Iterable[Sequence[str]]) -> None:
    """Put batches at the end of the queue."""
    db.executemany("INSERT INTO fetch_job (kind, keys_json) VALUES (?, ?)", ((kind, as_json(list(keys))) for keys in batches))


def next_job(db: sqlite3.Connection, kind: str) -> Job | None:
    """The first that waits."""
    found = db.execute(
        "SELECT id, keys_json FROM fetch_job WHERE state = 'waiting' AND kind = ? ORDER BY id LIMIT 1", (kind,)
    ).fetchone()
    return None if found is None else Job(found["id"], kind, json.loads(found["keys_json"]))


def waiting_keys(db: sqlite3.Connection, kind: str) -> set[str]:
    """Of all jobs that wait."""
    rows = db.execute("SELECT keys_json FROM fetch_job WHERE state = 'waiting' AND kind = ?", (kind,))
    return {key for row in rows for key in json.loads(row["keys_json"])}


def end_job(db: sqlite3.Connection, job: Job, state: str, attempts: int, error: str | None = None) -> None:
    """`done`; `split`, where smaller ones take its place; or `failed`."""
    db.execute("UPDATE fetch_job SET state = ?, attempts = ?, error = ? WHERE id = ?", (state, attempts, error, job.id))


def keep(db: sqlite3.Connection, replies: Iterable[Reply]) -> str:
    """Store replies as they came; the name of the first."""
    rows = [
        (sha256(one.body).hexdigest(), one.url, one.status, as_json(one.headers), zlib.compress(one.body), now())
        for one in replies
    ]
    db.executemany("INSERT OR IGNORE INTO reply VALUES (?, ?, ?, ?, ?, ?)", rows)
    return rows[0][0]
