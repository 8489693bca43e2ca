"""Adjudication: what two annotators disagree on is decided, one by one or many at once, on the branch `final`."""

from suprank.hierarchy.adjudication.decisions import Adjudication, AdjudicationStatus, Case, Choice, Decision
from suprank.hierarchy.adjudication.final_branch import Origin, open_final_branch, read_origin

__all__ = [
    "Adjudication",
    "AdjudicationStatus",
    "Case",
    "Choice",
    "Decision",
    "Origin",
    "open_final_branch",
    "read_origin",
]
