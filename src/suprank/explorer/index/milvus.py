"""An index on a Milvus server, or in Milvus Lite."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from suprank.explorer.index.protocol import IndexItem, refuse_unknown_levels
from suprank.explorer.index.server import SAMPLED_ITEMS, ServerIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.explorer.index.address import Address
    from suprank.explorer.index.protocol import Where

_PAGE = 1_000
_MAX_TEXT_BYTES = 65_535  # bytes of a text that Milvus allows at most
_FIELDS = ["id", "path", "split", "labels"]


class MilvusIndex(ServerIndex):
    """See `ServerIndex`. The server uses its AUTOINDEX; a search sees everything written before it."""

    kind = "milvus"

    def __init__(self, address: Address, client: Any, dim: int, timeout: float) -> None:
        """Use `open` or `build` instead."""
        self.address, self.dim, self._client, self._timeout = address, dim, client, timeout
        with _plain_errors(address):
            client.load_collection(address.collection)

    @classmethod
    def open(cls, address: Address, *, timeout: float) -> Self:
        """See `ServerIndex`."""
        client = _connect(address, timeout)
        with _plain_errors(address):
            if not client.has_collection(address.collection):
                known = ", ".join(sorted(client.list_collections())) or "none"
                client.close()
                raise ValueError(
                    f"{address.text}: there is no collection {address.collection!r} (existing: {known}); build it with "
                    f"`suprank index build`."
                )
            fields = {one["name"]: one for one in client.describe_collection(address.collection)["fields"]}
        if not {*_FIELDS, "embedding"} <= set(fields):
            client.close()
            raise ValueError(
                f"{address.text}: this collection was not made by suprank (its fields are {', '.join(fields)}); name another."
            )
        return cls(address, client, int(fields["embedding"]["params"]["dim"]), timeout)

    @classmethod
    def _create(cls, address: Address, dim: int, *, overwrite: bool, timeout: float) -> Self:
        client = _connect(address, timeout)
        from pymilvus import DataType

        with _plain_errors(address):
            if client.has_collection(address.collection):
                if not overwrite:
                    client.close()
                    raise FileExistsError(
                        f"{address.text} already exists; add to it, name another collection, or overwrite it."
                    )
                client.drop_collection(address.collection)
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", DataType.INT64, is_primary=True)
            schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=dim)
            schema.add_field("path", DataType.VARCHAR, max_length=_MAX_TEXT_BYTES, nullable=True)
            schema.add_field("split", DataType.VARCHAR, max_length=64, nullable=True)
            schema.add_field("labels", DataType.JSON)
            search = client.prepare_index_params()
            search.add_index("embedding", index_type="AUTOINDEX", metric_type="IP")
            client.create_collection(address.collection, schema=schema, index_params=search, consistency_level="Strong")
        return cls(address, client, dim, timeout)

    def __len__(self) -> int:
        with _plain_errors(self.address):
            (row,) = self._client.query(self.address.collection, output_fields=["count(*)"], timeout=self._timeout)
        return int(row["count(*)"])

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """See `Index`."""
        if where:
            refuse_unknown_levels(where, self._levels(), self.address.text)
        found: list[int] = []
        with _plain_errors(self.address):
            pages = self._client.query_iterator(
                self.address.collection, filter=_filter(where), output_fields=["id"], batch_size=_PAGE
            )
            while page := pages.next():
                found += [int(one["id"]) for one in page]
            pages.close()
        return np.sort(np.array(found, np.int64))

    def _insert(self, vectors: NDArray[np.float32], items: Sequence[IndexItem]) -> None:
        rows = [
            {"id": one.id, "embedding": vector, "path": one.path, "split": one.split, "labels": dict(one.labels)}
            for one, vector in zip(items, vectors, strict=True)
        ]
        with _plain_errors(self.address):
            self._client.insert(self.address.collection, rows, timeout=self._timeout)

    def _delete(self, ids: list[int]) -> None:
        with _plain_errors(self.address):
            self._client.delete(self.address.collection, ids=ids, timeout=self._timeout)

    def _fetch(self, ids: list[int]) -> dict[int, IndexItem]:
        with _plain_errors(self.address):
            rows = self._client.get(self.address.collection, ids=ids, output_fields=_FIELDS, timeout=self._timeout)
        return {int(row["id"]): _item(row) for row in rows}

    def _search(self, queries: NDArray[np.float32], k: int, where: Where | None) -> list[list[tuple[int, float]]]:
        with _plain_errors(self.address):
            answers = self._client.search(
                self.address.collection, queries, limit=k, filter=_filter(where), timeout=self._timeout
            )
        return [[(int(one["id"]), float(one["distance"])) for one in answer] for answer in answers]

    def _levels(self) -> tuple[str, ...]:
        with _plain_errors(self.address):
            rows = self._client.query(self.address.collection, filter="id >= 0", limit=SAMPLED_ITEMS, output_fields=_FIELDS)
        return tuple(dict.fromkeys(level for row in rows for level in _item(row).labels))

    def _largest_id(self) -> int:
        """By bisection: Milvus cannot sort items or return the largest id, only whether there is one above a number."""
        low, high = -1, 2**63 - 1
        while low < high:
            middle = (low + high + 1) // 2
            with _plain_errors(self.address):
                found = self._client.query(
                    self.address.collection, filter=f"id >= {middle}", limit=1, output_fields=["id"], timeout=self._timeout
                )
            low, high = (max(middle, int(found[0]["id"])), high) if found else (low, middle - 1)
        return low


def _connect(address: Address, timeout: float) -> Any:
    try:
        from pymilvus import MilvusClient
    except ModuleNotFoundError as error:
        if error.name != "pymilvus":
            raise
        message = f'{address.text} needs pymilvus, which is not installed; pip install "suprank[servers]"'
        raise ModuleNotFoundError(message, name="pymilvus") from None
    for name in ("pymilvus", "grpc._server"):  # they print a traceback for every error, even handled ones
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with _plain_errors(address):
        if address.url is not None:
            return MilvusClient(address.url, token=address.key or "", timeout=timeout)
        file = Path(str(address.file))
        if file.suffix != ".db":
            raise ValueError(
                f"{address.text}: Milvus Lite needs a file whose name ends in .db, such as {file}.db/{address.collection}."
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        return MilvusClient(str(file))


@contextmanager
def _plain_errors(address: Address) -> Iterator[None]:
    """Turn errors of the client into ConnectionError (no answer) and OSError (refused), with a way out."""
    from pymilvus import MilvusException

    try:
        yield
    except MilvusException as error:
        where, reason = address.url or address.file, " ".join(str(error.message).split())[:300]
        if any(word in reason.lower() for word in ("connect", "deadline", "unavailable")):
            raise ConnectionError(
                f"no Milvus answers at {where} ({reason}); start a server, check the address, or allow more time."
            ) from error
        raise OSError(f"the Milvus at {where} refuses: {reason}; set MILVUS_TOKEN if it needs a key.") from error


def _item(row: Any) -> IndexItem:
    labels = row["labels"]
    return IndexItem(int(row["id"]), row["path"], row["split"], labels if isinstance(labels, dict) else {})


def _filter(where: Where | None) -> str:
    """A Milvus filter expression; texts are quoted as in JSON."""
    conditions = []
    for key, names in (where or {}).items():
        field = "split" if key == "split" else f"labels[{_quote(key)}]"
        conditions.append("(" + " or ".join(f"{field} == {_quote(name)}" for name in names) + ")")
    return " and ".join(conditions)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
