"""Cells of tables that people open in a spreadsheet, which takes text that begins like a formula for one, and runs it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# What spreadsheets take for the beginning of a formula; behind apostrophes too, so that no two texts become the same cell.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?|[+-]?(inf|nan)")


def safe_cell(value: object) -> object:
    """The value, with an apostrophe before text that a spreadsheet would run as a formula. Numbers stay as they are,
    and so does a lone sign, which people write for "none".

    Example:
        >>> [safe_cell(value) for value in ("=HYPERLINK(...)", "-0.5", -0.5, "@home", "jay", None)]
        ["'=HYPERLINK(...)", '-0.5', -0.5, "'@home", 'jay', None]
    """
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value) and value not in ("-", "+"):
        return f"'{value}"
    return value


def safe_row(values: Iterable[object]) -> list[object]:
    """A row of `safe_cell`s."""
    return [safe_cell(value) for value in values]
