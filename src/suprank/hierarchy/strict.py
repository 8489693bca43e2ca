"""Tables of text, row by row with their lines. What is wrong with a row is an error that names it, or a reject."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.files.tables import DELIMITERS, TableFile, read_table
from suprank.files.spreadsheets import safe_row
from suprank.hierarchy.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Row = tuple[str, ...]
LONGEST_LABEL = 1_000


@dataclass(frozen=True)
class RejectedRow:
    """A row that was left out, and why."""

    file: str
    line: int
    problem: str
    text: str


@dataclass(eq=False)
class TextRows:
    """The wanted columns of a table: rows that are right with the line on which each begins, and those that are not."""

    about: str
    rows: list[Row] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    rejects: list[RejectedRow] = field(default_factory=list)

    def where(self, place: int) -> str:
        """`file:line` of a row that is right."""
        return f"{self.about}:{self.lines[place]}"


def column_names(path: str | Path) -> list[str]:
    """The names of the columns of a .csv, .tsv or .parquet file."""
    path = Path(path)
    if path.suffix.lower() not in DELIMITERS:
        return _parquet(path).names
    _, header = next(_records(path), (1, []))
    return [name.strip() for name in header]


def read_rows(
    path: str | Path, columns: Sequence[str], problem: Callable[[Row], str | None], *, skip_bad: bool = False
) -> TextRows:
    """The cells of these columns, in this order, as texts.

    Text is UTF-8 with names in its first line; a BOM, CRLF, blank lines and quoted line breaks are fine. `problem(cells)` says
    what is wrong with a row, or None. Refused with `file:line`, or with `skip_bad` left out and listed: rows with too few or
    too many cells, bytes that are no UTF-8, NUL, and what `problem` finds. A column that is not there, a quote that is never
    closed, and a file without a row that is right are refused always.
    """
    path = Path(path)
    table = TextRows(str(path))
    for line, cells, wrong in _checked(path, columns):
        complaint = wrong or problem(tuple(cells))
        if complaint is None:
            table.rows.append(tuple(cells))
            table.lines.append(line)
        elif skip_bad:
            table.rejects.append(RejectedRow(str(path), line, complaint, ",".join(cells)))
        else:
            raise MalformedError(f"{path}:{line}: {complaint}")
    if not table.rows:
        left = f"none of its {len(table.rejects):,} rows is right" if table.rejects else "it has no rows below its column names"
        raise MalformedError(f"{path}:1: {left}; expected one or more with {', '.join(columns)}.")
    return table


def _checked(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str], str | None]]:
    """(line, wanted cells, what is wrong with the row as such)."""
    if path.suffix.lower() not in DELIMITERS:
        file = _parquet(path)
        _check_columns(file.names, columns, path)
        cells = [file.column(name).to_pylist() for name in columns]
        for row, values in enumerate(zip(*cells, strict=True), start=1):
            texts = ["" if value is None else str(value) for value in values]
            yield row, texts, _complaint(columns, texts)
        return
    records = _records(path)
    _, header = next(records, (1, []))
    names = [name.strip() for name in header]
    _check_columns(names, columns, path)
    places = [names.index(name) for name in columns]
    for line, record in records:
        if len(record) != len(names):
            yield (
                line,
                record,
                f"{len(record)} cells; expected {len(names)} ({', '.join(names)}), quoted where they hold commas.",
            )
            continue
        yield line, [record[place] for place in places], _complaint(names, record)


def _complaint(names: Sequence[str], cells: Sequence[str]) -> str | None:
    damaged = ((name, _damage(cell)) for name, cell in zip(names, cells, strict=True))
    return next((f"{name} {damage}; expected UTF-8 text." for name, damage in damaged if damage), None)


def label_length_problem(label: str) -> str | None:
    """What is wrong with a text that is no label but a paragraph, or half of the file; None where it may be one."""
    return f"has {len(label):,} letters, where a label has {LONGEST_LABEL:,} at most" if len(label) > LONGEST_LABEL else None


def _damage(cell: str) -> str | None:
    if "\0" in cell:
        return "holds a NUL"
    if cell.isascii():
        return None
    byte = next((ord(letter) - 0xDC00 for letter in cell if 0xDC80 <= ord(letter) <= 0xDCFF), None)
    return None if byte is None else f"holds the byte 0x{byte:02X}, which is not UTF-8 (Latin-1?)"


def _check_columns(names: Sequence[str], columns: Sequence[str], path: Path) -> None:
    if not names or names == [""]:
        raise MalformedError(f"{path}:1: the file is empty; expected column names in its first line: {', '.join(columns)}.")
    for name in columns:
        if name not in names:
            raise MalformedError(f"{path}:1: there is no column {name!r}; expected it among {', '.join(names)}.")
        if names.count(name) > 1:
            raise MalformedError(f"{path}:1: two columns are called {name!r}; expected one.")


def content_of(path: Path) -> bytes:
    """The bytes of a file that must be there."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else f"does not exist (the working folder is {Path.cwd()})"
        raise FileNotFoundError(f"{path} {what}; name a file.")
    return path.read_bytes()


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(the line it begins on, cells) of each record; bytes that are no UTF-8 come as lone surrogates."""
    text = content_of(path).decode("utf-8-sig", "surrogateescape")
    records = csv.reader(io.StringIO(text, newline=""), delimiter=DELIMITERS[path.suffix.lower()], strict=True)
    line = 1
    while True:
        try:
            record = next(records, None)
        except csv.Error as error:
            said = "a quote is opened that is never closed" if "unexpected end" in str(error) else f"wrong quoting ({error})"
            if "field limit" in str(error):
                said = "a cell has more than 131,072 letters, perhaps because a quote is never closed"
            raise MalformedError(
                f"{path}:{line}: {said}; expected cells with quotes or commas in them quoted, and quotes inside doubled."
            ) from None
        if record is None:
            return
        if record:
            yield line, record
        line = records.line_num + 1


def read_lines(path: str | Path, *, skip_bad: bool = False) -> TextRows:
    """The lines of a text file that are not blank, each as it is, blanks at its ends too."""
    path = Path(path)
    table = TextRows(str(path))
    for number, line in enumerate(content_of(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        text = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
        if not text.strip():
            continue
        damage = _damage(text) or label_length_problem(text)
        if damage is None:
            table.rows.append((text,))
            table.lines.append(number)
        elif skip_bad:
            table.rejects.append(RejectedRow(str(path), number, f"the line {damage}; expected a label in UTF-8.", text))
        else:
            raise MalformedError(f"{path}:{number}: the line {damage}; expected a label in UTF-8.")
    if not table.rows:
        raise MalformedError(f"{path}:1: there are no labels in it; expected one a line.")
    return table


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[object]], *, raw: bool = False) -> bytes:
    """A table in UTF-8 with lines that end in a line feed; what is no UTF-8, of a row that was left out, is spelt out.

    Text that a spreadsheet would run as a formula has an apostrophe before it; with `raw` every cell is as it is.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header if raw else safe_row(header))
    writer.writerows(rows if raw else map(safe_row, rows))
    return text.getvalue().encode("utf-8", "backslashreplace")


def _parquet(path: Path) -> TableFile:
    try:
        return read_table(path)
    except ValueError as error:
        raise MalformedError(str(error)) from None  # which names the file
