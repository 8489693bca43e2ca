"""Read the content of a new project: items to be labeled, or labels from a file or a manifest."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.files.tables import RejectedRow, TextRows, column_names, label_length_problem, read_lines, read_rows
from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.text import label_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from suprank.data.manifest import Manifest
    from suprank.hierarchy.recipe import ItemsRecipe

TEXT_COLUMNS = ("label", "text", "name")
"""The column of a table that holds the labels, if none is named: the first of these."""


@dataclass(frozen=True)
class Items:
    """(split, key, source, line) of each item, the number of repeated rows, and the number of items that share their source."""

    rows: list[tuple[str, str, str, int]]
    repeated: int = 0
    sharing: int = 0
    rejects: list[RejectedRow] = field(default_factory=list)


@dataclass(frozen=True)
class SourceLabel:
    """A label with its spellings and their weights; `weight` is their sum."""

    key: str
    text: str
    weight: int
    description: str
    spellings: dict[str, int]


@dataclass(frozen=True)
class Labels:
    """Labels in the order of their first rows, and the number of rows that repeat one of them, perhaps in another spelling."""

    rows: list[SourceLabel]
    repeated: int = 0
    rejects: list[RejectedRow] = field(default_factory=list)


def read_items(
    files: Sequence[tuple[str, Path]], columns: ItemsRecipe, *, skip_bad: bool = False, blank_sources: bool = False
) -> Items:
    """Read the items of (split, file) pairs. Ids of different splits are unrelated.

    A row that repeats an earlier one is counted and left out; one that gives an item a second source is an error, and so is a
    blank source unless `blank_sources`.
    """
    seen: dict[tuple[str, str], tuple[str, int, TextRows]] = {}
    repeated, rejects = 0, []
    wanted = [columns.id] if columns.source is None else [columns.id, columns.source]

    def problem(cells: tuple[str, ...]) -> str | None:
        if columns.source is not None and not blank_sources and not cells[1].strip():
            return f"{columns.source} is empty; expected the page to look it up on."
        return columns.id_problem(cells[0])

    for split, path in files:
        check_split(split)
        table = read_rows(path, wanted, problem, skip_bad=skip_bad)
        rejects += table.rejects
        for index, cells in enumerate(table.rows):
            key = columns.key(cells[0])
            source = "" if columns.source is None else cells[1].strip()
            first = seen.setdefault((split, key), (source, index, table))
            if first[1] == index and first[2] is table:
                continue
            if first[0] != source:
                raise MalformedError(
                    f"{table.where(index)}: {split} {key} has the source {source!r}, but {first[0]!r} on "
                    f"{first[2].where(first[1])}; expected one source per item. Nothing was written."
                )
            repeated += 1
    rows = [(split, key, source, table.lines[index]) for (split, key), (source, index, table) in seen.items()]
    shared = Counter(source for _, _, source, _ in rows if source)
    return Items(rows, repeated, sum(count for count in shared.values() if count > 1), rejects)


def check_split(name: str) -> None:
    """Refuse names of splits that cannot be part of a file name."""
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"split {name!r} must be letters, digits, '_', '.' and '-'.")


def read_labels(
    path: str | Path, *, text_column: str | None = None, weight_column: str | None = None, skip_bad: bool = False
) -> Labels:
    """Read labels from a text file, one per line, or a table with a text column and optional `weight` and `description`."""
    path = Path(path)
    if path.suffix.lower() == ".txt":
        if text_column or weight_column:
            raise ValueError(f"{path} is a text file with a label per line; only .csv, .tsv and .parquet files have columns.")
        table = read_lines(path, skip_bad=skip_bad)
        return labels_from_rows(((text, 1, "") for (text,) in table.rows), table.rejects)
    columns = column_names(path)
    text = text_column or next((name for name in TEXT_COLUMNS if name in columns), TEXT_COLUMNS[0])
    weight = weight_column or ("weight" if "weight" in columns else None)
    described = "description" in columns
    wanted = [text, *([weight] if weight else []), *(["description"] if described else [])]

    def problem(cells: tuple[str, ...]) -> str | None:
        if not label_key(cells[0]):
            return f"{text} is empty; expected a label."
        if (complaint := label_length_problem(cells[0])) is not None:
            return f"{text} {complaint}."
        if weight and not re.fullmatch(r"[0-9]{1,12}", cells[1].strip()):  # sums must fit in 64 bits
            return f"{weight} is {cells[1]!r}; expected a whole number of at most 12 digits."
        return None

    table = read_rows(path, wanted, problem, skip_bad=skip_bad)
    return labels_from_rows(
        ((cells[0], int(cells[1]) if weight else 1, cells[-1].strip() if described else "") for cells in table.rows),
        table.rejects,
    )


def labels_from_rows(rows: Iterable[tuple[str, int, str]], rejects: list[RejectedRow] | None = None) -> Labels:
    """Merge (text, weight, description) rows into labels: texts with the same key are one, named by its heaviest spelling."""
    spellings: dict[str, dict[str, int]] = {}
    descriptions: dict[str, str] = {}
    total = 0
    for text, weight, description in rows:
        key = label_key(text)
        weights = spellings.setdefault(key, {})
        weights[text] = weights.get(text, 0) + weight
        descriptions[key] = descriptions.get(key) or description
        total += 1
    labels = [
        SourceLabel(key, most_common_spelling(weights), sum(weights.values()), descriptions[key], weights)
        for key, weights in spellings.items()
    ]
    return Labels(labels, total - len(labels), rejects or [])


def most_common_spelling(spellings: Mapping[str, int]) -> str:
    """The spelling with the largest count; the first, if several have it.

    Example:
        >>> most_common_spelling({"Church": 2, "church": 5, "CHURCH": 5})
        'church'
    """
    return max(spellings, key=lambda text: spellings[text])


def manifest_level(path: str | Path, level: str | None) -> str:
    """Check that the manifest has this level, and return it; without a level, return the finest."""
    return _level(_manifest(path), path, level)


def _level(manifest: Manifest, path: str | Path, level: str | None) -> str:
    levels = manifest.levels
    if not levels or (level is not None and level not in levels):
        wanted = f"level {level!r}" if level is not None else "level"
        raise ValueError(f"{path} has no {wanted}; choose from {', '.join(levels) or 'none: it has no labels'}.")
    return level or levels[0]


def read_manifest_labels(path: str | Path, level: str) -> Labels:
    """Read the names of a level of a manifest as labels, weighted by their numbers of images."""
    import numpy as np

    manifest = _manifest(path)
    level = _level(manifest, path, level)
    ids = manifest.labels[:, manifest.levels.index(level)]
    names = manifest.names[level]
    images = np.bincount(ids[ids >= 0], minlength=len(names)).tolist()
    return labels_from_rows((name, count, "") for name, count in zip(names, images, strict=True) if count)


def _manifest(path: str | Path) -> Manifest:
    from suprank.data.manifest import Manifest

    try:
        return Manifest.read(path)
    except ValueError as error:
        raise MalformedError(str(error)) from error
