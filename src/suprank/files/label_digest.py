"""`label_digests`: hashes by which two results show that they are about the same items with the same labels."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def label_digests(ids: Sequence[str] | None, levels: Mapping[str, Sequence[str | Iterable[str] | None]]) -> dict[str, str]:
    """The SHA-256 of the (id, names) of all items at each level, sorted by id; without ids, of (position, names).

    Names are stripped and NFC-normalized, and those of a set are sorted; None is no label.
    """
    found = {}
    for level, names in levels.items():
        pairs = sorted(zip(range(len(names)) if ids is None else ids, map(_names, names), strict=True))
        found[level] = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
    return found


def _names(label: str | Iterable[str] | None) -> list[str]:
    several = [] if label is None else [label] if isinstance(label, str) else label
    return sorted(unicodedata.normalize("NFC", name.strip()) for name in several)
