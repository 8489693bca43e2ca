"""Digests of labels, to tell whether two results or two states of a collection have the same."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def label_digests(ids: Sequence[str] | None, levels: Mapping[str, Sequence[str | None]]) -> dict[str, str]:
    """The SHA-256 of each level: of its (id, name) sorted by id, or without ids in their order.

    Names are stripped and NFC-normalized; None is no label, and a set of names is sorted.

    Example:
        >>> label_digests(["b", "a"], {"x": ["2", " 1"]}) == label_digests(["a", "b"], {"x": ["1", "2"]})
        True
    """
    digests = {}
    for level, names in levels.items():
        rows = [(str(key), _normalized(name)) for key, name in zip(ids or range(len(names)), names, strict=True)]
        lines = [json.dumps(row) for row in rows]
        digests[level] = hashlib.sha256("\n".join(lines if ids is None else sorted(lines)).encode()).hexdigest()
    return digests


def _normalized(name: Any) -> Any:
    if name is None or isinstance(name, str):
        return None if name is None else unicodedata.normalize("NFC", name).strip()
    return sorted(_normalized(one) for one in name)
