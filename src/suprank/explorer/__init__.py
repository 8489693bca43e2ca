"""Look at what a model retrieves: an HTML report, a local web page, and an index to search."""

from typing import TYPE_CHECKING, Any

from suprank.system.extras import import_attribute

if TYPE_CHECKING:
    from suprank.explorer.images import Images, shared_levels
    from suprank.explorer.index import Hits, Index
    from suprank.explorer.source import Source, embeddings_folder

__all__ = ["Hits", "Images", "Index", "Source", "embeddings_folder", "shared_levels"]

_MODULES = {  # imported when first used: the explorer needs no torch, which takes a second or more
    "Hits": "index",
    "Images": "images",
    "Index": "index",
    "Source": "source",
    "embeddings_folder": "source",
    "shared_levels": "images",
}


def __getattr__(name: str) -> Any:
    return import_attribute(__name__, _MODULES, name)
