"""The types of a project's items, read from files instead of looked up at Wikidata."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.files.tables import column_names, label_length_problem, read_rows
from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.sources import check_split
from suprank.hierarchy.wikimedia.item_types import NOT_ASKED, ItemType, ScrapeResult, record_types, recorded_types

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from suprank.hierarchy.project import Project
    from suprank.hierarchy.recipe import ItemsRecipe

EMPTY, NOT_LISTED = "empty", "not_listed"
"""Why an item has no type: its cell is empty, or the files of its split have no row of it."""

_SHOWN = 5


@dataclass(frozen=True)
class FileOutcome:
    """The outcome for all items, how many items were new to the project, and how many rows repeated another."""

    outcome: ScrapeResult
    added: int
    repeated: int


@dataclass(frozen=True)
class _Row:
    key: str
    text: str
    source: str
    file: Path
    line: int


def types_from_files(
    project: Project,
    files: Sequence[tuple[str, Path]],
    *,
    id_column: str | None = None,
    type_column: str | None = None,
) -> FileOutcome:
    """Read types from (split, file) pairs: one row for each type of an item.

    `id_column` and `type_column` override the columns of the recipe. If the project has no items of a split, the items in its
    files are added, with their source if the files have that column; if it has some, a row of an unknown item is refused.
    Types of other splits stay as they are. A project of labels is refused, because cleaning would drop all its labels: they
    belong to no item.
    """
    named = {"id": id_column, "type": type_column}
    columns = project.recipe.items.model_copy(update={name: value for name, value in named.items() if value is not None})
    rows_by_split: dict[str, list[_Row]] = {}
    for split, path in files:
        check_split(split)
        rows_by_split.setdefault(split, []).extend(_rows(path, columns))
    settings = {"from": "files", "files": [[split, str(path)] for split, path in files], "id": columns.id, "type": columns.type}
    with project.transaction() as db:
        if db.execute("SELECT EXISTS (SELECT 1 FROM label) AND NOT EXISTS (SELECT 1 FROM item)").fetchone()[0]:
            raise ValueError(f"{project.folder} is a list of labels, which have no types; make another project for items.")
        added = sum(_add_items(db, split, rows) for split, rows in rows_by_split.items())
        listed = {split: _types(rows) for split, rows in rows_by_split.items()}
        repeated = sum(len(rows) - len({(row.key, row.text) for row in rows}) for rows in rows_by_split.values())
        outcome = record_types(db, _types_of_items(db, listed), settings, added=added, repeated=repeated)
    return FileOutcome(outcome, added, repeated)


def _rows(path: Path, columns: ItemsRecipe) -> list[_Row]:
    source = columns.source if columns.source is not None and columns.source in column_names(path) else None
    wanted = [columns.id, columns.type, *([source] if source else [])]

    def find_problem(cells: tuple[str, ...]) -> str | None:
        key = cells[0].strip()
        if not key:
            return f"{columns.id} is empty; expected an id."
        if columns.whole_numbers and not re.fullmatch(r"[0-9]{1,18}", key):
            return f"{columns.id} is {cells[0]!r}; expected a whole number."
        if (wrong := label_length_problem(cells[1])) is not None:
            return f"{columns.type} {wrong}."
        return None

    table = read_rows(path, wanted, find_problem)
    return [
        _Row(
            str(int(cells[0])) if columns.whole_numbers else cells[0].strip(),
            cells[1],
            cells[2].strip() if source else "",
            path,
            line,
        )
        for cells, line in zip(table.rows, table.lines, strict=True)
    ]


def _add_items(db: sqlite3.Connection, split: str, rows: Sequence[_Row]) -> int:
    """Add the items of a split that has none, and return their number; refuse unknown items of a split that has some."""
    there = {row[0] for row in db.execute("SELECT key FROM item WHERE split = ?", (split,))}
    first: dict[str, _Row] = {}
    for row in rows:
        before = first.setdefault(row.key, row)
        if before.source != row.source:
            raise MalformedError(
                f"{row.file}:{row.line}: {split} {row.key} has the source {row.source!r}, but {before.source!r} on "
                f"{before.file}:{before.line}; expected one source an item. Nothing was written."
            )
    if not there:
        new = [(split, key, row.source, row.line) for key, row in first.items()]
        db.executemany("INSERT INTO item (split, key, source, line) VALUES (?, ?, ?, ?)", new)
        return len(new)
    if unknown := [row for key, row in first.items() if key not in there]:
        shown = ", ".join(f"{row.key} (line {row.line})" for row in unknown[:_SHOWN])
        others = f" and {len(unknown) - _SHOWN:,} others" if len(unknown) > _SHOWN else ""
        raise MalformedError(
            f"{unknown[0].file}:{unknown[0].line}: {shown}{others} are not among the {len(there):,} items of {split!r}; "
            "expected items of the project. Nothing was written."
        )
    return 0


def _types(rows: Sequence[_Row]) -> dict[str, dict[str, None]]:
    """The types of each item in their order, each once; texts keep the white space at their ends."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        types = found.setdefault(row.key, {})
        if row.text.strip():
            types[row.text] = None
    return found


def _types_of_items(
    db: sqlite3.Connection, listed: dict[str, dict[str, dict[str, None]]]
) -> list[tuple[int, str, str, list[ItemType] | str]]:
    """The types, or the reason why there are none, of every item of the project; other splits stay as they were."""
    before = recorded_types(db)

    def types(item: int, split: str, key: str) -> list[ItemType] | str:
        if split not in listed:
            return before.get(item, NOT_ASKED)
        if key not in listed[split]:
            return NOT_LISTED
        return [ItemType(text, None, False) for text in listed[split][key]] or EMPTY

    return [
        (item, split, key, types(item, split, key))
        for item, split, key in db.execute("SELECT id, split, key FROM item ORDER BY id")
    ]
