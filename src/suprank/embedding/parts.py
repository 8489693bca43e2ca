"""Stored embeddings: a folder for each part, with the rows of the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.data.manifest import Manifest
from suprank.embedding.shards import ITEMS
from suprank.evaluation.provenance import RECORD, RESULT
from suprank.files.atomic import own_file
from suprank.files.binary import open_npy
from suprank.files.sharded_array import NpyFile, Shards

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray

PARTS = {"train": ("train",), "test": ("test",), "query": ("query",), "gallery": ("gallery", "distractor")}
"""The parts, each a folder of embeddings, and the splits in each: distractors belong to the gallery."""


class EmbeddedPart(NamedTuple):
    """Embeddings `[images, dim]`, their rows, and how many broken images were left out.

    Embeddings are memory-mapped. If broken images were left out, they are read by slices and row numbers, when needed;
    `np.asarray` loads them.
    """

    embeddings: NDArray[Any] | Shards
    items: Manifest
    broken: int


def read_embedded(out: str | PathLike[str], part: str) -> EmbeddedPart:
    """Read the part `test`, `query`, `gallery` or `train` of a folder of `embed_collection`, without broken images."""
    folder = Path(out) / part
    if not folder.is_dir():
        available = ", ".join(embedded_parts(out))
        raise FileNotFoundError(f"{folder} does not exist: {out} has {available or 'no embeddings'}; embed that split first.")
    if not has_embeddings(folder):
        started = (folder / RECORD).is_file()
        interrupted = "embedding was interrupted; give its `suprank embed` again, without a shard"
        reason = interrupted if started else "it is not a folder of `suprank embed`"
        raise FileNotFoundError(f"{folder} has no {RESULT} with {ITEMS}: {reason}.")
    items = Manifest.read(folder / ITEMS)
    embeddings = open_npy(folder / RESULT)
    if len(items) != len(embeddings):
        raise ValueError(f"{folder}: {ITEMS} has {len(items):,} rows and {RESULT} {len(embeddings):,}; embed that split again.")
    if "broken" not in items.table.column_names:
        return EmbeddedPart(embeddings, items, 0)
    intact = ~np.asarray(items.table["broken"])
    rows = Shards([NpyFile(folder / RESULT, embeddings.shape, embeddings.dtype)])
    return EmbeddedPart(rows.take(intact), items.take(intact), int((~intact).sum()))


def embedded_parts(out: str | PathLike[str]) -> list[str]:
    """The names of the complete parts in a folder."""
    return sorted(path.parent.name for path in Path(out).glob(f"*/{ITEMS}") if has_embeddings(path.parent))


def has_embeddings(folder: Path) -> bool:
    """Whether a part is complete: items are written last."""
    return own_file(folder / ITEMS).is_file() and own_file(folder / RESULT).is_file()
