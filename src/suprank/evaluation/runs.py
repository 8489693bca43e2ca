"""Ranked lists (`Run`), relevance judgments (`Qrels`), their files, and trec_eval's metrics of one against the other.

| extension              | `Run`                                        | `Qrels`                |
|------------------------|----------------------------------------------|------------------------|
| `.trec` `.run` `.txt`  | `query Q0 item rank score tag`, blanks apart | `query 0 item grade`   |
| `.json`                | `{query: {item: score}}`, as ranx reads it   | `{query: {item: grade}}` |
| `.csv`                 | `id,images`: GLDv2's and Kaggle's predictions, without scores | –     |
| `.parquet` `.parq`     | ranx's columns `q_id`, `doc_id`, `score`; read only | the same        |

A file with another extension, or with none, is read as TREC; TREC and JSON are also read with `.gz` at the end.
"""

from __future__ import annotations

import gzip
import io
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import torch

from suprank.evaluation.metric_names import Metric, parse_metric
from suprank.evaluation.metrics import MetricSettings, QuerySums, metric_values
from suprank.evaluation.report import Report
from suprank.evaluation.report_comparison import LABELS
from suprank.evaluation.statistics import mean_over_queries
from suprank.files.atomic import atomic_writer
from suprank.files.binary import open_parquet, read_columns
from suprank.files.label_digest import label_digests
from suprank.files.reading import reading
from suprank.files.tables import read_table
from suprank.ranking import common_level
from suprank.ranking.exact import Places, plain
from suprank.system.extras import explain_missing_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = Any  # of pyarrow, which has no types

RUN_METRICS = ("NDCG@10", "NDCG-linear@10", "AP", "MRR", "MRR@10", "P@10", "R@10", "recall-all@10", "recall-all@100")
"""What `evaluate_run` computes unless metrics are named."""

MAX_GRADES = 127
"""Different grades above 0 that judgments may have: levels are 8-bit integers."""

MAX_NDCG_GRADE = 1000
"""Highest grade of NDCG: sums of the gain 2^grade − 1 stay finite up to there."""

Rule = Literal["zero", "skip"]

SelfMatch = Literal["first", "id", "keep"]
"""What mteb does about the query in its own list: drop the first result, drop the item with the query's id, or nothing."""

_TREC = (".trec", ".run", ".txt")
_NEED_LABELS = ("H-AP", "wAP", "ASI", "H-P", "H-R")
_PLACES_AT_ONCE = 1 << 20  # padded places × grades whose sums are computed together: some 100 MB of temporary arrays
_ROWS_AT_ONCE = 1 << 16  # texts that are hashed together
_PAIRS_AT_ONCE = 1 << 24  # pairs of labels compared at a time: 16 MiB of levels
_BLOCK = 1 << 24  # bytes that pyarrow reads at a time
_LONGEST = 1 << 20  # characters of a line
_MOST_EXPANSION = 50


class _Triples:
    """(query, item, number), in three columns; ids are text. Queries are in the order in which they first come."""

    query: Array
    item: Array
    source: str

    def _set_columns(self, name: str, values: NDArray[Any], where: Callable[[int], str]) -> NDArray[np.int32]:
        """Set the columns, `name` being that of the numbers, and return the codes of the queries."""
        query, item = _texts(self.query, "query").dictionary_encode(), _texts(self.item, "item")
        if not len(query) == len(item) == len(values) or values.ndim != 1:
            raise ValueError(
                f"{self.source} has {len(query)} queries, {len(item)} items and {len(values)} numbers; give as many."
            )
        for column, ids in (("query", query.dictionary), ("item", item)):
            if (row := ids.index("").as_py()) >= 0:
                row = query.indices.index(row).as_py() if column == "query" else row
                raise ValueError(f"{where(row)}: the id of the {column} is empty; give every {column} a name.")
        for column, content in (("query", query), ("item", item), (name, values)):
            object.__setattr__(self, column, content)
        return self._codes()

    def _sort(self, name: str, order: NDArray[np.int64], where: Callable[[int], str]) -> None:
        """Put the columns in this order, by query; refuse an item that a query has twice."""
        if (order[1:] < order[:-1]).any():
            for column in ("query", "item", name):
                taken = getattr(self, column)
                object.__setattr__(self, column, taken[order] if column == name else taken.take(order))
        pair = _hashes(self.item) + self._codes() * np.uint64(0x9E3779B97F4A7C15)
        again = np.flatnonzero(np.isin(pair, _repeated(pair)))
        seen: set[tuple[int, str]] = set()
        for row in again[np.argsort(order[again])].tolist():
            one = int(self._codes()[row]), self.item[row].as_py()
            if one in seen:
                raise ValueError(
                    f"{where(int(order[row]))}: query {self.query[row].as_py()!r} has item {one[1]!r} twice, but a list holds "
                    f"an item once; drop the repetition."
                )
            seen.add(one)

    def _codes(self) -> NDArray[np.int32]:
        """The number of each row's query."""
        codes: NDArray[np.int32] = self.query.indices.to_numpy()
        return codes

    def _bounds(self) -> NDArray[np.int64]:
        """Where the list of each query begins, and where the last one ends."""
        return np.searchsorted(self._codes(), np.arange(len(self) + 1))

    def _lists(self, values: NDArray[Any]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
        bounds = self._bounds().tolist()
        for query, start, end in zip(self.query.dictionary.to_pylist(), bounds[:-1], bounds[1:], strict=True):
            yield query, list(zip(self.item[start:end].to_pylist(), values[start:end].tolist(), strict=True))

    def __iter__(self) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.query.dictionary)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, type(self)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """`{query: {item: number}}`, as ranx takes it."""
        return {query: dict(pairs) for query, pairs in self}


@dataclass(frozen=True, eq=False)
class Run(_Triples):
    """Ranked lists: `query`, `item` and `score`, a row for each item of a list.

    Each list is sorted by score, and equal scores keep the order they are given in. An item twice for a query and a score that
    is not finite are refused. A query without items has no list.

    Example:
        >>> run = Run.from_dict({"q1": {"a": 0.5, "b": 0.9}, "q2": {"c": 0.1}})
        >>> for query, ranked in run:
        ...     print(query, ranked)
        q1 [('b', 0.9), ('a', 0.5)]
        q2 [('c', 0.1)]
    """

    query: Any
    item: Any
    score: Any
    source: str = "run"
    rank: Any = field(default=None, repr=False)  # in the file; used for the order of equal scores
    where: Callable[[int], str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        where = self.where or (lambda row: self.source)
        query = self._set_columns("score", score := np.asarray(self.score, np.float64), where)
        for row in np.flatnonzero(~np.isfinite(score))[:1].tolist():
            raise ValueError(f"{where(row)}: the score is {score[row]}, but scores must be finite.")
        rank = np.arange(len(score)) if self.rank is None else np.asarray(self.rank)
        later = (score[1:] < score[:-1]) | ((score[1:] == score[:-1]) & (rank[1:] >= rank[:-1]))
        if ((query[1:] > query[:-1]) | ((query[1:] == query[:-1]) & later)).all():  # most files are sorted
            order = np.arange(len(query))
        else:
            order = np.lexsort((rank, -score, query))
        self._sort("score", order, where)
        query, rank = query[order], rank[order]
        falls = (query[1:] == query[:-1]) & (rank[1:] < rank[:-1])
        if self.rank is not None and falls.any():
            more = f" and in {falls.sum() - 1:,} more" if falls.sum() > 1 else ""
            warnings.warn(
                f"{where(int(order[1:][falls][0]))}: the rank column contradicts the scores in this line{more}; lists were "
                f"sorted by score.",
                stacklevel=4,
            )
        object.__setattr__(self, "rank", None)
        object.__setattr__(self, "where", None)

    @classmethod
    def from_dict(cls, lists: Mapping[Any, Mapping[Any, float]]) -> Run:
        """Build a run from `{query: {item: score}}`, ranx's shape; equal scores in the order of the dictionary."""
        return cls(*_from_lists(((query, pairs.items()) for query, pairs in lists.items()), "run", float))

    def __iter__(self) -> Iterator[tuple[str, list[tuple[str, float]]]]:
        """Each query with its list, best first."""
        return self._lists(self.score)

    def save(self, path: str | PathLike[str], *, tag: str = "suprank") -> None:
        """Write the run in the format of the extension: `.trec`, `.run` or `.txt` (TREC), `.json` (ranx), `.csv` (GLDv2).

        An existing file is replaced. Scores are written in full; in a CSV they are lost. `tag` names the system.
        """
        _check_words([tag], "tag")
        _write(path, {".trec": lambda: _trec_run(self, tag), ".json": lambda: _json(self), ".csv": lambda: _csv(self)})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Run:
        """Read what `save` or another tool wrote, by extension; a malformed line is an error that names it.

        Lists are sorted by score, ties by the rank column. If that contradicts the rank column we warn and go by the scores, as
        trec_eval does. A CSV has no scores: the item at place r gets 1/r as a placeholder.
        """
        path = Path(path)
        with reading(path, "run"):
            if _format(path) == ".csv":
                lists = (
                    (query, [(item, 1 / place) for place, item in enumerate(items, 1)]) for query, items in predictions(path)
                )
                return cls(*_from_lists(lists, str(path), float))
            columns, where = _read(path, ("query", "", "item", "rank", "score", "tag"), "score", _RUN_LINE)
            return cls(columns["query"], columns["item"], columns["score"], str(path), columns.get("rank"), where)


@dataclass(frozen=True, eq=False)
class Qrels(_Triples):
    """Relevance judgments: `query`, `item` and `grade`, an integer; higher is more relevant.

    Zero and negative grades (judged not relevant, junk) are kept as they are. An item is judged once for a query. `self_match`
    and `ks` are rules of the task of mteb that the judgments are of, for `evaluate(embeddings, truth=qrels)`.

    Example:
        >>> list(Qrels.from_dict({"q1": {"a": 1, "b": 0}}))
        [('q1', [('a', 1), ('b', 0)])]
    """

    query: Any
    item: Any
    grade: Any
    source: str = "qrels"
    where: Callable[[int], str] | None = field(default=None, repr=False)
    self_match: SelfMatch | None = None
    ks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        grade = np.asarray(self.grade)
        if grade.dtype.kind not in "iu" and len(grade):
            raise TypeError(f"grade has dtype {grade.dtype}, but must be integers.")
        if self.self_match not in (None, *get_args(SelfMatch)):
            raise ValueError(f"self_match={self.self_match!r} must be one of {', '.join(get_args(SelfMatch))}.")
        where = self.where or (lambda row: self.source)
        query = self._set_columns("grade", grade.astype(np.int64), where)
        self._sort("grade", np.argsort(query, kind="stable"), where)
        object.__setattr__(self, "where", None)

    @classmethod
    def from_dict(cls, judgments: Mapping[Any, Mapping[Any, int]]) -> Qrels:
        """Build the judgments from `{query: {item: grade}}`, ranx's shape."""
        return cls(*_from_lists(((query, pairs.items()) for query, pairs in judgments.items()), "qrels", int))

    @classmethod
    def from_labels(
        cls, labels: Any, gallery_labels: Any = None, query_ids: Any = None, item_ids: Any = None, **rules: Any
    ) -> Qrels:
        """Grade = level of the closest common ancestor (`common_level`).

        Labels are integers `[N]` or `[N, L]`, finest first, or sets of them `[N, L, M]`. Items that share no label with the
        query are not judged, which every tool reads as 0; −1 is no label, and is never shared. Without a gallery the queries
        are each other's items, the query itself left out, and one list of ids names both. Ids are row numbers by default. All
        pairs are compared and every relevant one is stored: use it for a few ten thousand images, not for a million.
        `rules` are `self_match` and `ks`.
        """
        labels = torch.as_tensor(labels)
        within = gallery_labels is None
        gallery_labels = labels if within else torch.as_tensor(gallery_labels)
        if within:
            query_ids = item_ids if query_ids is None else query_ids
            item_ids = query_ids if item_ids is None else item_ids
        ids = []
        for name, given, expected in (("query_ids", query_ids, len(labels)), ("item_ids", item_ids, len(gallery_labels))):
            if given is not None and len(given) != expected:
                raise ValueError(f"{name} has {len(given)} ids for {expected} labels; give one for each.")
            ids.append(np.array([*map(str, range(expected) if given is None else given)]))
        columns = []
        rows = max(1, _PAIRS_AT_ONCE // max(1, len(gallery_labels)))
        for start in range(0, len(labels), rows):
            level = common_level(labels[start : start + rows], gallery_labels).cpu()
            if within:
                level[torch.arange(len(level)), torch.arange(start, start + len(level))] = 0
            found = level.nonzero(as_tuple=True)
            columns.append([found[0].numpy() + start, found[1].numpy(), level[found].numpy().astype(np.int64)])
        query, item, grade = (np.concatenate(column) for column in zip(*columns, strict=True))
        return cls(ids[0][query], ids[1][item], grade, **rules)

    def __iter__(self) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        """Each query with its judgments, in the order given."""
        return self._lists(self.grade)

    def save(self, path: str | PathLike[str]) -> None:
        """Write TREC qrels (`.trec`, `.run`, `.txt`) or ranx's JSON (`.json`)."""
        _write(path, {".trec": lambda: _trec_qrels(self), ".json": lambda: _json(self)})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Qrels:
        """Read TREC qrels, ranx's JSON or Parquet, by extension; a malformed line is an error that names it."""
        path = Path(path)
        with reading(path, "file of judgments"):
            columns, where = _read(path, ("query", "", "item", "grade"), "grade", _QRELS_LINE)
            return cls(columns["query"], columns["item"], columns["grade"], str(path), where)


_Kind = TypeVar("_Kind", Run, Qrels)


def _as(kind: type[_Kind], given: Any, name: str) -> _Kind:
    """The run or judgments in a file, a mapping of mappings, or an object of this kind."""
    if isinstance(given, str | PathLike):
        return kind.load(given)
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} is {type(given).__name__}, but must be a path, a mapping of mappings, or {kind.__name__}.")
    for query, pairs in given.items():
        if not isinstance(pairs, Mapping):
            raise TypeError(f"{name}[{query!r}] is {type(pairs).__name__}, but must be a mapping of items to numbers.")
    return kind.from_dict(given)


def _texts(column: Any, name: str) -> Array:
    """The ids as an array of text."""
    with explain_missing_extra("suprank.evaluation.runs"):
        import pyarrow as pa

    array = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)) and len(array):
        raise TypeError(f"{name} holds {kind}, but ids must be text or integers; convert them with str.")
    array = array if pa.types.is_dictionary(array.type) else array.cast(pa.large_string())
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _hashes(texts: Array) -> NDArray[np.uint64]:
    """64 bits of each text, none of them empty: a table of millions of texts takes ten times as long.

    Σ weight of the place · (letter + 1): two different texts agree with a probability of 2^-57 or less.
    """
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset :][: len(texts) + 1]
    letters = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    weights = np.random.default_rng(0).integers(2**64, size=int(np.diff(offsets).max(initial=0)), dtype=np.uint64) | np.uint64(
        1
    )
    found = np.empty(len(texts), np.uint64)
    for start in range(0, len(texts), _ROWS_AT_ONCE):
        ends = offsets[start : start + _ROWS_AT_ONCE + 1]
        place = np.arange(ends[0], ends[-1]) - np.repeat(ends[:-1], np.diff(ends))
        parts = weights[place] * (letters[ends[0] : ends[-1]] + np.uint64(1))
        found[start : start + _ROWS_AT_ONCE] = np.add.reduceat(parts, ends[:-1] - ends[0])
    return found


def _repeated(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The values that came before, as often as they came again; np.unique would hash, in ten times the time."""
    ascending = np.sort(values)
    return ascending[1:][ascending[1:] == ascending[:-1]]


# Reading

_RUN_LINE = "a TREC run; six fields are expected: query Q0 item rank score tag, with a whole rank and a number for a score"
_QRELS_LINE = "TREC qrels; four fields are expected: query 0 item relevance, with a whole relevance"
_Columns = tuple[dict[str, Any], Callable[[int], str]]


def _format(path: Path) -> str:
    """The extension that names the format: `.json` of `run.json.gz`. An extension that we do not know stands for TREC."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), "")
    return suffix if suffix in (".json", ".csv", ".parquet", ".parq", ".lz4") else _TREC[0]


def _read(path: Path, fields: Sequence[str], value: str, line: str) -> _Columns:
    """The columns of a file, by name, and a function that says where a row is."""
    kind, packed = _format(path), path.suffix.lower() == ".gz"
    if kind in (".csv", ".lz4") or (packed and kind in (".parquet", ".parq")):
        known = ", ".join(
            [*_TREC, ".json", ".parquet", ".parq", *([".csv"] if value == "score" else []), ".trec.gz", ".json.gz"]
        )
        raise ValueError(f"{path} is of a format that is not read here; use {known}.")
    content = _unpacked(path) if packed else None
    number = float if value == "score" else int
    if kind == ".json":
        triples = _read_json(path, path.read_bytes() if content is None else content, number)
    elif kind in (".parquet", ".parq"):
        triples = _read_parquet(path, number)
    else:
        return _read_trec(path, content, fields, line), lambda row: _line_of(path, content, row)
    return dict(zip(("query", "item", value), triples, strict=False)), lambda row: str(path)


def _unpacked(path: Path) -> bytes:
    most = _MOST_EXPANSION * path.stat().st_size + _BLOCK
    with gzip.open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} expands to more than {_MOST_EXPANSION} times its size, as no run does; unpack it.")
    return content


def _read_trec(path: Path, content: bytes | None, fields: Sequence[str], expected: str) -> dict[str, Any]:
    """By pyarrow, if every line is plain: one blank or one tab between fields, and no comments; or else line by line."""
    with explain_missing_extra("suprank.evaluation.runs"):
        import pyarrow as pa
        from pyarrow import csv

    names = [str(number) for number in range(len(fields))]
    used = {name: number for number, name in enumerate(fields) if name not in ("", "tag")}
    kinds = {"score": pa.float64(), "rank": pa.int64(), "grade": pa.int64()}
    kinds |= {"query": pa.dictionary(pa.int32(), pa.large_string()), "item": pa.large_string()}
    source = pa.OSFile(str(path)) if content is None else pa.BufferReader(content)
    begin = source.read(1000)
    source.seek(0)
    try:
        table = csv.read_csv(
            source,
            read_options=csv.ReadOptions(column_names=names, block_size=_BLOCK),
            parse_options=csv.ParseOptions(delimiter="\t" if b"\t" in begin else " ", quote_char=False),
            convert_options=csv.ConvertOptions(
                column_types={names[number]: kinds[name] for name, number in used.items()},
                include_columns=[names[number] for number in used.values()],
                null_values=[],
            ),
        ).unify_dictionaries()
    except pa.ArrowInvalid:
        return _read_lines(path, content, fields, used, expected)
    columns = {name: table[names[number]].combine_chunks() for name, number in used.items()}
    odd = any(len(query.split()) != 1 or query.startswith("#") for query in columns["query"].dictionary.to_pylist())
    return _read_lines(path, content, fields, used, expected) if odd else columns


def _lines(path: Path, content: bytes | None) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, without blank lines and those that begin with #."""
    with path.open("rb") if content is None else io.BytesIO(content) as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8-sig")
        for number, line in enumerate(iter(lambda: text.readline(_LONGEST), ""), 1):
            if len(line) == _LONGEST:
                raise ValueError(f"{path}:{number}: the line is too long: {shorten(line)}.")
            if line.strip() and not line.startswith("#"):
                yield number, line


def _line_of(path: Path, content: bytes | None, row: int) -> str:
    return f"{path}:{next(islice(_lines(path, content), row, None))[0]}"


def _read_lines(
    path: Path, content: bytes | None, fields: Sequence[str], used: dict[str, int], expected: str
) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {name: [] for name in used}
    numbers: dict[str, Callable[[str], Any]] = {"rank": np.int64, "grade": np.int64, "score": float}
    for number, line in _lines(path, content):
        cells = line.split(None, len(fields) - 1)  # the tag of a run may have blanks
        try:
            row = {name: numbers.get(name, str)(cells[place]) for name, place in used.items()}
            if len(cells) < len(fields):
                raise ValueError
        except (ValueError, IndexError, OverflowError):
            other = {(4, 6): " This looks like a run", (6, 4): " This looks like qrels"}.get((len(fields), len(line.split())))
            swapped = "" if other is None else f"{other}: were run and qrels swapped?"
            raise ValueError(f"{path}:{number}: {shorten(line)} is not a line of {expected}.{swapped}") from None
        for name, cell in row.items():
            columns[name].append(cell)
    return columns


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys: a dict would keep the last of repeated keys and hide the others."""


def _read_json(path: Path, content: bytes, number: type) -> tuple[Any, ...]:
    try:
        lists = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: this is not JSON: {error.msg}.") from None
    for _, pairs in lists if isinstance(lists, _Pairs) else [("", None)]:
        if not isinstance(pairs, _Pairs):
            raise ValueError(
                f"{path}: {shorten(json.dumps(pairs))} is not a list of items; {{query: {{item: number}}}} is expected."
            )
    return _from_lists(lists, str(path), number)


def _read_parquet(path: Path, number: type) -> tuple[Any, ...]:
    """The columns of ranx: q_id, doc_id, score."""
    import pyarrow as pa

    names = ["q_id", "doc_id", "score"]
    with open_parquet(path) as file:
        if missing := [name for name in names if name not in file.schema_arrow.names]:
            raise ValueError(f"{path} has no column {missing[0]}; {', '.join(names)} are expected, as ranx writes them.")
        table = read_columns(file, names)
    query, item, value = (table.column(name) for name in names)
    if query.null_count or item.null_count or value.null_count:
        raise ValueError(f"{path} has an empty cell in {', '.join(names)}; every row needs all three.")
    if not (pa.types.is_integer(value.type) or (number is float and pa.types.is_floating(value.type))):
        raise ValueError(f"{path}: score must be a column of {'numbers' if number is float else 'integers'}.")
    return query, item, value.to_numpy()


def _from_lists(lists: Iterable[tuple[Any, Iterable[tuple[Any, Any]]]], source: str, number: type) -> tuple[Any, ...]:
    """The columns of lists of (item, number), and their source."""
    queries: list[str] = []
    items: list[str] = []
    values: list[Any] = []
    seen: set[str] = set()
    for query, given in lists:
        pairs, name = list(given), str(query)
        if name in seen:
            raise ValueError(f"{source}: query {name!r} is repeated, but a query has one list; merge them.")
        seen.add(name)
        for item, value in pairs:
            if isinstance(value, str | bool) or not hasattr(value, "__float__" if number is float else "__index__"):
                kind = "a number" if number is float else "an integer"
                raise ValueError(f"{source}: query {query!r}, item {item!r}: {value!r} is not {kind}.")
        queries += [name] * len(pairs)
        items += [str(item) for item, _ in pairs]
        values += [value for _, value in pairs]
    return queries, items, np.array(values, np.float64 if number is float else np.int64), source


def predictions(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Each query of a prediction file with its images, best first. The header is `id,images`; images have one blank between.

    One trailing blank is allowed, as Kaggle allowed it; an empty second field gives no images.
    """
    seen: set[str] = set()
    for where, (query, images) in id_rows(path, ["id", "images"]):
        if query in seen:
            raise ValueError(f"{where()}: query {query!r} is repeated, but a query has one list; drop the others.")
        seen.add(query)
        yield query, split_ids(images.removesuffix(" "), where)


def id_rows(path: Path, columns: list[str]) -> Iterator[tuple[Callable[[], str], list[str]]]:
    """(where it is, cells) of each row of a CSV file whose header is exactly `columns`."""
    with reading(path, "CSV file"), path.open(encoding="utf-8-sig") as file:
        header = file.readline(1000)
    if [name.strip().strip('"') for name in header.split(",")] != columns:
        expected = ",".join(columns)
        raise ValueError(
            f"{path}:1: the header is {shorten(header)}, but {expected!r} is expected; a file without it is read wrong."
        )
    table = read_table(path)
    cells = (table.column(name).to_pylist() for name in columns)
    for row, found in enumerate(zip(*cells, strict=True)):
        if not found[0]:
            raise ValueError(f"{table.where(row)}: the id is empty; {','.join(columns)!r} is expected.")
        yield partial(table.where, row), list(found)


def split_ids(text: str, where: Callable[[], str]) -> list[str]:
    """Ids with one blank between them. A second blank would make an empty id, which would take up a place in the list."""
    ids = text.split(" ") if text else []
    if "" in ids:
        raise ValueError(f"{where()}: {shorten(text)} has a blank too many before an id; write one blank between ids.")
    return ids


def shorten(text: str) -> str:
    """The text in quotes, cut to what an error message has room for."""
    text = text.rstrip("\n")
    return repr(text if len(text) <= 60 else text[:57] + "...")


# Writing


def _write(path: str | PathLike[str], formats: dict[str, Callable[[], Iterator[str]]]) -> None:
    """Write to a temporary file and rename it, so that an id that is refused half-way leaves no half-written file."""
    path = Path(path)
    suffix = path.suffix.lower()
    if (kind := _TREC[0] if suffix in _TREC else suffix) not in formats:
        known = ", ".join([*_TREC, *list(formats)[1:]])
        raise ValueError(f"{path} has extension {suffix!r}, which names no format; use {known}.")
    with atomic_writer(path) as file:
        file.writelines(piece.encode() for piece in formats[kind]())


def _check_words(ids: Sequence[str], name: str) -> None:
    """Refuse ids that a format with blank-separated fields cannot hold."""
    if " ".join(ids).split() != list(ids):
        wrong = next(one for one in ids if one.split() != [one])
        raise ValueError(
            f"{name} {wrong!r} has blanks or is empty, but blanks separate the fields of this format; write .json."
        )


def _words(lists: Run | Qrels) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Each query with its list, if no id has blanks."""
    for query, pairs in lists:
        _check_words([query], "query")
        _check_words([item for item, _ in pairs], "item")
        yield query, pairs


def _trec_run(run: Run, tag: str) -> Iterator[str]:
    for query, ranked in _words(run):
        yield "".join([f"{query} Q0 {item} {rank} {score!r} {tag}\n" for rank, (item, score) in enumerate(ranked, 1)])


def _trec_qrels(qrels: Qrels) -> Iterator[str]:
    for query, judged in _words(qrels):
        yield "".join([f"{query} 0 {item} {grade}\n" for item, grade in judged])


def _json(lists: Run | Qrels) -> Iterator[str]:
    separator = "{"
    for query, pairs in lists:
        yield f"{separator}{json.dumps(query)}: {json.dumps(dict(pairs))}"
        separator = ",\n"
    yield "{}\n" if separator == "{" else "}\n"


def _csv(run: Run) -> Iterator[str]:
    yield "id,images\n"
    for query, ranked in _words(run):
        line = f"{query},{' '.join([item for item, _ in ranked])}\n"
        if line.count(",") > 1 or '"' in line:
            raise ValueError(f"query {query!r} or one of its items has a comma or a quote in its id; write .trec or .json.")
        yield line


# Metrics


def evaluate_run(
    run: str | PathLike[str] | Run | Mapping[Any, Mapping[Any, float]],
    qrels: str | PathLike[str] | Qrels | Mapping[Any, Mapping[Any, int]],
    metrics: Sequence[str] | None = None,
    *,
    relevance_threshold: int = 1,
    missing: Rule = "zero",
    no_positives: Rule = "zero",
    per_query: bool = False,
    intervals: bool = False,
) -> Report:
    """Compute metrics of ranked lists against graded judgments, with the values of trec_eval: for text, products, anything.

    `run` is `{query: {item: score}}`, a `Run`, or a file: TREC (`query Q0 item rank score tag`) or ranx's JSON or Parquet.
    `qrels` is `{query: {item: grade}}`, `Qrels`, or a file: TREC (`query 0 item grade`) or ranx's. Ids are compared as text.
    TREC and JSON files may be gzipped; other extensions are read as TREC.

    A list is sorted by score, equal scores by item id in descending order, as trec_eval does; the rank column is not used. An
    item that was not judged, or has a grade of 0 or less, is not relevant. Metrics of binary relevance (AP, MRR, R@k, P@k,
    recall-all@k, ...) take items of grade `relevance_threshold` or more for relevant (trec_eval's -l). NDCG and NDCG@k use all
    grades above 0, with gain 2^grade − 1, as in the paper and ranx's `ndcg_burges`; NDCG-linear and NDCG-linear@k have the
    grade itself for a gain, as trec_eval's `ndcg` and `ndcg_cut` and ranx's `ndcg` do. Names of trec_eval are accepted:
    `ndcg_cut_10`, `recip_rank`, `recall_100`, `P_5`, `success_1`, `map_cut_10`. H-AP, wAP, ASI, H-P@k and H-R@k need labels:
    see `evaluate`.

    All queries with a judgment are averaged. One that the run does not have counts as 0 (trec_eval's -c), or is left out with
    `missing="skip"` (trec_eval without -c). One without a relevant item counts as 0, as in trec_eval and ranx, or is left out
    with `no_positives="skip"`, as in `evaluate`. Queries of the run without judgments are ignored. `Report.settings` has the
    numbers of all three, and the grades above 0 that occur.

    `per_query` keeps each query's values, in the order of the judgments, NaN where it is left out; `intervals` adds 95 %
    intervals for new queries, which are taken as independent of one another. `Report.compare` tests the difference of two runs.

    Example:
        >>> qrels = {"q1": {"a": 2, "b": 1, "c": 0}, "q2": {"d": 1}}
        >>> report = evaluate_run({"q1": {"b": 0.9, "a": 0.8, "x": 0.1}}, qrels, ["AP", "NDCG@10", "ndcg_cut_10"])
        >>> {key: round(value, 4) for key, value in report.items()}
        {'AP': 0.5, 'NDCG@10': 0.3984, 'NDCG-linear@10': 0.4299}
        >>> evaluate_run({"q1": {"b": 0.9, "a": 0.8}}, qrels, ["AP"], missing="skip")["AP"]
        1.0
    """
    chosen = _check_metrics(metrics)
    threshold = _check_threshold(relevance_threshold)
    for name, rule in (("missing", missing), ("no_positives", no_positives)):
        if rule not in get_args(Rule):
            raise ValueError(f"{name}={rule!r} must be 'zero' or 'skip'.")
    judged = _as(Qrels, qrels, "qrels")
    grades, depth = _check_grades(judged, threshold, chosen)
    ranked = _as(Run, run, "run")
    level = np.where(judged.grade > 0, np.searchsorted(grades, judged.grade) + 1, 0)
    counts = np.zeros((len(judged), len(grades) + 1), np.int64)
    np.add.at(counts, (judged._codes(), level), 1)
    sizes = counts[:, :0:-1].cumsum(1)[:, ::-1]  # how many items have level l or a higher one, column 0 being level 1
    places, in_run = _positions(ranked, judged, level)
    values = _values(chosen, places, sizes, MetricSettings((), 1.0, (), grades=tuple(grades.tolist()), flat_level=depth))
    without = sizes[:, depth - 1] == 0
    if no_positives == "zero":
        values[np.isnan(values)] = 0
    if missing == "skip":
        values[:, ~in_run] = np.nan
    name = f"relevance ≥ {threshold}"
    report = Report(
        means={str(metric): mean_over_queries(column) for metric, column in zip(chosen, values, strict=True)},
        n_queries=len(judged),
        n_items=len(ranked.item) - len(_repeated(_hashes(ranked.item))),
        levels=(name,),
        without_positives={name: int(without.sum()) if no_positives == "skip" else 0},
        settings={
            "ks": sorted({metric.k for metric in chosen if metric.k is not None}),
            "grades": grades.tolist(),
            "relevance_threshold": threshold,
            "missing": missing,
            "no_positives": no_positives,
            LABELS: label_digests(
                judged.query.dictionary.to_pylist(),
                {"judgments": [[f"{grade} {item}" for item, grade in pairs if grade > 0] for _, pairs in judged]},
            ),
            "queries_missing": int((~in_run).sum()),
            "queries_without_positives": int(without.sum()),
            "queries_not_judged": len(ranked) - int(in_run.sum()),
        },
        per_query=dict(zip(map(str, chosen), values, strict=True)) if per_query or intervals else None,
        query_ids=np.array(judged.query.dictionary.to_pylist()),
    )
    if intervals:
        report = report.with_intervals()
    return report if per_query else report.without_queries()


def _check_metrics(metrics: Sequence[str] | None) -> list[Metric]:
    if isinstance(metrics, str):
        raise TypeError(f"metrics={metrics!r} must be a sequence of names; write [{metrics!r}].")
    chosen = list(dict.fromkeys(map(parse_metric, RUN_METRICS if metrics is None else metrics)))
    if not chosen:
        raise ValueError("metrics is empty; name at least one, or leave it out.")
    for metric in chosen:
        if metric.name in _NEED_LABELS or metric.level is not None:
            raise ValueError(
                f"{metric} needs labels, which a run and its judgments do not have; choose from NDCG, NDCG-linear, AP, MRR, "
                f"R-P, mAP@R, or with a k from NDCG, NDCG-linear, MRR, P, R, recall-all, TR, mAP, AP-all, such as NDCG@10."
            )
    return chosen


def _check_threshold(threshold: int) -> int:
    if isinstance(threshold, bool) or int(threshold) != threshold or threshold < 1:
        raise ValueError(f"relevance_threshold={threshold!r} must be an integer of at least 1: the lowest relevant grade.")
    return int(threshold)


def _check_grades(judged: Qrels, threshold: int, metrics: Sequence[Metric]) -> tuple[NDArray[np.int64], int]:
    """The grades above 0 that occur, rising, and the place of the lowest that is relevant, from 1."""
    if not len(judged):
        raise ValueError(f"{judged.source} has no judgments; every line is `query 0 item grade`.")
    grades = np.unique(judged.grade[judged.grade > 0])
    if len(grades) > MAX_GRADES:
        raise ValueError(
            f"{judged.source} has {len(grades)} different grades above 0, but at most {MAX_GRADES} are possible; round them."
        )
    depth = int(np.searchsorted(grades, threshold)) + 1
    if depth > len(grades):
        best = f"the highest grade is {grades[-1]}." if len(grades) else "none is above 0."
        raise ValueError(f"no judgment of {judged.source} reaches relevance_threshold={threshold}; {best}")
    if grades[-1] > MAX_NDCG_GRADE and any(metric.name == "NDCG" for metric in metrics):
        raise ValueError(
            f"{judged.source} has grade {grades[-1]}, too high for the gain 2^grade − 1 of NDCG, which takes grades up to "
            f"{MAX_NDCG_GRADE}; choose NDCG-linear, whose gain is the grade."
        )
    return grades, depth


def _positions(run: Run, judged: Qrels, level: NDArray[np.int64]) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
    """Query, level and place of every relevant item that the run lists, by query and place; and which queries it has."""
    import pyarrow.compute as pc

    if not len(run):
        raise ValueError(f"{run.source} has no lines; give a run with at least one.")

    def joined(ids: Array, known: Array) -> NDArray[np.int64]:
        """The number of each id among those that are known, -1 for others."""
        numbers: NDArray[np.int32] = pc.fill_null(pc.index_in(ids, value_set=known), -1).to_numpy()
        return numbers.astype(np.int64)

    queries = joined(run.query.dictionary, judged.query.dictionary)
    if not (queries >= 0).any():
        raise ValueError(
            f"{run.source} and {judged.source} share no query: the run has {_some(run.query.dictionary)}, the judgments "
            f"{_some(judged.query.dictionary)}; check the ids."
        )
    relevant = np.flatnonzero(level > 0)
    ids = pc.unique(judged.item.take(relevant))
    pairs = judged._codes()[relevant] * np.int64(len(ids) + 1) + joined(judged.item.take(relevant), ids)
    relevant, pairs = relevant[np.argsort(pairs)], np.sort(pairs)
    listed, item = run._codes(), joined(run.item, ids)
    if (order := _trec_order(run)) is not None:
        item = item[order]
    rows = np.flatnonzero((item >= 0) & (queries[listed] >= 0))  # `listed` is the same in any order: ties are of one query
    query, place = queries[listed[rows]], rows - run._bounds()[listed[rows]] + 1
    wanted = query * (len(ids) + 1) + item[rows]
    at = np.searchsorted(pairs, wanted)
    hit = np.append(pairs, -1)[at] == wanted
    query, place, found = query[hit], place[hit], level[relevant[at[hit]]]
    if not len(query) and len(relevant):
        warnings.warn(
            f"no relevant item of {judged.source} is in the lists of {run.source}: the judgments have {_some(ids)}, the run "
            f"{_some(run.item)}; check the ids.",
            stacklevel=3,
        )
    by_query = np.lexsort((place, query))
    in_run = np.zeros(len(judged), bool)
    in_run[queries[queries >= 0]] = True
    return [query[by_query], found[by_query], place[by_query]], in_run


def _trec_order(run: Run) -> NDArray[np.int64] | None:
    """The rows with equal scores by item id, descending in the bytes of UTF-8; None if no scores are equal."""
    import pyarrow as pa
    import pyarrow.compute as pc

    query = run._codes()
    equal = (query[1:] == query[:-1]) & (run.score[1:] == run.score[:-1])
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    if not len(tied):
        return None
    group = np.append(0, (~equal).cumsum())[tied]
    table = pa.table({"group": group, "item": run.item.take(tied)})
    order = np.arange(len(query))
    order[tied] = tied[pc.sort_indices(table, sort_keys=[("group", "ascending"), ("item", "descending")]).to_numpy()]
    return order


def _some(ids: Array) -> str:
    """The first ids, for an error."""
    first = ", ".join(repr(name) for name in ids[:3].to_pylist())
    return first + (", ..." if len(ids) > 3 else "")


def _values(
    metrics: Sequence[Metric], places: list[NDArray[np.int64]], sizes: NDArray[np.int64], settings: MetricSettings
) -> NDArray[np.float64]:
    """The value of every metric for every query, `[metrics, queries]`; NaN without relevant items."""
    query, level, place = places
    level, place = np.append(level, 0).astype(np.int8), np.append(place, 1).astype(np.int32)  # the last is padding
    ks = sorted({metric.k for metric in metrics if metric.k is not None})
    values = np.empty((len(metrics), len(sizes)))
    counts = np.bincount(query, minlength=len(sizes))
    begin = counts.cumsum() - counts
    for some in _blocks(counts, _PLACES_AT_ONCE // sizes.shape[1]):
        column = np.arange(counts[some].max())
        rows = np.where(column < counts[some, None], begin[some, None] + column, len(query))
        listed = Places(torch.from_numpy(level[rows]), torch.from_numpy(place[rows]))
        size = torch.from_numpy(sizes[some])
        relevance = torch.zeros(size.shape, dtype=torch.float64)  # of hierarchical metrics, which are not computed here
        full = plain.ranking_sums(listed, size, relevance) if any(metric.full_ranking for metric in metrics) else None
        sums = QuerySums(size, full, plain.top_sums(listed, relevance, ks))
        values[:, some] = metric_values(metrics, sums, ks, settings).numpy()
    return values


def _blocks(counts: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """Queries, those with few relevant items first, in blocks of `most` padded places at most, or of one query."""
    order = np.argsort(counts, kind="stable")
    start = 0
    for stop in range(1, len(order) + 1):
        if stop == len(order) or (stop + 1 - start) * max(int(counts[order[stop]]), 1) > most:
            yield order[start:stop]
            start = stop
