"""Ranked lists and judgments that other tools can read: what a search found (`Run`), what it should have found (`Qrels`).

| extension              | `Run`                                        | `Qrels`             |
|------------------------|----------------------------------------------|---------------------|
| `.trec` `.run` `.txt`  | `query Q0 item rank score tag`, blanks apart | `query 0 item rel`  |
| `.json`                | `{query: {item: score}}`, as ranx reads it   | `{query: {item: rel}}` |
| `.csv`                 | `id,images`: GLDv2's and Kaggle's predictions, without scores | – |

Files hold ids as text, and text comes back unless `id_type=int` is asked for. What cannot be read is refused with the file
and the line. Both classes hold flat arrays, and files are streamed: four million lines take seconds, not a dict of dicts.
"""

from __future__ import annotations

import json
import warnings
from array import array
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from suprank.files.atomic import writing_atomically
from suprank.ranking import common_level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

Id = str | int
_T = TypeVar("_T")

_PAIRS_AT_ONCE = 1 << 24  # pairs of labels compared at a time: 16 MiB of levels
_TREC = (".trec", ".run", ".txt")


@dataclass(frozen=True, eq=False)
class Run:
    """The top k of every query: ids and scores in rows that fall from the left.

    `query_ids` are n texts or n integers. `item_ids` `[n, k]` holds indices or integer ids from 0 on, or text, and
    `scores` `[n, k]` float32 or float64. A list shorter than k ends in padding: item −1, or "", with score −inf. Equal
    scores keep the order they are given in. Refused, because no reader would agree on their meaning: scores that rise or
    are not finite, the same item twice for a query, the same query twice. Two runs are equal when their lists are, whatever
    the padding.

    Example:
        >>> run = Run.from_dict({"q1": {"a": 0.5, "b": 0.9}, "q2": {"c": 0.1}})
        >>> for query, ranked in run:
        ...     print(query, ranked)
        q1 [('b', 0.9), ('a', 0.5)]
        q2 [('c', 0.1)]
    """

    query_ids: Sequence[Id]
    item_ids: NDArray[Any]
    scores: NDArray[Any]

    def __post_init__(self) -> None:
        scores = np.asarray(self.scores)
        if scores.dtype not in (np.float32, np.float64):
            scores = scores.astype(np.float32 if scores.dtype == np.float16 else np.float64)
        object.__setattr__(self, "query_ids", _checked_ids(self.query_ids, "query_ids"))
        object.__setattr__(self, "item_ids", _id_array(self.item_ids, "item_ids"))
        object.__setattr__(self, "scores", scores)
        if self.item_ids.ndim != 2 or self.item_ids.shape != scores.shape or len(scores) != len(self.query_ids):
            raise ValueError(
                f"item_ids has shape {self.item_ids.shape} and scores {scores.shape} for {len(self.query_ids)} query_ids, "
                f"but both must be [queries, k]; fill shorter lists with item -1 (or '') and score -inf."
            )
        self._check_rows()

    def _check_rows(self) -> None:
        padding = self.item_ids == _padding(self.item_ids)
        wrong = np.where(padding, self.scores != -np.inf, ~np.isfinite(self.scores))
        wrong[:, 1:] |= ~(self.scores[:, 1:] <= self.scores[:, :-1])
        for row, column in np.argwhere(wrong)[:1]:
            raise ValueError(
                f"query {self.query_ids[row]!r} has score {self.scores[row, column]} for item "
                f"{self.item_ids[row, column]!r} at place {column + 1}, but scores must be finite and fall along a row, with "
                f"-inf for padding only; sort the row, or use Run.from_dict, which sorts."
            )
        for row, (items, length) in enumerate(zip(self.item_ids, self.lengths.tolist(), strict=True)):
            seen = items[:length].tolist()
            if len(set(seen)) < length:
                raise ValueError(
                    f"query {self.query_ids[row]!r} lists item {_first_repeated(seen)!r} twice, but a list holds an item "
                    f"once; drop the repetition."
                )

    @classmethod
    def from_dict(cls, lists: Mapping[Any, Mapping[Any, float]]) -> Run:
        """The run of `{query: {item: score}}`, ranx's shape: sorted by score, ties in the order of the dictionary."""
        table = _Table("run", "d")
        for query, scored in lists.items():
            table.add_list(query, scored.items())
        return table.run()

    def to_dict(self) -> dict[str, dict[str, float]]:
        """`{query: {item: score}}` with ids as text, as `ranx.Run` takes it; best first, without padding."""
        return {str(query): {str(item): score for item, score in ranked} for query, ranked in self}

    def named(self, query_names: Sequence[Id] | None = None, item_names: Sequence[Id] | None = None) -> Run:
        """This run of indices with the names of what they index: `names[i]` in place of i. None leaves the ids alone."""
        query_ids, item_ids = self.query_ids, self.item_ids
        if query_names is not None:
            indices = _indices(np.asarray(query_ids), len(query_names), "query_ids")
            query_ids = [query_names[i] for i in indices.tolist()]
        if item_names is not None:
            names = _id_array(item_names, "item_names")
            kept = item_ids != _padding(item_ids)
            indices = _indices(item_ids[kept], len(names), "item_ids")
            item_ids = np.full(item_ids.shape, _padding(names), dtype=names.dtype)
            item_ids[kept] = names[indices]
        return Run(query_ids, item_ids, self.scores)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of items listed for each query."""
        return (self.item_ids != _padding(self.item_ids)).sum(-1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.query_ids)

    def __iter__(self) -> Iterator[tuple[Id, list[tuple[Id, float]]]]:
        rows = zip(self.query_ids, self.item_ids, self.scores, self.lengths.tolist(), strict=True)
        for query, items, scores, length in rows:
            yield query, list(zip(items[:length].tolist(), scores[:length].tolist(), strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        mine, theirs = (max(run.lengths.tolist(), default=0) for run in (self, other))
        return (
            tuple(self.query_ids) == tuple(other.query_ids)
            and np.array_equal(self.item_ids[:, :mine], other.item_ids[:, :theirs])
            and np.array_equal(self.scores[:, :mine], other.scores[:, :theirs])
        )

    def save(self, path: str | PathLike[str], *, tag: str = "suprank") -> None:
        """Write the run in the format its extension names (see the top of this module); an existing file is replaced.

        TREC: ranks start at 1, and scores are written in full, so that float32 and float64 read back exactly; ids with
        blanks are refused, and a query whose list is empty leaves no line, so it is not read back. `tag` names the system.
        CSV: the scores are lost.
        """
        _check_word(tag, "tag")
        _write(
            path,
            {**dict.fromkeys(_TREC, lambda: _trec_run(self, tag)), ".json": lambda: _json(self), ".csv": lambda: _csv(self)},
        )

    @classmethod
    def load(cls, path: str | PathLike[str], *, id_type: type[str] | type[int] = str) -> Run:
        """Read what `save` or another tool wrote, by extension. Scores come back as float64.

        Lists are sorted by score, ties by the rank column, then by line. Where that order contradicts the rank column we warn
        and go by the scores, as trec_eval does. A CSV has no scores: the item at place r gets 1/r, a placeholder that falls.
        An item twice for one query, or a line that is not what the format says, is an error that names the line.
        """
        readers: dict[str, Callable[[Path], _Table]] = {
            **dict.fromkeys(_TREC, _trec_run_table), ".json": lambda file: _json_table(file, "d"), ".csv": _csv_table,
        }  # fmt: skip
        return _read(path, readers).run(id_type)


@dataclass(frozen=True, eq=False)
class Qrels:
    """Judged relevance: for every query the items that were judged, each with an integer; higher is more relevant.

    Flat arrays: the judgments of query i are `item_ids[offsets[i]:offsets[i + 1]]` and the same slice of `relevance`. What
    0 and negative values mean (judged not relevant, junk) is the reader's affair; here they are kept as they are.

    Example:
        >>> qrels = Qrels.from_dict({"q1": {"a": 1, "b": 0}, "q2": {}})
        >>> list(qrels)
        [('q1', [('a', 1), ('b', 0)]), ('q2', [])]
    """

    query_ids: Sequence[Id]
    offsets: NDArray[np.int64]
    item_ids: NDArray[Any]
    relevance: NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "query_ids", _checked_ids(self.query_ids, "query_ids"))
        object.__setattr__(self, "item_ids", _id_array(self.item_ids, "item_ids"))
        for name in ("offsets", "relevance"):
            values = np.asarray(getattr(self, name))
            if values.dtype.kind not in "iu":
                raise TypeError(f"{name} has dtype {values.dtype}, but must be integers.")
            object.__setattr__(self, name, values.astype(np.int64, copy=False))
        total = len(self.item_ids)
        ends = self.offsets.shape == (len(self.query_ids) + 1,) and (self.offsets[0], self.offsets[-1]) == (0, total)
        if not ends or (np.diff(self.offsets) < 0).any() or self.relevance.shape != (total,) or self.item_ids.ndim != 1:
            raise ValueError(
                f"offsets of shape {self.offsets.shape}, {total} item_ids and relevance of shape {self.relevance.shape} do not "
                f"fit {len(self.query_ids)} query_ids: offsets must rise from 0 to {total}, one more than queries; "
                f"Qrels.from_dict builds them."
            )
        if (self.item_ids == _padding(self.item_ids)).any():
            raise ValueError(f"item id {_padding(self.item_ids)!r} was judged, but it stands for 'no item' in runs; rename it.")
        for query, judged in self:
            items = [item for item, _ in judged]
            if len(set(items)) < len(items):
                raise ValueError(
                    f"query {query!r} judges item {_first_repeated(items)!r} twice, but an item has one relevance; drop one."
                )

    @classmethod
    def from_dict(cls, judged: Mapping[Any, Mapping[Any, int]]) -> Qrels:
        """The judgments of `{query: {item: relevance}}`, ranx's shape."""
        table = _Table("qrels", "q")
        for query, relevances in judged.items():
            table.add_list(query, relevances.items())
        return table.qrels()

    @classmethod
    def from_labels(
        cls,
        labels: Any,
        gallery_labels: Any = None,
        query_ids: Sequence[Id] | None = None,
        item_ids: Sequence[Id] | None = None,
    ) -> Qrels:
        """Relevance = level of the closest common ancestor (`common_level`): integer labels `[N]` or `[N, L]`, finest first.

        Items that share nothing with the query are left unjudged, which every tool reads as 0; −1 is no label, shared by
        nobody. Without a gallery the queries
        are each other's items, the query itself left out, and one list of ids names both; ids are otherwise indices. It
        compares all pairs and stores every relevant one: for a few ten thousand images, not for a million.
        """
        labels = torch.as_tensor(labels)
        within = gallery_labels is None
        gallery_labels = labels if within else torch.as_tensor(gallery_labels)
        if within:
            query_ids = item_ids if query_ids is None else query_ids
            item_ids = query_ids if item_ids is None else item_ids
        names = np.arange(len(gallery_labels)) if item_ids is None else _id_array(item_ids, "item_ids")
        query_ids = range(len(labels)) if query_ids is None else query_ids
        for name, ids, expected in (("query_ids", query_ids, len(labels)), ("item_ids", names, len(gallery_labels))):
            if len(ids) != expected:
                raise ValueError(f"{name} has {len(ids)} ids for {expected} labels; give one for each.")
        counts, items, relevance = [np.zeros(1, np.int64)], [names[:0]], [np.zeros(0, np.int64)]
        rows = max(1, _PAIRS_AT_ONCE // max(1, len(gallery_labels)))
        for start in range(0, len(labels), rows):
            level = common_level(labels[start : start + rows], gallery_labels).cpu()
            if within:
                level[torch.arange(len(level)), torch.arange(start, start + len(level))] = 0
            query, item = level.nonzero(as_tuple=True)
            counts.append((level > 0).sum(-1).numpy())
            items.append(names[item.numpy()])
            relevance.append(level[query, item].numpy().astype(np.int64))
        return cls(query_ids, np.concatenate(counts).cumsum(), np.concatenate(items), np.concatenate(relevance))

    def to_dict(self) -> dict[str, dict[str, int]]:
        """`{query: {item: relevance}}` with ids as text, as `ranx.Qrels` takes it; without the queries that have no positives.

        ranx would give those a 0 and take it into the mean, where `evaluate` and trec_eval leave them out.
        """
        return {str(query): {str(item): relevance for item, relevance in judged} for query, judged in _judged(self)}

    def __len__(self) -> int:
        return len(self.query_ids)

    def __iter__(self) -> Iterator[tuple[Id, list[tuple[Id, int]]]]:
        for query, start, end in zip(self.query_ids, self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            yield query, list(zip(self.item_ids[start:end].tolist(), self.relevance[start:end].tolist(), strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Qrels):
            return NotImplemented
        arrays = ("offsets", "item_ids", "relevance")
        return tuple(self.query_ids) == tuple(other.query_ids) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write TREC qrels or JSON, by extension.

        In TREC a query without judgments leaves no line, and is not read back; in JSON, which ranx reads, neither is one
        without positives: see `to_dict`.
        """
        _write(path, {**dict.fromkeys(_TREC, lambda: _trec_qrels(self)), ".json": lambda: _json(_judged(self))})

    @classmethod
    def load(cls, path: str | PathLike[str], *, id_type: type[str] | type[int] = str) -> Qrels:
        """Read TREC qrels or JSON, by extension; an item judged twice, or a malformed line, is an error that names the line."""
        readers = {**dict.fromkeys(_TREC, _trec_qrels_table), ".json": lambda file: _json_table(file, "q")}
        return _read(path, readers).qrels(id_type)


class _Table:
    """(query, item, value) by the million: ids are numbered as they come, numbers go to flat arrays, 8 bytes each.

    Values are floats (typecode "d", a run) or integers ("q", judgments). `line` says where in `source` a row was read, 0
    where there are no lines.
    """

    def __init__(self, source: str, typecode: str) -> None:
        self.source = source
        self.queries: dict[Id, int] = {}
        self.items: dict[Id, int] = {}
        self.query, self.item, self.rank, self.line = array("q"), array("q"), array("q"), array("q")
        self.value: array[Any] = array(typecode)
        self.ranked = False  # whether `rank` is a claim to check, rather than the order of arrival

    def add_list(self, query: Id, pairs: Iterable[tuple[Id, Any]], line: int = 0) -> None:
        """One query and its whole list, in order."""
        if query in self.queries:
            raise ValueError(f"{self.place(line)}: query {query!r} is repeated, but a query has one list; merge them.")
        number = self.queries.setdefault(query, len(self.queries))
        kind = "a number" if self.value.typecode == "d" else "an integer"
        for rank, (item, value) in enumerate(pairs):
            try:
                if isinstance(value, str | bool):
                    raise TypeError
                self.value.append(value)
            except (TypeError, OverflowError):
                raise ValueError(f"{self.place(line)}: query {query!r}, item {item!r}: {value!r} is not {kind}.") from None
            self.query.append(number)
            self.item.append(self.items.setdefault(item, len(self.items)))
            self.rank.append(rank)
            self.line.append(line)

    def place(self, line: int) -> str:
        return f"{self.source}:{line}" if line else self.source

    def run(self, id_type: type[str] | type[int] = str) -> Run:
        query, item, rank, scores = (np.asarray(values) for values in (self.query, self.item, self.rank, self.value))
        for row in np.flatnonzero(~np.isfinite(scores))[:1].tolist():
            raise ValueError(f"{self.place(self.line[row])}: the score is {scores[row]}, but scores must be finite.")
        self._check_repetition(query, item)
        order = np.lexsort((rank, -scores, query))
        query, item, rank, scores = query[order], item[order], rank[order], scores[order]
        if self.ranked:
            self._warn_of_ranks(np.flatnonzero((query[1:] == query[:-1]) & (rank[1:] < rank[:-1])), order)
        counts = np.bincount(query, minlength=len(self.queries))
        column = np.arange(len(query)) - np.repeat(counts.cumsum() - counts, counts)
        names = _names(self.items, id_type, self.source, "item")
        item_ids = np.full((len(counts), counts.max(initial=0)), _padding(names), dtype=names.dtype)
        item_ids[query, column] = names[item]
        table = np.full(item_ids.shape, -np.inf)
        table[query, column] = scores
        return Run(_names(self.queries, id_type, self.source, "query").tolist(), item_ids, table)

    def qrels(self, id_type: type[str] | type[int] = str) -> Qrels:
        query, item, relevance = (np.asarray(values) for values in (self.query, self.item, self.value))
        self._check_repetition(query, item)
        order = np.argsort(query, kind="stable")
        offsets = np.concatenate([[0], np.bincount(query, minlength=len(self.queries)).cumsum()])
        names = _names(self.items, id_type, self.source, "item")
        query_ids = _names(self.queries, id_type, self.source, "query").tolist()
        return Qrels(query_ids, offsets, names[item[order]], relevance[order])

    def _check_repetition(self, query: NDArray[np.int64], item: NDArray[np.int64]) -> None:
        pair = query * len(self.items) + item
        order = np.argsort(pair, kind="stable")
        again = order[1:][pair[order[1:]] == pair[order[:-1]]]
        if len(again):
            row = int(again.min())
            raise ValueError(
                f"{self.place(self.line[row])}: query {list(self.queries)[query[row]]!r} has item "
                f"{list(self.items)[item[row]]!r} twice, but a list holds an item once; drop the repetition."
            )

    def _warn_of_ranks(self, wrong: NDArray[np.int64], order: NDArray[np.int64]) -> None:
        if len(wrong):
            line = self.line[int(order[wrong[0] + 1])]
            warnings.warn(
                f"{self.place(line)}: the rank column contradicts the scores here and in {len(wrong) - 1} more place(s); "
                f"lists were sorted by score, ties by rank.",
                stacklevel=4,
            )


# Formats


def _write(path: str | PathLike[str], formats: Mapping[str, Callable[[], Iterable[str]]]) -> None:
    """Stream to a file beside the target and rename it, so that an id refused half-way leaves no half of a file."""
    path = Path(path)
    pieces = _by_extension(path, formats)()
    with writing_atomically(path) as file:
        file.writelines(piece.encode() for piece in pieces)


def _read(path: str | PathLike[str], readers: Mapping[str, Callable[[Path], _Table]]) -> _Table:
    return _by_extension(Path(path), readers)(Path(path))


def _by_extension(path: Path, formats: Mapping[str, _T]) -> _T:
    try:
        return formats[path.suffix.lower()]
    except KeyError:
        raise ValueError(
            f"{path} has extension {path.suffix!r}, but the format goes by it; use {', '.join(formats)}."
        ) from None


def _trec_run(run: Run, tag: str) -> Iterator[str]:
    for query, ranked in run:
        _check_words(query, ranked)
        yield "".join([f"{query} Q0 {item} {rank} {score!r} {tag}\n" for rank, (item, score) in enumerate(ranked, 1)])


def _trec_qrels(qrels: Qrels) -> Iterator[str]:
    for query, judged in qrels:
        _check_words(query, judged)
        yield "".join([f"{query} 0 {item} {relevance}\n" for item, relevance in judged])


def _judged(qrels: Qrels) -> Iterator[tuple[Id, list[tuple[Id, int]]]]:
    """The queries that have positives, and their judgments."""
    return ((query, judged) for query, judged in qrels if any(relevance > 0 for _, relevance in judged))


def _json(lists: Iterable[tuple[Id, list[tuple[Id, Any]]]]) -> Iterator[str]:
    separator = "{"
    for query, pairs in lists:
        yield f"{separator}{json.dumps(str(query))}: {json.dumps({str(item): value for item, value in pairs})}"
        separator = ",\n"
    yield "{}\n" if separator == "{" else "}\n"


def _csv(run: Run) -> Iterator[str]:
    yield "id,images\n"
    for query, ranked in run:
        _check_words(query, ranked)
        line = f"{query},{' '.join([str(item) for item, _ in ranked])}\n"
        if line.count(",") > 1 or '"' in line:
            raise ValueError(f"query {query!r} or one of its items has a comma or a quote in its id; write .trec or .json.")
        yield line


def _trec_run_table(path: Path) -> _Table:
    table = _Table(str(path), "d")
    table.ranked = True
    queries, items = table.queries, table.items
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            fields = line.split()
            if not fields:
                continue
            try:
                query, _, item, rank, score, _ = fields
                table.value.append(float(score))
                table.rank.append(int(rank))
            except (ValueError, OverflowError):
                raise ValueError(
                    f"{path}:{number}: {_short(line)} is not a line of a TREC run; six fields are expected: "
                    f"query Q0 item rank score tag, with a whole rank and a number for a score."
                ) from None
            table.query.append(queries.setdefault(query, len(queries)))
            table.item.append(items.setdefault(item, len(items)))
            table.line.append(number)
    return table


def _trec_qrels_table(path: Path) -> _Table:
    table = _Table(str(path), "q")
    queries, items = table.queries, table.items
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            fields = line.split()
            if not fields:
                continue
            try:
                query, _, item, relevance = fields
                table.value.append(int(relevance))
            except (ValueError, OverflowError):
                raise ValueError(
                    f"{path}:{number}: {_short(line)} is not a line of TREC qrels; four fields are expected: "
                    f"query 0 item relevance, with a whole relevance."
                ) from None
            table.query.append(queries.setdefault(query, len(queries)))
            table.item.append(items.setdefault(item, len(items)))
            table.line.append(number)
    return table


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it stands in the file, repeated keys and all: a dict would keep the last and hide the rest."""


def _json_table(path: Path, typecode: str) -> _Table:
    table = _Table(str(path), typecode)
    try:
        lists = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: this is not JSON: {error.msg}.") from None
    for query, pairs in lists if isinstance(lists, _Pairs) else [("", None)]:
        if not isinstance(pairs, _Pairs):
            raise ValueError(
                f"{path}: {_short(json.dumps(pairs))} is no list of items; {{query: {{item: number}}}} is expected."
            )
        table.add_list(query, pairs)
    return table


def _csv_table(path: Path) -> _Table:
    table = _Table(str(path), "d")
    for number, query, images in prediction_rows(path):
        table.add_list(query, ((image, 1 / place) for place, image in enumerate(images, 1)), number)
    return table


def prediction_rows(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """(line number, query, images) of a prediction file, GLDv2's and Kaggle's `id,images` with blanks between the images.

    Blank lines are skipped and one trailing blank is allowed, as Kaggle allowed it; an empty second field gives no images.
    """
    for number, (query, images) in table_rows(path, ("id", "images")):
        yield number, query, words(images.removesuffix(" "), f"{path}:{number}")


def table_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of a CSV whose header is exactly `columns`. Fields may be quoted, but ids hold no commas.

    Not the csv module: its limit of 131,072 characters a field is global, and less than a list of 8,000 images.
    """
    with path.open(encoding="utf-8-sig") as file:
        header = file.readline()
        if tuple(_fields(header)) != columns:
            raise ValueError(
                f"{path}:1: the header is {_short(header)}, but {','.join(columns)!r} is expected; without it, the first line "
                f"of data would be lost."
            )
        for number, line in enumerate(file, 2):
            if line == "\n":
                continue
            fields = _fields(line)
            if len(fields) != len(columns) or not fields[0] or any('"' in field for field in fields):
                raise ValueError(f"{path}:{number}: {_short(line)} is malformed; {','.join(columns)!r} is expected.")
            yield number, fields


def words(text: str, place: str) -> list[str]:
    """Ids with one blank between them. A second blank would be an id without a name, and take up a place."""
    found = text.split(" ") if text else []
    if "" in found:
        raise ValueError(f"{place}: {_short(text)} has a blank too many before an id; write one blank between ids.")
    return found


def _fields(line: str) -> list[str]:
    fields = line.removesuffix("\n").split(",")
    return [field[1:-1] if len(field) > 1 and field[0] == field[-1] == '"' else field for field in fields]


# Ids


def _checked_ids(ids: Any, name: str) -> tuple[Id, ...]:
    """n distinct ids as Python text or integers."""
    found = tuple(ids.tolist() if hasattr(ids, "tolist") else ids)
    if not all(isinstance(value, str) for value in found):
        if not all(isinstance(value, Integral) and not isinstance(value, bool) for value in found):
            raise TypeError(f"{name} must be all text or all integers, but it holds {_short(repr(found))}; convert with str.")
        found = tuple(map(int, found))
    if len(set(found)) < len(found):
        raise ValueError(f"{name} holds {_first_repeated(found)!r} twice, but a query has one list; merge them.")
    return found


def _id_array(ids: Any, name: str) -> NDArray[Any]:
    """Ids as an array of integers from -1 on, or of text."""
    found = np.asarray(ids)
    if found.size == 0 and found.dtype.kind not in "iuU":
        found = found.astype(np.str_)
    if found.dtype.kind == "O" and all(isinstance(value, str) for value in found.flat):
        found = found.astype(np.str_)
    if found.dtype.kind not in "iuU":
        raise TypeError(f"{name} has dtype {found.dtype}, but ids must be integers or text; convert with astype(str).")
    if found.dtype.kind == "U":
        return found
    if found.size and found.min() < -1:
        raise ValueError(f"{name} holds {found.min()}, but integer ids start at 0, and -1 is padding; use text for others.")
    return found.astype(np.int64, copy=False)


def _names(ids: Iterable[Id], id_type: type[str] | type[int], source: str, what: str) -> NDArray[Any]:
    """The ids of a table as an array, in order of appearance."""
    names = list(ids)
    if id_type is int and all(isinstance(name, str) for name in names):
        try:
            names = [int(name) for name in names]
        except ValueError as error:
            raise ValueError(f"{source}: with id_type=int every {what} id must be an integer, but {error}; use str.") from None
    names = list(_checked_ids(names, f"the {what} ids of {source}"))
    for name in names:
        if isinstance(name, str) and (not name or name.endswith("\0")):
            raise ValueError(f"{source}: {name!r} cannot be the id of a {what}: arrays of text do not hold it; rename it.")
        if isinstance(name, int) and what == "item" and name < 0:
            raise ValueError(f"{source}: item id {name} is negative, but integer ids start at 0, and -1 is padding; use text.")
    return np.array(names, dtype=None if names else np.str_)


def _indices(ids: NDArray[Any], count: int, name: str) -> NDArray[np.int64]:
    if ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= count):
        raise ValueError(f"{name} must be indices from 0 to {count - 1} to be named, but they reach {ids.max()!r}.")
    return ids.astype(np.int64)


def _padding(ids: NDArray[Any]) -> Id:
    return "" if ids.dtype.kind == "U" else -1


def _check_words(query: Id, pairs: list[tuple[Id, Any]]) -> None:
    """Refuse ids that a format whose fields are blank-separated cannot hold."""
    _check_word(query, "query")
    items = [str(item) for item, _ in pairs]
    if " ".join(items).split() != items:
        for item in items:
            _check_word(item, "item")


def _check_word(value: Id, name: str) -> None:
    if str(value).split() != [str(value)]:
        raise ValueError(
            f"{name} {value!r} has blanks or is empty, but blanks separate the fields of this format; write .json."
        )


def _first_repeated(ids: Sequence[Id]) -> Id:
    seen: set[Id] = set()
    return next(value for value in ids if value in seen or seen.add(value))  # type: ignore[func-returns-value]


def _short(text: str) -> str:
    text = text.rstrip("\n")
    return repr(text if len(text) <= 60 else text[:57] + "...")
