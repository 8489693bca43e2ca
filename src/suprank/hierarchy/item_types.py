"""The types of a project's items: read from tables, or recorded as they were looked up."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.files.tables import column_names, label_length_problem, read_rows
from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.project import canonical_json, digest_rows, record_step
from suprank.hierarchy.sources import read_items
from suprank.hierarchy.text import label_key

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from suprank.hierarchy.project import Project
    from suprank.hierarchy.recipe import ItemsRecipe

NOT_ASKED, NOT_LISTED, EMPTY = "not_asked", "not_listed", "empty"
"""Why an item has no type: it was left for a later run, its files have no row of it, or its cell is empty."""

_SHOWN = 5


class ItemType(NamedTuple):
    """A type of an item. It has no QID if it comes from a file; its text is its QID if it has no name."""

    text: str
    qid: str | None
    ended: bool


class TypeClass(NamedTuple):
    """What Wikidata says about a type: its description, and the classes that it is a subclass of."""

    qid: str
    description: str
    above: tuple[str, ...]


class TypesResult(NamedTuple):
    """The outcome for all items, in numbers of items, and whether it differs from before.

    `failures` has the keys whose requests failed for good, each with the error; `requests` is None, and `added` and `repeated`
    count rows, if the types are from files.
    """

    items: int
    typed: int
    types: int
    several: int
    nameless: int
    untyped: dict[str, int]
    changed: bool
    failures: Mapping[str, str]
    requests: int | None
    added: int
    repeated: int


def types_from_files(project: Project, files: Sequence[tuple[str, Path]], columns: ItemsRecipe | None = None) -> TypesResult:
    """Read types from (split, file) pairs: one row for each type of an item, with the recipe's columns or others.

    If the project has no items of a split, the items in its files are added, with their source if the files have that column;
    if it has some, a row of an unknown item is refused. Types of other splits stay as they are. A project of labels is refused,
    because cleaning would drop all its labels: they belong to no item.
    """
    columns = columns or project.recipe.items
    with_source = all(columns.source in column_names(path) for _, path in files)
    items = read_items(files, columns if with_source else columns.model_copy(update={"source": None}), blank_sources=True)
    rows = [(split, *row) for split, path in files for row in _rows(path, columns)]
    listed: dict[tuple[str, str], list[str]] = {}
    for split, key, text in dict.fromkeys(rows):
        listed.setdefault((split, key), []).extend([text] if text.strip() else [])
    repeated = len(rows) - len(set(rows))
    settings = {"from": "files", "files": [[split, str(path)] for split, path in files], "id": columns.id, "type": columns.type}
    with project.transaction() as db:
        if db.execute("SELECT EXISTS (SELECT 1 FROM label) AND NOT EXISTS (SELECT 1 FROM item)").fetchone()[0]:
            raise ValueError(f"{project.folder} is a list of labels, which have no types; make another project for items.")
        added = _add_items(db, items.rows, files)
        recorded = recorded_types(db)

        def types_of(item: int, split: str, key: str) -> list[ItemType] | str:
            if split not in dict(files):
                return recorded.get(item, NOT_ASKED)
            if (split, key) not in listed:
                return NOT_LISTED
            return [ItemType(text, None, False) for text in listed[split, key]] or EMPTY

        known = db.execute("SELECT id, split, key FROM item ORDER BY id").fetchall()
        return record_types(db, [(*item, types_of(*item)) for item in known], settings, added=added, repeated=repeated)


def _rows(path: Path, columns: ItemsRecipe) -> Iterator[tuple[str, str]]:
    """The item and its type in every row of a file; a type keeps the white space at its ends."""

    def find_problem(cells: tuple[str, ...]) -> str | None:
        wrong = label_length_problem(cells[1])
        return None if wrong is None else f"{columns.type} {wrong}."

    table = read_rows(path, [columns.id, columns.type], find_problem)
    return ((columns.key(item), text) for item, text in table.rows)


def _add_items(db: sqlite3.Connection, rows: Sequence[tuple[str, str, str, int]], files: Sequence[tuple[str, Path]]) -> int:
    """Add the items of splits that have none, and return their number; refuse unknown items of a split that has some."""
    there = {tuple(row) for row in db.execute("SELECT split, key FROM item")}
    splits = {split for split, _ in there}
    new = [row for row in rows if row[0] not in splits]
    db.executemany("INSERT INTO item (split, key, source, line) VALUES (?, ?, ?, ?)", new)
    if unknown := [row for row in rows if row[0] in splits and row[:2] not in there]:
        split = unknown[0][0]
        shown = ", ".join(f"{key} (line {line})" for _, key, _, line in unknown[:_SHOWN])
        others = f" and {len(unknown) - _SHOWN:,} others" if len(unknown) > _SHOWN else ""
        raise MalformedError(
            f"{', '.join(str(path) for one, path in files if one == split)}: {shown}{others} are not among the items of "
            f"{split!r}; expected items of the project. Nothing was written."
        )
    return len(new)


def recorded_types(db: sqlite3.Connection) -> dict[int, list[ItemType] | str]:
    """Item → its recorded types, or the reason why it has none; items that no run has looked up are left out."""
    reasons: dict[int, list[ItemType] | str] = dict(db.execute("SELECT item, reason FROM item_untyped").fetchall())
    types: dict[int, list[ItemType] | str] = {}
    for item, text, qid, ended in db.execute("SELECT item, text, qid, ended FROM item_type ORDER BY item, position"):
        types.setdefault(item, []).append(ItemType(text, qid, bool(ended)))  # type: ignore[union-attr]
    return reasons | types


def record_types(
    db: sqlite3.Connection,
    rows: Sequence[tuple[int, str, str, list[ItemType] | str]],
    settings: dict[str, Any],
    *,
    classes: Iterable[TypeClass] | None = None,
    failures: Mapping[str, str] | None = None,
    requests: int | None = None,
    added: int = 0,
    repeated: int = 0,
) -> TypesResult:
    """Record (item, split, key, its types or the reason why it has none) of all items, in the transaction of `db`.

    `classes` replace what is known about types, if they are given. If nothing has changed, nothing is written.
    """
    typed = {item: types for item, _, _, types in rows if not isinstance(types, str)}
    reasons = {item: reason for item, _, _, reason in rows if isinstance(reason, str)}
    known = [(*one[:2], canonical_json(one.above)) for one in sorted(classes or ())]
    if classes is None:
        known = [tuple(row) for row in db.execute("SELECT * FROM type_class ORDER BY qid")]
    digest = digest_rows((*((split, key, types) for _, split, key, types in rows), *known))
    steps = {row["name"]: row for row in db.execute("SELECT * FROM step WHERE name IN ('new', 'types') ORDER BY id")}
    inputs = json.loads(steps["new"]["result_json"])["digest"] if "new" in steps else ""
    last = steps.get("types")
    previous = last and (last["inputs"], json.loads(last["result_json"])["digest"], last["settings_json"])
    distinct = {(one.qid or label_key(one.text)): one for types in typed.values() for one in types}
    result = TypesResult(
        items=len(rows),
        typed=len(typed),
        types=len(distinct),
        several=sum(len(types) > 1 for types in typed.values()),
        nameless=sum(one.text == one.qid for one in distinct.values()),
        untyped=dict(sorted(Counter(reasons.values()).items())),
        changed=previous != (inputs, digest, canonical_json(settings)),
        failures=failures or {},
        requests=requests,
        added=added,
        repeated=repeated,
    )
    if result.changed:
        for table in ("item_type", "item_untyped", "type_class"):
            db.execute(f"DELETE FROM {table}")
        positions = ((item, position, *one) for item, types in typed.items() for position, one in enumerate(types))
        db.executemany("INSERT INTO item_type VALUES (?, ?, ?, ?, ?)", positions)
        db.executemany("INSERT INTO item_untyped VALUES (?, ?)", reasons.items())
        db.executemany("INSERT INTO type_class VALUES (?, ?, ?)", known)
        numbers = {name: value for name, value in result._asdict().items() if name not in ("changed", "failures", "requests")}
        record_step(db, "types", settings, inputs=inputs, result={**numbers, "failed": len(result.failures)}, digest=digest)
    return result
