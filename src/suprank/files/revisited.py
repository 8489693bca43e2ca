"""The ground-truth file of revisited Oxford and Paris: `data` imports its images, `evaluation` uses its judgments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.files.plain_pickle import load_plain_pickle
from suprank.files.reading import reading

if TYPE_CHECKING:
    from pathlib import Path

KEYS = ("imlist", "qimlist", "gnd")


class RevisitedFile(NamedTuple):
    """Names of the gallery images and of the queries, and for each query a dictionary with bbx, easy, hard and junk."""

    items: list[str]
    queries: list[str]
    judgments: list[dict[str, Any]]


def read_revisited(path: Path) -> RevisitedFile:
    """Read `gnd_roxford5k.pkl`, `gnd_rparis6k.pkl`, or the same content as `.json`. No code of the pickle is run."""
    if path.suffix.lower() == ".json":
        with reading(path, "ground truth"):
            try:
                content = json.loads(path.read_text(encoding="utf-8-sig"))
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{error.lineno}: this is not JSON: {error.msg}.") from None
    else:
        content = load_plain_pickle(path)
    if not isinstance(content, dict) or not set(KEYS) <= set(content):
        keys = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{path} holds {str(keys)[:200]}, but a revisited ground truth has the keys imlist, qimlist and gnd.")
    items, queries = (_names(content[key], f"{path}: {key}") for key in KEYS[:2])
    judgments = content["gnd"]
    if not isinstance(judgments, list) or not all(isinstance(row, dict) for row in judgments):
        raise ValueError(f"{path}: gnd must be a list with a dictionary for each query.")
    if len(judgments) != len(queries):
        raise ValueError(
            f"{path}: gnd has {len(judgments)} entries and qimlist has {len(queries)}; there must be one per query."
        )
    for query, row in zip(queries, judgments, strict=True):
        if row.get("bbx") is not None and not (abs(np.asarray(row["bbx"], np.float64)) < 2**31).all():
            raise ValueError(f"{path}: bbx of {query!r} has a number that is no pixel of an image.")
    return RevisitedFile(items, queries, judgments)


def _names(names: Any, where: str) -> list[str]:
    names = names.tolist() if isinstance(names, np.ndarray) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where} must be a list of image names, but is {type(names).__name__}.")
    return names
