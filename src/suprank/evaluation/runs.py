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
from dataclasses import InitVar, dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, get_args

import numpy as np
import torch

from suprank.evaluation.id_lists import read_id_lists
from suprank.evaluation.metric_names import Metric, parse_metric
from suprank.evaluation.metrics import MetricSettings, QuerySums, mean_over_queries, metric_values
from suprank.evaluation.report import Report
from suprank.evaluation.report_comparison import LABELS
from suprank.files.atomic import atomic_writer
from suprank.files.binary import open_parquet, read_columns
from suprank.files.labels import label_digests
from suprank.files.reading import reading, shorten
from suprank.ranking import common_level
from suprank.ranking.exact import Places, plain
from suprank.system.extras import explain_missing_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = Any  # of pyarrow, which has no types
    Where = Callable[[int], str]  # where a row is, for an error

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
_BLANKS = r"^$|[\t-\r\x1c-\x20\x85\p{Z}]"  # those of str.split, or nothing
_MOST_EXPANSION = 50


class _Lists:
    """(query, item, number) in three columns, by query in the order in which queries first come; ids are text."""

    query: Array
    item: Array
    source: str
    number: ClassVar[str]  # name of the third column
    kind: ClassVar[type]  # of its values
    line: ClassVar[tuple[str, ...]]  # fields of a line of TREC
    expected: ClassVar[str]

    def _set(self, where: Where | None, numbers: NDArray[Any], *keys: NDArray[Any]) -> tuple[NDArray[np.int64], Where]:
        """Check the columns and sort them by query, then by `keys`; return the order, and where each row was."""
        where = where or (lambda row: self.source)
        query, item = _texts(self.query, "query").dictionary_encode(), _texts(self.item, "item")
        if not len(query) == len(item) == len(numbers) or numbers.ndim != 1:
            raise ValueError(
                f"{self.source} has {len(query)} queries, {len(item)} items and {len(numbers)} numbers; give as many."
            )
        unnamed = query.indices.index(query.dictionary.index("").as_py())
        for column, row in (("query", unnamed.as_py()), ("item", item.index("").as_py())):
            if row >= 0:
                raise ValueError(f"{where(row)}: the id of the {column} is empty; give every {column} a name.")
        _refuse_repetitions(query, item, where)
        order = _order(query.indices.to_numpy(), *keys)
        if (order[1:] < order[:-1]).any():
            query, item, numbers = query.take(order), item.take(order), numbers[order]
        for column, content in (("query", query), ("item", item), (self.number, numbers)):
            object.__setattr__(self, column, content)
        return order, where

    @property
    def _codes(self) -> NDArray[np.int32]:
        """The number of each row's query."""
        codes: NDArray[np.int32] = self.query.indices.to_numpy()
        return codes

    @property
    def _bounds(self) -> NDArray[np.int64]:
        """Where the list of each query begins, and where the last one ends."""
        return np.searchsorted(self._codes, np.arange(len(self) + 1))

    def __iter__(self) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
        """Each query with its list: that of a run is sorted, best first; judgments are in the order given."""
        numbers, bounds = getattr(self, self.number), self._bounds.tolist()
        for query, start, end in zip(self.query.dictionary.to_pylist(), bounds[:-1], bounds[1:], strict=True):
            yield query, list(zip(self.item[start:end].to_pylist(), numbers[start:end].tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.query.dictionary)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, type(self)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """`{query: {item: number}}`, as ranx takes it."""
        return {query: dict(pairs) for query, pairs in self}

    @classmethod
    def from_dict(cls, lists: Mapping[Any, Mapping[Any, Any]]) -> Self:
        """Build it from `{query: {item: number}}`, ranx's shape; equal scores in the order of the dictionary."""
        return cls(*_columns(cls, ((query, pairs.items()) for query, pairs in lists.items()), cls.__name__.lower()))


@dataclass(frozen=True, eq=False)
class Run(_Lists):
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
    rank: InitVar[Any] = None  # in the file: the order of equal scores
    where: InitVar[Where | None] = None

    number, kind, line = "score", float, ("query", "Q0", "item", "rank", "score", "tag")
    expected = "a TREC run; six fields are expected: query Q0 item rank score tag, with a whole rank and a number for a score"

    def __post_init__(self, rank: Any, where: Where | None) -> None:
        score = np.asarray(self.score, np.float64)
        for row in np.flatnonzero(~np.isfinite(score))[:1].tolist():
            raise ValueError(f"{where(row) if where else self.source}: the score is {score[row]}, but scores must be finite.")
        if rank is None:
            self._set(where, score, -score)
            return
        order, where = self._set(where, score, -score, rank := np.asarray(rank))
        query, rank = self._codes, rank[order]
        falls = (query[1:] == query[:-1]) & (rank[1:] < rank[:-1])
        if falls.any():
            more = f" and in {falls.sum() - 1:,} more" if falls.sum() > 1 else ""
            warnings.warn(
                f"{where(int(order[1:][falls][0]))}: the rank column contradicts the scores in this line{more}; lists were "
                f"sorted by score.",
                stacklevel=4,
            )

    def save(self, path: str | PathLike[str], *, tag: str = "suprank") -> None:
        """Write the run in the format of the extension: `.trec`, `.run` or `.txt` (TREC), `.json` (ranx), `.csv` (GLDv2).

        An existing file is replaced. Scores are written in full; in a CSV they are lost. `tag` names the system.
        """
        _check_words([tag], "tag")
        _write(path, self, {".trec": lambda query, ranked: _trec_run(query, ranked, tag), ".csv": _csv})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Run:
        """Read what `save` or another tool wrote, by extension; a malformed line is an error that names it.

        Lists are sorted by score, ties by the rank column. If that contradicts the rank column we warn and go by the scores, as
        trec_eval does. A CSV has no scores: the item at place r gets 1/r as a placeholder.
        """
        path = Path(path)
        with reading(path, "run"):
            if _format(path) != ".csv":
                return cls(**_read(cls, path))
            table, images = read_id_lists(path, "id", "images")
            scored = ([(item, 1 / place) for place, item in enumerate(items, 1)] for items in images)
            return cls(*_columns(cls, zip(table.column("id").to_pylist(), scored, strict=True), str(path)))


@dataclass(frozen=True, eq=False)
class Qrels(_Lists):
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
    self_match: SelfMatch | None = None
    ks: tuple[int, ...] | None = None
    where: InitVar[Where | None] = None

    number, kind, line = "grade", int, ("query", "0", "item", "grade")
    expected = "TREC qrels; four fields are expected: query 0 item relevance, with a whole relevance"

    def __post_init__(self, where: Where | None) -> None:
        grade = np.asarray(self.grade)
        if grade.dtype.kind not in "iu" and len(grade):
            raise TypeError(f"grade has dtype {grade.dtype}, but must be integers.")
        if self.self_match not in (None, *get_args(SelfMatch)):
            raise ValueError(f"self_match={self.self_match!r} must be one of {', '.join(get_args(SelfMatch))}.")
        self._set(where, grade.astype(np.int64))

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

    def save(self, path: str | PathLike[str]) -> None:
        """Write TREC qrels (`.trec`, `.run`, `.txt`) or ranx's JSON (`.json`)."""
        _write(path, self, {".trec": _trec_qrels})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Qrels:
        """Read TREC qrels, ranx's JSON or Parquet, by extension; a malformed line is an error that names it."""
        with reading(path, "file of judgments"):
            return cls(**_read(cls, Path(path)))


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


# Columns


def _texts(column: Any, name: str) -> Array:
    """The ids as an array of text; those of queries may be a dictionary."""
    with explain_missing_extra("suprank.evaluation.runs"):
        import pyarrow as pa

    array = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    is_dictionary = pa.types.is_dictionary(array.type)
    kind = array.type.value_type if is_dictionary else array.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)) and len(array):
        raise TypeError(f"{name} holds {kind}, but ids must be text or integers; convert them with str.")
    if array.null_count:
        raise ValueError(f"{name} has {array.null_count} row(s) without an id; every row needs one.")
    if is_dictionary and name == "query" and kind == pa.large_string() and _is_by_first_use(array):
        return array  # of a file, as it was read
    return (array.dictionary_decode() if is_dictionary else array).cast(pa.large_string())


def _is_by_first_use(array: Array) -> bool:
    """Whether a dictionary has what is used and nothing else, as it first comes; that of a filtered pandas column has more."""
    highest = np.maximum.accumulate(array.indices.to_numpy())
    return bool(np.bincount(highest, minlength=len(array.dictionary)).all())


def _columns(kind: type[_Lists], lists: Iterable[tuple[Any, Iterable[tuple[Any, Any]]]], source: str) -> tuple[Any, ...]:
    """The columns of lists of (item, number), and their source."""
    queries: list[str] = []
    items: list[str] = []
    numbers: list[Any] = []
    seen: set[str] = set()
    wanted, method = ("a number", "__float__") if kind.kind is float else ("an integer", "__index__")
    for query, given in lists:
        pairs, name = list(given), str(query)
        if name in seen:
            raise ValueError(f"{source}: query {name!r} is repeated, but a query has one list; merge them.")
        seen.add(name)
        for item, number in pairs:
            if isinstance(number, str | bool) or not hasattr(number, method):
                raise ValueError(f"{source}: query {query!r}, item {item!r}: {number!r} is not {wanted}.")
        queries += [name] * len(pairs)
        items += [str(item) for item, _ in pairs]
        numbers += [number for _, number in pairs]
    return queries, items, np.array(numbers, np.float64 if kind.kind is float else np.int64), source


def _order(*keys: NDArray[Any]) -> NDArray[np.int64]:
    """The order of the rows by these columns, the first before the others; equal rows stay as they are."""
    rises = np.ones(max(len(keys[0]) - 1, 0), bool)
    for key in reversed(keys):
        rises = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & rises)
    return np.arange(len(keys[0])) if rises.all() else np.lexsort(keys[::-1])  # most files are sorted


def _refuse_repetitions(query: Array, item: Array, where: Where) -> None:
    """Refuse an item that a query has twice."""
    pair = _hashes(item) + query.indices.to_numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    seen: set[tuple[str, str]] = set()
    for row in np.flatnonzero(np.isin(pair, _repeated(pair))).tolist():
        one = query[row].as_py(), item[row].as_py()
        if one in seen:
            raise ValueError(
                f"{where(row)}: query {one[0]!r} has item {one[1]!r} twice, but a list holds an item once; drop the repetition."
            )
        seen.add(one)


def _hashes(texts: Array) -> NDArray[np.uint64]:
    """64 bits of each text, none of them empty: a table of millions of texts takes ten times as long.

    Σ weight of the place · (letter + 1): two different texts agree with a probability of 2^-57 or less.
    """
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset :][: len(texts) + 1]
    letters = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    longest = int(np.diff(offsets).max(initial=0))
    weights = np.random.default_rng(0).integers(2**64, size=longest, dtype=np.uint64) | np.uint64(1)
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


def _format(path: Path) -> str:
    """The extension that names the format: `.json` of `run.json.gz`. An extension that we do not know stands for TREC."""
    suffix = next((suffix for suffix in map(str.lower, reversed(path.suffixes)) if suffix != ".gz"), "")
    return suffix if suffix in (".json", ".csv", ".parquet", ".parq", ".lz4") else _TREC[0]


def _read(kind: type[_Lists], path: Path) -> dict[str, Any]:
    """The columns of a file, and `where`, if rows have lines."""
    suffix = _format(path)
    if suffix == ".json":
        return _read_json(kind, path)
    if suffix == _TREC[0]:
        columns = _read_trec(kind, path) or _read_lines(kind, path)
        where = lambda row: f"{path}:{next(islice(_lines(path), row, None))[0]}"  # noqa: E731
        return columns | {"source": str(path), "where": where}
    if suffix in (".csv", ".lz4") or path.suffix.lower() == ".gz":
        predictions = ", .csv" if kind is Run else ""
        known = f"{', '.join(_TREC)}, .json, .parquet, .parq{predictions}, .trec.gz, .json.gz"
        raise ValueError(f"{path} is of a format that is not read here; use {known}.")
    return _read_parquet(kind, path)


def _open(path: Path) -> IO[bytes]:
    """The file, unpacked if it is a .gz."""
    if path.suffix.lower() != ".gz":
        return path.open("rb")
    most = _MOST_EXPANSION * path.stat().st_size + _BLOCK
    with gzip.open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} expands to more than {_MOST_EXPANSION} times its size, as no run does; unpack it.")
    return io.BytesIO(content)


def _read_trec(kind: type[_Lists], path: Path) -> dict[str, Any] | None:
    """The columns by pyarrow, if every line is plain: one blank or one tab between fields, and no comments."""
    with explain_missing_extra("suprank.evaluation.runs"):
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv

    types = {"query": pa.dictionary(pa.int32(), pa.large_string()), "item": pa.large_string()}
    types |= {"rank": pa.int64(), "score": pa.float64(), "grade": pa.int64()}
    unused = {field: pa.string() for field in kind.line if field not in types}  # they too must be UTF-8, without blanks
    with _open(path) as source:
        begin = source.read(1000)
        source.seek(0)
        try:
            table = csv.read_csv(
                source,
                read_options=csv.ReadOptions(column_names=kind.line, block_size=_BLOCK),
                parse_options=csv.ParseOptions(delimiter="\t" if b"\t" in begin else " ", quote_char=False),
                convert_options=csv.ConvertOptions(column_types=types | unused, null_values=[]),
            ).unify_dictionaries()
        except pa.ArrowInvalid:
            return None
    if any(_has_blanks(chunk) for field in ("item", *unused) for chunk in table[field].chunks):
        return None
    table = table.drop_columns([*unused])  # before the others are copied
    columns = {field: table[field].combine_chunks() for field in table.column_names}
    queries = columns["query"].dictionary
    return None if _has_blanks(queries) or pc.any(pc.starts_with(queries, "#")).as_py() else columns


def _has_blanks(texts: Array) -> bool:
    """Whether one of the texts is empty or has a blank; for printable ASCII, as most are, a glance at the bytes is enough."""
    import pyarrow.compute as pc

    letters = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    if letters.min(initial=255) > ord(" ") and letters.max(initial=0) <= ord("~"):
        return bool(texts.index("").as_py() >= 0)
    return bool(pc.any(pc.match_substring_regex(texts, _BLANKS)).as_py())


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, without blank lines and those that begin with #."""
    with io.TextIOWrapper(_open(path), encoding="utf-8-sig", errors="surrogateescape") as text:
        for number, line in enumerate(iter(lambda: text.readline(_LONGEST), ""), 1):
            try:
                line.encode()
            except UnicodeEncodeError as error:
                byte = ord(line[error.start]) - 0xDC00
                raise ValueError(
                    f"{path}:{number}: the line holds the byte 0x{byte:02X}, which is not UTF-8 (Latin-1?); save it as UTF-8."
                ) from None
            if len(line) == _LONGEST:
                raise ValueError(f"{path}:{number}: the line is too long: {shorten(line)}.")
            if line.strip() and not line.startswith("#"):
                yield number, line


def _read_lines(kind: type[_Lists], path: Path) -> dict[str, Any]:
    """The columns, one line after the other; a malformed line is refused."""
    types = {"query": str, "item": str, "rank": np.int64, "score": float, "grade": np.int64}
    used = [(place, field, types[field]) for place, field in enumerate(kind.line) if field in types]
    columns: dict[str, list[Any]] = {field: [] for _, field, _ in used}
    for number, line in _lines(path):
        cells = line.split(None, len(kind.line) - 1)  # the tag of a run may have blanks
        try:
            row = [(field, convert(cells[place])) for place, field, convert in used]
            if len(cells) < len(kind.line):
                raise ValueError
        except (ValueError, IndexError, OverflowError):
            other = {(4, 6): " This looks like a run", (6, 4): " This looks like qrels"}.get(
                (len(kind.line), len(line.split()))
            )
            swapped = "" if other is None else f"{other}: were run and qrels swapped?"
            raise ValueError(f"{path}:{number}: {shorten(line)} is not a line of {kind.expected}.{swapped}") from None
        for field, cell in row:
            columns[field].append(cell)
    return columns


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys: a dict would keep the last of repeated keys and hide the others."""


def _read_json(kind: type[_Lists], path: Path) -> dict[str, Any]:
    with _open(path) as file:
        content = file.read().decode("utf-8-sig")
    try:
        lists = json.loads(content, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: this is not JSON: {error.msg}.") from None
    for _, pairs in lists if isinstance(lists, _Pairs) else [("", None)]:
        if not isinstance(pairs, _Pairs):
            raise ValueError(
                f"{path}: {shorten(json.dumps(pairs))} is not a list of items; {{query: {{item: number}}}} is expected."
            )
    return dict(zip(("query", "item", kind.number, "source"), _columns(kind, lists, str(path)), strict=True))


def _read_parquet(kind: type[_Lists], path: Path) -> dict[str, Any]:
    """The columns of ranx: q_id, doc_id, score."""
    import pyarrow as pa

    names = ["q_id", "doc_id", "score"]
    with open_parquet(path) as file:
        if missing := [name for name in names if name not in file.schema_arrow.names]:
            raise ValueError(f"{path} has no column {missing[0]}; {', '.join(names)} are expected, as ranx writes them.")
        table = read_columns(file, names)
    if any(column.null_count for column in table.columns):
        raise ValueError(f"{path} has an empty cell in {', '.join(names)}; every row needs all three.")
    query, item, number = (table.column(name) for name in names)
    if not (pa.types.is_integer(number.type) or (kind.kind is float and pa.types.is_floating(number.type))):
        raise ValueError(f"{path}: score must be a column of {'numbers' if kind.kind is float else 'integers'}.")
    return {"query": query, "item": item, kind.number: number.to_numpy(), "source": str(path)}


# Writing


def _write(path: str | PathLike[str], lists: _Lists, formats: dict[str, Callable[[str, list[Any]], str]]) -> None:
    """Write to a temporary file and rename it, so that an id that is refused half-way leaves no half-written file."""
    path = Path(path)
    suffix = path.suffix.lower()
    if (kind := _TREC[0] if suffix in _TREC else suffix) not in (*formats, ".json"):
        known = ", ".join([*_TREC, ".json", *list(formats)[1:]])
        raise ValueError(f"{path} has extension {suffix!r}, which names no format; use {known}.")
    with atomic_writer(path) as file:
        if kind == ".json":
            pieces = ",\n".join([f"{json.dumps(query)}: {json.dumps(dict(pairs))}" for query, pairs in lists])
            file.write(f"{{{pieces}}}\n".encode())
            return
        file.write(b"id,images\n" if kind == ".csv" else b"")
        for query, pairs in lists:
            _check_words([query], "query")
            _check_words([item for item, _ in pairs], "item")
            file.write(formats[kind](query, pairs).encode())


def _check_words(ids: Sequence[str], name: str) -> None:
    """Refuse ids that a format with blank-separated fields cannot hold."""
    if " ".join(ids).split() != list(ids):
        wrong = next(one for one in ids if one.split() != [one])
        raise ValueError(
            f"{name} {wrong!r} has blanks or is empty, but blanks separate the fields of this format; write .json."
        )


def _trec_run(query: str, ranked: list[tuple[str, float]], tag: str) -> str:
    return "".join([f"{query} Q0 {item} {rank} {score!r} {tag}\n" for rank, (item, score) in enumerate(ranked, 1)])


def _trec_qrels(query: str, judged: list[tuple[str, int]]) -> str:
    return "".join([f"{query} 0 {item} {grade}\n" for item, grade in judged])


def _csv(query: str, ranked: list[tuple[str, float]]) -> str:
    line = f"{query},{' '.join([item for item, _ in ranked])}\n"
    if line.count(",") > 1 or '"' in line:
        raise ValueError(f"query {query!r} or one of its items has a comma or a quote in its id; write .trec or .json.")
    return line


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
    np.add.at(counts, (judged._codes, level), 1)
    sizes = counts[:, :0:-1].cumsum(1)[:, ::-1]  # how many items have level l or a higher one, column 0 being level 1
    places, in_run = _places(ranked, judged, level)
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


def _places(run: Run, judged: Qrels, level: NDArray[np.int64]) -> tuple[Array, NDArray[np.bool_]]:
    """A table of query, level and place of the relevant items that the run lists, by query and place; the queries it has."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(run):
        raise ValueError(f"{run.source} has no lines; give a run with at least one.")
    query = pc.index_in(run.query.dictionary, value_set=judged.query.dictionary)  # null if it is not judged
    if query.null_count == len(query):
        raise ValueError(
            f"{run.source} and {judged.source} share no query: the run has {_some(run.query.dictionary)}, the judgments "
            f"{_some(judged.query.dictionary)}; check the ids."
        )
    relevant = pa.table({"query": judged.query.indices, "item": judged.item, "level": level}).filter(level > 0)
    order = _trec_order(run)
    listed = np.asarray(pc.is_in(run.item, value_set=pc.unique(relevant["item"])))
    rows = np.flatnonzero(listed[order])
    code = run._codes[rows]  # the same in either order: ties are of one query
    place = rows - run._bounds[code] + 1
    places = pa.table({"query": query.take(code), "item": run.item.take(order[rows]), "place": place})
    found = relevant.join(places, ["query", "item"], join_type="inner", use_threads=False)
    if not len(found) and len(relevant):
        warnings.warn(
            f"no relevant item of {judged.source} is in the lists of {run.source}: the judgments have "
            f"{_some(pc.unique(relevant['item']))}, the run {_some(run.item)}; check the ids.",
            stacklevel=3,
        )
    in_run = np.zeros(len(judged), bool)
    in_run[query.drop_null().to_numpy()] = True
    return found.sort_by([("query", "ascending"), ("place", "ascending")]), in_run


def _trec_order(run: Run) -> NDArray[np.int64]:
    """The rows by query and score, and with equal scores by item id, descending in the bytes of UTF-8."""
    import pyarrow as pa
    import pyarrow.compute as pc

    equal = (run._codes[1:] == run._codes[:-1]) & (run.score[1:] == run.score[:-1])
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    group = np.append(0, (~equal).cumsum())[tied]
    table = pa.table({"group": group, "item": run.item.take(tied)})
    order = np.arange(len(run.item))
    order[tied] = tied[pc.sort_indices(table, sort_keys=[("group", "ascending"), ("item", "descending")]).to_numpy()]
    return order


def _some(ids: Array) -> str:
    """The first ids, for an error."""
    first = ", ".join(repr(name) for name in ids[:3].to_pylist())
    return first + (", ..." if len(ids) > 3 else "")


def _values(
    metrics: Sequence[Metric], places: Array, sizes: NDArray[np.int64], settings: MetricSettings
) -> NDArray[np.float64]:
    """The value of every metric for every query, `[metrics, queries]`; NaN without relevant items."""
    query, level, place = (places[name].to_numpy() for name in ("query", "level", "place"))
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
