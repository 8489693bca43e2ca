"""Values as they are written on a command line: which there are between commas, which are the same, and their order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def split_values(text: str) -> list[str]:
    """The values between commas; a comma in quotes or in brackets does not split. Nothing at all is one empty value: `key=`.

    Example:
        >>> split_values('0,0.1'), split_values('[1,2],[4]'), split_values('"a,b"')
        (['0', '0.1'], ['[1,2]', '[4]'], ['"a,b"'])
    """
    values, begun, depth, quote = [], 0, 0, ""
    place = 0
    while place < len(text):
        here = text[place]
        if quote:
            if here == "\\" and quote == '"':
                place += 1  # TOML: a backslash escapes in "..." and is itself in '...'
            elif here == quote:
                quote = ""
        elif here in "\"'":
            quote = here
        elif here in "[{":
            depth += 1
        elif here in "]}":
            depth -= 1
            if depth < 0:
                break
        elif here == "," and depth == 0:
            values.append(text[begun:place])
            begun = place + 1
        place += 1
    if quote or depth:
        raise ValueError(f"{text!r} has a bracket or a quote without its other; close it, or put the value in quotes.")
    values = [value.strip() for value in [*values, text[begun:]]]
    if len(values) > 1 and not all(values):
        raise ValueError(f'{text!r} has an empty value; leave out the comma too many, or write "" for an empty text.')
    return values


def number(value: str) -> float | None:
    """The value as a finite number, if it is one."""
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def meaning(value: str) -> float | str:
    """What all spellings of a value share: 0.1 and 0.10 are one."""
    found = number(value)
    return value if found is None else found


def ordered_values(values: Iterable[str]) -> list[str]:
    """The distinct ones: numbers by size, if all are numbers; else as they came."""
    distinct = list(dict.fromkeys(values))
    numbers = {value: found for value in distinct if (found := number(value)) is not None}
    return sorted(distinct, key=numbers.__getitem__) if len(numbers) == len(distinct) else distinct
