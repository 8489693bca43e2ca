"""What is probably wrong with a finished tree: names that a reader would stumble over, and shapes that are no hierarchy."""

from suprank.hierarchy.lint.findings import Finding, counted, report
from suprank.hierarchy.lint.run import findings_of, lint_project
from suprank.hierarchy.lint.subjects import Subject, read_subject

__all__ = ["Finding", "Subject", "counted", "findings_of", "lint_project", "read_subject", "report"]
