"""Check a hierarchy for likely mistakes: confusing names, misplaced groups, extreme sizes, unfinished work."""

from suprank.hierarchy.lint.findings import Finding, format_findings, severity_counts
from suprank.hierarchy.lint.run import LintTarget, lint_project, lint_target, read_target

__all__ = ["Finding", "LintTarget", "format_findings", "lint_project", "lint_target", "read_target", "severity_counts"]
