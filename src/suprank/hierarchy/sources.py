"""What a project begins with: items to be labeled, or a plain list of labels from a file or a manifest."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.strict import Reject, StrictTable, columns_of, strict_table, text_lines, too_long
from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from suprank.data.manifest import Manifest
    from suprank.hierarchy.recipe import ItemsRecipe

TEXT_COLUMNS = ("label", "text", "name")
"""Where labels are looked for in a table, if no column is named."""


@dataclass(frozen=True)
class Items:
    """(split, key, source, line) of each item; how many rows said the same again, and how many items share their source."""

    rows: list[tuple[str, str, str, int]]
    repeated: int = 0
    sharing: int = 0
    rejects: list[Reject] = field(default_factory=list)


@dataclass(frozen=True)
class SourceLabel:
    """A label of a list: its weight is that of all its spellings together."""

    key: str
    text: str
    weight: int
    description: str
    spellings: dict[str, int]


@dataclass(frozen=True)
class Labels:
    """Labels in the order in which they first came, and how many rows were another spelling, or another row, of one."""

    rows: list[SourceLabel]
    repeated: int = 0
    rejects: list[Reject] = field(default_factory=list)


def read_items(files: Sequence[tuple[str, Path]], columns: ItemsRecipe, *, skip_bad: bool = False) -> Items:
    """The items of (split, file) pairs. Numbers of two splits are two unrelated number spaces.

    A row that says the same as one before is counted and left out; one that gives the same item another source is an error.
    """
    seen: dict[tuple[str, str], tuple[str, int, StrictTable]] = {}
    repeated, rejects = 0, []
    wanted = [columns.id] if columns.source is None else [columns.id, columns.source]

    def problem(cells: tuple[str, ...]) -> str | None:
        for name, cell in zip(wanted, cells, strict=True):
            if not cell.strip():
                return f"{name} is empty; expected {'an id' if name == columns.id else 'where to look it up'}."
        if columns.whole_numbers and not re.fullmatch(r"[0-9]{1,18}", cells[0].strip()):
            return f"{columns.id} is {cells[0]!r}; expected a whole number."
        return None

    for split, path in files:
        check_split(split)
        table = strict_table(path, wanted, problem, skip_bad=skip_bad)
        rejects += table.rejects
        for place, cells in enumerate(table.rows):
            key = str(int(cells[0])) if columns.whole_numbers else cells[0].strip()
            source = "" if columns.source is None else cells[1].strip()
            before = seen.setdefault((split, key), (source, place, table))
            if before[1] == place and before[2] is table:
                continue
            if before[0] != source:
                raise MalformedError(
                    f"{table.where(place)}: {split} {key} has the source {source!r}, but {before[0]!r} on "
                    f"{before[2].where(before[1])}; expected one source an item. Nothing was written."
                )
            repeated += 1
    rows = [(split, key, source, table.lines[place]) for (split, key), (source, place, table) in seen.items()]
    shared = Counter(source for _, _, source, _ in rows if source)
    return Items(rows, repeated, sum(count for count in shared.values() if count > 1), rejects)


def check_split(name: str) -> None:
    """Refuse what cannot be the name of a split: it becomes part of the names of files."""
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"split {name!r} must be letters, digits, '_', '.' and '-'.")


def read_labels(
    path: str | Path, *, text_column: str | None = None, weight_column: str | None = None, skip_bad: bool = False
) -> Labels:
    """The labels of a text file, one a line; or of a table with a text column, and perhaps `weight` and `description`."""
    path = Path(path)
    if path.suffix.lower() == ".txt":
        if text_column or weight_column:
            raise ValueError(f"{path} is a text file, a label a line; columns can be named of .csv, .tsv and .parquet files.")
        table = text_lines(path, skip_bad=skip_bad)
        return labels_of(((text, 1, "") for (text,) in table.rows), table.rejects)
    there = columns_of(path)
    text = text_column or next((name for name in TEXT_COLUMNS if name in there), TEXT_COLUMNS[0])
    weight = weight_column or ("weight" if "weight" in there else None)
    described = "description" in there
    wanted = [text, *([weight] if weight else []), *(["description"] if described else [])]

    def problem(cells: tuple[str, ...]) -> str | None:
        if not key_of(cells[0]):
            return f"{text} is empty; expected a label."
        if (wrong := too_long(cells[0])) is not None:
            return f"{text} {wrong}."
        if weight and not re.fullmatch(r"[0-9]{1,12}", cells[1].strip()):  # sums must fit in 64 bits
            return f"{weight} is {cells[1]!r}; expected a whole number of at most 12 digits."
        return None

    table = strict_table(path, wanted, problem, skip_bad=skip_bad)
    return labels_of(
        ((cells[0], int(cells[1]) if weight else 1, cells[-1].strip() if described else "") for cells in table.rows),
        table.rejects,
    )


def labels_of(rows: Iterable[tuple[str, int, str]], rejects: list[Reject] | None = None) -> Labels:
    """Labels of (text, weight, description) rows: texts with one key are one label, called by its heaviest spelling."""
    spellings: dict[str, dict[str, int]] = {}
    descriptions: dict[str, str] = {}
    total = 0
    for text, weight, description in rows:
        key = key_of(text)
        found = spellings.setdefault(key, {})
        found[text] = found.get(text, 0) + weight
        descriptions[key] = descriptions.get(key) or description
        total += 1
    labels = [
        SourceLabel(key, heaviest(found), sum(found.values()), descriptions[key], found) for key, found in spellings.items()
    ]
    return Labels(labels, total - len(labels), rejects or [])


def heaviest(spellings: Mapping[str, int]) -> str:
    """The spelling with the largest count, the first of several.

    Example:
        >>> heaviest({"Church": 2, "church": 5, "CHURCH": 5})
        'church'
    """
    return max(spellings, key=lambda text: spellings[text])


def manifest_level(path: str | Path, level: str | None) -> str:
    """This level of a manifest, if it has it; the finest where none is named."""
    return _level(_manifest(path), path, level)


def _level(manifest: Manifest, path: str | Path, level: str | None) -> str:
    there = manifest.levels
    if not there or (level is not None and level not in there):
        wanted = f"level {level!r}" if level is not None else "level"
        raise ValueError(f"{path} has no {wanted}; choose from {', '.join(there) or 'none: it has no labels'}.")
    return level or there[0]


def labels_of_manifest(path: str | Path, level: str) -> Labels:
    """The names of a level of a manifest, each with its number of images."""
    import numpy as np

    manifest = _manifest(path)
    level = _level(manifest, path, level)
    ids = manifest.labels[:, manifest.levels.index(level)]
    names = manifest.names[level]
    images = np.bincount(ids[ids >= 0], minlength=len(names)).tolist()
    return labels_of((name, count, "") for name, count in zip(names, images, strict=True) if count)


def _manifest(path: str | Path) -> Manifest:
    from suprank.data.manifest import Manifest

    try:
        return Manifest.read(path)
    except ValueError as error:
        raise MalformedError(str(error)) from error
