"""Tables that people open in a spreadsheet, which would run text that begins like a formula, or print in a terminal."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tabs and line ends, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"  # changes of direction, line ends, surrogates
)
"""Characters that would move the cursor of a terminal, change its colors or hide text."""

# And backslashes that would read as an escape, so that no two texts become the same cell.
_ESCAPED = re.compile(rf"{CONTROL.pattern}|\\(?=u[0-9a-f]{{4}})")
# What spreadsheets take for the beginning of a formula; after apostrophes too, so that no two texts become the same cell.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?|[+-]?(inf|nan)")


def safe_cell(value: object) -> object:
    """The value, with an apostrophe before text that a spreadsheet would run as a formula, and JSON's escapes of `CONTROL`.

    Numbers stay as they are, and so does a lone sign, which people write for "none".

    Example:
        >>> [safe_cell(value) for value in ("=HYPERLINK(...)", "-0.5", -0.5, "@home", "jay", None)]
        ["'=HYPERLINK(...)", '-0.5', -0.5, "'@home", 'jay', None]
    """
    if not isinstance(value, str):
        return value
    text = _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) and text not in ("-", "+") else text


def original_text(cell: str) -> str:
    """The text that `safe_cell` wrote as this cell.

    Example:
        >>> [original_text(safe_cell(text)) for text in ("=1+1", "'=1+1", "-0.5", "'tis", "jay", chr(27))]
        ['=1+1', "'=1+1", '-0.5', "'tis", 'jay', '\\x1b']
    """
    text = cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
    return re.sub(r"\\u(?!d[89a-f])([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), text)  # surrogates are no text


def safe_row(values: Iterable[object]) -> list[object]:
    """`safe_cell` of every value of a row."""
    return [safe_cell(value) for value in values]


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]], *, raw: bool = False) -> str:
    """A CSV table with `safe_cell`s and lines that end in LF; with `raw` every cell is written as it is."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header if raw else safe_row(header))
    writer.writerows(rows if raw else map(safe_row, rows))
    return text.getvalue()


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[object]], *, raw: bool = False) -> bytes:
    """`csv_text` in UTF-8. Bytes of a rejected row that were not UTF-8 are written as escapes (`\\udce9`)."""
    return csv_text(header, rows, raw=raw).encode("utf-8", "backslashreplace")
