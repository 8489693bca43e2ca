"""An index on a Milvus server, or in Milvus Lite."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from suprank.explorer.index.protocol import IndexItem
from suprank.explorer.index.server import SAMPLED_ITEMS, ServerIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.explorer.index.address import Address
    from suprank.explorer.index.protocol import Where

_PAGE = 1_000
_MAX_TEXT_BYTES = 65_535  # bytes of a text that Milvus allows at most
_FIELDS = ["id", "path", "split", "labels"]
_META = "suprank"  # the property of a collection that holds what is known about it as a whole
_OLDEST = (2, 3)
_GRAPH = {"M": 16, "efConstruction": 200}
_CANDIDATES = 256  # of a search in the graph, or twice the length of a longer list
_BRUTE_FORCE = 4_000  # items that a server compares one by one before they are indexed; from 5,000 on it approximates
_INDEXING_SECONDS = 900


class MilvusIndex(ServerIndex):
    """See `ServerIndex`. A server uses an HNSW graph, and Milvus Lite its AUTOINDEX.

    Until a server has indexed new items, by itself after ten minutes or more, it searches them by cells that it chooses before
    it looks at the filter: of 100,000 items with a filter, it found 2 of 10. So additions wait for the graph, small ones aside.
    Milvus Lite searches new items by far more slowly until it is opened again; it is for small collections.
    A search sees what this process has written, and what others had written before it opened the index or called `len`; what
    they write later is seen a moment later. To wait for all writes at every search would take 0.2 s each.
    """

    kind = "milvus"

    def __init__(self, address: Address, client: Any, dim: int, timeout: float) -> None:
        """Use `open` or `build` instead."""
        self.address, self.dim, self._client, self._timeout = address, dim, client, timeout
        self._call("load_collection")
        len(self)

    @classmethod
    def open(cls, address: Address, *, timeout: float) -> Self:
        """See `ServerIndex`."""
        client = _connect(address, timeout)
        with _plain_errors(address):
            if not client.has_collection(address.collection, timeout=timeout):
                known = ", ".join(sorted(client.list_collections(timeout=timeout))) or "none"
                client.close()
                raise ValueError(
                    f"{address.text}: there is no collection {address.collection!r} (existing: {known}); build it with "
                    f"`suprank index build`."
                )
            described = client.describe_collection(address.collection, timeout=timeout)
        fields = {one["name"]: one for one in described["fields"]}
        if not {*_FIELDS, "embedding"} <= set(fields):
            client.close()
            raise ValueError(
                f"{address.text}: this collection was not made by suprank (its fields are {', '.join(fields)}); name another."
            )
        return cls(address, client, int(fields["embedding"]["params"]["dim"]), timeout)

    @classmethod
    def _create(cls, address: Address, dim: int, meta: dict[str, Any], *, overwrite: bool, timeout: float) -> Self:
        client = _connect(address, timeout)
        from pymilvus import DataType

        with _plain_errors(address):
            if client.has_collection(address.collection, timeout=timeout):
                if not overwrite:
                    client.close()
                    raise FileExistsError(
                        f"{address.text} already exists; add to it, name another collection, or overwrite it."
                    )
                client.drop_collection(address.collection, timeout=timeout)
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", DataType.INT64, is_primary=True)
            schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=dim)
            # An item without a path or split has "" there: before Milvus 2.5 there are no nullable fields.
            schema.add_field("path", DataType.VARCHAR, max_length=_MAX_TEXT_BYTES)
            schema.add_field("split", DataType.VARCHAR, max_length=64)
            schema.add_field("labels", DataType.JSON)
            search = client.prepare_index_params()
            graph: dict[str, Any] = {"index_type": "AUTOINDEX"}
            if address.url is not None:
                graph = {"index_type": "HNSW", "params": _GRAPH}
            search.add_index("embedding", metric_type="IP", **graph)
            client.create_collection(
                address.collection,
                schema=schema,
                index_params=search,
                consistency_level="Strong",
                properties={_META: json.dumps(meta)},
                timeout=timeout,
            )
        return cls(address, client, dim, timeout)

    def __len__(self) -> int:
        (row,) = self._call("query", output_fields=["count(*)"], consistency_level="Strong")
        return int(row["count(*)"])

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """See `Index`."""
        self._refuse_unknown_levels(where)
        found: list[int] = []
        pages = self._read("query_iterator", filter=_filter(where), output_fields=["id"], batch_size=_PAGE)
        with _plain_errors(self.address):
            while page := pages.next():
                found += [int(one["id"]) for one in page]
            pages.close()
        return np.sort(np.array(found, np.int64))

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the client on this collection, for at most `timeout` seconds."""
        with _plain_errors(self.address):
            return getattr(self._client, method)(self.address.collection, *arguments, timeout=self._timeout, **options)

    def _read(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._call(method, *arguments, consistency_level="Session", **options)

    def _insert(self, vectors: NDArray[np.float32], items: Sequence[IndexItem]) -> None:
        rows = [
            {"id": one.id, "embedding": row, "path": one.path or "", "split": one.split or "", "labels": dict(one.labels)}
            for one, row in zip(items, vectors, strict=True)
        ]
        self._call("insert", rows)

    def _build_graph(self, added: int) -> None:
        if self.address.url is None or added < _BRUTE_FORCE:
            return
        until = time.monotonic() + _INDEXING_SECONDS
        with _plain_errors(self.address):
            self._client.flush(self.address.collection, timeout=_INDEXING_SECONDS)
        while self._call("describe_index", "embedding").get("pending_index_rows") and time.monotonic() < until:
            time.sleep(0.5)

    def _reload(self) -> None:
        if self.address.url is None:
            return
        self._call("release_collection")
        with _plain_errors(self.address):
            self._client.load_collection(self.address.collection, timeout=_INDEXING_SECONDS)

    def _delete(self, ids: list[int]) -> None:
        self._call("delete", ids=ids)

    def _read_meta(self) -> dict[str, Any]:
        return dict(json.loads(self._call("describe_collection").get("properties", {}).get(_META, "{}")))

    def _write_meta(self, meta: dict[str, Any]) -> None:
        for _ in range(2):  # Milvus 2.3.5 writes to disk what was there before the call (milvus-io/milvus#30144)
            self._call("alter_collection_properties", properties={_META: json.dumps(meta)})

    def _fetch(self, ids: list[int]) -> dict[int, IndexItem]:
        return {int(row["id"]): _item(row) for row in self._read("get", ids=ids, output_fields=_FIELDS)}

    def _fetch_vectors(self, ids: list[int]) -> dict[int, Any]:
        rows = self._read("get", ids=ids, output_fields=["id", "embedding"])
        return {int(row["id"]): np.asarray(row["embedding"], np.float32) for row in rows}

    def _search(self, queries: NDArray[np.float32], k: int, where: Where | None) -> list[list[tuple[int, float]]]:
        effort = {} if self.address.url is None else {"search_params": {"params": {"ef": max(_CANDIDATES, 2 * k)}}}
        answers = self._read("search", queries, limit=k, filter=_filter(where), **effort)
        return [[(int(one["id"]), float(one["distance"])) for one in answer] for answer in answers]

    def _levels(self) -> tuple[str, ...]:
        rows = self._read("query", filter="id >= 0", limit=SAMPLED_ITEMS, output_fields=_FIELDS)
        return tuple(dict.fromkeys(level for row in rows for level in _item(row).labels))

    def _largest_id(self, least: int) -> int:
        """By bisection: Milvus cannot sort items or return the largest id, only whether there is one above a number."""
        len(self)
        low, high, middle = least - 1, 2**63 - 1, least
        while low < high:
            found = self._read("query", filter=f"id >= {middle}", limit=1, output_fields=["id"])
            low, high = (max(middle, int(found[0]["id"])), high) if found else (low, middle - 1)
            middle = (low + high + 1) // 2
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
            client = MilvusClient(address.url, token=address.key or "", timeout=timeout)
            _refuse_old_server(address, client, timeout)
            return client
        file = Path(str(address.file))
        if file.suffix != ".db":
            raise ValueError(
                f"{address.text}: Milvus Lite needs a file whose name ends in .db, such as {file}.db/{address.collection}."
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        return MilvusClient(str(file))


def _refuse_old_server(address: Address, client: Any, timeout: float) -> None:
    version = str(client.get_server_version(timeout=timeout))
    numbers = re.search(r"(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < _OLDEST:
        client.close()
        oldest = ".".join(map(str, _OLDEST))
        raise OSError(f"the Milvus at {address.url} is version {version}, too old for suprank; update it to {oldest} or later.")


@contextmanager
def _plain_errors(address: Address) -> Iterator[None]:
    """Turn errors of the client into ConnectionError (no answer) and OSError (refused), with a way out."""
    from pymilvus import MilvusException

    try:
        yield
    except MilvusException as error:
        where, reason = address.url or address.file, _reason(error)
        if any(word in reason.lower() for word in ("auth", "token", "password", "privilege", "permission")):
            raise OSError(f"the Milvus at {where} refuses: {reason}; set MILVUS_TOKEN to its key or user:password.") from error
        if "loading collection timeout" in reason:
            raise ConnectionError(
                f"the Milvus at {where} is still loading {address.collection}, as it does for a while after a restart; try "
                f"again, or allow more time (--timeout)."
            ) from error
        if any(word in reason.lower() for word in ("connect", "deadline", "unavailable", "resolving")):
            raise ConnectionError(
                f"no Milvus answers at {where} ({reason}); start one (https://milvus.io/docs/install-overview.md), check the "
                f"address, or allow more time (--timeout)."
            ) from error
        raise OSError(f"the Milvus at {where} refuses: {reason}.") from error


def _reason(error: Any) -> str:
    """What is wrong in one line; why a connection failed is not in the client's message, but in the cause."""
    details = getattr(error.__cause__, "details", None)
    text = details() if callable(details) else error.message
    return " ".join(str(text).split())[:300].rstrip(".")


def _item(row: Any) -> IndexItem:
    labels = row["labels"]
    return IndexItem(int(row["id"]), row["path"] or None, row["split"] or None, labels if isinstance(labels, dict) else {})


def _filter(where: Where | None) -> str:
    """A Milvus filter expression; texts are quoted as in JSON."""
    conditions = []
    for key, names in (where or {}).items():
        field = "split" if key == "split" else f"labels[{_quote(key)}]"
        conditions.append("(" + " or ".join(f"{field} == {_quote(name)}" for name in names) + ")")
    return " and ".join(conditions)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
