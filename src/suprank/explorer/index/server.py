"""The base class of indexes on a server: it adds in batches, and checks arguments before anything is sent."""

from __future__ import annotations

import datetime
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
    recorded_provenance,
    refuse_taken,
    refuse_unknown,
    refuse_unknown_levels,
    sort_hits,
    unit_blocks,
    unit_rows,
)
from suprank.explorer.index.storage import item_table, items_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.explorer.index.address import Address
    from suprank.explorer.index.protocol import Index

BATCH_NUMBERS = 2**18
"""Numbers sent at once, items × dim: about 3 MiB as text; servers refuse requests above 32 or 64 MiB."""

SAMPLED_ITEMS = 1000
"""Items whose labels tell which levels a collection has: a server keeps no list of levels."""


_UNFINISHED = "unfinished_copy_of"


class ServerIndex(ABC):
    """See `Index`. A server may hold millions of items and change at any time, so no items are cached here.

    What is known about the collection as a whole (`next_id`, `made_by`, ...) is kept with it, where the server can. Automatic
    ids continue from the largest ever used, or, without that record, from the largest in the collection. An addition that is
    interrupted has added whole batches; the error says which ids.
    """

    kind: ClassVar[str]
    dim: int
    address: Address
    _client: Any
    _seen_levels: tuple[str, ...] = ()

    @classmethod
    @abstractmethod
    def open(cls, address: Address, *, timeout: float) -> Self:
        """Open the collection at an address; raise if the server does not answer or has no such collection."""

    @classmethod
    @abstractmethod
    def _create(cls, address: Address, dim: int, meta: dict[str, Any], *, overwrite: bool, timeout: float) -> Self:
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
            **self._read_meta(),
        }

    def close(self) -> None:
        """See `Index`."""
        self._client.close()

    @abstractmethod
    def ids(self, where: Where | None = None) -> NDArray[np.int64]: ...

    @abstractmethod
    def _insert(self, vectors: NDArray[np.float32], items: Sequence[IndexItem]) -> None: ...

    def _build_graph(self, added: int) -> None:  # noqa: B027
        """Wait until the server has indexed the new items, if it searches them badly before."""

    def _reload(self) -> None:  # noqa: B027
        """Let a new collection be searched by its index from the first query on, if the server takes a while to switch."""

    @abstractmethod
    def _delete(self, ids: list[int]) -> None: ...

    @abstractmethod
    def _read_meta(self) -> dict[str, Any]:
        """What is recorded about the collection; empty if it is from an earlier suprank, or the server cannot keep it."""

    @abstractmethod
    def _write_meta(self, meta: dict[str, Any]) -> None: ...

    @abstractmethod
    def _fetch(self, ids: list[int]) -> dict[int, IndexItem]:
        """The items with these ids, as far as they exist."""

    @abstractmethod
    def _fetch_vectors(self, ids: list[int]) -> dict[int, Any]:
        """The vectors of these ids, as far as they exist."""

    @abstractmethod
    def _search(self, queries: NDArray[np.float32], k: int, where: Where | None) -> list[list[tuple[int, float]]]: ...

    @abstractmethod
    def _levels(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _largest_id(self, least: int) -> int:
        """The largest id if it is at least `least`, else something smaller."""

    @classmethod
    def build(
        cls,
        address: Address,
        embeddings: EmbeddingSource,
        manifest: Manifest | None = None,
        *,
        ids: NDArray[np.int64] | None = None,
        overwrite: bool = False,
        made_by: Mapping[str, Any] | None = None,
        timeout: float,
        progress: Progress = no_progress,
    ) -> Self:
        """Build a collection of these embeddings; raise if it exists, unless `overwrite` is given.

        `made_by` is what is known of the model, the head and the images of the embeddings.
        """
        source = open_embeddings(embeddings)
        own = np.arange(len(source)) if ids is None else checked_ids(ids, len(source))
        item_table(own, manifest)  # raises if these do not fit, before a collection is created or overwritten
        if overwrite:
            for _ in unit_blocks(source):  # so do rows that cannot be indexed
                pass
        index = cls._create(address, source.dim, _new_meta(int(own.max()) + 1, made_by), overwrite=overwrite, timeout=timeout)
        try:
            index.add(source, manifest, ids=own, progress=progress)
            index._reload()
        except BaseException:
            index.close()
            raise
        return index

    @classmethod
    def build_copy(
        cls, address: Address, source: Index, *, overwrite: bool = False, timeout: float, progress: Progress = no_progress
    ) -> Self:
        """Build a collection with the items of another index, under their ids.

        If this is interrupted, the same call goes on where it stopped, also with `overwrite`. Without it, any other existing
        collection is refused.
        """
        known, ids = source.info(), source.ids()
        if not len(ids):
            raise ValueError(f"{known['address']} has no items, so there is nothing to copy.")
        meta = _new_meta(max(int(known.get("next_id", 0)), int(ids[-1]) + 1), recorded_provenance(known))
        refuse_unfinished(known, str(known["address"]))
        mark = {_UNFINISHED: str(known["address"])}
        try:
            index = cls._create(address, source.dim, meta | mark, overwrite=False, timeout=timeout)
        except FileExistsError:
            unfinished = cls._open_unfinished(address, source.dim, mark, timeout=timeout)
            if unfinished is None and not overwrite:
                raise
            if unfinished is None:
                unfinished = cls._create(address, source.dim, meta | mark, overwrite=True, timeout=timeout)
            index = unfinished
        there = index.ids()
        done = len(ids) - len(missing := np.setdiff1d(ids, there))
        progress(done, len(ids))
        try:
            for batch in _batches(np.setdiff1d(there, ids), 1000):  # removed from the source since the interruption
                index._delete(batch.tolist())
            for batch in _batches(missing, max(1, BATCH_NUMBERS // index.dim)):
                index._insert(source.vectors(batch), source.items(batch))
                done += len(batch)
                progress(done, len(ids))
        except BaseException as error:
            error.add_note(f"{done:,} of {len(ids):,} items are copied to {address.text}; the same command copies the rest.")
            index.close()
            raise
        index._write_meta(meta)
        index._build_graph(len(ids))
        index._reload()
        return index

    @classmethod
    def _open_unfinished(cls, address: Address, dim: int, mark: dict[str, str], *, timeout: float) -> Self | None:
        """Open a collection that an interrupted copy left; None if it is another one."""
        try:
            index = cls.open(address, timeout=timeout)
        except ValueError:  # not made by suprank
            return None
        if index.dim == dim and mark.items() <= index._read_meta().items():
            return index
        index.close()
        return None

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
        meta = self._read_meta()
        refuse_unfinished(meta, self.address.text)
        next_id = int(meta.get("next_id", 0))
        first = max(next_id, self._largest_id(next_id) + 1) if ids is None else 0  # others may have added items, too
        own = np.arange(first, first + len(source)) if ids is None else checked_ids(ids, len(source))
        table = item_table(own, manifest)
        refuse_taken(np.array([one for batch in _batches(own, 1000) for one in self._fetch(batch.tolist())]), self.address.text)
        if own.max() >= next_id:
            self._write_meta(meta | {"next_id": int(own.max()) + 1})
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
        self._build_graph(len(source))
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
        self._refuse_unknown_levels(where)
        found = empty_hits(len(vectors), k)
        for start in range(0, len(vectors), 64):
            for row, hits in enumerate(self._search(vectors[start : start + 64], k, where), start):
                for rank, (one, score) in enumerate(hits[:k]):
                    found.ids[row, rank], found.scores[row, rank] = one, score
        return sort_hits(found)

    def _refuse_unknown_levels(self, where: Where | None) -> None:
        """As `refuse_unknown_levels`, but items are fetched only if this index has not seen a level before."""
        if not {*(where or ())} <= {*self._seen_levels, "split"}:
            self._seen_levels = self._levels()
            refuse_unknown_levels(where, self._seen_levels, self.address.text)

    def items(self, ids: NDArray[np.int64] | Sequence[int]) -> list[IndexItem]:
        """See `Index`."""
        wanted = np.asarray(ids, np.int64).reshape(-1)
        there: dict[int, IndexItem] = {}
        for batch in _batches(np.unique(wanted), 1000):
            there |= self._fetch(batch.tolist())
        refuse_unknown(np.array([one for one in wanted if int(one) not in there], np.int64), self.address.text)
        return [there[int(one)] for one in wanted]

    def vectors(self, ids: NDArray[np.int64] | Sequence[int]) -> NDArray[np.float32]:
        """See `Index`."""
        wanted = np.asarray(ids, np.int64).reshape(-1)
        there: dict[int, Any] = {}
        for batch in _batches(np.unique(wanted), max(1, BATCH_NUMBERS // self.dim)):
            there |= self._fetch_vectors(batch.tolist())
        refuse_unknown(np.array([one for one in wanted if int(one) not in there], np.int64), self.address.text)
        rows = np.array([there[int(one)] for one in wanted], np.float32).reshape(len(wanted), self.dim)
        return unit_rows(rows, self.address.text)


def refuse_unfinished(meta: Mapping[str, Any], address: str) -> None:
    """Raise if a collection lacks items because its copy was interrupted."""
    if _UNFINISHED in meta:
        raise ValueError(
            f"{address} is an unfinished copy of {meta[_UNFINISHED]}; finish it first: suprank index copy {meta[_UNFINISHED]} "
            f"{address}."
        )


def _new_meta(next_id: int, made_by: Mapping[str, Any] | None) -> dict[str, Any]:
    built = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"normalized": True, "next_id": next_id, "built": built} | ({"made_by": dict(made_by)} if made_by else {})


def _batches(ids: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]
