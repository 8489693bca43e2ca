"""Search indexes with one set of calls: in a folder by faiss, or in a Qdrant or Milvus server."""

from suprank.explorer.index.address import build_index, open_index
from suprank.explorer.index.local import LocalIndex
from suprank.explorer.index.protocol import Hits, Index, Item

__all__ = ["Hits", "Index", "Item", "LocalIndex", "build_index", "open_index"]
