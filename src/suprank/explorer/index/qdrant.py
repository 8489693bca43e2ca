"""An index on a Qdrant server, or in the client's embedded mode."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from suprank.explorer.index.protocol import IndexItem
from suprank.explorer.index.server import SAMPLED_ITEMS, ServerIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.explorer.index.address import Address
    from suprank.explorer.index.protocol import Where

_ID = "item"  # payload field with the id once more: a server cannot sort by a point's own id
_PAGE = 10_000
_META = "suprank"  # the key of a collection's metadata that holds what is known about it as a whole (from Qdrant 1.16)
_OLDEST = (1, 10)  # has the query API


class QdrantIndex(ServerIndex):
    """See `ServerIndex`. Qdrant searches small collections exactly, and from 20,000 items with an HNSW graph."""

    kind = "qdrant"

    def __init__(self, address: Address, client: Any, dim: int) -> None:
        """Use `open` or `build` instead."""
        self.address, self.dim, self._client = address, dim, client

    @classmethod
    def open(cls, address: Address, *, timeout: float) -> Self:
        """See `ServerIndex`."""
        client = _connect(address, timeout)
        with _plain_errors(address):
            if not client.collection_exists(address.collection):
                known = ", ".join(sorted(one.name for one in client.get_collections().collections)) or "none"
                client.close()
                raise ValueError(
                    f"{address.text}: there is no collection {address.collection!r} (existing: {known}); build it with "
                    f"`suprank index build`."
                )
            vectors = client.get_collection(address.collection).config.params.vectors
        dim = getattr(vectors, "size", None)
        if dim is None:
            client.close()
            raise ValueError(
                f"{address.text}: this collection has several vectors per item, so it was not made by suprank; name another."
            )
        return cls(address, client, int(dim))

    @classmethod
    def _create(cls, address: Address, dim: int, meta: dict[str, Any], *, overwrite: bool, timeout: float) -> Self:
        from qdrant_client import models

        client = _connect(address, timeout)
        with _plain_errors(address):
            if client.collection_exists(address.collection):
                if not overwrite:
                    client.close()
                    raise FileExistsError(
                        f"{address.text} already exists; add to it, name another collection, or overwrite it."
                    )
                client.delete_collection(address.collection)
            client.create_collection(
                address.collection,
                vectors_config=models.VectorParams(size=dim, distance=models.Distance.DOT),
                metadata={_META: meta},
            )
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Payload indexes have no effect")  # a warning of the embedded mode
                client.create_payload_index(address.collection, _ID, models.PayloadSchemaType.INTEGER)
        return cls(address, client, dim)

    def __len__(self) -> int:
        with _plain_errors(self.address):
            return int(self._client.count(self.address.collection, exact=True).count)

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """See `Index`."""
        self._refuse_unknown_levels(where)
        found: list[int] = []
        offset = None
        with _plain_errors(self.address):
            while True:
                page, offset = self._client.scroll(
                    self.address.collection,
                    scroll_filter=_filter(where),
                    limit=_PAGE,
                    offset=offset,
                    with_payload=False,
                )
                found += [int(one.id) for one in page]
                if offset is None:
                    return np.sort(np.array(found, np.int64))

    def _insert(self, vectors: NDArray[np.float32], items: Sequence[IndexItem]) -> None:
        from qdrant_client import models

        points = models.Batch(
            ids=[one.id for one in items],
            vectors=vectors.tolist(),
            payloads=[{_ID: one.id, "path": one.path, "split": one.split, "labels": dict(one.labels)} for one in items],
        )
        with _plain_errors(self.address):
            self._client.upsert(self.address.collection, points=points, wait=True)

    def _delete(self, ids: list[int]) -> None:
        with _plain_errors(self.address):
            self._client.delete(self.address.collection, points_selector=ids, wait=True)

    def _read_meta(self) -> dict[str, Any]:
        with _plain_errors(self.address):
            metadata = self._client.get_collection(self.address.collection).config.metadata
        return dict((metadata or {}).get(_META, {}))

    def _write_meta(self, meta: dict[str, Any]) -> None:
        with _plain_errors(self.address):
            self._client.update_collection(self.address.collection, metadata={_META: meta})

    def _fetch(self, ids: list[int]) -> dict[int, IndexItem]:
        with _plain_errors(self.address):
            return {int(one.id): _item(one) for one in self._client.retrieve(self.address.collection, ids)}

    def _fetch_vectors(self, ids: list[int]) -> dict[int, Any]:
        with _plain_errors(self.address):
            points = self._client.retrieve(self.address.collection, ids, with_payload=False, with_vectors=True)
        return {int(one.id): one.vector for one in points}

    def _search(self, queries: NDArray[np.float32], k: int, where: Where | None) -> list[list[tuple[int, float]]]:
        from qdrant_client import models

        requests = [models.QueryRequest(query=one.tolist(), limit=k, filter=_filter(where)) for one in queries]
        with _plain_errors(self.address):
            answers = self._client.query_batch_points(self.address.collection, requests)
        return [[(int(one.id), float(one.score)) for one in answer.points] for answer in answers]

    def _levels(self) -> tuple[str, ...]:
        with _plain_errors(self.address):
            some, _ = self._client.scroll(self.address.collection, limit=SAMPLED_ITEMS)
        return tuple(dict.fromkeys(level for one in some for level in _item(one).labels))

    def _largest_id(self, least: int) -> int:
        from qdrant_client import models

        order = models.OrderBy(key=_ID, direction=models.Direction.DESC)
        with _plain_errors(self.address):
            first, _ = self._client.scroll(self.address.collection, limit=1, order_by=order, with_payload=False)
        return max((int(one.id) for one in first), default=-1)


def _connect(address: Address, timeout: float) -> Any:
    try:
        from qdrant_client import QdrantClient
    except ModuleNotFoundError as error:
        if error.name != "qdrant_client":
            raise
        message = f'{address.text} needs qdrant-client, which is not installed; pip install "suprank[servers]"'
        raise ModuleNotFoundError(message, name="qdrant_client") from None
    with _plain_errors(address):
        if address.url is not None:
            # Without checking the server's version: the first call gives a better error if there is no server.
            client = QdrantClient(address.url, api_key=address.key, timeout=max(1, round(timeout)), check_compatibility=False)
            _refuse_old_server(address, client)
            return client
        return QdrantClient(":memory:") if address.file is None else QdrantClient(path=address.file)


def _refuse_old_server(address: Address, client: Any) -> None:
    try:
        version = str(client.info().version)
    except ValueError as error:
        client.close()
        raise OSError(f"what answers at {address.url} is not Qdrant; check the port.") from error
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < _OLDEST:
        client.close()
        oldest = ".".join(map(str, _OLDEST))
        raise OSError(f"the Qdrant at {address.url} is version {version}, too old for suprank; update it to {oldest} or later.")


@contextmanager
def _plain_errors(address: Address) -> Iterator[None]:
    """Turn errors of the client into ConnectionError (no answer) and OSError (refused), with a way out."""
    from qdrant_client.http.exceptions import ApiException, ResponseHandlingException

    try:
        yield
    except ResponseHandlingException as error:
        raise ConnectionError(
            f"no Qdrant server answers at {address.url} ({error}); start one (docker run -p 6333:6333 qdrant/qdrant), check "
            f"the address, or allow more time (--timeout)."
        ) from error
    except ApiException as error:
        reason = " ".join(str(error).split())[:300]
        raise OSError(f"the Qdrant server at {address.url} refuses: {reason}; set QDRANT_API_KEY if it needs a key.") from error
    except RuntimeError as error:  # the embedded mode allows one process at a time
        if "already accessed" not in str(error):
            raise
        raise OSError(
            f"{address.file} is open in another process; close it there, or use a server, which serves several."
        ) from error


def _item(point: Any) -> IndexItem:
    payload = point.payload or {}
    labels = payload.get("labels")
    return IndexItem(int(point.id), payload.get("path"), payload.get("split"), labels if isinstance(labels, dict) else {})


def _filter(where: Where | None) -> Any:
    from qdrant_client import models

    if not where:
        return None
    return models.Filter(
        must=[
            models.FieldCondition(key=key if key == "split" else _key(key), match=models.MatchAny(any=list(names)))
            for key, names in where.items()
        ]
    )


def _key(level: str) -> str:
    """The path of a level in an item's payload; quoted if a dot or the like would be taken as part of the path."""
    if '"' in level:
        raise ValueError(f'Qdrant cannot filter by level {level!r}, because its name contains a "; rename the level.')
    return f"labels.{level}" if re.fullmatch(r"\w+", level, re.ASCII) else f'labels."{level}"'
