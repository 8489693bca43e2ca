"""The mathematics: steps, levels and relevance, ranks, and measures of ranks. Tensors in, tensors out."""

from suprank.ranking.measures import (
    at_least,
    average_precision,
    average_precision_at,
    hierarchical_average_precision,
    hierarchical_precision_at,
    hierarchical_recall_at,
    hit_rate_at,
    ideal_dcg,
    ndcg,
    recall_at,
)
from suprank.ranking.ranks import (
    Implementation,
    ImplementationName,
    Ranks,
    chunked,
    definition,
    gridded,
    ranks,
)
from suprank.ranking.relevance import (
    IGNORED,
    common_level,
    exponential_gain,
    ignoring,
    tree_relevance,
    weighted_ap_relevance,
)
from suprank.ranking.seam import DEVICES
from suprank.ranking.steps import Heaviside, Sigmoid, Step, SupStep, heaviside

if DEVICES:
    import suprank.ranking.gpu  # noqa: F401 (it adds the kernels to the seam)

__all__ = [
    "IGNORED",
    "Heaviside",
    "Implementation",
    "ImplementationName",
    "Ranks",
    "Sigmoid",
    "Step",
    "SupStep",
    "at_least",
    "average_precision",
    "average_precision_at",
    "chunked",
    "common_level",
    "definition",
    "exponential_gain",
    "gridded",
    "heaviside",
    "hierarchical_average_precision",
    "hierarchical_precision_at",
    "hierarchical_recall_at",
    "hit_rate_at",
    "ideal_dcg",
    "ignoring",
    "ndcg",
    "ranks",
    "recall_at",
    "tree_relevance",
    "weighted_ap_relevance",
]
