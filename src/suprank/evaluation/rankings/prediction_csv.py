"""The CSV files of GLDv2 and Kaggle, in which a cell lists images with one blank between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.evaluation.rankings.item_ids import shorten
from suprank.files.reading import reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def prediction_rows(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """(line number, query, images) of a prediction file, whose header is `id,images`.

    Blank lines are skipped and one trailing blank is allowed, as Kaggle allowed it; an empty second field gives no images.
    """
    for number, (query, images) in csv_rows(path, ("id", "images")):
        yield number, query, split_ids(images.removesuffix(" "), f"{path}:{number}")


def csv_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of a CSV whose header is exactly `columns`. Fields may be quoted, but ids hold no commas.

    The csv module is of no use here: it limits a field to 131,072 characters for the whole process, which is less than a
    list of 8,000 images.
    """
    with reading(path, "text file"), path.open(encoding="utf-8-sig") as file:
        header = file.readline()
        if tuple(_fields(header)) != columns:
            raise ValueError(
                f"{path}:1: the header is {shorten(header)}, but {','.join(columns)!r} is expected; without it, the first line "
                f"of data would be lost."
            )
        for number, line in enumerate(file, 2):
            if line == "\n":
                continue
            fields = _fields(line)
            if len(fields) != len(columns) or not fields[0] or any('"' in field for field in fields):
                raise ValueError(f"{path}:{number}: {shorten(line)} is malformed; {','.join(columns)!r} is expected.")
            yield number, fields


def split_ids(text: str, place: str) -> list[str]:
    """Ids with one blank between them. A second blank would make an empty id, which would take up a place in the list."""
    ids = text.split(" ") if text else []
    if "" in ids:
        raise ValueError(f"{place}: {shorten(text)} has a blank too many before an id; write one blank between ids.")
    return ids


def _fields(line: str) -> list[str]:
    fields = line.removesuffix("\n").split(",")
    return [field[1:-1] if len(field) > 1 and field[0] == field[-1] == '"' else field for field in fields]
