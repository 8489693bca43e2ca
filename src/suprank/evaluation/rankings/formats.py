"""Readers and writers of runs and judgments, chosen by the file's extension.

| extension              | `RankingRun`                                 | `Qrels`             |
|------------------------|----------------------------------------------|---------------------|
| `.trec` `.run` `.txt`  | `query Q0 item rank score tag`, blanks apart | `query 0 item rel`  |
| `.json`                | `{query: {item: score}}`, as ranx reads it   | `{query: {item: rel}}` |
| `.csv`                 | `id,images`: GLDv2's and Kaggle's predictions, without scores | – |

Files hold ids as text, and text comes back unless `id_type=int` is given. A malformed line is refused with its file and number.
"""

# TREC lines are split here rather than by ranx: that would make numba a requirement of the core, and ranx keeps the last of
# two lines that contradict each other, names no line in its errors, and holds millions of lines as dictionaries.

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from suprank.evaluation.rankings.item_ids import check_no_blanks, shorten
from suprank.evaluation.rankings.pair_table import PairTable
from suprank.evaluation.rankings.prediction_csv import prediction_rows
from suprank.files.atomic import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from os import PathLike

    from suprank.evaluation.rankings.item_ids import Id

    Lists = Iterable[tuple[Id, list[tuple[Id, Any]]]]  # a run or judgments: queries with their items and values

T = TypeVar("T")

TREC = (".trec", ".run", ".txt")


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
    readers = {**dict.fromkeys(TREC, _read_trec_run), ".json": _read_json_run, ".csv": _read_csv_run}
    return _by_extension(path, readers)(path)


def read_qrels(path: str | PathLike[str]) -> PairTable:
    """Read judgments; see `Qrels.load`."""
    path = Path(path)
    readers = {**dict.fromkeys(TREC, _read_trec_qrels), ".json": _read_json_qrels}
    return _by_extension(path, readers)(path)


def _read_trec_run(path: Path) -> PairTable:
    table = PairTable(str(path), "d", check_ranks=True)
    for number, line, fields in _lines(path):
        try:
            query, _, item, rank, score, _ = fields
            table.value.append(float(score))
            table.rank.append(int(rank))
        except (ValueError, OverflowError):
            raise ValueError(
                f"{path}:{number}: {shorten(line)} is not a line of a TREC run; six fields are expected: "
                f"query Q0 item rank score tag, with a whole rank and a number for a score."
            ) from None
        table.add(query, item, number)
    return table


def _read_trec_qrels(path: Path) -> PairTable:
    table = PairTable(str(path), "q")
    for number, line, fields in _lines(path):
        try:
            query, _, item, relevance = fields
            table.value.append(int(relevance))
        except (ValueError, OverflowError):
            raise ValueError(
                f"{path}:{number}: {shorten(line)} is not a line of TREC qrels; four fields are expected: "
                f"query 0 item relevance, with a whole relevance."
            ) from None
        table.add(query, item, number)
    return table


def _lines(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """The number, the text and the fields of every line that is not blank."""
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            fields = line.split()
            if fields:
                yield number, line, fields


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys: a dict would keep the last of repeated keys and hide the others."""


def _read_json_run(path: Path) -> PairTable:
    return _read_json(path, PairTable(str(path), "d"))


def _read_json_qrels(path: Path) -> PairTable:
    return _read_json(path, PairTable(str(path), "q"))


def _read_json(path: Path, table: PairTable) -> PairTable:
    try:
        lists = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: this is not JSON: {error.msg}.") from None
    for query, pairs in lists if isinstance(lists, _Pairs) else [("", None)]:
        if not isinstance(pairs, _Pairs):
            raise ValueError(
                f"{path}: {shorten(json.dumps(pairs))} is not a list of items; {{query: {{item: number}}}} is expected."
            )
        table.add_list(query, pairs)
    return table


def _read_csv_run(path: Path) -> PairTable:
    table = PairTable(str(path), "d")
    for number, query, images in prediction_rows(path):
        table.add_list(query, ((image, 1 / place) for place, image in enumerate(images, 1)), number)
    return table
