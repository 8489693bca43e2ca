"""The items of a gallery on a Milvus server, for collections that outgrow one machine: uploaded once, and searched there.

An address is http://host:19530/birds (or https), with the name of the collection. A server that asks for a key or user:password
gets that of the environment variable MILVUS_TOKEN.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from suprank.system.extras import explain_missing_extra
from suprank.system.progress import progress_function

with explain_missing_extra(__name__):
    from pymilvus import DataType, MilvusClient, MilvusException

    from suprank.evaluation.embeddings import Embeddings
    from suprank.explorer.faiss_search import unit_rows
    from suprank.explorer.index import Hits, check_k, checked_queries, empty_hits, identity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.system.progress import Progress

_SECONDS, _LONG = 10.0, 900.0  # to wait for an answer; and until a collection is loaded or indexed
_NUMBERS = 2**18  # sent at once, items × dim: about 3 MiB as text; servers refuse requests above 32 or 64 MiB
_QUERIES = 64  # at once
_MAX_TEXT_BYTES = 65_535  # of a text, which Milvus allows at most
_MADE_OF = "suprank"  # the property of a collection that says which vectors it is made of
_GRAPH = {"M": 16, "efConstruction": 200}
_CANDIDATES = 256  # of a search in the graph, or twice the length of a longer list
_BRUTE_FORCE = 4_000  # items that a server compares one by one before they are indexed; from 5,000 on it approximates


class MilvusIndex:
    """A collection whose ids are the rows of the embeddings. A server searches it by an HNSW graph.

    Until a server has indexed new items, by itself after ten minutes or more, it searches them by cells that it chooses before
    it looks at the filter: of 100,000 items with a filter, it found 2 of 10. So an upload waits for the graph.
    """

    description = "Milvus"

    def __init__(self, address: str) -> None:
        """Connect to the server; the collection need not exist yet."""
        parts = urlsplit(address)
        self.address, self._name = address, parts.path.strip("/")
        if not re.fullmatch(r"https?://[^/]+/[A-Za-z_]\w*/?", address, re.ASCII):
            raise ValueError(
                f"{address!r} is not the address of a collection; write http://host:19530/birds, a name of letters, digits "
                f"and underscores."
            )
        for name in ("pymilvus", "grpc._server"):  # they print a traceback for every error, even handled ones
            logging.getLogger(name).setLevel(logging.CRITICAL)
        url, token = f"{parts.scheme}://{parts.netloc}", os.environ.get("MILVUS_TOKEN", "")
        with self._plain_errors():
            self._client = MilvusClient(url, token=token, timeout=_SECONDS)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __len__(self) -> int:
        (row,) = self._call("query", output_fields=["count(*)"], consistency_level="Strong")
        return int(row["count(*)"])

    def upload(
        self,
        vectors: EmbeddingSource,
        manifest: Manifest | None = None,
        progress: bool | Progress = True,
    ) -> None:
        """Make the collection one of these vectors `[items, dim]`, with paths, splits and labels of their manifest.

        An upload that was interrupted goes on where it stopped. A collection of other vectors is replaced; one that suprank did
        not make is refused.
        """
        embeddings = Embeddings.from_source(vectors)
        items, self._dim = embeddings.shape
        known = self._made_of()
        made_of = identity(embeddings, known)
        if known is None or known["digest"] != made_of["digest"]:
            self._create({**made_of, "items": items}, replace=known is not None)
        else:
            self._call("load_collection", seconds=_LONG)
        done, step = len(self), max(1, _NUMBERS // self._dim)
        show = progress_function(progress, "uploading")
        show(done, items)
        for start in range(done, items, step):
            rows = slice(start, min(start + step, items))
            self._call("insert", _rows(unit_rows(embeddings[rows], "the embeddings", start), manifest, rows))
            show(rows.stop, items)
        if items - done >= _BRUTE_FORCE:
            self._call("flush", seconds=_LONG)
            until = time.monotonic() + _LONG
            while self._call("describe_index", "embedding").get("pending_index_rows") and time.monotonic() < until:
                time.sleep(0.5)
        self._call("release_collection")  # or else searches would use the graph some time later
        self._call("load_collection", seconds=_LONG)

    def open(self, vectors: EmbeddingSource) -> None:
        """Prepare searches; raise if the collection is not there, not complete, or made of other vectors than these."""
        embeddings = Embeddings.from_source(vectors)
        known, self._dim = self._made_of(), embeddings.dim
        if known is None:
            with self._plain_errors():
                names = ", ".join(sorted(self._client.list_collections(timeout=_SECONDS))) or "none"
            raise ValueError(f"{self.address}: there is no such collection (existing: {names}); upload it first (upload=True).")
        if identity(embeddings, known)["digest"] != known["digest"]:
            raise ValueError(f"{self.address} was made of other embeddings than these; upload these (upload=True).")
        self._call("load_collection", seconds=_LONG)
        if (count := len(self)) < known["items"]:  # this also makes later searches see all that was written
            raise ValueError(
                f"{self.address} has {count:,} of {known['items']:,} items, since its upload was interrupted; upload the rest "
                f"(upload=True)."
            )

    def search(self, queries: NDArray[Any], k: int = 10, where: Mapping[str, Sequence[str]] | None = None) -> Hits:
        """As `Index.search`; `where` maps `split` or a level to the names to keep. All keys must match, one name of each."""
        check_k(k)
        vectors = checked_queries(queries, self._dim)
        hits = empty_hits(len(vectors), k)
        effort = {"params": {"ef": max(_CANDIDATES, 2 * k)}}
        options: dict[str, Any] = {"limit": k, "filter": _filter(where or {}), "search_params": effort}
        for start in range(0, len(vectors), _QUERIES):
            for row, found in enumerate(
                self._call("search", vectors[start : start + _QUERIES], consistency_level="Session", **options), start
            ):
                best = sorted((-float(one["distance"]), int(one["id"])) for one in found)
                hits.rows[row, : len(best)] = [item for _, item in best]
                hits.scores[row, : len(best)] = [-score for score, _ in best]
        return hits

    def _made_of(self) -> dict[str, Any] | None:
        """What the collection was made of; None if there is none. One that suprank did not make is refused."""
        if not self._call("has_collection"):
            return None
        known = json.loads(self._call("describe_collection").get("properties", {}).get(_MADE_OF, "{}"))
        if not known.keys() >= {"digest", "items"}:
            raise ValueError(f"{self.address} is a collection that suprank did not make; name another.")
        return dict(known)

    def _create(self, made_of: dict[str, Any], *, replace: bool) -> None:
        if replace:
            self._call("drop_collection")
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=self._dim)
        # An item without a path or split has "" there: before Milvus 2.5 there are no nullable fields.
        schema.add_field("path", DataType.VARCHAR, max_length=_MAX_TEXT_BYTES)
        schema.add_field("split", DataType.VARCHAR, max_length=_MAX_TEXT_BYTES)
        schema.add_field("labels", DataType.JSON)
        graph = self._client.prepare_index_params()
        graph.add_index("embedding", metric_type="IP", index_type="HNSW", params=_GRAPH)
        properties = {_MADE_OF: json.dumps(made_of)}
        self._call("create_collection", schema=schema, index_params=graph, properties=properties, consistency_level="Strong")

    def _call(self, method: str, *arguments: Any, seconds: float = _SECONDS, **options: Any) -> Any:
        """Call a method of the client on this collection, for at most `seconds`."""
        with self._plain_errors():
            return getattr(self._client, method)(self._name, *arguments, timeout=seconds, **options)

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turn errors of the client into ConnectionError (no answer) and OSError (refused), with a way out."""
        try:
            yield
        except MilvusException as error:
            # Why a connection failed is not in the client's message, but in the cause.
            details = getattr(error.__cause__, "details", None)
            reason = " ".join(str(details() if callable(details) else error.message).split())[:300].rstrip(".")
            where = self.address.rpartition("/")[0]
            if any(word in reason.lower() for word in ("auth", "token", "password", "privilege", "permission")):
                raise OSError(
                    f"the Milvus at {where} refuses: {reason}; set MILVUS_TOKEN to its key or user:password."
                ) from error
            if "loading collection timeout" in reason:
                raise ConnectionError(
                    f"the Milvus at {where} is still loading {self._name}, as it does for a while after a restart; try again."
                ) from error
            if any(word in reason.lower() for word in ("connect", "deadline", "unavailable", "resolving")):
                raise ConnectionError(
                    f"no Milvus answers at {where} ({reason}); start one (milvus.io/docs/install-overview.md), or check "
                    f"the address."
                ) from error
            raise OSError(f"the Milvus at {where} refuses: {reason}.") from error


def _rows(vectors: NDArray[np.float32], manifest: Manifest | None, rows: slice) -> list[dict[str, Any]]:
    """What is sent for the items in these rows."""
    levels = () if manifest is None else manifest.levels
    items = [{"path": "", "split": ""}] * len(vectors)
    if manifest is not None:
        columns = ["path", "split", *(f"label_{level}" for level in levels)]
        items = manifest.table.slice(rows.start, len(vectors)).select(columns).to_pylist()
    return [
        {
            "id": row,
            "embedding": vector,
            "path": item["path"],
            "split": item["split"],
            "labels": {level: item[f"label_{level}"] for level in levels if item[f"label_{level}"] is not None},
        }
        for row, vector, item in zip(range(rows.start, rows.stop), vectors, items, strict=True)
    ]


def _filter(where: Mapping[str, Sequence[str]]) -> str:
    """A Milvus filter expression; texts are quoted as in JSON."""
    conditions = []
    for key, names in where.items():
        field = "split" if key == "split" else f"labels[{_quote(key)}]"
        conditions.append("(" + " or ".join(f"{field} == {_quote(name)}" for name in names) + ")")
    return " and ".join(conditions)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
