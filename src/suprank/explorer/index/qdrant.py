"""An index in a Qdrant server, or in the client's embedded mode."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from suprank.explorer.index.protocol import Item, refuse_unknown_levels
from suprank.explorer.index.server import LOOKED_AT, ServerIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.explorer.index.address import Address
    from suprank.explorer.index.protocol import Where

_ID = "item"  # of a point, a second time: by its own id a server cannot sort
_PAGE = 10_000


class QdrantIndex(ServerIndex):
    """See `ServerIndex`. Small collections are searched exactly; from 20,000 items on Qdrant builds an HNSW graph."""

    kind = "qdrant"

    def __init__(self, address: Address, client: Any, dim: int) -> None:
        """For `open` and `build`."""
        self.address, self.dim, self._client = address, dim, client

    @classmethod
    def open(cls, address: Address, *, timeout: float) -> Self:
        """See `ServerIndex`."""
        client = _connected(address, timeout)
        with _plain(address):
            if not client.collection_exists(address.collection):
                known = ", ".join(sorted(one.name for one in client.get_collections().collections)) or "none"
                client.close()
                raise ValueError(
                    f"{address.text}: there is no collection {address.collection!r}, but {known}; make it with "
                    f"`suprank index build`."
                )
            vectors = client.get_collection(address.collection).config.params.vectors
        dim = getattr(vectors, "size", None)
        if dim is None:
            client.close()
            raise ValueError(f"{address.text}: this collection has several vectors an item, and was not made by suprank.")
        return cls(address, client, int(dim))

    @classmethod
    def _created(cls, address: Address, dim: int, *, overwrite: bool, timeout: float) -> Self:
        from qdrant_client import models

        client = _connected(address, timeout)
        with _plain(address):
            if client.collection_exists(address.collection):
                if not overwrite:
                    client.close()
                    raise FileExistsError(f"{address.text} is there already; add to it, name another, or overwrite it.")
                client.delete_collection(address.collection)
            client.create_collection(
                address.collection, vectors_config=models.VectorParams(size=dim, distance=models.Distance.DOT)
            )
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Payload indexes have no effect")  # said by the embedded mode
                client.create_payload_index(address.collection, _ID, models.PayloadSchemaType.INTEGER)
        return cls(address, client, dim)

    def __len__(self) -> int:
        with _plain(self.address):
            return int(self._client.count(self.address.collection, exact=True).count)

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """See `Index`."""
        if where:
            refuse_unknown_levels(where, self._levels(), self.address.text)
        found: list[int] = []
        offset = None
        with _plain(self.address):
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

    def _insert(self, vectors: NDArray[np.float32], items: Sequence[Item]) -> None:
        from qdrant_client import models

        points = models.Batch(
            ids=[one.id for one in items],
            vectors=vectors.tolist(),
            payloads=[{_ID: one.id, "path": one.path, "split": one.split, "labels": dict(one.labels)} for one in items],
        )
        with _plain(self.address):
            self._client.upsert(self.address.collection, points=points, wait=True)

    def _delete(self, ids: list[int]) -> None:
        with _plain(self.address):
            self._client.delete(self.address.collection, points_selector=ids, wait=True)

    def _fetch(self, ids: list[int]) -> dict[int, Item]:
        with _plain(self.address):
            return {int(one.id): _item(one) for one in self._client.retrieve(self.address.collection, ids)}

    def _search(self, queries: NDArray[np.float32], k: int, where: Where | None) -> list[list[tuple[int, float]]]:
        from qdrant_client import models

        asked = [models.QueryRequest(query=one.tolist(), limit=k, filter=_filter(where)) for one in queries]
        with _plain(self.address):
            answers = self._client.query_batch_points(self.address.collection, asked)
        return [[(int(one.id), float(one.score)) for one in answer.points] for answer in answers]

    def _levels(self) -> tuple[str, ...]:
        with _plain(self.address):
            some, _ = self._client.scroll(self.address.collection, limit=LOOKED_AT)
        return tuple(dict.fromkeys(level for one in some for level in _item(one).labels))

    def _largest(self) -> int:
        from qdrant_client import models

        order = models.OrderBy(key=_ID, direction=models.Direction.DESC)
        with _plain(self.address):
            first, _ = self._client.scroll(self.address.collection, limit=1, order_by=order, with_payload=False)
        return max((int(one.id) for one in first), default=-1)


def _connected(address: Address, timeout: float) -> Any:
    try:
        from qdrant_client import QdrantClient
    except ModuleNotFoundError as error:
        if error.name != "qdrant_client":
            raise
        said = f'{address.text} needs qdrant-client, which is not installed; pip install "suprank[servers]"'
        raise ModuleNotFoundError(said, name="qdrant_client") from None
    with _plain(address):
        if address.url is not None:
            # Without a look at the server's version: the first call says better whether there is one.
            return QdrantClient(address.url, api_key=address.key, timeout=max(1, round(timeout)), check_compatibility=False)
        return QdrantClient(":memory:") if address.file is None else QdrantClient(path=address.file)


@contextmanager
def _plain(address: Address) -> Iterator[None]:
    """Errors of the client as ours: who does not answer, and what it refused."""
    from qdrant_client.http.exceptions import ApiException, ResponseHandlingException

    try:
        yield
    except ResponseHandlingException as error:
        raise ConnectionError(
            f"no Qdrant server answers at {address.url} ({error}); start one (docker run -p 6333:6333 qdrant/qdrant), check "
            f"the address, or allow it more time."
        ) from error
    except ApiException as error:
        said = " ".join(str(error).split())[:300]
        raise OSError(f"the Qdrant server at {address.url} refuses: {said}; a key goes into QDRANT_API_KEY.") from error
    except RuntimeError as error:  # the embedded mode is for one process at a time
        if "already accessed" not in str(error):
            raise
        raise OSError(f"{address.file} is open in another process; a server serves several.") from error


def _item(point: Any) -> Item:
    payload = point.payload or {}
    labels = payload.get("labels")
    return Item(int(point.id), payload.get("path"), payload.get("split"), labels if isinstance(labels, dict) else {})


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
    """The path of a level in an item's payload; quoted where a dot or the like would be read as part of the path."""
    if '"' in level:
        raise ValueError(f'Qdrant cannot filter by a level whose name has a ", {level!r}; rename it.')
    return f"labels.{level}" if re.fullmatch(r"\w+", level, re.ASCII) else f'labels."{level}"'
