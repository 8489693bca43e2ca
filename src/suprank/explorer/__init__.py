"""Look at what a model retrieves: an HTML report, a local web page, and search indexes."""

from typing import TYPE_CHECKING, Any

from suprank.system.extras import import_attribute

if TYPE_CHECKING:
    from suprank.explorer.images import Images, shared_levels
    from suprank.explorer.source import Source, embeddings_folder

__all__ = ["Images", "Source", "embeddings_folder", "shared_levels"]

# Imported when first used, because torch takes a second or more; `suprank index info` needs none.
_MODULES = {"Images": "images", "Source": "source", "embeddings_folder": "source", "shared_levels": "images"}


def __getattr__(name: str) -> Any:
    return import_attribute(__name__, _MODULES, name)
