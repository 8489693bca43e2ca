"""An index in a Milvus server, or in Milvus Lite."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from suprank.explorer.index.protocol import Item, refuse_unknown_levels
from suprank.explorer.index.server import LOOKED_AT, ServerIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.explorer.index.address import Address
    from suprank.explorer.index.protocol import Where

_PAGE = 1_000
_LONGEST = 65_535  # bytes of a text, the most that Milvus allows
_FIELDS = ["id", "path", "split", "labels"]


class MilvusIndex(ServerIndex):
    """See `ServerIndex`. The kind of index is the server's AUTOINDEX; what was written is seen by the next search."""

    kind = "milvus"

    def __init__(self, address: Address, client: Any, dim: int, timeout: float) -> None:
        """For `open` and `build`."""
        self.address, self.dim, self._client, self._timeout = address, dim, client, timeout
        with _plain(address):
            client.load_collection(address.collection)

    @classmethod
    def open(cls, address: Address, *, timeout: float) -> Self:
        """See `ServerIndex`."""
        client = _connected(address, timeout)
        with _plain(address):
            if not client.has_collection(address.collection):
                known = ", ".join(sorted(client.list_collections())) or "none"
                client.close()
                raise ValueError(
                    f"{address.text}: there is no collection {address.collection!r}, but {known}; make it with "
                    f"`suprank index build`."
                )
            fields = {one["name"]: one for one in client.describe_collection(address.collection)["fields"]}
        if not {*_FIELDS, "embedding"} <= set(fields):
            client.close()
            raise ValueError(f"{address.text}: this collection was not made by suprank: its fields are {', '.join(fields)}.")
        return cls(address, client, int(fields["embedding"]["params"]["dim"]), timeout)

    @classmethod
    def _created(cls, address: Address, dim: int, *, overwrite: bool, timeout: float) -> Self:
        client = _connected(address, timeout)
        from pymilvus import DataType

        with _plain(address):
            if client.has_collection(address.collection):
                if not overwrite:
                    client.close()
                    raise FileExistsError(f"{address.text} is there already; add to it, name another, or overwrite it.")
                client.drop_collection(address.collection)
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", DataType.INT64, is_primary=True)
            schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=dim)
            schema.add_field("path", DataType.VARCHAR, max_length=_LONGEST, nullable=True)
            schema.add_field("split", DataType.VARCHAR, max_length=64, nullable=True)
            schema.add_field("labels", DataType.JSON)
            search = client.prepare_index_params()
            search.add_index("embedding", index_type="AUTOINDEX", metric_type="IP")
            client.create_collection(address.collection, schema=schema, index_params=search, consistency_level="Strong")
        return cls(address, client, dim, timeout)

    def __len__(self) -> int:
        with _plain(self.address):
            (row,) = self._client.query(self.address.collection, output_fields=["count(*)"], timeout=self._timeout)
        return int(row["count(*)"])

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """See `Index`."""
        if where:
            refuse_unknown_levels(where, self._levels(), self.address.text)
        found: list[int] = []
        with _plain(self.address):
            pages = self._client.query_iterator(
                self.address.collection, filter=_filter(where), output_fields=["id"], batch_size=_PAGE
            )
            while page := pages.next():
                found += [int(one["id"]) for one in page]
            pages.close()
        return np.sort(np.array(found, np.int64))

    def _insert(self, vectors: NDArray[np.float32], items: Sequence[Item]) -> None:
        rows = [
            {"id": one.id, "embedding": vector, "path": one.path, "split": one.split, "labels": dict(one.labels)}
            for one, vector in zip(items, vectors, strict=True)
        ]
        with _plain(self.address):
            self._client.insert(self.address.collection, rows, timeout=self._timeout)

    def _delete(self, ids: list[int]) -> None:
        with _plain(self.address):
            self._client.delete(self.address.collection, ids=ids, timeout=self._timeout)

    def _fetch(self, ids: list[int]) -> dict[int, Item]:
        with _plain(self.address):
            rows = self._client.get(self.address.collection, ids=ids, output_fields=_FIELDS, timeout=self._timeout)
        return {int(row["id"]): _item(row) for row in rows}

    def _search(self, queries: NDArray[np.float32], k: int, where: Where | None) -> list[list[tuple[int, float]]]:
        with _plain(self.address):
            answers = self._client.search(
                self.address.collection, queries, limit=k, filter=_filter(where), timeout=self._timeout
            )
        return [[(int(one["id"]), float(one["distance"])) for one in answer] for answer in answers]

    def _levels(self) -> tuple[str, ...]:
        with _plain(self.address):
            rows = self._client.query(self.address.collection, filter="id >= 0", limit=LOOKED_AT, output_fields=_FIELDS)
        return tuple(dict.fromkeys(level for row in rows for level in _item(row).labels))

    def _largest(self) -> int:
        """By halving: Milvus can neither sort items nor tell the largest id, but whether there is one from a number on."""
        low, high = -1, 2**63 - 1
        while low < high:
            middle = (low + high + 1) // 2
            with _plain(self.address):
                found = self._client.query(
                    self.address.collection, filter=f"id >= {middle}", limit=1, output_fields=["id"], timeout=self._timeout
                )
            low, high = (max(middle, int(found[0]["id"])), high) if found else (low, middle - 1)
        return low


def _connected(address: Address, timeout: float) -> Any:
    try:
        from pymilvus import MilvusClient
    except ModuleNotFoundError as error:
        if error.name != "pymilvus":
            raise
        said = f'{address.text} needs pymilvus, which is not installed; pip install "suprank[servers]"'
        raise ModuleNotFoundError(said, name="pymilvus") from None
    for name in ("pymilvus", "grpc._server"):  # which print a traceback of each error that they raise, or that we never see
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with _plain(address):
        if address.url is not None:
            return MilvusClient(address.url, token=address.key or "", timeout=timeout)
        file = Path(str(address.file))
        if file.suffix != ".db":
            raise ValueError(
                f"{address.text}: Milvus Lite keeps a file that ends in .db, such as {file}.db/{address.collection}."
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        return MilvusClient(str(file))


@contextmanager
def _plain(address: Address) -> Iterator[None]:
    """Errors of the client as ours: who does not answer, and what it refused."""
    from pymilvus import MilvusException

    try:
        yield
    except MilvusException as error:
        where, said = address.url or address.file, " ".join(str(error.message).split())[:300]
        if "connect" in said.lower() or "deadline" in said.lower() or "unavailable" in said.lower():
            raise ConnectionError(
                f"no Milvus answers at {where} ({said}); start a server, check the address, or allow it more time."
            ) from error
        raise OSError(f"the Milvus at {where} refuses: {said}; a key goes into MILVUS_TOKEN.") from error


def _item(row: Any) -> Item:
    labels = row["labels"]
    return Item(int(row["id"]), row["path"], row["split"], labels if isinstance(labels, dict) else {})


def _filter(where: Where | None) -> str:
    """An expression; texts are quoted as in JSON."""
    conditions = []
    for key, names in (where or {}).items():
        field = "split" if key == "split" else f"labels[{_quoted(key)}]"
        conditions.append("(" + " or ".join(f"{field} == {_quoted(name)}" for name in names) + ")")
    return " and ".join(conditions)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
