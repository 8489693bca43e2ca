"""Where an index lives, in one word: a folder, or a server's address.

    birds.index                                  a folder
    qdrant://host:6333/birds                     a collection of a Qdrant server; qdrant+https:// for TLS
    milvus://host:19530/birds                    a collection of a Milvus server; milvus+https:// for TLS
    qdrant+file:///data/qdrant/birds             Qdrant's embedded mode: a collection in the folder /data/qdrant
    milvus+file:///data/milvus.db/birds          Milvus Lite: a collection in the file /data/milvus.db
    qdrant+memory:///birds                       as long as the process lives

Keys of servers come from the environment, QDRANT_API_KEY and MILVUS_TOKEN, so that they stand in no command line.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from suprank.explorer.index.local import LocalIndex

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.embeddings import Source
    from suprank.explorer.index.milvus import MilvusIndex
    from suprank.explorer.index.protocol import Index, Progress
    from suprank.explorer.index.qdrant import QdrantIndex

TIMEOUT = 10.0
"""Seconds that a server has for an answer."""

_PORTS = {"qdrant": 6333, "milvus": 19530}
_KEYS = {"qdrant": "QDRANT_API_KEY", "milvus": "MILVUS_TOKEN"}


@dataclass(frozen=True)
class Address:
    """A collection of a server (`url`), of a file or folder (`file`), or of this process (neither).

    Example:
        >>> Address.read("qdrant://host/birds")
        Address(text='qdrant://host/birds', server='qdrant', collection='birds', url='http://host:6333', file=None)
        >>> Address.read("milvus+file:///data/milvus.db/birds").file
        '/data/milvus.db'
    """

    text: str
    server: str
    collection: str
    url: str | None = None
    file: str | None = None

    @classmethod
    def read(cls, text: str) -> Address:
        """The parts of an address; refused where there is none."""
        parts = urlsplit(text)
        server, _, way = parts.scheme.partition("+")
        if server not in _PORTS or way not in ("", "http", "https", "file", "memory") or (server, way) == ("milvus", "memory"):
            raise ValueError(
                f"{text!r} is no address of an index; give a folder, qdrant://host:6333/collection or "
                f"milvus://host:19530/collection."
            )
        before, _, collection = unquote(parts.path).rpartition("/")
        if not re.fullmatch(r"[A-Za-z_]\w*", collection, re.ASCII):
            raise ValueError(
                f"{text!r} must end in a collection: letters, digits and underscores, such as {server}://host/birds."
            )
        if way == "memory":
            return cls(text, server, collection)
        if way == "file":
            if not before or parts.netloc:
                raise ValueError(f"{text!r} names no file; write {server}+file:///folder/{collection}, with three slashes.")
            return cls(text, server, collection, file=before)
        try:
            host, port = parts.hostname, parts.port or _PORTS[server]
        except ValueError:
            host, port = None, 0
        if not host or before or parts.username or parts.query:
            raise ValueError(f"{text!r} is no address of a server; write {server}://host:{_PORTS[server]}/collection.")
        shown = f"[{host}]" if ":" in host else host
        return cls(text, server, collection, url=f"{way or 'http'}://{shown}:{port}")

    @property
    def key(self) -> str | None:
        """The server's key, if the environment has one."""
        return os.environ.get(_KEYS[self.server])


def is_address(text: str) -> bool:
    """Whether this is a server's address, or meant to be one, and no folder."""
    return "://" in text


def open_index(address: str | PathLike[str], *, timeout: float = TIMEOUT) -> Index:
    """The index at an address (see the top of this file)."""
    text = os.fspath(address)
    if not is_address(text):
        return LocalIndex.open(text)
    place = Address.read(text)
    return _server(place).open(place, timeout=timeout)


def build_index(
    address: str | PathLike[str],
    embeddings: Source,
    manifest: Manifest | None = None,
    *,
    ids: NDArray[Any] | None = None,
    kind: str = "auto",
    overwrite: bool = False,
    timeout: float = TIMEOUT,
    progress: Progress = lambda done, total: None,
    **local: Any,
) -> Index:
    """A new index at an address, of embeddings `[items, dim]`; `local` are further arguments of `LocalIndex.build`.

    A server chooses the kind of its index itself.
    """
    text = os.fspath(address)
    if not is_address(text):
        return LocalIndex.build(text, embeddings, manifest, ids=ids, kind=kind, overwrite=overwrite, progress=progress, **local)
    place = Address.read(text)
    if kind != "auto" or local:
        raise ValueError(f"{text}: a server chooses the kind, codes and effort of its index itself; leave these out.")
    built = _server(place).build(place, embeddings, manifest, ids=ids, overwrite=overwrite, timeout=timeout, progress=progress)
    return built


def _server(place: Address) -> type[QdrantIndex] | type[MilvusIndex]:
    if place.server == "qdrant":
        from suprank.explorer.index.qdrant import QdrantIndex

        return QdrantIndex
    from suprank.explorer.index.milvus import MilvusIndex

    return MilvusIndex
