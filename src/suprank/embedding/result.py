"""What an embedding run leaves: folders of embeddings with the rows of the manifest they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.data.manifest import Manifest
from suprank.embedding.shards import RECORD, RESULT

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray

ITEMS = "items.parquet"

PARTS = {"train": ("train",), "test": ("test",), "query": ("query",), "gallery": ("gallery", "distractor")}
"""Folders of embeddings, and the splits that go into each: distractors stand in the gallery."""


class EmbeddedPart(NamedTuple):
    """Embeddings `[images, dim]`, on disk unless broken images had to be left out, and their rows; how many were left out."""

    embeddings: NDArray[Any]
    items: Manifest
    broken: int


def read_embedded(out: str | PathLike[str], part: str) -> EmbeddedPart:
    """The part `test`, `query`, `gallery` or `train` of a folder that `embed_collection` filled; broken images left out."""
    folder = Path(out) / part
    if not folder.is_dir():
        there = ", ".join(embedded_parts(out))
        raise FileNotFoundError(f"{folder} is not there: {out} holds {there or 'no embeddings'}; embed that split first.")
    if not (folder / RESULT).is_file() or not (folder / ITEMS).is_file():
        begun = (folder / RECORD).is_file()
        way_out = "the run was interrupted; give the same command again" if begun else "it is no folder of `suprank embed`"
        raise FileNotFoundError(f"{folder} holds no {RESULT} with {ITEMS}: {way_out}.")
    items = Manifest.read(folder / ITEMS)
    embeddings = np.load(folder / RESULT, mmap_mode="r", allow_pickle=False)
    if len(items) != len(embeddings):
        raise ValueError(f"{folder}: {ITEMS} has {len(items):,} rows and {RESULT} {len(embeddings):,}; embed that split again.")
    if "broken" not in items.table.column_names:
        return EmbeddedPart(embeddings, items, 0)
    whole = ~np.asarray(items.table["broken"])
    return EmbeddedPart(np.asarray(embeddings[whole]), items.take(whole), int((~whole).sum()))


def embedded_parts(out: str | PathLike[str]) -> list[str]:
    """The parts that a folder holds whole."""
    return sorted(path.parent.name for path in Path(out).glob(f"*/{ITEMS}") if (path.parent / RESULT).is_file())
