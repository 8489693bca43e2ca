"""Vectors to clusters of labels: k-means or Ward's tree, figures that say how far to trust them, and names to choose from."""

from suprank.hierarchy.clustering.naming import WordCounts, suggested_names
from suprank.hierarchy.clustering.step import ClusterOutcome, cluster_labels
from suprank.hierarchy.clustering.ward import suggested_split

__all__ = [
    "ClusterOutcome",
    "WordCounts",
    "cluster_labels",
    "suggested_names",
    "suggested_split",
]
