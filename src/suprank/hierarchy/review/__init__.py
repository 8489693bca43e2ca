"""Review: branches of annotators, what they can do on them, and the page on which they do it."""

from suprank.hierarchy.review.acts import (
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
from suprank.hierarchy.review.starting import opened_branch

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
    "opened_branch",
]
