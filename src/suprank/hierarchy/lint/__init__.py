"""Check a hierarchy for likely mistakes: confusing names, misplaced groups, extreme sizes, unfinished work."""

from suprank.hierarchy.lint.findings import Finding, format_findings, severity_counts
from suprank.hierarchy.lint.run import lint_project, lint_tree

__all__ = ["Finding", "format_findings", "lint_project", "lint_tree", "severity_counts"]
