"""The separator of several labels in one cell of a table, such as | in dog|person."""

from __future__ import annotations


def check_separator(separator: str) -> str:
    """Return the separator; one that is blank, or has white space around it, is refused.

    Example:
        >>> check_separator("|")
        '|'
    """
    if not separator or separator != separator.strip():
        raise ValueError(
            f"label_separator={separator!r} must be a character or more, without white space, which is removed around labels; "
            f"try '|'."
        )
    return separator
