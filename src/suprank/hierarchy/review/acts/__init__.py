"""What an annotator can do. An act reads the branch as it is and says what changes, or why it cannot be done."""

from suprank.hierarchy.review.acts.groups import Create, Delete, Mark, Merge, Note, Rename, SetParent
from suprank.hierarchy.review.acts.labels import Exclude, Gather, Move, Split
from suprank.hierarchy.review.acts.rules import LONGEST_NAME, LONGEST_TEXT, Act, ConflictError, RefusedError, check_name

__all__ = [
    "LONGEST_NAME",
    "LONGEST_TEXT",
    "Act",
    "ConflictError",
    "Create",
    "Delete",
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
    "check_name",
]
