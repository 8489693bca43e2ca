"""Look at what a model retrieves: an HTML report, a local web page, and an index to search."""

from typing import TYPE_CHECKING, Any

from suprank.system.extras import import_attribute

if TYPE_CHECKING:
    from suprank.explorer.index import Hits, Index

__all__ = ["Hits", "Index"]

_MODULES = {"Hits": "index", "Index": "index"}  # imported when first used: faiss takes its time


def __getattr__(name: str) -> Any:
    return import_attribute(__name__, _MODULES, name)
