"""Tables in .csv, .tsv and .parquet files, read so that an error names the file and the line.

There are three ways to read one:

- `read_table` reads all columns at once with pyarrow, which takes millions of rows; lines are looked up when an error
  needs one.
- `read_rows` reads a few columns as text, row by row, and refuses or collects the bad rows.
- `records` splits delimited text into records and their lines, without pyarrow.
"""

from __future__ import annotations

import csv
import difflib
import io
import itertools
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from suprank.files.binary import open_parquet, read_columns
from suprank.files.labels import UNLABELED, LabelColumn
from suprank.files.reading import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    Array: TypeAlias = Any  # pyarrow's arrays and tables, which have no types
    Row: TypeAlias = tuple[str, ...]

DELIMITERS = {".csv": ",", ".tsv": "\t"}
MAX_LABEL_LENGTH = 1_000
_BLOCK = 1 << 28  # bytes; a row must fit into one, and GLDv2 has landmarks whose images fill a line of megabytes


class MalformedError(ValueError):
    """A file does not have the required form. The message names the file, the line and what was expected."""


# Records of delimited text


def records(text: str, about: str, delimiter: str, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Each record of CSV text, with the line it begins on; a blank line is an empty record. Errors call the text `about`.

    Example:
        >>> list(records('id,name\\n1,"two\\nlines"\\n\\n2,b', "x.csv", ","))
        [(1, ['id', 'name']), (2, ['1', 'two\\nlines']), (4, []), (5, ['2', 'b'])]
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=strict)
    line = 1
    while True:
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise MalformedError(
                f"{about}:{line}: {_quoting_problem(str(error))}; expected cells with quotes or commas in them quoted, and "
                f"quotes inside doubled."
            ) from None
        if record is None:
            return
        yield line, record
        line = reader.line_num + 1


def _quoting_problem(error: str) -> str:
    if "unexpected end" in error:
        return "a quote is opened that is never closed"
    if "field limit" in error:
        return "a cell has more than 131,072 letters, perhaps because a quote is never closed"
    return f"wrong quoting ({error})"


def check_header(names: Sequence[str], about: str) -> None:
    """Raise unless there are column names, none of them blank or repeated."""
    if not names or list(names) == [""]:
        raise MalformedError(f"{about} is empty; its first line must name the columns, such as path,label_species,label_genus.")
    if "" in names:
        raise MalformedError(f"{about}: column {names.index('') + 1} has no name; the first line must name every column.")
    if all(name.lstrip("-").isdigit() for name in names):
        raise MalformedError(f"{about}: the first line is {','.join(names)}, but must name the columns; add a line of names.")
    if len(set(names)) < len(names):
        name = Counter(names).most_common(1)[0][0]
        raise MalformedError(f"{about} has two columns called {name!r}; rename one.")


def read_bytes(path: Path) -> bytes:
    """The content of a file; an error says where we looked if there is none."""
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else f"does not exist (the working folder is {Path.cwd()})"
        raise FileNotFoundError(f"{path} {problem}; name a file.")
    return path.read_bytes()


# Whole tables


@dataclass(frozen=True)
class Table:
    """A pyarrow table of at least one row, and the file it was read from. Cells of text files are strings, "" if blank.

    pyarrow is fast but counts no lines; the line of a row is looked up only when an error names it.
    """

    about: str
    table: Array
    text: bytes = b""
    delimiter: str = ""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def names(self) -> list[str]:
        return list(self.table.column_names)

    def column(self, name: str) -> Array:
        """The cells of a column, in one chunk."""
        import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

        if self.table.schema.get_field_index(name) < 0:  # not `names`, a new list each time: there may be 20,000
            raise self.missing_column(name)
        cells = self.table.column(name).combine_chunks()
        return cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells  # empty tables stay chunked

    def missing_column(self, name: str) -> MalformedError:
        """The error for a column that does not exist, which suggests the nearest name."""
        return missing_column(name, self.names, self.about)

    def where(self, row: int) -> str:
        """`file:line` of a row, counted from 0; `file, row 1` for Parquet, which has no lines."""
        if self.delimiter:
            text = self.text.decode("utf-8-sig", "replace")
            lines = (line for line, cells in records(text, self.about, self.delimiter, strict=False) if cells)
            try:
                return f"{self.about}:{next(itertools.islice(lines, row + 1, None), '?')}"
            except MalformedError:  # the csv module gives up on cells that pyarrow reads
                pass
        return f"{self.about}, row {row + 1}"

    def refuse(self, bad: NDArray[np.bool_] | Array, problem: Callable[[int], str]) -> None:
        """Raise if any row is marked as bad: `file:line: problem(row)` of the first, and how many others there are."""
        rows = np.flatnonzero(np.asarray(bad))
        if len(rows):
            others = f" (and {len(rows) - 1} other rows)" if len(rows) > 1 else ""
            raise MalformedError(f"{self.where(int(rows[0]))}: {problem(int(rows[0]))}{others}")

    def integers(self, name: str) -> NDArray[np.int64]:
        """A column of whole numbers, 0 or more; anything else is refused with its line."""
        import pyarrow as pa
        import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

        cells = pc.utf8_trim_whitespace(self.column(name))
        good = pc.match_substring_regex(cells, r"^[0-9]{1,18}$")
        self.refuse(~np.asarray(good), lambda row: f"{name} is {cells[row].as_py()!r}, but must be a whole number.")
        return pc.cast(cells, pa.int64()).to_numpy()


def missing_column(name: str, names: Sequence[str], about: str) -> MalformedError:
    """The error for a column that does not exist, which suggests the nearest name."""
    short = {one.removeprefix("label_"): one for one in names} | {one: one for one in names}
    nearest = difflib.get_close_matches(name, short, n=1)
    guess = f"did you mean {short[nearest[0]]!r}? It" if nearest else "it"
    return MalformedError(f"{about} has no column {name!r}; {guess} has {', '.join(names)}.")


def holds_labels(kind: Any) -> bool:
    """Whether a column of this pyarrow type may be one of labels or ids: text, whole numbers, or lists of them."""
    import pyarrow.types as kinds  # type: ignore[import-untyped, unused-ignore]

    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return holds_labels(kind.value_type)
    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_integer(kind) or kinds.is_null(kind))


def label_column(cells: Array, name: str, about: str) -> LabelColumn:
    """The labels in a column of text, of whole numbers, or of lists of them, as they are written."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = cells if isinstance(cells, pa.ChunkedArray) else pa.chunked_array([cells])
    if not holds_labels(chunks.type):
        raise TypeError(
            f"{about}: column {name!r} holds {chunks.type}, but must hold text (or whole numbers, for labels and ids)."
        )
    if pa.types.is_list(chunks.type) or pa.types.is_large_list(chunks.type) or pa.types.is_fixed_size_list(chunks.type):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(chunks), 0), np.int64)
        return replace(label_column(pc.list_flatten(chunks), name, about), lengths=lengths)
    if not pa.types.is_dictionary(chunks.type):  # four million names that are coded are not expanded to be counted again
        chunks = chunks.cast(pa.string()).dictionary_encode()
    coded = chunks.unify_dictionaries().combine_chunks()
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded  # empty columns stay chunked
    names = ["" if name is None else str(name) for name in coded.dictionary.to_pylist()]
    codes = pc.fill_null(coded.indices.cast(pa.int32()), UNLABELED)  # some writers have unsigned ones
    return LabelColumn(np.asarray(codes, np.int64), names)


def read_table(path: str | PathLike[str]) -> Table:
    """The table in a .csv, .tsv or .parquet file."""
    path = Path(path)
    return parse_table(read_bytes(path), str(path), path.suffix)


def parse_table(content: bytes, about: str, suffix: str) -> Table:
    """The table in the bytes of a file of this suffix (.csv, .tsv, .parquet); errors call it `about`.

    Text is UTF-8 with the column names in its first line. A byte order mark, CRLF, blank lines, quotes and line breaks inside
    quotes are all fine.
    """
    suffix = suffix.lower()
    if suffix in DELIMITERS:
        with reading(about, "table"):
            table = _parse_text(content, about, DELIMITERS[suffix])
    elif suffix == ".parquet":
        try:
            with open_parquet(Path(about), about, content=content) as file:
                table = Table(about, read_columns(file))
        except ValueError as error:
            raise MalformedError(str(error)) from error
    else:
        raise MalformedError(f"{about}: {suffix or 'no extension'!r} cannot be read; save the table as .csv, .tsv or .parquet.")
    if not len(table):
        raise MalformedError(f"{about} has no rows below its column names.")
    return table


def _parse_text(content: bytes, about: str, delimiter: str) -> Table:
    import pyarrow as pa
    import pyarrow.csv as arrow_csv  # type: ignore[import-untyped, unused-ignore]

    text = content.decode("utf-8-sig", "replace")
    if content.count(b'"') % 2:  # pyarrow would take all after an open quote for one cell; in 5" disk it is only a character
        deque(records(text, about, delimiter), maxlen=0)
    header = next((cells for _, cells in records(text, about, delimiter, strict=False) if cells), [])
    names = [name.strip() for name in header]
    check_header(names, about)
    ragged: list[Any] = []

    def skip(row: Any) -> str:
        ragged.append(row)
        return "skip"

    try:
        table = arrow_csv.read_csv(
            io.BytesIO(content),
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK),  # threads would lose row numbers
            parse_options=arrow_csv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=b'"' in content,
                invalid_row_handler=skip,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        raise MalformedError(
            f"{about} cannot be read ({error}); it must be UTF-8 text, with column names in its first line."
        ) from None
    if set(table.schema.types) != {pa.string()} or "\ufffd" in "".join(names):  # not in `column_types`: 007 would become 7
        raise MalformedError(f"{about}: the column names are not UTF-8 (Latin-1?); save the file as UTF-8.")
    found = Table(about, table.rename_columns(names), content, delimiter)
    for row in ragged[:1]:
        raise MalformedError(
            f"{found.where(row.number - 2)}: {row.text.strip()!r} has {row.actual_columns} cells, but there are "
            f"{row.expected_columns} columns ({', '.join(names)}); quote cells that hold the separator."
        )
    return found


# Row by row


@dataclass(frozen=True)
class RejectedRow:
    """A row that was left out, and why."""

    file: str
    line: int
    problem: str
    text: str


@dataclass(eq=False)
class TextRows:
    """The requested columns of a table: the good rows with the line on which each begins, and the rejected ones."""

    about: str
    rows: list[Row] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    rejects: list[RejectedRow] = field(default_factory=list)

    def where(self, index: int) -> str:
        """`file:line` of a good row."""
        return f"{self.about}:{self.lines[index]}"

    def add(self, line: int, cells: Sequence[str], problem: str | None, *, skip_bad: bool, text: str) -> None:
        """Add a row; one with a problem is rejected if `skip_bad`, and raises a `MalformedError` otherwise."""
        if problem is None:
            self.rows.append(tuple(cells))
            self.lines.append(line)
        elif skip_bad:
            self.rejects.append(RejectedRow(self.about, line, problem, text))
        else:
            raise MalformedError(f"{self.about}:{line}: {problem}")


def column_names(path: str | Path) -> list[str]:
    """The names of the columns of a .csv, .tsv or .parquet file."""
    path = Path(path)
    if path.suffix.lower() not in DELIMITERS:
        return read_table(path).names
    return next(([name.strip() for name in cells] for _, cells in _records(path) if cells), [])


def read_rows(
    path: str | Path, columns: Sequence[str], find_problem: Callable[[Row], str | None], *, skip_bad: bool = False
) -> TextRows:
    """The cells of these columns, in this order, as text.

    Text is UTF-8 with the column names in its first line; a byte order mark, CRLF, blank lines and quoted line breaks are
    fine. `find_problem(cells)` says what is wrong with a row, or returns None. A row with a problem, with too few or too many
    cells, with bytes that are not UTF-8 or with NUL is refused with `file:line`, or with `skip_bad` left out and listed. A
    missing column, a quote that is never closed and a file without a good row are always refused.
    """
    path = Path(path)
    table = TextRows(str(path))
    for line, cells, problem in _select_columns(path, columns):
        table.add(line, cells, problem or find_problem(tuple(cells)), skip_bad=skip_bad, text=",".join(cells))
    if not table.rows:
        none = f"none of its {len(table.rejects):,} rows is right" if table.rejects else "it has no rows below its column names"
        raise MalformedError(f"{path}:1: {none}; expected one or more with {', '.join(columns)}.")
    return table


def read_lines(path: str | Path, *, skip_bad: bool = False) -> TextRows:
    """The lines of a text file that are not blank, one label each, with the white space at their ends."""
    path = Path(path)
    table = TextRows(str(path))
    for number, line in enumerate(read_bytes(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        text = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
        if text.strip():
            damage = _damage(text) or label_length_problem(text)
            problem = None if damage is None else f"the line {damage}; expected a label in UTF-8."
            table.add(number, (text,), problem, skip_bad=skip_bad, text=text)
    if not table.rows:
        raise MalformedError(f"{path}:1: there are no labels in it; expected one a line.")
    return table


def label_length_problem(label: str) -> str | None:
    """What is wrong with a text that is too long to be a label, such as half of a file; None if it may be one."""
    if len(label) <= MAX_LABEL_LENGTH:
        return None
    return f"has {len(label):,} letters, where a label has {MAX_LABEL_LENGTH:,} at most"


def _select_columns(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str], str | None]]:
    """(line, cells of these columns, what is wrong with the row as such) for every row."""
    if path.suffix.lower() not in DELIMITERS:
        file = read_table(path)
        _check_columns(file.names, columns, path)
        cells = [file.column(name).to_pylist() for name in columns]
        for row, values in enumerate(zip(*cells, strict=True), start=1):
            texts = ["" if value is None else str(value) for value in values]
            yield row, texts, _cell_problem(columns, texts)
        return
    rows = ((line, record) for line, record in _records(path) if record)
    names = [name.strip() for name in next(rows, (1, []))[1]]
    _check_columns(names, columns, path)
    places = [names.index(name) for name in columns]
    for line, record in rows:
        if len(record) != len(names):
            expected = f"expected {len(names)} ({', '.join(names)}), quoted where they hold commas."
            yield line, record, f"{len(record)} cells; {expected}"
        else:
            yield line, [record[place] for place in places], _cell_problem(names, record)


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Records of a file; bytes that are not UTF-8 become lone surrogates, which `_damage` finds."""
    text = read_bytes(path).decode("utf-8-sig", "surrogateescape")
    return records(text, str(path), DELIMITERS[path.suffix.lower()])


def _check_columns(names: Sequence[str], columns: Sequence[str], path: Path) -> None:
    if not names or names == [""]:
        raise MalformedError(f"{path}:1: the file is empty; expected column names in its first line: {', '.join(columns)}.")
    for name in columns:
        if name not in names:
            raise MalformedError(f"{path}:1: there is no column {name!r}; expected it among {', '.join(names)}.")
        if names.count(name) > 1:
            raise MalformedError(f"{path}:1: two columns are called {name!r}; expected one.")


def _cell_problem(names: Sequence[str], cells: Sequence[str]) -> str | None:
    damaged = ((name, _damage(cell)) for name, cell in zip(names, cells, strict=True))
    return next((f"{name} {damage}; expected UTF-8 text." for name, damage in damaged if damage), None)


def _damage(cell: str) -> str | None:
    if "\0" in cell:
        return "holds a NUL"
    if cell.isascii():
        return None
    byte = next((ord(letter) - 0xDC00 for letter in cell if 0xDC80 <= ord(letter) <= 0xDCFF), None)
    return None if byte is None else f"holds the byte 0x{byte:02X}, which is not UTF-8 (Latin-1?)"
