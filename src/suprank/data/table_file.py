"""The rows of a CSV, TSV or Parquet file, read in bulk, that still know the line on which each of them stands."""

from __future__ import annotations

import csv
import difflib
import io
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]
import pyarrow.csv  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from numpy.typing import NDArray

DELIMITERS = {".csv": ",", ".tsv": "\t"}
_BLOCK = 1 << 28  # bytes; a row must fit into one, and GLDv2 has landmarks whose images fill a line of megabytes


@dataclass(frozen=True)
class TableFile:
    """A table of at least one row, and where it came from. Cells of text files are strings, "" where there is nothing.

    Read with pyarrow, which is fast and counts no lines; the line of a row is looked for only when an error must name it.
    """

    about: str
    table: pa.Table
    text: bytes = b""
    delimiter: str = ""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def names(self) -> list[str]:
        return list(self.table.column_names)

    def column(self, name: str) -> pa.Array:
        """The cells of a column, in one piece."""
        if name not in self.names:
            raise self.missing(name)
        cells = self.table.column(name).combine_chunks()
        return cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells  # empty tables stay chunked

    def missing(self, name: str) -> ValueError:
        """The error to raise for a column that is not there, with the nearest name that is."""
        nearest = difflib.get_close_matches(name, self.names, n=1)
        guess = f"did you mean {nearest[0]!r}? It" if nearest else "it"
        return ValueError(f"{self.about} has no column {name!r}; {guess} has {', '.join(self.names)}.")

    def where(self, row: int) -> str:
        """`file:line` of a row, counted from 0 (its last line, if it has several); `file, row 1` where there are no lines."""
        if not self.delimiter:
            return f"{self.about}, row {row + 1}"
        records = csv.reader(io.StringIO(self.text.decode("utf-8-sig", "replace"), newline=""), delimiter=self.delimiter)
        lines = (records.line_num for record in records if record)
        return f"{self.about}:{next(itertools.islice(lines, row + 1, None), '?')}"

    def refuse(self, wrong: NDArray[np.bool_] | pa.Array, complaint: Callable[[int], str]) -> None:
        """Raise for the first row marked as wrong; `complaint(row)` says what is, `file:line: ` goes before it."""
        rows = np.flatnonzero(np.asarray(wrong))
        if len(rows):
            others = f" (and {len(rows) - 1} other rows)" if len(rows) > 1 else ""
            raise ValueError(f"{self.where(int(rows[0]))}: {complaint(int(rows[0]))}{others}")

    def integers(self, name: str) -> NDArray[np.int64]:
        """A column of whole numbers, 0 or more; anything else is refused with its line."""
        cells = pc.utf8_trim_whitespace(self.column(name))
        right = pc.match_substring_regex(cells, r"^[0-9]{1,18}$")
        self.refuse(~np.asarray(right), lambda row: f"{name} is {cells[row].as_py()!r}, but must be a whole number.")
        return pc.cast(cells, pa.int64()).to_numpy()


def read_table_file(path: str | PathLike[str]) -> TableFile:
    """The table in a .csv, .tsv or .parquet file."""
    path = Path(path)
    return table_file_of(path.read_bytes(), str(path), path.suffix)


def table_file_of(content: bytes, about: str, suffix: str) -> TableFile:
    """The table in the bytes of a file; `suffix` (".csv", ".tsv", ".parquet") says what they are, `about` what errors call it.

    Text is UTF-8 with names in its first line; a BOM, CRLF, blank lines, quotes and line breaks in quotes are all fine.
    """
    suffix = suffix.lower()
    if suffix in DELIMITERS:
        file = _text(content, about, DELIMITERS[suffix])
    elif suffix == ".parquet":
        try:
            file = TableFile(about, pa.parquet.read_table(pa.BufferReader(content)))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{about} is not a readable Parquet file ({error}); write or copy it again.") from None
    else:
        raise ValueError(f"{about}: {suffix or 'no extension'!r} cannot be read; save the table as .csv, .tsv or .parquet.")
    if not len(file):
        raise ValueError(f"{about} has no rows below its column names.")
    return file


def _text(content: bytes, about: str, delimiter: str) -> TableFile:
    if content.count(b'"') % 2 and (line := _unclosed(content, delimiter)):  # pyarrow would take the rest for one cell
        raise ValueError(f"{about}: line {line} opens a quote that is never closed; close or delete the quote.")
    text = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", "replace", newline="")
    header = next((record for record in csv.reader(text, delimiter=delimiter) if record), [])
    names = [name.strip() for name in header]
    _check_names(names, about)
    bad: list[pyarrow.csv.InvalidRow] = []

    def skip(row: pyarrow.csv.InvalidRow) -> str:
        bad.append(row)
        return "skip"

    try:
        table = pyarrow.csv.read_csv(
            io.BytesIO(content),
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK),  # threads would lose row numbers
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=b'"' in content,
                invalid_row_handler=skip,
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{about} cannot be read ({error}); it must be UTF-8 text, with column names in its first line."
        ) from None
    file = TableFile(about, table.rename_columns(names), content, delimiter)
    for row in bad[:1]:
        raise ValueError(
            f"{file.where(row.number - 2)}: {row.text.strip()!r} has {row.actual_columns} cells, but there are "
            f"{row.expected_columns} columns ({', '.join(names)}); quote cells that hold the separator."
        )
    return file


def _check_names(names: list[str], about: str) -> None:
    if not names or names == [""]:
        raise ValueError(f"{about} is empty; its first line must name the columns.")
    if "" in names:
        raise ValueError(f"{about}: column {names.index('') + 1} has no name; the first line must name every column.")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{about} has two columns called {name!r}; rename one.")


def _unclosed(content: bytes, delimiter: str) -> int | None:
    """The line on which a quote opens that no other closes; None where all are closed, or mere characters (5" disk)."""
    records = csv.reader(io.StringIO(content.decode("utf-8-sig", "replace"), newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for _ in records:
            line = records.line_num + 1
    except csv.Error:
        return line
    return None
