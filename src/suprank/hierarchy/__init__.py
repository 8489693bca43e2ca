"""From a flat list of labels to a reviewed hierarchy: types, embed, cluster, review, agree, export."""

from suprank.system.extras import explain_missing_extra

with explain_missing_extra(__name__):
    from suprank.data.tree import LabelTree
    from suprank.hierarchy.clustering import cluster_labels
    from suprank.hierarchy.create import create_project
    from suprank.hierarchy.embedding import embed_labels
    from suprank.hierarchy.project import Project
    from suprank.hierarchy.recipe import Recipe, read_recipe
    from suprank.hierarchy.sources import read_items, read_labels, read_manifest_labels
    from suprank.hierarchy.tree import Group, Hierarchy, Label, read_hierarchy

__all__ = [
    "Group",
    "Hierarchy",
    "Label",
    "LabelTree",
    "Project",
    "Recipe",
    "cluster_labels",
    "create_project",
    "embed_labels",
    "read_hierarchy",
    "read_items",
    "read_labels",
    "read_manifest_labels",
    "read_recipe",
]
