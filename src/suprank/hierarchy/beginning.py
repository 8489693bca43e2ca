"""A new project with what it begins with: all of it, or no project."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank.files.atomic import write_atomically
from suprank.files.folders import refuse_foreign_files
from suprank.hierarchy.alone import alone
from suprank.hierarchy.project import FILE, Project, digest_of, record_step
from suprank.hierarchy.sources import Items, Labels
from suprank.hierarchy.strict import csv_bytes

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from suprank.hierarchy.recipe import Recipe

REJECTS = "rejects.csv"


@dataclass(frozen=True)
class Begun:
    """A project and the counts of what it began with. `again` where it was there already, with the same."""

    project: Project
    result: dict[str, Any]
    again: bool = False


def new_project(
    folder: str | Path,
    recipe: Recipe,
    content: Items | Labels | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    manifest: tuple[Path, str] | None = None,
) -> Begun:
    """Make a project of items or labels. `manifest`, a file and its level, says where their pictures are.

    Rows that were left out go to rejects.csv in the folder. A folder that holds the same project already is left as it is;
    one with another, or with other files, is refused. What a `new` that was killed left behind is replaced.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder.")
    refuse_foreign_files(folder, FILE, "a project", "name another folder")
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):  # two would each take the other's for what a killed one left
        try:
            return _begun(folder, recipe, content, dict(settings or {}), manifest)
        except BaseException:
            if made and not (folder / FILE).exists():
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _begun(
    folder: Path, recipe: Recipe, content: Items | Labels | None, settings: dict[str, Any], manifest: tuple[Path, str] | None
) -> Begun:
    digest = digest_of(_identity(content))
    kept = {"manifest": str(manifest[0].resolve()), "manifest_level": manifest[1]} if manifest else {}
    if (folder / FILE).exists():
        there = Project(folder)
        step = there.steps().get("new")
        if step is not None:
            same = step.result["digest"] == digest and there.recipe == recipe
            if not same or any(there.value(key) != value for key, value in kept.items()):
                raise FileExistsError(f"{folder} holds another project already; name another folder.")
            return Begun(there, step.result, again=True)
        _remove(folder)
    try:
        project = Project.create(folder, recipe)
        with project.writing() as db:
            db.executemany("INSERT INTO meta VALUES (?, ?)", kept.items())
            result = _write(db, content)
            if content is not None and content.rejects:
                _write_rejects(folder / REJECTS, content)  # before the step says that all is done
            record_step(db, "new", settings, inputs="", result=result, digest=digest)
    except BaseException:
        _remove(folder)
        raise
    return Begun(project, {**result, "digest": digest})


def _identity(content: Items | Labels | None) -> list[Any]:
    """What makes two beginnings the same: not where in a file the rows stood."""
    if isinstance(content, Items):
        return [row[:3] for row in content.rows]
    if isinstance(content, Labels):
        return [(one.key, one.text, one.weight, one.description, one.spellings) for one in content.rows]
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
            ((number, one.key, one.text, one.description, one.weight) for number, one in enumerate(rows, start=1)),
        )
        db.executemany(
            "INSERT INTO label_spelling VALUES (?, ?, ?)",
            ((number, *spelling) for number, one in enumerate(rows, start=1) for spelling in one.spellings.items()),
        )
        return {"labels": len(rows), "repeated": content.repeated, "rejected": len(content.rejects)}
    return {"items": 0, "labels": 0}


def _write_rejects(path: Path, content: Items | Labels) -> None:
    rows = ((one.file, one.line, one.problem, one.text) for one in content.rejects)
    write_atomically(path, csv_bytes(("file", "line", "problem", "row"), rows))


def _remove(folder: Path) -> None:
    for name in (REJECTS, FILE, f"{FILE}-wal", f"{FILE}-shm"):
        (folder / name).unlink(missing_ok=True)
