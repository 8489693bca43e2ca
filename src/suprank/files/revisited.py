"""The ground-truth file of revisited Oxford and Paris, for who imports its images and for who judges by it.

A top-level module, because `data` and `evaluation` both read the file and know nothing of each other.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.files.plain_pickle import unpickled

if TYPE_CHECKING:
    from pathlib import Path

KEYS = ("imlist", "qimlist", "gnd")


class Content(NamedTuple):
    """Names of the gallery images and of the queries, and for each query a dictionary: bbx, easy, hard, junk."""

    items: list[str]
    queries: list[str]
    judged: list[dict[str, Any]]


def read_content(path: Path) -> Content:
    """`gnd_roxford5k.pkl`, `gnd_rparis6k.pkl`, or the same as `.json`.

    A pickle is a program, and this one is downloaded: it is read by `suprank.files.plain_pickle`, which runs no code.
    """
    if path.suffix.lower() == ".json":
        try:
            content = json.loads(path.read_text(encoding="utf-8-sig"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{error.lineno}: this is not JSON: {error.msg}.") from None
    else:
        content = unpickled(path)
    if not isinstance(content, dict) or not set(KEYS) <= set(content):
        found = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{path} holds {found}, but a revisited ground truth has the keys imlist, qimlist and gnd.")
    items, queries = (_names(content[key], f"{path}: {key}") for key in KEYS[:2])
    judged = content["gnd"]
    if not isinstance(judged, list) or not all(isinstance(row, dict) for row in judged):
        raise ValueError(f"{path}: gnd must be a list with a dictionary for each query.")
    if len(judged) != len(queries):
        raise ValueError(f"{path}: the ground truth judges {len(judged)} queries and names {len(queries)}; one each.")
    return Content(items, queries, judged)


def _names(names: Any, where: str) -> list[str]:
    names = names.tolist() if isinstance(names, np.ndarray) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where} must be a list of image names, but is {type(names).__name__}.")
    return names
