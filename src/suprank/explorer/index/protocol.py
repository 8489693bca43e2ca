"""What every index can do, wherever it lives: growing from a folder to a server is a changed address, not other code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.embeddings import Source

Progress: TypeAlias = Callable[[int, int], None]
"""Told (done, total) on the way."""

Where: TypeAlias = Mapping[str, Sequence[str]]
"""`split` or a level → the names to keep. Several names of one are alternatives; several keys must all hold."""


class Hits(NamedTuple):
    """The best items of each query, best first: ids and cosines, `[queries, k]`; −1 and −∞ where there are fewer than k."""

    ids: NDArray[np.int64]
    scores: NDArray[np.float32]


@dataclass(frozen=True)
class Item:
    """What is known of an item besides its embedding; None where nothing is, and no label at a level that it has none of."""

    id: int
    path: str | None = None
    split: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class Index(Protocol):
    """Items with embeddings, found by cosine. Ids are int64, 0 or more, and stay with their item."""

    dim: int

    def __len__(self) -> int: ...

    def add(
        self,
        embeddings: Source,
        manifest: Manifest | None = None,
        *,
        ids: NDArray[np.int64] | None = None,
        progress: Progress = ...,
    ) -> NDArray[np.int64]:
        """The ids under which the rows were added: those given, or the next ones. One that is taken is refused, and nothing
        added."""

    def remove(self, ids: NDArray[np.int64] | Sequence[int]) -> None:
        """Take items out. An id that is not there is refused, and nothing removed."""

    def search(self, queries: NDArray[Any], k: int = 10, where: Where | None = None) -> Hits:
        """The k best items of each row of `queries`, among those that `where` keeps."""

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """The ids of the items that `where` keeps, ascending."""

    def items(self, ids: NDArray[np.int64] | Sequence[int]) -> list[Item]:
        """What is known of these items, in their order; an id that is not there is refused."""

    def info(self) -> dict[str, Any]:
        """What it is: address, kind, dim, items, levels, and what else there is to say; fit for JSON."""

    def close(self) -> None:
        """Let go of files or of the connection."""


def no_hits(queries: int, k: int) -> Hits:
    """Lists to be filled in."""
    return Hits(np.full((queries, k), -1, np.int64), np.full((queries, k), -np.inf, np.float32))


def ordered(hits: Hits) -> Hits:
    """Best first, and equal scores in the order of ids; which of several equal items are the last of a list is left open."""
    order = np.lexsort((hits.ids, -hits.scores), axis=1)
    return Hits(np.take_along_axis(hits.ids, order, 1), np.take_along_axis(hits.scores, order, 1))


def check_k(k: int) -> None:
    """Raise unless k can be the length of a list."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k={k!r} must be an integer of at least 1; try 10.")


def checked_ids(ids: Any, rows: int | None = None) -> NDArray[np.int64]:
    """Ids as int64, each 0 or more and there once; `rows` is how many there must be, if that is known."""
    found = np.asarray(ids)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and len(found)):
        raise TypeError(f"ids have shape {list(found.shape)} and hold {found.dtype}; give a list of integers.")
    if rows is not None and len(found) != rows:
        raise ValueError(f"there are {len(found):,} ids for {rows:,} embeddings; give one for each.")
    wrong = found[(found < 0) | (found > np.iinfo(np.int64).max)]
    if len(wrong):
        raise ValueError(f"{wrong[0]} is no id: ids go from 0 to 2⁶³ − 1.")
    found = found.astype(np.int64)
    ordered = np.sort(found)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise ValueError(f"id {twice[0]} is given twice; each item has one of its own.")
    return found


def refuse_taken(taken: NDArray[np.int64], address: str) -> None:
    """Raise where ids to be added are there already."""
    if len(taken):
        raise ValueError(
            f"{address} has {len(taken):,} of these ids already, {_some(taken)}; give others, or remove those items first."
        )


def refuse_unknown(unknown: NDArray[np.int64], address: str) -> None:
    """Raise where ids that are asked for are not there."""
    if len(unknown):
        raise ValueError(f"{address} has no item {_some(unknown)}; look for ids with `suprank index search`.")


def refuse_unknown_levels(where: Where | None, levels: Sequence[str], address: str) -> None:
    """Raise where a filter names what the items do not have."""
    for key in where or ():
        if key != "split" and key not in levels:
            raise ValueError(f"{address} has no level {key!r}; choose from {', '.join((*levels, 'split'))}.")


def _some(ids: NDArray[np.int64], shown: int = 3) -> str:
    first = ", ".join(str(one) for one in ids[:shown])
    return f"{first}, ..." if len(ids) > shown else first
