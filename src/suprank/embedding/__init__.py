"""Where images meet a model: a manifest embedded into files, and a projection computed from it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from suprank.system.extras import explain_missing_extra

with explain_missing_extra(__name__):
    from suprank.embedding.provenance import Provenance
    from suprank.embedding.query_gallery import Side, Sides, ranked_parts, ranked_sides
    from suprank.embedding.result import EmbeddedPart, read_embedded

if TYPE_CHECKING:
    from suprank.embedding.collection import embed_collection
    from suprank.embedding.image_loading import ImageLoaderSettings
    from suprank.embedding.principal import principal_moments
    from suprank.embedding.processes import Processes, launched

__all__ = [
    "EmbeddedPart",
    "ImageLoaderSettings",
    "Processes",
    "Provenance",
    "Side",
    "Sides",
    "embed_collection",
    "launched",
    "principal_moments",
    "ranked_parts",
    "ranked_sides",
    "read_embedded",
]

# These import timm, which takes seconds; reading what was embedded does not.
_WHERE = {
    "Processes": "processes",
    "ImageLoaderSettings": "image_loading",
    "embed_collection": "collection",
    "launched": "processes",
    "principal_moments": "principal",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with explain_missing_extra(__name__):
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
