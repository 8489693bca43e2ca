"""A project is a folder with one SQLite file, which every step reads and writes in transactions."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
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
STEPS = ("new", "types", "clean", "embed", "cluster")
"""The steps in order: each reads what the steps before it wrote."""

BUSY_SECONDS = 10.0
SYNCHRONOUS = "FULL"
"""SQLite's durability: with FULL, a change that was confirmed to the user survives a power cut."""


class BusyError(OSError):
    """Another process writes to the project and did not finish in time."""


class FullError(OSError):
    """The disk is full. The transaction was rolled back."""


@dataclass(frozen=True)
class Step:
    """A successful run of a step. It is `stale` if an earlier step has since produced another result."""

    name: str
    settings: dict[str, Any]
    inputs: str
    result: dict[str, Any]
    version: str
    ended: str
    stale: bool = False


class Project:
    """A folder in which a hierarchy is built. `Project(folder)` opens it, `Project.create` makes an empty one.

    `snapshot` and `transaction` each open their own connection, so any number of processes and threads may share a project.
    A transaction is applied completely or, after an error or a crash, not at all.
    """

    def __init__(self, folder: str | os.PathLike[str], *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.folder, self.busy_seconds = Path(folder), busy_seconds
        if not self.file.is_file():
            problem = "holds no project" if self.folder.is_dir() else "does not exist"
            raise FileNotFoundError(f"{self.folder} {problem}; create it with `suprank hierarchy new {self.folder}`.")
        try:
            with self.snapshot() as db:
                meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.file} is not a project ({error}); restore it, or name another folder.") from error
        if meta.get("schema") != str(SCHEMA):
            version = f"schema {meta['schema']}" if "schema" in meta else "no schema of suprank"
            raise ValueError(
                f"{self.file} has {version}, but this suprank reads {SCHEMA}; update suprank, or name another folder."
            )
        self.recipe = Recipe.model_validate_json(meta["recipe"])

    @classmethod
    def create(cls, folder: str | os.PathLike[str], recipe: Recipe) -> Project:
        """Create an empty project. The folder may exist, but must not hold a project."""
        folder = Path(folder)
        if (folder / FILE).exists():
            raise FileExistsError(f"{folder} holds a project already; name another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        # Written under another name first: after a crash there is no project rather than half of one.
        draft = folder / f".{FILE}.{os.getpid()}.tmp"
        try:
            with explain_sqlite_errors(folder / FILE), closing(sqlite3.connect(draft, isolation_level=None)) as db:
                db.execute("PRAGMA journal_mode = WAL")
                schema = (files("suprank.hierarchy") / "schema.sql").read_text(encoding="utf-8")
                db.executescript(f"BEGIN;\n{schema}\nCOMMIT;")
                rows = {"schema": str(SCHEMA), "recipe": recipe.model_dump_json(), "made": utc_now(), "version": __version__}
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
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading. It sees the project as it is now, whatever others write in the meantime."""
        with self._connection() as db:
            db.execute("BEGIN")
            yield db
            db.execute("ROLLBACK")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A connection for writing. It commits when the block ends, and rolls back if the block fails."""
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # SQLite itself rolls back where the disk is full
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with (
            explain_sqlite_errors(self.file),
            closing(sqlite3.connect(self.file, timeout=self.busy_seconds, isolation_level=None)) as db,
        ):
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA foreign_keys = ON")
            db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
            yield db

    def meta(self, key: str) -> str | None:
        """The value stored under a key of the table `meta`, or None."""
        with self.snapshot() as db:
            row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def steps(self) -> dict[str, Step]:
        """The last successful run of each step, in the order of `STEPS`."""
        with self.snapshot() as db:
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
        """Problems that SQLite finds in the file itself; an empty list if it is intact."""
        with self.snapshot() as db:
            damaged = [row[0] for row in db.execute("PRAGMA integrity_check")]
            orphans = [f"{row[0]}: a row refers to a missing row of {row[2]}" for row in db.execute("PRAGMA foreign_key_check")]
        return [line for line in damaged if line != "ok"] + orphans


@contextmanager
def explain_sqlite_errors(file: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours, which name the file and the way out."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the details of an extended code
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            message = f"{file} is being written to by somebody else; nothing was saved. Try again in a moment."
            raise BusyError(message) from error
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            message = f"{file} cannot be written ({error}); nothing was saved. Make room on the disk, and try again."
            raise FullError(message) from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            message = f"{file} may not be written ({error}), which reading needs too; check its permissions and its folder's."
            raise PermissionError(message) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            message = f"{file} is not a project, or is damaged ({error}); restore it, or name another folder."
            raise ValueError(message) from error
        raise


def record_step(
    db: sqlite3.Connection, name: str, settings: dict[str, Any], *, inputs: str, result: dict[str, Any], digest: str
) -> None:
    """Record a successful step, in the transaction that wrote its result.

    `inputs` is the digest of the earlier step that it read, and `digest` that of what it wrote. A step is stale when its
    inputs differ from the current digest of the step before it.
    """
    row = (name, canonical_json(settings), inputs, canonical_json({**result, "digest": digest}), __version__, utc_now())
    db.execute("INSERT INTO step (name, settings_json, inputs, result_json, version, ended) VALUES (?, ?, ?, ?, ?, ?)", row)


def digest_rows(rows: Iterable[Any]) -> str:
    """Sixteen hexadecimal digits that change when the rows change; rows may hold anything JSON can write."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(canonical_json(tuple(row) if isinstance(row, sqlite3.Row) else row).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no blanks: equal values give equal text."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def utc_now() -> str:
    """The current time in UTC, in ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_BRANCHES = """
SELECT name, origin, clustering,
  (SELECT count(*) FROM "group" WHERE branch = b.id) AS groups,
  (SELECT count(*) FROM "group" WHERE branch = b.id AND state = 'done') AS done,
  (SELECT count(*) FROM member WHERE branch = b.id) AS labels,
  (SELECT count(*) FROM member LEFT JOIN "group" g ON g.branch = b.id AND g.id = member."group"
     WHERE member.branch = b.id AND (member."group" IS NULL OR g.state = 'done')) AS reviewed,
  (SELECT count(*) FROM member WHERE branch = b.id AND "group" IS NULL) AS excluded,
  (SELECT count(*) FROM event WHERE branch = b.id) AS acts,
  (SELECT max(at) FROM event WHERE branch = b.id) AS last
FROM branch b ORDER BY origin IS NOT NULL, id
"""


def project_status(project: Project) -> dict[str, Any]:
    """Summarize a project: its steps and which are stale, counts, the progress of each branch, damage to the file.

    A label counts as reviewed if its group is marked done, or if it is excluded.
    """
    steps = [{key: value for key, value in asdict(step).items() if key != "inputs"} for step in project.steps().values()]
    with project.snapshot() as db:
        labels = dict(_pairs(db, "SELECT state, count(*) FROM label"))
        branches = [dict(row) for row in db.execute(_BRANCHES)]
        counts = {
            "items": _one(db, "SELECT count(*) FROM item"),
            "splits": dict(_pairs(db, "SELECT split, count(*) FROM item")),
            "labeled": _one(db, "SELECT count(*) FROM item_label WHERE label IS NOT NULL"),
            "reasons": dict(_pairs(db, "SELECT reason, count(*) FROM item_label WHERE reason IS NOT NULL")),
            "labels": labels.get("active", 0),
            "removed_labels": labels.get("removed", 0),
            "embeddings": _one(db, "SELECT count(*) FROM embedding"),
            "clusterings": _one(db, "SELECT count(*) FROM clustering"),
            "clusters": _one(db, "SELECT count(*) FROM cluster WHERE clustering = (SELECT max(id) FROM clustering)"),
            "exports": _one(db, "SELECT count(*) FROM export"),
        }
    return {
        "project": str(project.folder),
        "recipe": project.recipe.name,
        "levels": list(project.recipe.levels),
        "steps": steps,
        "counts": counts,
        "branches": branches,
        "damage": project.check(),
    }


def _one(db: sqlite3.Connection, query: str) -> int:
    return int(db.execute(query).fetchone()[0])


def _pairs(db: sqlite3.Connection, query: str) -> list[tuple[str, int]]:
    return [(row[0], row[1]) for row in db.execute(f"{query} GROUP BY 1 ORDER BY 2 DESC, 1")]
