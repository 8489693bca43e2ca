"""`Qrels`: relevance judgments, what a search should return for each query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from suprank.evaluation.rankings.formats import read_qrels, write_qrels
from suprank.evaluation.rankings.item_ids import check_query_ids, first_duplicate, id_array, padding
from suprank.evaluation.rankings.pair_table import PairTable
from suprank.ranking import common_level

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.evaluation.rankings.item_ids import Id

_PAIRS_AT_ONCE = 1 << 24  # pairs of labels compared at a time: 16 MiB of levels


@dataclass(frozen=True, eq=False)
class Qrels:
    """The judged items of every query, each with an integer relevance; higher is more relevant.

    Flat arrays: the judgments of query i are `item_ids[offsets[i]:offsets[i + 1]]` and the same slice of `relevance`. Zero
    and negative values (judged not relevant, junk) are kept as they are; tools differ in what they make of them.

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
        object.__setattr__(self, "query_ids", check_query_ids(self.query_ids, "query_ids"))
        object.__setattr__(self, "item_ids", id_array(self.item_ids, "item_ids"))
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
        if (self.item_ids == padding(self.item_ids)).any():
            raise ValueError(f"item id {padding(self.item_ids)!r} was judged, but it stands for 'no item' in runs; rename it.")
        for query, judgments in self:
            items = [item for item, _ in judgments]
            if len(set(items)) < len(items):
                raise ValueError(
                    f"query {query!r} judges item {first_duplicate(items)!r} twice, but an item has one relevance; drop one."
                )

    @classmethod
    def from_dict(cls, judgments: Mapping[Any, Mapping[Any, int]]) -> Qrels:
        """Build the judgments from `{query: {item: relevance}}`, ranx's shape."""
        table = PairTable("qrels", "q")
        for query, relevances in judgments.items():
            table.add_list(query, relevances.items())
        return cls(*table.qrels_fields())

    @classmethod
    def from_labels(
        cls,
        labels: Any,
        gallery_labels: Any = None,
        query_ids: Sequence[Id] | None = None,
        item_ids: Sequence[Id] | None = None,
    ) -> Qrels:
        """Relevance = level of the closest common ancestor (`common_level`): integer labels `[N]` or `[N, L]`, finest first,
        or sets of them `[N, L, M]`.

        Items that share no label with the query are not judged, which every tool reads as 0; −1 is no label, and is never
        shared. Without a gallery the queries are each other's items, the query itself left out, and one list of ids names
        both. Ids are indices by default. All pairs are compared and every relevant one is stored: use it for a few ten
        thousand images, not for a million.
        """
        labels = torch.as_tensor(labels)
        within = gallery_labels is None
        gallery_labels = labels if within else torch.as_tensor(gallery_labels)
        if within:
            query_ids = item_ids if query_ids is None else query_ids
            item_ids = query_ids if item_ids is None else item_ids
        names = np.arange(len(gallery_labels)) if item_ids is None else id_array(item_ids, "item_ids")
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

        ranx would count those as 0 in the mean, where `evaluate` and trec_eval leave them out.
        """
        return {
            str(query): {str(item): relevance for item, relevance in judgments} for query, judgments in self._with_positives()
        }

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
        """Write TREC qrels (`.trec`, `.run`, `.txt`) or ranx's JSON (`.json`).

        In TREC a query without judgments leaves no line, and is not read back; in JSON, which ranx reads, neither is one
        without positives: see `to_dict`.
        """
        write_qrels(self, self._with_positives(), path)

    @classmethod
    def load(cls, path: str | PathLike[str], *, id_type: type[str] | type[int] = str) -> Qrels:
        """Read TREC qrels or JSON, by extension; an item judged twice, or a malformed line, is an error that names the line."""
        return cls(*read_qrels(path).qrels_fields(id_type))

    def _with_positives(self) -> Iterator[tuple[Id, list[tuple[Id, int]]]]:
        """The queries that have positives, and their judgments."""
        return ((query, judgments) for query, judgments in self if any(relevance > 0 for _, relevance in judgments))
