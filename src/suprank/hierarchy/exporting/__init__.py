"""A reviewed branch as files: a label tree, tables in published columns, new levels of a manifest; and where it came from."""

from suprank.hierarchy.exporting.columns import labeled_manifest
from suprank.hierarchy.exporting.run import FORMATS, Exported, LintErrors, export
from suprank.hierarchy.exporting.trees import label_tree

__all__ = ["FORMATS", "Exported", "LintErrors", "export", "label_tree", "labeled_manifest"]
