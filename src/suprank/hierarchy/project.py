"""A project: one folder with one SQLite file, which every step reads and writes in transactions."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank import __version__
from suprank.hierarchy.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FILE = "project.sqlite"
SCHEMA = 1
STEPS = ("new", "scrape", "clean", "embed", "cluster")
"""In the order in which each reads what those before it wrote."""

BUSY_SECONDS = 10.0
SYNCHRONOUS = "FULL"
"""What SQLite waits for: with FULL, an act that was told to be saved survives a power cut."""


class BusyError(OSError):
    """Somebody else is writing to the project, and did not end in time."""


class FullError(OSError):
    """There is no room left on the disk; nothing of what was being written is there."""


@dataclass(frozen=True)
class Step:
    """A run of a step that ended well. `stale` where one before it, or before that, has had another outcome since."""

    name: str
    settings: dict[str, Any]
    inputs: str
    result: dict[str, Any]
    version: str
    ended: str
    stale: bool = False


class Project:
    """A folder in which a hierarchy is made. `Project.create` makes one, `Project(folder)` opens it.

    Nothing is kept open between two blocks of `reading` and `writing`, so that any number of processes and threads may
    share a project. What a block of `writing` did is there whole, or, after an error or a crash, not at all.
    """

    def __init__(self, folder: str | os.PathLike[str], *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.folder, self.busy_seconds = Path(folder), busy_seconds
        if not self.file.is_file():
            there = "holds no project" if self.folder.is_dir() else "is not there"
            raise FileNotFoundError(f"{self.folder} {there}; make one with `suprank hierarchy new {self.folder}`.")
        try:
            with self.reading() as db:
                meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.file} is not a project ({error}); restore it, or make another folder.") from error
        if meta.get("schema") != str(SCHEMA):
            has = f"schema {meta['schema']}" if "schema" in meta else "no schema of ours"
            raise ValueError(f"{self.file} has {has}, and this suprank reads {SCHEMA}; update suprank, or name another folder.")
        self.recipe = Recipe.model_validate_json(meta["recipe"])

    @classmethod
    def create(cls, folder: str | os.PathLike[str], recipe: Recipe) -> Project:
        """A new project. The folder may be there, but not with a project in it."""
        folder = Path(folder)
        if (folder / FILE).exists():
            raise FileExistsError(f"{folder} holds a project already; name another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        # Written under another name first: after a crash there is no project rather than half of one.
        draft = folder / f".{FILE}.{os.getpid()}.tmp"
        try:
            with _plain_errors(folder / FILE), closing(sqlite3.connect(draft, isolation_level=None)) as db:
                db.execute("PRAGMA journal_mode = WAL")
                schema = (files("suprank.hierarchy") / "schema.sql").read_text(encoding="utf-8")
                db.executescript(f"BEGIN;\n{schema}\nCOMMIT;")
                rows = {"schema": str(SCHEMA), "recipe": recipe.model_dump_json(), "made": now(), "version": __version__}
                db.executemany("INSERT INTO meta VALUES (?, ?)", rows.items())
            draft.rename(folder / FILE)
        except BaseException:
            for left in folder.glob(f".{FILE}.{os.getpid()}.tmp*"):
                left.unlink()
            raise
        return cls(folder)

    @property
    def file(self) -> Path:
        return self.folder / FILE

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees the project as it is now, whatever others write meanwhile."""
        with self._connected() as db:
            db.execute("BEGIN")
            yield db
            db.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection whose writes are kept when the block ends, all of them, and forgotten where it fails."""
        with self._connected() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # SQLite itself rolls back where the disk is full
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with (
            _plain_errors(self.file),
            closing(sqlite3.connect(self.file, timeout=self.busy_seconds, isolation_level=None)) as db,
        ):
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA foreign_keys = ON")
            db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
            yield db

    def value(self, key: str) -> str | None:
        """What is kept under a key of `meta`."""
        with self.reading() as db:
            row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def steps(self) -> dict[str, Step]:
        """The last run of every step that has ended well, in their order."""
        with self.reading() as db:
            rows = db.execute("SELECT * FROM step WHERE id IN (SELECT max(id) FROM step GROUP BY name)").fetchall()
        found = {row["name"]: row for row in rows}
        steps: dict[str, Step] = {}
        before, stale = "", False
        for name in STEPS:
            if (row := found.get(name)) is None:
                continue
            stale = stale or (bool(before) and row["inputs"] != before)
            settings, result = json.loads(row["settings_json"]), json.loads(row["result_json"])
            steps[name] = Step(name, settings, row["inputs"], result, row["version"], row["ended"], stale)
            before = result["digest"]
        return steps

    def check(self) -> list[str]:
        """What SQLite finds wrong with the file itself: nothing, one hopes."""
        with self.reading() as db:
            damaged = [row[0] for row in db.execute("PRAGMA integrity_check")]
            orphans = [
                f"{row[0]}: a row points to {row[2]} that is not there" for row in db.execute("PRAGMA foreign_key_check")
            ]
        return [line for line in damaged if line != "ok"] + orphans


@contextmanager
def _plain_errors(file: Path) -> Iterator[None]:
    """SQLite's errors as ours, which name the file and the way out."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the details of an extended code
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            said = f"{file} is being written to by somebody else; nothing was saved. Try again in a moment."
            raise BusyError(said) from error
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            said = f"{file} cannot be written ({error}); nothing was saved. Make room on the disk, and try again."
            raise FullError(said) from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            said = f"{file} may not be written ({error}), which reading needs too; see to its rights and its folder's."
            raise PermissionError(said) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            said = f"{file} is not a project, or is damaged ({error}); restore it, or make another folder."
            raise ValueError(said) from error
        raise


def record_step(
    db: sqlite3.Connection, name: str, settings: dict[str, Any], *, inputs: str, result: dict[str, Any], digest: str
) -> None:
    """Write down that a step ended, in the transaction that wrote its outcome.

    `inputs` is the digest of the step before it that was read, and `digest` that of what this one wrote: a later step whose
    inputs are no longer the digest before it is stale.
    """
    row = (name, as_json(settings), inputs, as_json({**result, "digest": digest}), __version__, now())
    db.execute("INSERT INTO step (name, settings_json, inputs, result_json, version, ended) VALUES (?, ?, ?, ?, ?, ?)", row)


def digest_of(rows: Iterable[Any]) -> str:
    """Sixteen digits that tell whether rows (of anything JSON can write) are those from before."""
    found = hashlib.sha256()
    for row in rows:
        found.update(as_json(tuple(row) if isinstance(row, sqlite3.Row) else row).encode())
        found.update(b"\n")
    return found.hexdigest()[:16]


def as_json(value: Any) -> str:
    """JSON that is the same for the same value."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
