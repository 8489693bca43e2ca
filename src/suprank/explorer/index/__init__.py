"""Search indexes with the same methods everywhere: in a folder (faiss), or on a Qdrant or Milvus server."""

from suprank.explorer.index.address import IndexInput, build_index, open_index, read_embeddings, search_records
from suprank.explorer.index.local import LocalIndex
from suprank.explorer.index.migration import CopiedIndex, copy_index
from suprank.explorer.index.protocol import Hits, Index, IndexItem

__all__ = [
    "CopiedIndex",
    "Hits",
    "Index",
    "IndexInput",
    "IndexItem",
    "LocalIndex",
    "build_index",
    "copy_index",
    "open_index",
    "read_embeddings",
    "search_records",
]
