"""Copy an index to another address: from a folder to a server as a collection grows, between servers, or back to a folder."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.explorer.index.address import TIMEOUT, Address, is_address, open_index, server_class
from suprank.explorer.index.local import LocalIndex
from suprank.explorer.index.protocol import BLOCK_BYTES, Progress, no_progress, recorded_provenance
from suprank.explorer.index.server import refuse_unfinished
from suprank.explorer.index.storage import META

if TYPE_CHECKING:
    from os import PathLike

    from suprank.explorer.index.protocol import Index

_QUERIES, _K = 100, 10


@dataclass(frozen=True)
class CopiedIndex:
    """The new index, and the share of the 10 best items of up to 100 queries that it has in common with the old one."""

    index: Index
    agreement: float


def copy_index(
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    overwrite: bool = False,
    timeout: float = TIMEOUT,
    progress: Progress = no_progress,
    **local: Any,
) -> CopiedIndex:
    """Copy the items of an index, with their ids, vectors, paths, splits, labels and provenance, and compare what both find.

    An interrupted copy to a server goes on where it stopped when called again; one to a folder starts anew and leaves nothing
    behind. The vectors of an approximate folder are those of its codes. `local` are arguments of `LocalIndex.build` (`kind`,
    `codes`, `recall`), if the target is a folder.
    """
    old, new = os.fspath(source), os.fspath(target)
    if _place(old) == _place(new):
        raise ValueError(f"{old} cannot be copied to itself; name another address.")
    if is_address(new) and local:
        raise ValueError(f"{new}: a server chooses the kind, codes and recall of its index itself; leave these out.")
    opened = open_index(old, timeout=timeout)
    try:
        if is_address(new):
            address = Address.parse(new)
            index: Index = server_class(address).build_copy(
                address, opened, overwrite=overwrite, timeout=timeout, progress=progress
            )
        else:
            index = _copy_to_folder(opened, Path(new), overwrite=overwrite, progress=progress, **local)
        return CopiedIndex(index, agreement(opened, index))
    finally:
        opened.close()


def _place(address: str) -> tuple[str | None, ...]:
    """What is equal for two ways to write one address: to overwrite the source would lose it."""
    if not is_address(address):
        return (str(Path(address).resolve()),)
    parsed = Address.parse(address)
    if parsed.file is not None:
        return parsed.server, str(Path(parsed.file).resolve()), parsed.collection
    host = (parsed.url or "").partition("://")[2]
    return parsed.server, re.sub(r"^(127\.0\.0\.1|\[::1\])(?=:)", "localhost", host), parsed.collection


def agreement(one: Index, other: Index, queries: int = _QUERIES) -> float:
    """The share of the 10 best items that two indexes have in common; queries are items drawn at random, always the same."""
    ids = one.ids()
    drawn = one.vectors(np.random.default_rng(0).choice(ids, min(queries, len(ids)), replace=False))
    k = min(_K, len(ids))
    pairs = zip(one.search(drawn, k).ids, other.search(drawn, k).ids, strict=True)
    return sum(len(np.intersect1d(mine, theirs)) for mine, theirs in pairs) / (len(drawn) * k)


def _copy_to_folder(source: Index, folder: Path, *, overwrite: bool, progress: Progress, **local: Any) -> LocalIndex:
    """Build a local index from vectors that are first written to a temporary file beside it, since they may exceed memory."""
    known, ids = source.info(), source.ids()
    refuse_unfinished(known, str(known["address"]))
    if not len(ids):
        raise ValueError(f"{known['address']} has no items, so there is nothing to copy.")
    if (folder / META).is_file() and not overwrite:
        raise FileExistsError(f"{folder} already holds an index; name another folder, or overwrite it (--overwrite).")
    folder.parent.mkdir(parents=True, exist_ok=True)
    step, items = max(1, BLOCK_BYTES // (4 * source.dim)), []
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        vectors = np.lib.format.open_memmap(Path(scratch) / "vectors.npy", "w+", np.float32, (len(ids), source.dim))
        for start in range(0, len(ids), step):
            batch = ids[start : start + step]
            vectors[start : start + step] = source.vectors(batch)
            items += source.items(batch)
            progress(start + len(batch), len(ids))
        local |= {"next_id": int(known.get("next_id", 0)), "made_by": recorded_provenance(known), "overwrite": overwrite}
        return LocalIndex.build(folder, vectors, items, ids=ids, **local)
