"""The interface of every index, in a folder or on a server, with checks of arguments and unit vectors.

Growing from a folder to a server changes the address, not the code.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.embeddings import Embeddings, EmbeddingSource


Progress: TypeAlias = Callable[[int, int], None]
"""Called with (done, total) along the way."""


_ITEMS_READ = 10_000  # in search of names like a misspelt one


def no_progress(done: int, total: int) -> None:
    """Ignore the progress."""


Where: TypeAlias = Mapping[str, Sequence[str]]
"""A filter: `split` or a level → the names to keep. Names of one key are alternatives; all keys must match."""


class Hits(NamedTuple):
    """The best items for each query, best first: ids and cosines, `[queries, k]`; −1 and −∞ if there are fewer than k."""

    ids: NDArray[np.int64]
    scores: NDArray[np.float32]


@dataclass(frozen=True)
class IndexItem:
    """What an index knows about an item besides its embedding; `labels` has only the levels at which it has a label."""

    id: int
    path: str | None = None
    split: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class Index(Protocol):
    """Items with embeddings, searched by cosine. Ids are non-negative int64 and stay with their item."""

    dim: int

    def __len__(self) -> int: ...

    def add(
        self,
        embeddings: EmbeddingSource,
        manifest: Manifest | None = None,
        *,
        ids: NDArray[np.int64] | None = None,
        progress: Progress = ...,
    ) -> NDArray[np.int64]:
        """Add rows and return their ids: those given, or the next free ones. If an id is taken, nothing is added and a
        ValueError is raised."""

    def remove(self, ids: NDArray[np.int64] | Sequence[int]) -> None:
        """Remove items. If an id is unknown, nothing is removed and a ValueError is raised."""

    def search(self, queries: NDArray[Any], k: int = 10, where: Where | None = None) -> Hits:
        """The k best items for each row of `queries`, among those that match `where`."""

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """The ids of the items that match `where`, ascending."""

    def items(self, ids: NDArray[np.int64] | Sequence[int]) -> list[IndexItem]:
        """These items, in this order; a ValueError if an id is unknown."""

    def vectors(self, ids: NDArray[np.int64] | Sequence[int]) -> NDArray[np.float32]:
        """The unit vectors of these items, `[ids, dim]`, as far as the index stores their digits; a ValueError if an id is
        unknown."""

    def info(self) -> dict[str, Any]:
        """Address, kind, dim, items, levels and further details, as JSON-serializable values."""

    def close(self) -> None:
        """Close files or the connection."""


def recorded_provenance(info: Mapping[str, Any]) -> dict[str, Any]:
    """What the `info` of an index says about what made its vectors; earlier versions recorded the head alone."""
    return dict(info.get("made_by") or {key: info[key] for key in ("head",) if key in info})


def empty_hits(queries: int, k: int) -> Hits:
    """Hits without any item, to be filled in."""
    return Hits(np.full((queries, k), -1, np.int64), np.full((queries, k), -np.inf, np.float32))


def sort_hits(hits: Hits) -> Hits:
    """Sort hits by score, and ties by id. Which of several equal items ends up last in a list is undefined."""
    order = np.lexsort((hits.ids, -hits.scores), axis=1)
    return Hits(np.take_along_axis(hits.ids, order, 1), np.take_along_axis(hits.scores, order, 1))


def check_k(k: int) -> None:
    """Raise unless k is a valid list length."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k={k!r} must be an integer of at least 1; try 10.")


def checked_ids(ids: Any, rows: int | None = None) -> NDArray[np.int64]:
    """Ids as int64; raise if one is negative or repeated, or if there are not `rows` of them."""
    found = np.asarray(ids)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and len(found)):
        raise TypeError(f"ids have shape {list(found.shape)} and type {found.dtype}; give a list of integers.")
    if rows is not None and len(found) != rows:
        raise ValueError(f"there are {len(found):,} ids for {rows:,} embeddings; give one id per embedding.")
    wrong = found[(found < 0) | (found > np.iinfo(np.int64).max)]
    if len(wrong):
        raise ValueError(f"{wrong[0]} is not a valid id; ids are integers from 0 to 2⁶³ − 1.")
    found = found.astype(np.int64)
    ordered = np.sort(found)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise ValueError(f"id {twice[0]} is given twice; ids must be unique.")
    return found


def refuse_taken(taken: NDArray[np.int64], address: str) -> None:
    """Raise if ids to be added are already in the index."""
    if len(taken):
        raise ValueError(
            f"{address} already has {len(taken):,} of these ids ({_first_ids(taken)}); give others, or remove those items."
        )


def refuse_unknown(unknown: NDArray[np.int64], address: str) -> None:
    """Raise if requested ids are not in the index."""
    if len(unknown):
        raise ValueError(f"{address} has no item {_first_ids(unknown)}; `suprank index search` prints the ids of items.")


def refuse_unknown_levels(where: Where | None, levels: Sequence[str], address: str) -> None:
    """Raise if a filter names a level that the items do not have."""
    for key in where or ():
        if key != "split" and key not in levels:
            raise ValueError(f"{address} has no level {key!r}; choose from {', '.join((*levels, 'split'))}.")


def refuse_unknown_names(index: Index, where: Where, about: str) -> None:
    """Raise if no item has a name that a filter lists, with the nearest names that there are."""
    probe = np.ones((1, index.dim), np.float32)
    for key, name in ((key, name) for key, names in where.items() for name in names):
        if index.search(probe, 1, {key: [name]}).ids[0, 0] >= 0 or len(index.ids({key: [name]})):
            continue
        some = index.items(index.ids()[:_ITEMS_READ])
        known = {label for one in some if (label := one.split if key == "split" else one.labels.get(key))}
        near = difflib.get_close_matches(name, known, cutoff=0.5) or sorted(known)[:3]
        raise ValueError(f"{about} has no item with {key}={name}; the nearest names are {', '.join(near) or 'none'}.")


def _first_ids(ids: NDArray[np.int64], shown: int = 3) -> str:
    first = ", ".join(str(one) for one in ids[:shown])
    return f"{first}, ..." if len(ids) > shown else first


BLOCK_BYTES = 32 * 2**20  # of float32 at once: faiss assigns large blocks faster than small ones


def open_embeddings(source: EmbeddingSource, dim: int | None = None, address: str = "the index") -> Embeddings:
    """Open the embeddings and check their dimensions against those of the index, if known."""
    from suprank.evaluation.embeddings import Embeddings  # imports torch

    embeddings = Embeddings.from_source(source)
    if dim is not None and embeddings.dim != dim:
        raise ValueError(
            f"{embeddings.name} have {embeddings.dim} dimensions and {address} has {dim}; embed with the model that the index "
            f"was built with."
        )
    return embeddings


def unit_rows(vectors: Any, name: str, first: int = 0) -> NDArray[np.float32]:
    """Scale the rows to length 1; raise if one has no direction. `first` is the number of the first row, for the error."""
    rows = np.ascontiguousarray(vectors, np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    wrong = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
    if len(wrong):
        raise ValueError(
            f"{name}: row {first + wrong[0]} contains NaN or infinity, or is all zeros, so it has no cosine; remove such rows "
            f"and their labels."
        )
    return np.asarray(rows / lengths[:, None], np.float32)


def unit_blocks(embeddings: Embeddings) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """All rows in order, one block of unit vectors at a time."""
    step = max(1, BLOCK_BYTES // (4 * embeddings.dim))
    for start in range(0, len(embeddings), step):
        rows = slice(start, min(start + step, len(embeddings)))
        yield rows, unit_rows(embeddings.rows(rows).cpu().numpy(), embeddings.name, start)


def checked_queries(queries: Any, dim: int, address: str) -> NDArray[np.float32]:
    """Queries as unit vectors `[queries, dim]`; a single vector is one query."""
    rows = np.atleast_2d(np.asarray(queries))
    if rows.ndim != 2 or rows.shape[1] != dim or rows.dtype.kind != "f":
        raise ValueError(
            f"the queries have shape {list(rows.shape)} and type {rows.dtype}, but {address} has {dim} dimensions; embed them "
            f"with the model that the index was built with."
        )
    return unit_rows(rows, "the queries")
