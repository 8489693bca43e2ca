"""The address of an index: a folder or a server.

    birds.index                                  a folder
    qdrant://host:6333/birds                     a collection on a Qdrant server; qdrant+https:// for TLS
    milvus://host:19530/birds                    a collection on a Milvus server; milvus+https:// for TLS
    qdrant+file:///data/qdrant/birds             Qdrant's embedded mode: a collection in the folder /data/qdrant
    milvus+file:///data/milvus.db/birds          Milvus Lite: a collection in the file /data/milvus.db
    qdrant+memory:///birds                       in the memory of this process

API keys are read from the environment variables QDRANT_API_KEY and MILVUS_TOKEN, so that they appear in no command line.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np

from suprank.data.manifest import Manifest
from suprank.embedding.parts import embedded_parts, read_embedded
from suprank.embedding.provenance import Provenance, Record
from suprank.embedding.shards import ITEMS
from suprank.explorer.index.local import LocalIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.explorer.index.milvus import MilvusIndex
    from suprank.explorer.index.protocol import Index, Progress, Where
    from suprank.explorer.index.qdrant import QdrantIndex

TIMEOUT = 10.0
"""Seconds to wait for a server's answer."""

_PORTS = {"qdrant": 6333, "milvus": 19530}
_KEYS = {"qdrant": "QDRANT_API_KEY", "milvus": "MILVUS_TOKEN"}


@dataclass(frozen=True)
class Address:
    """A collection on a server (`url`), in a file or folder (`file`), or in this process (neither).

    Example:
        >>> Address.parse("qdrant://host/birds")
        Address(text='qdrant://host/birds', server='qdrant', collection='birds', url='http://host:6333', file=None)
        >>> Address.parse("milvus+file:///data/milvus.db/birds").file
        '/data/milvus.db'
    """

    text: str
    server: str
    collection: str
    url: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Split an address into its parts; raise if it is not a valid one."""
        parts = urlsplit(text)
        server, _, transport = parts.scheme.partition("+")
        if (
            server not in _PORTS
            or transport not in ("", "http", "https", "file", "memory")
            or (server, transport) == ("milvus", "memory")
        ):
            raise ValueError(
                f"{text!r} is not the address of an index; give a folder, qdrant://host:6333/collection or "
                f"milvus://host:19530/collection."
            )
        folder, _, collection = unquote(parts.path).rpartition("/")
        if not re.fullmatch(r"[A-Za-z_]\w*", collection, re.ASCII):
            raise ValueError(
                f"{text!r} must end with a collection name of letters, digits and underscores, such as {server}://host/birds."
            )
        if transport == "memory":
            return cls(text, server, collection)
        if transport == "file":
            if not folder or parts.netloc:
                raise ValueError(
                    f"{text!r} has no file or folder; write {server}+file:///folder/{collection}, with three slashes."
                )
            return cls(text, server, collection, file=folder)
        try:
            host, port = parts.hostname, parts.port or _PORTS[server]
        except ValueError:
            host, port = None, 0
        if not host or folder or parts.username or parts.query:
            raise ValueError(f"{text!r} is not the address of a server; write {server}://host:{_PORTS[server]}/collection.")
        shown = f"[{host}]" if ":" in host else host
        return cls(text, server, collection, url=f"{transport or 'http'}://{shown}:{port}")

    @property
    def key(self) -> str | None:
        """The server's API key from the environment, if set."""
        return os.environ.get(_KEYS[self.server])


def is_address(text: str) -> bool:
    """Whether this is (meant to be) a server's address and not a folder."""
    return "://" in text or re.match(r"(qdrant|milvus)(\+\w+)?:", text) is not None  # with a slash too few, say


def open_index(address: str | PathLike[str], *, timeout: float = TIMEOUT) -> Index:
    """Open the index at an address: a folder, qdrant://host/collection, ... (the top of this file lists them all)."""
    text = os.fspath(address)
    if not is_address(text):
        return LocalIndex.open(text)
    parsed = Address.parse(text)
    return server_class(parsed).open(parsed, timeout=timeout)


def build_index(
    address: str | PathLike[str],
    embeddings: EmbeddingSource,
    manifest: Manifest | None = None,
    *,
    part: str | None = None,
    ids: NDArray[Any] | None = None,
    kind: str = "auto",
    overwrite: bool = False,
    made_by: Record = None,
    timeout: float = TIMEOUT,
    progress: Progress = lambda done, total: None,
    **local: Any,
) -> Index:
    """Build an index of embeddings `[items, dim]` at an address and return it.

    `embeddings` is an array, a .npy, .parquet or .pt file, or a folder of `suprank embed` or of a run, which brings its own
    manifest; `part` selects the part of such a folder (see `read_embeddings`). `made_by` is what is known of the model, the
    head and the images of the embeddings, which such a folder knows too. `kind` and `local`, further arguments of
    `LocalIndex.build`, are for folders: a server chooses its own kind of index.
    """
    text = os.fspath(address)
    if isinstance(embeddings, str | PathLike) and (part is not None or Path(embeddings).is_dir()):
        embeddings, manifest, _, known = read_embeddings(embeddings, part, manifest)
        made_by = made_by or known
    record = made_by.asdict() if isinstance(made_by, Provenance) else made_by
    if not is_address(text):
        local |= {"ids": ids, "kind": kind, "overwrite": overwrite, "made_by": record, "progress": progress}
        return LocalIndex.build(text, embeddings, manifest, **local)
    parsed = Address.parse(text)
    if kind != "auto" or local:
        raise ValueError(f"{text}: a server chooses the kind, codes and recall of its index itself; leave these out.")
    return server_class(parsed).build(
        parsed, embeddings, manifest, ids=ids, overwrite=overwrite, made_by=record, timeout=timeout, progress=progress
    )


def server_class(address: Address) -> type[QdrantIndex] | type[MilvusIndex]:
    """The class of indexes on the server of this address."""
    if address.server == "qdrant":
        from suprank.explorer.index.qdrant import QdrantIndex

        return QdrantIndex
    from suprank.explorer.index.milvus import MilvusIndex

    return MilvusIndex


class IndexInput(NamedTuple):
    """Embeddings to be indexed, the manifest of their rows if there is one, a note on what was left out, and, where known,
    which model made them."""

    embeddings: EmbeddingSource
    manifest: Manifest | None
    note: str = ""
    provenance: Provenance | None = None


def read_embeddings(
    path: str | PathLike[str], part: str | None = None, manifest: str | PathLike[str] | Manifest | None = None
) -> IndexInput:
    """Embeddings and their manifest from a file, a folder of `suprank embed`, one of its parts, or a run.

    A folder with several parts gives its gallery, else its test images, else train, unless `part` names another. Only a file
    takes a `manifest`: a folder has its own.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}; give a folder of `suprank embed` or of a run, or a file of embeddings.")
    if not path.is_dir():
        if part is not None:
            raise ValueError(f"{path} is a file, so it has no part {part!r}; leave the part out.")
        items = Manifest.read(manifest) if isinstance(manifest, str | PathLike) else manifest
        return IndexInput(path, items, provenance=Provenance.read_beside(path))
    if manifest is not None:
        raise ValueError(f"{path} is a folder with its own manifest; leave the manifest out.")
    from suprank.explorer.source import RECIPE, embeddings_folder  # imports torch

    folder = embeddings_folder(path) if (path / RECIPE).is_file() else path
    if (folder / ITEMS).is_file():
        folder, part = folder.parent, folder.name
    parts = embedded_parts(folder)
    chosen = part or next((name for name in ("gallery", "test", "train") if name in parts), "gallery")
    embedded = read_embedded(folder, chosen)
    others = [name for name in parts if name != chosen]
    notes = [f"{', '.join(others)} is not indexed"] if others else []
    if embedded.broken:
        notes.append(f"{embedded.broken:,} broken images are left out")
    note = f"using {chosen} of {folder}; {'; '.join(notes)}" if notes else ""
    return IndexInput(embedded.embeddings, embedded.items, note, Provenance.read(folder, chosen))


def search_records(
    index: Index, queries: NDArray[np.float32], k: int = 10, where: Where | None = None, names: Sequence[Any] | None = None
) -> Iterator[dict[str, Any]]:
    """The k best items for each query as dicts with the keys query, rank, id, path, score and labels, best first.

    `names` are what the queries are called, by default their row numbers. The score is the cosine.
    """
    hits = index.search(queries, k, where)
    items = {item.id: item for item in index.items(np.unique(hits.ids[hits.ids >= 0]))}
    for name, ids, scores in zip(names or range(len(hits.ids)), hits.ids.tolist(), hits.scores.tolist(), strict=True):
        for rank, (item_id, score) in enumerate(zip(ids, scores, strict=True), start=1):
            if item_id >= 0:
                item = items[item_id]
                yield {
                    "query": name,
                    "rank": rank,
                    "id": item_id,
                    "path": item.path,
                    "score": round(score, 6),
                    "labels": dict(item.labels),
                }
