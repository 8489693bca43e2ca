"""Rank losses, exact rank metrics and label hierarchies for image retrieval."""

__version__ = "0.1.0"
