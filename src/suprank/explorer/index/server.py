"""The base class of indexes on a server: it adds in batches, and checks arguments before anything is sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from suprank.explorer.index.protocol import (
    Hits,
    IndexItem,
    Progress,
    Where,
    check_k,
    checked_ids,
    checked_queries,
    empty_hits,
    no_progress,
    open_embeddings,
    refuse_taken,
    refuse_unknown,
    refuse_unknown_levels,
    sort_hits,
    unit_blocks,
)
from suprank.explorer.index.storage import item_table, items_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.explorer.index.address import Address

BATCH_NUMBERS = 2**18
"""Numbers sent at once, items × dim: about 3 MiB as text; servers refuse requests above 32 or 64 MiB."""

SAMPLED_ITEMS = 1000
"""Items whose labels tell which levels a collection has: a server keeps no list of levels."""


class ServerIndex(ABC):
    """See `Index`. A server may hold millions of items and change at any time, so nothing is cached here.

    Automatic ids continue from the largest id in the collection. An addition that is interrupted has added whole batches; the
    error says which ids.
    """

    kind: ClassVar[str]
    dim: int
    address: Address
    _client: Any

    @classmethod
    @abstractmethod
    def open(cls, address: Address, *, timeout: float) -> Self:
        """Open the collection at an address; raise if the server does not answer or has no such collection."""

    @classmethod
    @abstractmethod
    def _create(cls, address: Address, dim: int, *, overwrite: bool, timeout: float) -> Self:
        """Create an empty collection."""

    @abstractmethod
    def __len__(self) -> int: ...

    def info(self) -> dict[str, Any]:
        """See `Index`."""
        return {
            "address": self.address.text,
            "kind": self.kind,
            "dim": self.dim,
            "items": len(self),
            "levels": list(self._levels()),
        }

    def close(self) -> None:
        """See `Index`."""
        self._client.close()

    @abstractmethod
    def ids(self, where: Where | None = None) -> NDArray[np.int64]: ...

    @abstractmethod
    def _insert(self, vectors: NDArray[np.float32], items: Sequence[IndexItem]) -> None: ...

    @abstractmethod
    def _delete(self, ids: list[int]) -> None: ...

    @abstractmethod
    def _fetch(self, ids: list[int]) -> dict[int, IndexItem]:
        """The items with these ids, as far as they exist."""

    @abstractmethod
    def _search(self, queries: NDArray[np.float32], k: int, where: Where | None) -> list[list[tuple[int, float]]]: ...

    @abstractmethod
    def _levels(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _largest_id(self) -> int:
        """The largest id, −1 if there are no items."""

    @classmethod
    def build(
        cls,
        address: Address,
        embeddings: EmbeddingSource,
        manifest: Manifest | None = None,
        *,
        ids: NDArray[np.int64] | None = None,
        overwrite: bool = False,
        timeout: float,
        progress: Progress = no_progress,
    ) -> Self:
        """Build a collection of these embeddings; raise if it exists, unless `overwrite` is given."""
        source = open_embeddings(embeddings)
        own = np.arange(len(source)) if ids is None else checked_ids(ids, len(source))
        item_table(own, manifest)  # raises if these do not fit, before a collection is created or overwritten
        index = cls._create(address, source.dim, overwrite=overwrite, timeout=timeout)
        index.add(source, manifest, ids=own, progress=progress)
        return index

    def add(
        self,
        embeddings: EmbeddingSource,
        manifest: Manifest | None = None,
        *,
        ids: NDArray[np.int64] | None = None,
        progress: Progress = no_progress,
    ) -> NDArray[np.int64]:
        """See `Index`."""
        source = open_embeddings(embeddings, self.dim, self.address.text)
        first = self._largest_id() + 1 if ids is None else 0
        own = np.arange(first, first + len(source)) if ids is None else checked_ids(ids, len(source))
        table = item_table(own, manifest)
        refuse_taken(np.array([one for batch in _batches(own, 1000) for one in self._fetch(batch.tolist())]), self.address.text)
        done, step = 0, max(1, BATCH_NUMBERS // self.dim)
        progress(0, len(source))
        try:
            for rows, vectors in unit_blocks(source):
                for start in range(0, len(vectors), step):
                    batch = vectors[start : start + step]
                    positions = np.arange(rows.start + start, rows.start + start + len(batch))
                    self._insert(batch, items_at(table, positions))
                    done = int(positions[-1]) + 1
                    progress(done, len(source))
        except BaseException as error:
            if done:
                error.add_note(
                    f"{done:,} of {len(source):,} items were added to {self.address.text}, ids {own[0]} to {own[done - 1]}."
                )
            raise
        return own

    def remove(self, ids: NDArray[np.int64] | Sequence[int]) -> None:
        """See `Index`."""
        wanted = checked_ids(ids)
        batches = _batches(wanted, 1000)
        there = [one for batch in batches for one in self._fetch(batch.tolist())]
        refuse_unknown(wanted[~np.isin(wanted, np.array(there, np.int64))], self.address.text)
        for batch in batches:
            self._delete(batch.tolist())

    def search(self, queries: NDArray[Any], k: int = 10, where: Where | None = None) -> Hits:
        """See `Index`."""
        check_k(k)
        vectors = checked_queries(queries, self.dim, self.address.text)
        if where:
            refuse_unknown_levels(where, self._levels(), self.address.text)
        found = empty_hits(len(vectors), k)
        for start in range(0, len(vectors), 64):
            for row, hits in enumerate(self._search(vectors[start : start + 64], k, where), start):
                for rank, (one, score) in enumerate(hits[:k]):
                    found.ids[row, rank], found.scores[row, rank] = one, score
        return sort_hits(found)

    def items(self, ids: NDArray[np.int64] | Sequence[int]) -> list[IndexItem]:
        """See `Index`."""
        wanted = np.asarray(ids, np.int64).reshape(-1)
        there: dict[int, IndexItem] = {}
        for batch in _batches(np.unique(wanted), 1000):
            there |= self._fetch(batch.tolist())
        refuse_unknown(np.array([one for one in wanted if int(one) not in there], np.int64), self.address.text)
        return [there[int(one)] for one in wanted]


def _batches(ids: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]
