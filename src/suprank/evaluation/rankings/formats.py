"""Readers and writers of runs and judgments, chosen by the file's extension.

| extension              | `RankingRun`                                 | `Qrels`             |
|------------------------|----------------------------------------------|---------------------|
| `.trec` `.run` `.txt`  | `query Q0 item rank score tag`, blanks apart | `query 0 item rel`  |
| `.json`                | `{query: {item: score}}`, as ranx reads it   | `{query: {item: rel}}` |
| `.csv`                 | `id,images`: GLDv2's and Kaggle's predictions, without scores | – |
| `.parquet` `.parq`     | ranx's columns `q_id`, `doc_id`, `score`; read only | the same  |

A file with another extension, or with none, is read as TREC; TREC and JSON are also read with `.gz` at the end.

Files hold ids as text, and text comes back unless `id_type=int` is given. A malformed line is refused with its file and number.
"""

# TREC lines are split here rather than by ranx: that would make numba a requirement of the core, and ranx keeps the last of
# two lines that contradict each other, names no line in its errors, and holds millions of lines as dictionaries.

from __future__ import annotations

import gzip
import io
import json
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from suprank.evaluation.rankings.item_ids import check_no_blanks, shorten
from suprank.evaluation.rankings.pair_table import PairTable
from suprank.evaluation.rankings.prediction_csv import prediction_rows
from suprank.files.atomic import atomic_writer
from suprank.files.binary import open_parquet, read_columns
from suprank.files.reading import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from suprank.evaluation.rankings.item_ids import Id

    _Reader = Callable[[Path, PairTable], None]
    Lists = Iterable[tuple[Id, list[tuple[Id, Any]]]]  # a run or judgments: queries with their items and values

T = TypeVar("T")

TREC = (".trec", ".run", ".txt")
GZIP = ".gz"
_ARROW_BLOCK = 1 << 24  # bytes that pyarrow reads at a time
_IDS = (0, 2)  # columns of TREC files that hold ids; the first of the others, and a run's tag, are not used
_BLANKS = tuple(map(bytes, [[code] for code in (*range(0x0B, 0x0E), *range(0x1C, 0x20))]))  # that `str.split` also divides at
_MOST_EXPANSION = 50
_LONGEST = 1 << 20  # characters of a line
_BLOCK = 1 << 13  # characters that are split at a time: with more, the fields no longer fit into the cache
_NUMBERS: dict[str, Callable[[str], Any]] = {"q": int, "d": float}  # as in `PairTable`
_END = "\0"  # stands for the end of a line among the fields


# Writing


def write_run(lists: Lists, path: str | PathLike[str], tag: str) -> None:
    """Write a run; see `RankingRun.save`."""
    _write(
        path, {**dict.fromkeys(TREC, lambda: _trec_run(lists, tag)), ".json": lambda: _json(lists), ".csv": lambda: _csv(lists)}
    )


def write_qrels(lists: Lists, with_positives: Lists, path: str | PathLike[str]) -> None:
    """Write judgments; see `Qrels.save`."""
    _write(path, {**dict.fromkeys(TREC, lambda: _trec_qrels(lists)), ".json": lambda: _json(with_positives)})


def _write(path: str | PathLike[str], formats: Mapping[str, Callable[[], Iterable[str]]]) -> None:
    """Stream to a temporary file and rename it, so that an id that is refused half-way leaves no half-written file."""
    path = Path(path)
    pieces = _by_extension(path, formats)()
    with atomic_writer(path) as file:
        file.writelines(piece.encode() for piece in pieces)


def _by_extension(path: Path, formats: Mapping[str, T]) -> T:
    try:
        return formats[path.suffix.lower()]
    except KeyError:
        raise ValueError(f"{path} has extension {path.suffix!r}, which names no format; use {', '.join(formats)}.") from None


def _trec_run(lists: Lists, tag: str) -> Iterator[str]:
    for query, ranked in lists:
        check_no_blanks(query, ranked)
        yield "".join([f"{query} Q0 {item} {rank} {score!r} {tag}\n" for rank, (item, score) in enumerate(ranked, 1)])


def _trec_qrels(lists: Lists) -> Iterator[str]:
    for query, judgments in lists:
        check_no_blanks(query, judgments)
        yield "".join([f"{query} 0 {item} {relevance}\n" for item, relevance in judgments])


def _json(lists: Lists) -> Iterator[str]:
    separator = "{"
    for query, pairs in lists:
        yield f"{separator}{json.dumps(str(query))}: {json.dumps({str(item): value for item, value in pairs})}"
        separator = ",\n"
    yield "{}\n" if separator == "{" else "}\n"


def _csv(lists: Lists) -> Iterator[str]:
    yield "id,images\n"
    for query, ranked in lists:
        check_no_blanks(query, ranked)
        line = f"{query},{' '.join([str(item) for item, _ in ranked])}\n"
        if line.count(",") > 1 or '"' in line:
            raise ValueError(f"query {query!r} or one of its items has a comma or a quote in its id; write .trec or .json.")
        yield line


# Reading


def read_run(path: str | PathLike[str]) -> PairTable:
    """Read a run; see `RankingRun.load`."""
    path = Path(path)
    return _read(path, PairTable(str(path), "d", check_ranks=_kind(path) in TREC), _read_trec_run, {".csv": _read_csv_run})


def read_qrels(path: str | PathLike[str]) -> PairTable:
    """Read judgments; see `Qrels.load`."""
    path = Path(path)
    return _read(path, PairTable(str(path), "q"), _read_trec_qrels, {})


def _read(path: Path, table: PairTable, trec: _Reader, more: Mapping[str, _Reader]) -> PairTable:
    readers = {TREC[0]: trec, ".json": _read_json, ".parquet": _read_parquet, ".parq": _read_parquet, **more}
    kind = _kind(path)
    if kind not in readers or (path.suffix.lower() == GZIP and kind not in (TREC[0], ".json")):
        known = ", ".join([*TREC, *list(readers)[1:], ".trec.gz", ".json.gz"])
        raise ValueError(f"{path} is of a format that is not read here; use {known}.")
    with reading(path, "run" if trec is _read_trec_run else "file of judgments"):
        readers[kind](path, table)
    return table


def _kind(path: Path) -> str:
    """The extension that names the format: `.json` of `run.json.gz`. An extension that we do not know stands for TREC."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [GZIP]:
        suffixes = suffixes[:-1]
    kind = suffixes[-1] if suffixes else ""
    return kind if kind in (".json", ".csv", ".parquet", ".parq", ".lz4") else TREC[0]


def _blocks(path: Path) -> Iterator[bytes]:
    """The content of a file, some whole lines at a time; refused if it expands as no run does, or has a line as none has."""
    most = _MOST_EXPANSION * path.stat().st_size + _ARROW_BLOCK
    with gzip.open(path) if path.suffix.lower() == GZIP else path.open("rb") as file:
        while block := file.read(_ARROW_BLOCK):
            block += file.readline(_ARROW_BLOCK)
            if file.tell() > most:
                raise ValueError(f"{path} expands to more than {_MOST_EXPANSION} times its size, as no run does; unpack it.")
            yield block


def _read_trec_run(path: Path, table: PairTable) -> None:
    fields = "query Q0 item rank score tag, with a whole rank and a number for a score"
    expected = f"a line of a TREC run; six fields are expected: {fields}"
    for numbers, (query, _, item, rank, score, _) in _columns(path, 6, {3: "q", 4: "d"}, expected):
        table.rank.extend(rank)
        table.add_rows(query, item, score, numbers)


def _read_trec_qrels(path: Path, table: PairTable) -> None:
    expected = "a line of TREC qrels; four fields are expected: query 0 item relevance, with a whole relevance"
    for numbers, (query, _, item, relevance) in _columns(path, 4, {3: "q"}, expected):
        table.add_rows(query, item, relevance, numbers)


def _columns(
    path: Path, width: int, typecodes: Mapping[int, str], expected: str
) -> Iterator[tuple[Sequence[int], list[Sequence[Any]]]]:
    """The numbers and the columns of some lines at a time; blank lines, and those that begin with #, are left out."""
    first = 1
    for block in _blocks(path):
        if not block.strip():  # millions of blank lines take seconds, one by one
            first += block.count(b"\n")
            continue
        columns = _arrow_columns(block, width, typecodes)
        if columns is not None:
            numbers = range(first, first + len(columns[0]))
            yield numbers, columns
            first = numbers.stop
            continue
        text = io.TextIOWrapper(io.BytesIO(block), encoding="utf-8-sig" if first == 1 else "utf-8")
        while lines := text.readlines(_BLOCK):
            if len(lines[-1]) > _LONGEST:  # those before it are shorter than a block
                raise ValueError(f"{path}:{first + len(lines) - 1}: the line is too long: {shorten(lines[-1])}.")
            yield _fast_columns(lines, first, width, typecodes) or _checked_columns(
                lines, first, width, typecodes, path, expected
            )
            first += len(lines)


def _arrow_columns(block: bytes, width: int, typecodes: Mapping[int, str]) -> list[Sequence[Any]] | None:
    """The columns as pyarrow reads them, in 60 % of the time; None without it, and unless every line is plain.

    Plain lines have one blank or one tab between fields and nothing that pyarrow and Python read in different ways: text beyond
    ASCII, other blanks, comments, and hexadecimal numbers.
    """
    try:
        import pyarrow
        from pyarrow import compute, csv
    except ImportError:
        return None
    blank, other = (b"\t", b" ") if b"\t" in block[:1000] else (b" ", b"\t")
    if not block.isascii() or any(text in block for text in (other, b"#", b"0x", b"0X", *_BLANKS)):
        return None
    types = {str(column): pyarrow.string() for column in range(width)}
    types |= {str(column): pyarrow.float64() if code == "d" else pyarrow.int64() for column, code in typecodes.items()}
    try:
        table = csv.read_csv(
            pyarrow.py_buffer(block),
            read_options=csv.ReadOptions(use_threads=False, column_names=list(types), block_size=len(block) + 1),
            parse_options=csv.ParseOptions(delimiter=blank.decode(), quote_char=False, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(column_types=types, null_values=[]),
        )
    except pyarrow.ArrowInvalid:
        return None
    texts = [table[column] for column in range(width) if column not in typecodes]
    if len(table) != block.count(b"\n") + (not block.endswith(b"\n")) or any(
        compute.min(compute.binary_length(text)).as_py() == 0 for text in texts
    ):
        return None
    numbers = {column: array(code, table[column].to_numpy().tobytes()) for column, code in typecodes.items()}
    return [
        numbers[column] if column in numbers else table[column].to_pylist() if column in _IDS else () for column in range(width)
    ]


def _fast_columns(
    lines: list[str], first: int, width: int, typecodes: Mapping[int, str]
) -> tuple[Sequence[int], list[Sequence[Any]]] | None:
    """All fields in one split, which takes a quarter less time than line by line; None unless every line is right."""
    fields = f" {_END} ".join(lines).split()
    ends = fields[width :: width + 1]
    if len(fields) != (width + 1) * len(lines) - 1 or ends.count(_END) < len(ends):
        return None
    columns: list[Sequence[Any]] = [fields[column :: width + 1] for column in range(width)]
    if any(query.startswith("#") for query in set(columns[0])):
        return None
    try:
        for column, typecode in typecodes.items():
            columns[column] = array(typecode, map(_NUMBERS[typecode], columns[column]))
    except (ValueError, OverflowError):
        return None
    return range(first, first + len(lines)), columns


def _checked_columns(
    lines: list[str], first: int, width: int, typecodes: Mapping[int, str], path: Path, expected: str
) -> tuple[Sequence[int], list[Sequence[Any]]]:
    """The same line by line, so that a malformed one can be named."""
    numbers: list[int] = []
    columns: list[list[Any]] = [[] for _ in range(width)]
    for number, line in enumerate(lines, first):
        fields: list[Any] = line.split(None, width - 1)  # the tag of a run may have blanks
        if not fields or line.startswith("#"):
            continue
        try:
            for column, typecode in typecodes.items():
                fields[column] = array(typecode, [_NUMBERS[typecode](fields[column])])[0]
            for values, value in zip(columns, fields, strict=True):
                values.append(value)
        except (ValueError, IndexError, OverflowError):
            other = {(4, 6): " This looks like a run", (6, 4): " This looks like qrels"}.get((width, len(line.split())))
            swapped = "" if other is None else f"{other}: were run and qrels swapped?"
            raise ValueError(f"{path}:{number}: {shorten(line)} is not {expected}.{swapped}") from None
        numbers.append(number)
    return numbers, list(columns)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys: a dict would keep the last of repeated keys and hide the others."""


def _read_json(path: Path, table: PairTable) -> None:
    try:
        lists = json.loads(b"".join(_blocks(path)).decode("utf-8-sig"), object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: this is not JSON: {error.msg}.") from None
    for query, pairs in lists if isinstance(lists, _Pairs) else [("", None)]:
        if not isinstance(pairs, _Pairs):
            raise ValueError(
                f"{path}: {shorten(json.dumps(pairs))} is not a list of items; {{query: {{item: number}}}} is expected."
            )
        table.add_list(query, pairs)


def _read_parquet(path: Path, table: PairTable) -> None:
    """The columns of ranx: q_id, doc_id, score."""
    with open_parquet(path) as file:
        columns = ("q_id", "doc_id", "score")
        if missing := [name for name in columns if name not in file.schema_arrow.names]:
            raise ValueError(f"{path} has no column {missing[0]}; {', '.join(columns)} are expected, as ranx writes them.")
        number = 1
        for batch in read_columns(file, list(columns)).to_batches():
            query, item, value = (batch.column(name).to_pylist() for name in columns)
            if None in query or None in item or None in value:
                raise ValueError(f"{path} has an empty cell in {', '.join(columns)}; every row needs all three.")
            kind = float if table.value.typecode == "d" else int
            if not all(isinstance(one, (int, kind)) for one in value):
                raise ValueError(f"{path}: score must be a column of {'numbers' if kind is float else 'integers'}.")
            table.rank.extend(range(number, number + len(query)))
            table.add_rows(list(map(str, query)), list(map(str, item)), value, range(number, number + len(query)))
            number += len(query)


def _read_csv_run(path: Path, table: PairTable) -> None:
    for number, query, images in prediction_rows(path):
        table.add_list(query, ((image, 1 / place) for place, image in enumerate(images, 1)), number)
