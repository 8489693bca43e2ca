"""Look at what a model retrieves: an HTML report, a local web page, and search indexes."""

from suprank.system.extras import explain_missing_extra

with explain_missing_extra(__name__):
    from suprank.explorer.images import Images, shared_levels
    from suprank.explorer.source import Source, embeddings_folder

__all__ = ["Images", "Source", "embeddings_folder", "shared_levels"]
