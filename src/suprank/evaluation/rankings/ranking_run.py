"""`RankingRun`: the ranked lists that a search returned, which TREC calls a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.rankings.formats import read_run, write_run
from suprank.evaluation.rankings.item_ids import check_indices, check_query_ids, check_word, first_duplicate, id_array, padding
from suprank.evaluation.rankings.pair_table import PairTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.evaluation.rankings.item_ids import Id


@dataclass(frozen=True, eq=False)
class RankingRun:
    """The top k of every query: rows of item ids and their scores, best first.

    `query_ids` are n texts or n integers. `item_ids` `[n, k]` holds indices or integer ids from 0 on, or text, and
    `scores` `[n, k]` float32 or float64. A list shorter than k ends in padding: item −1, or "", with score −inf. Equal
    scores keep the order they are given in. Refused, because readers would disagree on the meaning: scores that rise or
    are not finite, the same item twice for a query, the same query twice. Two runs are equal when their lists are, whatever
    the padding.

    Example:
        >>> run = RankingRun.from_dict({"q1": {"a": 0.5, "b": 0.9}, "q2": {"c": 0.1}})
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
        object.__setattr__(self, "query_ids", check_query_ids(self.query_ids, "query_ids"))
        object.__setattr__(self, "item_ids", id_array(self.item_ids, "item_ids"))
        object.__setattr__(self, "scores", scores)
        if self.item_ids.ndim != 2 or self.item_ids.shape != scores.shape or len(scores) != len(self.query_ids):
            raise ValueError(
                f"item_ids has shape {self.item_ids.shape} and scores {scores.shape} for {len(self.query_ids)} query_ids, "
                f"but both must be [queries, k]; fill shorter lists with item -1 (or '') and score -inf."
            )
        self._check_rows()

    def _check_rows(self) -> None:
        pads = self.item_ids == padding(self.item_ids)
        wrong = np.where(pads, self.scores != -np.inf, ~np.isfinite(self.scores))
        wrong[:, 1:] |= ~(self.scores[:, 1:] <= self.scores[:, :-1])
        for row, column in np.argwhere(wrong)[:1]:
            raise ValueError(
                f"query {self.query_ids[row]!r} has score {self.scores[row, column]} for item "
                f"{self.item_ids[row, column]!r} at place {column + 1}, but scores must be finite and fall along a row, with "
                f"-inf for padding only; sort the row, or use RankingRun.from_dict, which sorts."
            )
        for row, (items, length) in enumerate(zip(self.item_ids, self.lengths.tolist(), strict=True)):
            listed = items[:length].tolist()
            if len(set(listed)) < length:
                raise ValueError(
                    f"query {self.query_ids[row]!r} lists item {first_duplicate(listed)!r} twice, but a list holds an item "
                    f"once; drop the repetition."
                )

    @classmethod
    def from_dict(cls, lists: Mapping[Any, Mapping[Any, float]]) -> RankingRun:
        """Build a run from `{query: {item: score}}`, ranx's shape: sorted by score, ties in the order of the dictionary."""
        table = PairTable("run", "d")
        for query, scored in lists.items():
            table.add_list(query, scored.items())
        return cls(*table.run_fields())

    def to_dict(self) -> dict[str, dict[str, float]]:
        """`{query: {item: score}}` with ids as text, as `ranx.Run` takes it; best first, without padding."""
        return {str(query): {str(item): score for item, score in ranked} for query, ranked in self}

    def named(self, query_names: Sequence[Id] | None = None, item_names: Sequence[Id] | None = None) -> RankingRun:
        """This run with names in place of indices: `names[i]` for i. None leaves the ids as they are."""
        query_ids, item_ids = self.query_ids, self.item_ids
        if query_names is not None:
            indices = check_indices(np.asarray(query_ids), len(query_names), "query_ids")
            query_ids = [query_names[i] for i in indices.tolist()]
        if item_names is not None:
            names = id_array(item_names, "item_names")
            listed = item_ids != padding(item_ids)
            indices = check_indices(item_ids[listed], len(names), "item_ids")
            item_ids = np.full(item_ids.shape, padding(names), dtype=names.dtype)
            item_ids[listed] = names[indices]
        return RankingRun(query_ids, item_ids, self.scores)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of items listed for each query."""
        return (self.item_ids != padding(self.item_ids)).sum(-1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.query_ids)

    def __iter__(self) -> Iterator[tuple[Id, list[tuple[Id, float]]]]:
        rows = zip(self.query_ids, self.item_ids, self.scores, self.lengths.tolist(), strict=True)
        for query, items, scores, length in rows:
            yield query, list(zip(items[:length].tolist(), scores[:length].tolist(), strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankingRun):
            return NotImplemented
        mine, theirs = (max(run.lengths.tolist(), default=0) for run in (self, other))
        return (
            tuple(self.query_ids) == tuple(other.query_ids)
            and np.array_equal(self.item_ids[:, :mine], other.item_ids[:, :theirs])
            and np.array_equal(self.scores[:, :mine], other.scores[:, :theirs])
        )

    def save(self, path: str | PathLike[str], *, tag: str = "suprank") -> None:
        """Write the run in the format of the extension: `.trec`, `.run` or `.txt` (TREC), `.json` (ranx), `.csv` (GLDv2).

        An existing file is replaced. TREC: ranks start at 1, and scores are written in full, so that float32 and float64
        read back exactly; ids with blanks are refused, and a query whose list is empty leaves no line, so it is not read
        back. `tag` names the system. CSV: the scores are lost.
        """
        check_word(tag, "tag")
        write_run(self, path, tag)

    @classmethod
    def load(cls, path: str | PathLike[str], *, id_type: type[str] | type[int] = str) -> RankingRun:
        """Read what `save` or another tool wrote, by extension. Scores come back as float64.

        Lists are sorted by score, ties by the rank column, then by line. If that order contradicts the rank column we warn
        and go by the scores, as trec_eval does. A CSV has no scores: the item at place r gets 1/r as a placeholder.
        An item twice for one query, or a malformed line, is an error that names the line.
        """
        return cls(*read_run(path).run_fields(id_type))
