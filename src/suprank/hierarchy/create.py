"""Create a project with its first content: either all of it is written, or no project is left behind."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank.files.atomic import write_atomically
from suprank.files.locking import lock_folder
from suprank.files.outputs import refuse_foreign_files
from suprank.files.spreadsheets import csv_bytes
from suprank.hierarchy.project import FILE, Project, digest_rows, record_step
from suprank.hierarchy.sources import Items, Labels

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from suprank.hierarchy.recipe import Recipe

REJECTS = "rejects.csv"


@dataclass(frozen=True)
class CreatedProject:
    """A project and the counts of its content. `existed` is true if it was there already, with the same content."""

    project: Project
    counts: dict[str, Any]
    existed: bool = False


def create_project(
    folder: str | Path,
    recipe: Recipe,
    content: Items | Labels | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    manifest: tuple[Path, str] | None = None,
) -> CreatedProject:
    """Create a project from items or labels. `manifest` is a file and the level whose images illustrate them.

    Rejected rows are written to rejects.csv in the folder. If the folder holds the same project already, nothing changes; a
    folder with another project or with other files is refused. Leftovers of an interrupted call are replaced.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder.")
    refuse_foreign_files(folder, FILE, "a project", "name another folder")
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    # Otherwise two processes would each take the other's files for leftovers.
    with lock_folder(folder, "creating a project in", "let it end, or stop it"):
        try:
            return _create(folder, recipe, content, dict(settings or {}), manifest)
        except BaseException:
            if is_new and not (folder / FILE).exists():
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _create(
    folder: Path, recipe: Recipe, content: Items | Labels | None, settings: dict[str, Any], manifest: tuple[Path, str] | None
) -> CreatedProject:
    digest = digest_rows(_identity(content))
    meta = {"manifest": str(manifest[0].resolve()), "manifest_level": manifest[1]} if manifest else {}
    if (folder / FILE).exists():
        existing = Project(folder)
        step = existing.steps().get("new")
        if step is not None:
            same = step.result["digest"] == digest and existing.recipe == recipe
            if not same or any(existing.meta(key) != value for key, value in meta.items()):
                raise FileExistsError(f"{folder} holds another project already; name another folder.")
            return CreatedProject(existing, step.result, existed=True)
        _remove(folder)
    try:
        project = Project.create(folder, recipe)
        with project.transaction() as db:
            db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            counts = _write(db, content)
            if content is not None and content.rejects:
                _write_rejects(folder / REJECTS, content)  # before the step is recorded as complete
            record_step(db, "new", settings, inputs="", result=counts, digest=digest)
    except BaseException:
        _remove(folder)
        raise
    return CreatedProject(project, {**counts, "digest": digest})


def _identity(content: Items | Labels | None) -> list[Any]:
    """The rows by which two contents are compared, without their line numbers."""
    if isinstance(content, Items):
        return [row[:3] for row in content.rows]
    if isinstance(content, Labels):
        return [(label.key, label.text, label.weight, label.description, label.spellings) for label in content.rows]
    return []


def _write(db: sqlite3.Connection, content: Items | Labels | None) -> dict[str, Any]:
    if isinstance(content, Items):
        db.executemany("INSERT INTO item (split, key, source, line) VALUES (?, ?, ?, ?)", content.rows)
        splits: dict[str, int] = {}
        for split, *_ in content.rows:
            splits[split] = splits.get(split, 0) + 1
        counts = {"items": len(content.rows), "splits": splits, "sharing": content.sharing}
        return {**counts, "repeated": content.repeated, "rejected": len(content.rejects)}
    if isinstance(content, Labels):
        rows = content.rows
        db.executemany(
            "INSERT INTO label (id, key, text, description, weight, state) VALUES (?, ?, ?, ?, ?, 'active')",
            ((number, label.key, label.text, label.description, label.weight) for number, label in enumerate(rows, start=1)),
        )
        db.executemany(
            "INSERT INTO label_spelling VALUES (?, ?, ?)",
            ((number, *spelling) for number, label in enumerate(rows, start=1) for spelling in label.spellings.items()),
        )
        return {"labels": len(rows), "repeated": content.repeated, "rejected": len(content.rejects)}
    return {"items": 0, "labels": 0}


def _write_rejects(path: Path, content: Items | Labels) -> None:
    rows = ((reject.file, reject.line, reject.problem, reject.text) for reject in content.rejects)
    write_atomically(path, csv_bytes(("file", "line", "problem", "row"), rows))


def _remove(folder: Path) -> None:
    for name in (REJECTS, FILE, f"{FILE}-wal", f"{FILE}-shm"):
        (folder / name).unlink(missing_ok=True)
