"""What indexes on a server share: adding in batches, and what is refused before anything is sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from suprank.explorer.index import table as rows_of
from suprank.explorer.index.protocol import (
    Hits,
    Item,
    Progress,
    Where,
    check_k,
    checked_ids,
    no_hits,
    ordered,
    refuse_taken,
    refuse_unknown,
    refuse_unknown_levels,
)
from suprank.explorer.index.vectors import checked_queries, opened, unit_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.embeddings import Source
    from suprank.explorer.index.address import Address

BATCH_NUMBERS = 2**18
"""Sent at once, items × dim: some 3 MiB as text, where servers refuse above 32 or 64."""


LOOKED_AT = 1000
"""Items whose labels say which levels a collection has: a server keeps no list of these."""


def no_progress(done: int, total: int) -> None:
    """Tells nobody."""


class ServerIndex(ABC):
    """See `Index`. A server may hold millions of items and change under us, so nothing of it is kept here.

    Ids that are not given go on from the largest there is. An addition that breaks off has added whole batches: the error says
    which.
    """

    kind: ClassVar[str]
    dim: int
    address: Address
    _client: Any

    @classmethod
    @abstractmethod
    def open(cls, address: Address, *, timeout: float) -> Self:
        """The collection at an address; refused where nobody answers or there is none."""

    @classmethod
    @abstractmethod
    def _created(cls, address: Address, dim: int, *, overwrite: bool, timeout: float) -> Self:
        """A new collection without items."""

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
    def _insert(self, vectors: NDArray[np.float32], items: Sequence[Item]) -> None: ...

    @abstractmethod
    def _delete(self, ids: list[int]) -> None: ...

    @abstractmethod
    def _fetch(self, ids: list[int]) -> dict[int, Item]:
        """Those of the items that are there."""

    @abstractmethod
    def _search(self, queries: NDArray[np.float32], k: int, where: Where | None) -> list[list[tuple[int, float]]]: ...

    @abstractmethod
    def _levels(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _largest(self) -> int:
        """The largest id, −1 where there are no items."""

    @classmethod
    def build(
        cls,
        address: Address,
        embeddings: Source,
        manifest: Manifest | None = None,
        *,
        ids: NDArray[np.int64] | None = None,
        overwrite: bool = False,
        timeout: float,
        progress: Progress = no_progress,
    ) -> Self:
        """A new collection of these embeddings; one of that name is refused unless it is to be overwritten."""
        source = opened(embeddings)
        own = np.arange(len(source)) if ids is None else checked_ids(ids, len(source))
        rows_of.table_of(own, manifest)  # refuses what does not fit before a collection is made, or overwritten
        index = cls._created(address, source.dim, overwrite=overwrite, timeout=timeout)
        index.add(source, manifest, ids=own, progress=progress)
        return index

    def add(
        self,
        embeddings: Source,
        manifest: Manifest | None = None,
        *,
        ids: NDArray[np.int64] | None = None,
        progress: Progress = no_progress,
    ) -> NDArray[np.int64]:
        """See `Index`."""
        source = opened(embeddings, self.dim, self.address.text)
        first = self._largest() + 1 if ids is None else 0
        own = np.arange(first, first + len(source)) if ids is None else checked_ids(ids, len(source))
        table = rows_of.table_of(own, manifest)
        refuse_taken(np.array([one for batch in _batches(own, 1000) for one in self._fetch(batch.tolist())]), self.address.text)
        done, step = 0, max(1, BATCH_NUMBERS // self.dim)
        progress(0, len(source))
        try:
            for rows, vectors in unit_blocks(source):
                for start in range(0, len(vectors), step):
                    batch = vectors[start : start + step]
                    places = np.arange(rows.start + start, rows.start + start + len(batch))
                    self._insert(batch, rows_of.items_at(table, places))
                    done = int(places[-1]) + 1
                    progress(done, len(source))
        except BaseException as error:
            if done:
                error.add_note(
                    f"{done:,} of {len(source):,} items are in {self.address.text}, ids {own[0]} to {own[done - 1]}."
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
        asked = checked_queries(queries, self.dim, self.address.text)
        if where:
            refuse_unknown_levels(where, self._levels(), self.address.text)
        found = no_hits(len(asked), k)
        for start in range(0, len(asked), 64):
            for row, hits in enumerate(self._search(asked[start : start + 64], k, where), start):
                for rank, (one, score) in enumerate(hits[:k]):
                    found.ids[row, rank], found.scores[row, rank] = one, score
        return ordered(found)

    def items(self, ids: NDArray[np.int64] | Sequence[int]) -> list[Item]:
        """See `Index`."""
        wanted = np.asarray(ids, np.int64).reshape(-1)
        there: dict[int, Item] = {}
        for batch in _batches(np.unique(wanted), 1000):
            there |= self._fetch(batch.tolist())
        refuse_unknown(np.array([one for one in wanted if int(one) not in there], np.int64), self.address.text)
        return [there[int(one)] for one in wanted]


def _batches(ids: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]
