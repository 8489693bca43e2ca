"""(query, item, value) triples as they come from a file or a dictionary, collected into flat arrays and checked."""

from __future__ import annotations

import warnings
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.rankings.item_ids import ids_from_file, padding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from suprank.evaluation.rankings.item_ids import Id


class PairTable:
    """Millions of (query, item, value) triples: ids are numbered as they appear, numbers take 8 bytes each.

    Values are floats (typecode "d", scores of a run) or integers ("q", judgments). `line` is the line of `source` that a
    triple was read from, 0 where there are no lines. With `check_ranks`, `rank` is a column of the file, which must agree
    with the scores; otherwise it is the order of arrival.
    """

    def __init__(self, source: str, typecode: str, *, check_ranks: bool = False) -> None:
        self.source = source
        self.check_ranks = check_ranks
        self.queries: dict[Id, int] = {}
        self.items: dict[Id, int] = {}
        self.query, self.item, self.rank, self.line = array("q"), array("q"), array("q"), array("q")
        self.value: array[Any] = array(typecode)

    def add(self, query: Id, item: Id, line: int) -> None:
        """Add the ids of one line, whose value (and rank) was appended before."""
        self.query.append(self.queries.setdefault(query, len(self.queries)))
        self.item.append(self.items.setdefault(item, len(self.items)))
        self.line.append(line)

    def add_list(self, query: Id, pairs: Iterable[tuple[Id, Any]], line: int = 0) -> None:
        """Add one query with its whole list, in order."""
        if query in self.queries:
            raise ValueError(f"{self.place(line)}: query {query!r} is repeated, but a query has one list; merge them.")
        self.queries[query] = len(self.queries)
        kind = "a number" if self.value.typecode == "d" else "an integer"
        for rank, (item, value) in enumerate(pairs):
            try:
                if isinstance(value, str | bool):
                    raise TypeError
                self.value.append(value)
            except (TypeError, OverflowError):
                raise ValueError(f"{self.place(line)}: query {query!r}, item {item!r}: {value!r} is not {kind}.") from None
            self.rank.append(rank)
            self.add(query, item, line)

    def place(self, line: int) -> str:
        """Where a triple came from, for error messages."""
        return f"{self.source}:{line}" if line else self.source

    def run_fields(self, id_type: type[str] | type[int] = str) -> tuple[list[Id], NDArray[Any], NDArray[np.float64]]:
        """`query_ids`, `item_ids` and `scores` of a `RankingRun`: lists sorted by score, ties by rank, padded."""
        query, item, rank, scores = (np.asarray(values) for values in (self.query, self.item, self.rank, self.value))
        for row in np.flatnonzero(~np.isfinite(scores))[:1].tolist():
            raise ValueError(f"{self.place(self.line[row])}: the score is {scores[row]}, but scores must be finite.")
        self._check_duplicates(query, item)
        order = np.lexsort((rank, -scores, query))
        query, item, rank, scores = query[order], item[order], rank[order], scores[order]
        if self.check_ranks:
            self._warn_of_ranks(np.flatnonzero((query[1:] == query[:-1]) & (rank[1:] < rank[:-1])), order)
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
        query, item, relevance = (np.asarray(values) for values in (self.query, self.item, self.value))
        self._check_duplicates(query, item)
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

    def _warn_of_ranks(self, wrong: NDArray[np.int64], order: NDArray[np.int64]) -> None:
        if len(wrong):
            line = self.line[int(order[wrong[0] + 1])]
            warnings.warn(
                f"{self.place(line)}: the rank column contradicts the scores here and in {len(wrong) - 1} more place(s); "
                f"lists were sorted by score, ties by rank.",
                stacklevel=4,
            )
