"""Stored embeddings: a folder for each part, with the rows of the manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.data.manifest import Manifest
from suprank.embedding.shards import ITEMS, RECORD, RESULT, SHARDS, ShardLayout
from suprank.files.atomic import own_file
from suprank.files.binary import open_npy
from suprank.files.sharded_array import NpyFile, Shards
from suprank.files.storage import FolderStorage, check_local

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray

PARTS = {"train": ("train",), "test": ("test",), "query": ("query",), "gallery": ("gallery", "distractor")}
"""The parts, each a folder of embeddings, and the splits in each: distractors belong to the gallery."""


class EmbeddedPart(NamedTuple):
    """Embeddings `[images, dim]`, their rows, and how many broken images were left out.

    Embeddings in one file are memory-mapped, unless broken images were left out. Those in shards are read by slices and row
    numbers, when needed; `np.asarray` loads them.
    """

    embeddings: NDArray[Any] | Shards
    items: Manifest
    broken: int


def read_embedded(out: str | PathLike[str], part: str) -> EmbeddedPart:
    """Read the part `test`, `query`, `gallery` or `train` of a folder of `embed_collection`, without broken images."""
    check_local(out)
    folder = Path(out) / part
    if not folder.is_dir():
        available = ", ".join(embedded_parts(out))
        raise FileNotFoundError(f"{folder} does not exist: {out} has {available or 'no embeddings'}; embed that split first.")
    if not has_embeddings(folder):
        started = (folder / RECORD).is_file()
        reason = "the run was interrupted; give the same command again" if started else "it is not a folder of `suprank embed`"
        raise FileNotFoundError(f"{folder} has no {RESULT} with {ITEMS}: {reason}.")
    items = Manifest.read(folder / ITEMS)
    joined = (folder / RESULT).is_file()
    embeddings = open_npy(folder / RESULT) if joined else _open_shards(folder)
    if len(items) != len(embeddings):
        name = RESULT if joined else SHARDS
        raise ValueError(f"{folder}: {ITEMS} has {len(items):,} rows and {name} {len(embeddings):,}; embed that split again.")
    if "broken" not in items.table.column_names:
        return EmbeddedPart(embeddings, items, 0)
    intact = ~np.asarray(items.table["broken"])
    rows = embeddings.take(intact) if isinstance(embeddings, Shards) else np.asarray(embeddings[intact])
    return EmbeddedPart(rows, items.take(intact), int((~intact).sum()))


def embedded_parts(out: str | PathLike[str]) -> list[str]:
    """The names of the complete parts in a folder."""
    return sorted(path.parent.name for path in Path(out).glob(f"*/{ITEMS}") if has_embeddings(path.parent))


def has_embeddings(folder: Path) -> bool:
    """Whether a part is complete. Items are written when all shards are there; joined, they are one file."""
    return own_file(folder / ITEMS).is_file() and (own_file(folder / RESULT).is_file() or (folder / SHARDS).is_dir())


def _open_shards(folder: Path) -> Shards:
    """The shards of a part, of which none may be missing: a copy may have stopped half-way."""
    try:
        record = json.loads(own_file(folder / RECORD).read_bytes())
        layout = ShardLayout(record["count"], record["dim"], record["shard_rows"], np.dtype(record["dtype"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / RECORD} cannot be read ({error!r}); copy it again, or embed again.") from error
    missing = np.flatnonzero(~layout.complete(FolderStorage(folder).sizes(SHARDS)))
    if len(missing):
        raise FileNotFoundError(
            f"{folder / SHARDS} lacks {len(missing):,} of {layout.shards:,} shards, the first "
            f"{layout.file_name(int(missing[0]))}; copy them again, or give the same `suprank embed` again."
        )
    files = [folder / SHARDS / layout.file_name(shard) for shard in range(layout.shards)]
    return Shards([NpyFile(own_file(file), layout.shape(shard), layout.dtype) for shard, file in enumerate(files)])
