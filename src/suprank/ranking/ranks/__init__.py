"""The rank primitive: `ranks`, and one file for each way to compute the same numbers.

`fused` is not listed here, because it needs Triton; `using="fused"` names it.
"""

from suprank.ranking.ranks.chunked import chunked
from suprank.ranking.ranks.definition import Implementation, Ranks, definition
from suprank.ranking.ranks.dispatch import ImplementationName, ranks, resolve_implementation
from suprank.ranking.ranks.gridded import gridded

__all__ = [
    "Implementation",
    "ImplementationName",
    "Ranks",
    "chunked",
    "definition",
    "gridded",
    "ranks",
    "resolve_implementation",
]
