"""A local web page to explore what a model retrieves."""

from suprank.explorer.web.app import create_app
from suprank.explorer.web.explorer import Explorer
from suprank.explorer.web.ids import ImageId, Node
from suprank.explorer.web.searching import ExplorerRun, Filters

__all__ = [
    "Explorer",
    "ExplorerRun",
    "Filters",
    "ImageId",
    "Node",
    "create_app",
]
