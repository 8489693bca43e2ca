"""Columns of labels and ids in a .csv, .tsv, .parquet or .npy file, as `suprank evaluate` reads them."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.embedding_files import check_file
from suprank.files.binary import open_npy, open_parquet, read_columns
from suprank.files.reading import reading
from suprank.files.tables import DELIMITERS, MalformedError, check_header, records

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Cells = Sequence[str] | NDArray[np.integer[Any]]

PREFIX = "label_"
"""The prefix of a manifest's label columns; the name of the level follows it."""


@dataclass(frozen=True)
class ListColumn:
    """A column of lists: the labels of all rows, one row after the other, and how many each row has."""

    members: Cells
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each member."""
        return np.repeat(np.arange(len(self)), self.lengths)


@dataclass(frozen=True)
class LabelTable:
    """Columns of strings or integers, or of lists of them, and their file. `left_out` maps other columns to their types.

    `label_separator` is what stands between several labels in a cell, if the file says so. `array` is all columns as one array
    `[N, L]`, if the file holds one, memory-mapped.
    """

    path: Path
    names: tuple[str, ...]
    columns: tuple[Cells | ListColumn, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    label_separator: str | None = None
    array: NDArray[np.integer[Any]] | None = None

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def column(self, name: str) -> Cells:
        """The column called `name`, or else `label_<name>`; one of lists is refused."""
        column = self.label_column(name)
        if isinstance(column, ListColumn):
            raise ValueError(f"{self.path}: column {self.full_name(name)!r} holds lists, but must hold one value in a row.")
        return column

    def label_column(self, name: str) -> Cells | ListColumn:
        """The column called `name`, or else `label_<name>`, which may be one of lists."""
        return self.columns[self.names.index(self.full_name(name))]

    def full_name(self, name: str) -> str:
        """The column's name in the file: `species` may stand for `label_species`."""
        for candidate in (name, PREFIX + name):
            if candidate in self.names:
                return candidate
            if candidate in self.left_out:
                raise ValueError(
                    f"{self.path}: column {candidate!r} is {self.left_out[candidate]}, but labels and ids are strings or "
                    f"integers; convert it, or choose from {', '.join(self.names)}."
                )
        short = {name.removeprefix(PREFIX): name for name in self.names} | {name: name for name in self.names}
        nearest = difflib.get_close_matches(name, short, n=1)
        guess = f"did you mean {short[nearest[0]]!r}?" if nearest else f"choose from {', '.join(self.names)}."
        raise ValueError(f"{self.path} has no column {name!r}; {guess}")

    def check_rows(self, count: int, name: str) -> None:
        """Raise unless there is one row for each of the `count` embeddings called `name`."""
        if len(self) != count:
            raise ValueError(
                f"{self.path} has {len(self)} rows and {name} has {count}, but every embedding needs one row of labels, "
                f"in the same order; write both from the same list."
            )


def read_label_table(path: str | os.PathLike[str]) -> LabelTable:
    """Read a .csv or .tsv file (UTF-8, with the column names in its first line), a .parquet file, or a .npy file of integers.

    A .npy array `[N]` becomes the column `label`, `[N, L]` becomes `label_0` to `label_{L-1}`, finest first, and so does
    `[N, L, M]`, up to M labels a row and level, padded with −1. Of a Parquet file only strings, integers and lists of them are
    read, so embeddings and labels may be one file; a null becomes an empty cell.
    """
    path = Path(path)
    readers = {".csv": _delimited, ".tsv": _delimited, ".parquet": _parquet, ".npy": _npy}
    if path.suffix.lower() not in readers:
        raise ValueError(
            f"{path}: {path.suffix or 'no extension'!r} cannot be read; save labels as .csv, .tsv, .parquet or .npy."
        )
    check_file(path, str(path))
    with reading(path, "table of labels"):
        table = readers[path.suffix.lower()](path)
    if len(set(table.names)) < len(table.names):
        twice = next(name for name in table.names if table.names.count(name) > 1)
        raise ValueError(f"{path} has two columns called {twice!r}; rename one.")
    if not table.names:
        others = ", ".join(f"{name} ({kind})" for name, kind in table.left_out.items()) or "none at all"
        raise ValueError(f"{path} has no column of strings or integers (its columns: {others}); labels are one or the other.")
    if not len(table):
        raise ValueError(f"{path} has no rows; it must have one for each embedding.")
    return table


def _delimited(path: Path) -> LabelTable:
    delimiter = DELIMITERS[path.suffix.lower()]
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8.") from error
    rows = records(text, str(path), delimiter)
    names = tuple(name.strip() for name in next(rows, (1, []))[1])
    check_header(names, str(path))
    if all(name.lstrip("-").isdigit() for name in names):
        raise MalformedError(f"{path}: the first line is {','.join(names)}, but must name the columns; add a line of names.")
    columns: tuple[list[str], ...] = tuple([] for _ in names)
    blank = 0
    for line, cells in rows:
        if not cells:
            blank = blank or line
            continue
        if blank:
            raise MalformedError(f'{path}:{blank}: the line is blank; delete it, or write "" for a row without a label.')
        if len(cells) != len(names):
            raise MalformedError(
                f"{path}:{line}: {len(cells)} cells under {len(names)} names; put cells that hold "
                f"{'a tab' if delimiter != ',' else 'a comma'} in double quotes."
            )
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell)
    return LabelTable(path, names, columns, label_separator=_saved_separator(path))


def _saved_separator(path: Path) -> str | None:
    """The separator that a manifest in CSV was saved with, in the .csv.json beside it."""
    beside = path.with_name(path.name + ".json")
    try:
        meta = json.loads(beside.read_bytes()) if beside.is_file() else {}
    except (ValueError, RecursionError):
        meta = {}  # not of suprank
    separator = meta.get("label_separator") if isinstance(meta, dict) else None
    return separator if isinstance(separator, str) and separator else None


def _npy(path: Path) -> LabelTable:
    array = open_npy(path)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{path} holds {array.dtype}, but labels are integers; is this a file of embeddings?")
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
        raise ValueError(
            f"{path} holds {int(array.max())}, but ids must be below 2^63 = {2**63}, the limit of int64; renumber them: "
            f"np.unique(labels, return_inverse=True)."
        )
    if array.ndim not in (1, 2, 3) or 0 in array.shape[1:]:
        raise ValueError(
            f"{path} has shape {array.shape}, but labels must be [N] or [N, L], column 0 the finest, or [N, L, M] if rows have "
            f"up to M labels at a level."
        )
    names = ("label",) if array.ndim == 1 else tuple(f"{PREFIX}{level}" for level in range(array.shape[1]))
    if array.ndim < 3:
        whole = array[:, None] if array.ndim == 1 else array
        return LabelTable(path, names, tuple(whole.T), array=whole)
    columns = np.array(array)
    sizes = np.full(len(columns), columns.shape[2])
    return LabelTable(path, names, tuple(ListColumn(columns[:, level].ravel(), sizes) for level in range(len(names))))


def _parquet(path: Path) -> LabelTable:
    with open_parquet(path) as file:
        import pyarrow.types as kinds  # type: ignore[import-untyped, unused-ignore]

        def is_text(kind: Any) -> bool:
            kind = kind.value_type if kinds.is_dictionary(kind) else kind
            return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_null(kind))

        fields = {column.name: column.type for column in file.schema_arrow if column.name != "__index_level_0__"}
        text = [name for name, kind in fields.items() if is_text(kind)]
        whole = [name for name, kind in fields.items() if kinds.is_integer(kind)]
        lists = [
            name
            for name, kind in fields.items()
            if (kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))
            and (is_text(kind.value_type) or kinds.is_integer(kind.value_type))
        ]
        names = tuple(name for name in fields if name in {*text, *whole, *lists})
        read = read_columns(file, list(names))
    columns: list[Cells | ListColumn] = []
    for name in names:
        column = read.column(name)
        if name in lists:
            rows = [row or [] for row in column.to_pylist()]
            members = ["" if member is None else str(member) for row in rows for member in row]
            columns.append(ListColumn(members, np.array([len(row) for row in rows], np.int64)))
            continue
        plain = name in whole and not column.null_count
        columns.append(column.to_numpy() if plain else ["" if cell is None else str(cell) for cell in column.to_pylist()])
    return LabelTable(path, names, tuple(columns), {name: str(kind) for name, kind in fields.items() if name not in names})
