"""Cluster labels by their vectors with k-means or Ward's method, measure the clusters, and suggest names for them."""

from suprank.hierarchy.clustering.algorithms import cluster_centers, suggested_split
from suprank.hierarchy.clustering.step import ClusterResult, cluster_labels
from suprank.hierarchy.clustering.summary import WordCounts, suggested_names

__all__ = [
    "ClusterResult",
    "WordCounts",
    "cluster_centers",
    "cluster_labels",
    "suggested_names",
    "suggested_split",
]
