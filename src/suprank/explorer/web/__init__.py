"""A local web page to look at what a model retrieves."""

from suprank.explorer.web.app import create_app
from suprank.explorer.web.explorer import Explorer
from suprank.explorer.web.ids import Node, Place
from suprank.explorer.web.nearest import Exact, Indexed, Nearest
from suprank.explorer.web.searching import Filters, Run

__all__ = ["Exact", "Explorer", "Filters", "Indexed", "Nearest", "Node", "Place", "Run", "create_app"]
