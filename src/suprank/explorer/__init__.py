"""See what a model retrieves: a report in one HTML file, a local web page, and search indexes."""

from suprank.system.extras import explain_missing_extra

with explain_missing_extra(__name__):
    from suprank.explorer.images import Images, levels_between
    from suprank.explorer.source import Source, embeddings_folder

__all__ = ["Images", "Source", "embeddings_folder", "levels_between"]
