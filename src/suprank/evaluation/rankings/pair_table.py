"""(query, item, value) triples as they come from a file or a dictionary, collected into flat arrays and checked."""

from __future__ import annotations

import warnings
from array import array
from collections import defaultdict
from functools import cached_property
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.rankings.item_ids import ids_from_file, padding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from suprank.evaluation.rankings.item_ids import Id


class PairTable:
    """Millions of (query, item, value) triples: queries are numbered as they appear, numbers take 8 bytes each.

    Items are numbered when `items` or `item` is first asked for, after the last triple was added: a dictionary of millions of
    ids takes longer than reading them.

    Values are floats (typecode "d", scores of a run) or integers ("q", judgments). `line` is the line of `source` that a
    triple was read from, 0 where there are no lines. With `check_ranks`, `rank` is a column of the file, which must agree
    with the scores; otherwise it is the order of arrival.
    """

    def __init__(self, source: str, typecode: str, *, check_ranks: bool = False) -> None:
        self.source = source
        self.check_ranks = check_ranks
        self.queries: defaultdict[Id, int] = defaultdict(count().__next__)  # a new id gets the next number
        self.item_ids: list[Id] = []
        self.query, self.rank, self.line = array("q"), array("q"), array("q")
        self.value: array[Any] = array(typecode)

    def add_rows(self, queries: Iterable[Id], items: Iterable[Id], values: Sequence[Any], lines: Iterable[int]) -> None:
        """Add triples and the lines that they came from; the ranks of a run are appended by the caller."""
        self.query.extend(map(self.queries.__getitem__, queries))
        self.item_ids.extend(items)
        self.value.extend(array(self.value.typecode, values))
        self.line.extend(lines)

    def add_list(self, query: Id, pairs: Iterable[tuple[Id, Any]], line: int = 0) -> None:
        """Add one query with its whole list, in order."""
        if query in self.queries:
            raise ValueError(f"{self.place(line)}: query {query!r} is repeated, but a query has one list; merge them.")
        self.queries[query]  # numbered, also if its list is empty
        pairs = list(pairs)
        values = [value for _, value in pairs]
        if not _all_fit(self.value.typecode, values):
            item, value = next((item, value) for item, value in pairs if not _all_fit(self.value.typecode, [value]))
            kind = "a number" if self.value.typecode == "d" else "an integer"
            raise ValueError(f"{self.place(line)}: query {query!r}, item {item!r}: {value!r} is not {kind}.")
        self.rank.extend(range(len(pairs)))
        self.add_rows(repeat(query, len(pairs)), [item for item, _ in pairs], values, repeat(line, len(pairs)))

    def place(self, line: int) -> str:
        """Where a triple came from, for error messages."""
        return f"{self.source}:{line}" if line else self.source

    @cached_property
    def items(self) -> dict[Id, int]:
        """The number of each item."""
        return {item: number for number, item in enumerate(dict.fromkeys(self.item_ids))}

    @cached_property
    def item(self) -> NDArray[np.int64]:
        """The number of the item of every triple."""
        return np.fromiter(map(self.items.__getitem__, self.item_ids), np.int64, len(self.item_ids))

    def finite_values(self) -> NDArray[Any]:
        """The values; refused if one is not finite."""
        value = np.asarray(self.value)
        for row in np.flatnonzero(~np.isfinite(value))[:1].tolist():
            raise ValueError(f"{self.place(self.line[row])}: the score is {value[row]}, but scores must be finite.")
        return value

    def checked_triples(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
        """Numbers of queries, numbers of items, and values. Refused: a value that is not finite, an item twice for a query."""
        query, item, value = np.asarray(self.query), self.item, self.finite_values()
        self._check_duplicates(query, item)
        return query, item, value

    def run_fields(self, id_type: type[str] | type[int] = str) -> tuple[list[Id], NDArray[Any], NDArray[np.float64]]:
        """`query_ids`, `item_ids` and `scores` of a `RankingRun`: lists sorted by score, ties by rank, padded."""
        query, item, scores = self.checked_triples()
        rank = np.asarray(self.rank)
        order = np.lexsort((rank, -scores, query))
        query, item, rank, scores = query[order], item[order], rank[order], scores[order]
        if self.check_ranks:
            self.warn_of_ranks(order, "ties by rank")
        counts = np.bincount(query, minlength=len(self.queries))
        column = np.arange(len(query)) - np.repeat(counts.cumsum() - counts, counts)
        names = ids_from_file(self.items, id_type, self.source, "item")
        item_ids = np.full((len(counts), counts.max(initial=0)), padding(names), dtype=names.dtype)
        item_ids[query, column] = names[item]
        table = np.full(item_ids.shape, -np.inf)
        table[query, column] = scores
        return ids_from_file(self.queries, id_type, self.source, "query").tolist(), item_ids, table

    def qrels_fields(
        self, id_type: type[str] | type[int] = str
    ) -> tuple[list[Id], NDArray[np.int64], NDArray[Any], NDArray[np.int64]]:
        """`query_ids`, `offsets`, `item_ids` and `relevance` of `Qrels`."""
        query, item, relevance = self.checked_triples()
        order = np.argsort(query, kind="stable")
        offsets = np.concatenate([[0], np.bincount(query, minlength=len(self.queries)).cumsum()])
        names = ids_from_file(self.items, id_type, self.source, "item")
        query_ids = ids_from_file(self.queries, id_type, self.source, "query").tolist()
        return query_ids, offsets, names[item[order]], relevance[order]

    def _check_duplicates(self, query: NDArray[np.int64], item: NDArray[np.int64]) -> None:
        pair = query * len(self.items) + item
        order = np.argsort(pair, kind="stable")
        again = order[1:][pair[order[1:]] == pair[order[:-1]]]
        if len(again):
            row = int(again.min())
            raise ValueError(
                f"{self.place(self.line[row])}: query {list(self.queries)[query[row]]!r} has item "
                f"{list(self.items)[item[row]]!r} twice, but a list holds an item once; drop the repetition."
            )

    def warn_of_ranks(self, order: NDArray[np.int64], ties: str, *, strictly: bool = False) -> None:
        """Warn if the rank column falls somewhere in this order of rows; `strictly`, only between different scores."""
        query, rank, score = (np.asarray(values)[order] for values in (self.query, self.rank, self.value))
        falls = (query[1:] == query[:-1]) & (rank[1:] < rank[:-1])
        wrong = np.flatnonzero(falls & (score[1:] < score[:-1]) if strictly else falls)
        if len(wrong):
            line = self.line[int(order[wrong[0] + 1])]
            more = f" and in {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
            warnings.warn(
                f"{self.place(line)}: the rank column contradicts the scores in this line{more}; "
                f"lists were sorted by score, {ties}.",
                stacklevel=4,
            )


def _all_fit(typecode: str, values: list[Any]) -> bool:
    """Whether an array of this type holds the values; text and truth values are no numbers."""
    try:
        array(typecode, values)
    except (TypeError, OverflowError):
        return False
    return {str, bool}.isdisjoint(map(type, values))
