"""Review a hierarchy: annotators' branches, the actions they can take, and the web pages they work on.

Annotators refine the clusters in a browser; two can work independently, so that their agreement can be measured.
"""

from suprank.hierarchy.review.actions import (
    ConflictError,
    Create,
    Delete,
    Exclude,
    Gather,
    Mark,
    Merge,
    Move,
    Note,
    RefusedError,
    Rename,
    SetParent,
    Split,
)
from suprank.hierarchy.review.branch import Branch, Event
from suprank.hierarchy.review.opening import open_branch

__all__ = [
    "Branch",
    "ConflictError",
    "Create",
    "Delete",
    "Event",
    "Exclude",
    "Gather",
    "Mark",
    "Merge",
    "Move",
    "Note",
    "RefusedError",
    "Rename",
    "SetParent",
    "Split",
    "open_branch",
]
