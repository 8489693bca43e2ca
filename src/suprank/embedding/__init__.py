"""Embedding the images of a manifest with a model: into files, resumable, and into the moments that a PCA needs."""

from typing import TYPE_CHECKING, Any

from suprank.system.extras import explain_missing_extra, import_attribute

with explain_missing_extra(__name__):
    from suprank.embedding.parts import EmbeddedPart, read_embedded
    from suprank.embedding.query_gallery import combine_parts, ranked_parts

if TYPE_CHECKING:
    from suprank.embedding.collection import embed_collection
    from suprank.embedding.image_loading import ImageLoaderSettings
    from suprank.embedding.moments import feature_moments
    from suprank.embedding.processes import Processes, torchrun_processes

__all__ = [
    "EmbeddedPart",
    "ImageLoaderSettings",
    "Processes",
    "combine_parts",
    "embed_collection",
    "feature_moments",
    "ranked_parts",
    "read_embedded",
    "torchrun_processes",
]

# These import timm, which takes seconds; reading stored embeddings does not.
_MODULES = {
    "Processes": "processes",
    "ImageLoaderSettings": "image_loading",
    "embed_collection": "collection",
    "torchrun_processes": "processes",
    "feature_moments": "moments",
}


def __getattr__(name: str) -> Any:
    return import_attribute(__name__, _MODULES, name)
