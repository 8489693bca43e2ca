"""Records of what is computed into a folder: a run is continued only if its record is the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_MOST = 3  # entries of a long list that are named
_LONG = 5  # entries of a list that is still shown as it is


def differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """What differs between two records, for an error message; "" if nothing does. A missing entry is None.

    Of hashes the first digits are shown, and of long lists some of the entries that the other list lacks.

    Example:
        >>> differences({"k": 5, "seed": 0}, {"k": 1, "seed": 0})
        'k is 5 and was 1'
        >>> differences({"ids": [1, 2, 3, 4, 5, 7]}, {"ids": [1, 2, 3, 4, 5, 6]})
        'ids is other: 7, where it was 6'
    """
    keys = [key for key in {**now, **before} if now.get(key) != before.get(key)]
    return "; ".join(_difference(key, now.get(key), before.get(key)) for key in keys)


def _difference(key: str, now: Any, before: Any) -> str:
    if isinstance(now, list) and isinstance(before, list) and max(len(now), len(before)) > _LONG:
        new, old = ([one for one in mine if one not in other] for mine, other in ((now, before), (before, now)))
        if new or old:
            return f"{key} is other: {_some(new)}, where it was {_some(old)}"
    return f"{key} is {_short(now)} and was {_short(before)}"


def _some(entries: list[Any]) -> str:
    named = ", ".join(map(repr, entries[:_MOST])) or "nothing"
    return named if len(entries) <= _MOST else f"{named} and {len(entries) - _MOST} more"


def _short(value: Any) -> str:
    """The first digits of a hash; anything else as it is."""
    digits = isinstance(value, str) and re.fullmatch(r"[0-9a-f]{40,}", value)
    return f"{value[:12]}..." if digits else repr(value)
