"""Manifests of queries and galleries: joined into one, filtered, and texts by which an image is recognized in another one."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from suprank.data.columns import decode_dictionaries
from suprank.data.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


def join_manifests(manifests: Sequence[Manifest]) -> Manifest:
    """Concatenate manifests, keeping the columns that all have; if their roots differ, the new root contains all of them."""
    roots = [items.root.resolve() for items in manifests]
    root = roots[0] if len(set(roots)) == 1 else Path(os.path.commonpath(roots))
    first = manifests[0]
    columns = [name for name in first.table.column_names if all(name in items.table.column_names for items in manifests)]
    tables = []
    for own, items in zip(roots, manifests, strict=True):
        inside = "" if own == root else f"{own.relative_to(root).as_posix()}/"
        table = items.table.select(columns)
        paths = pa.array([inside + path for path in items.paths.to_pylist()])
        tables.append(decode_dictionaries(table.set_column(columns.index("path"), "path", paths)))
    levels = [level for level in first.levels if f"label_{level}" in columns]
    return Manifest.from_columns(pa.concat_tables(tables, promote_options="permissive"), root=root, levels=levels)


def matching_rows(manifest: Manifest, where: Mapping[str, Sequence[str]], about: str) -> NDArray[np.bool_]:
    """Mask of the rows that match every key of a filter, `split` or a level, by one of its names; errors call them `about`."""
    mask = np.ones(len(manifest), bool)
    for key, wanted in where.items():
        if key != "split" and key not in manifest.levels:
            raise ValueError(f"{about} has no level {key!r}; choose from {', '.join((*manifest.levels, 'split'))}.")
        column = manifest.table["split" if key == "split" else f"label_{key}"].combine_chunks()
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        names = np.array([*coded.dictionary.to_pylist(), None], object)
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        known = set(names[np.unique(codes)]) - {None}
        for name in (name for name in wanted if name not in known):
            near = difflib.get_close_matches(name, known, cutoff=0.5) or sorted(known)[:3]
            raise ValueError(f"{about} has no item with {key}={name}; the nearest names are {', '.join(near) or 'none'}.")
        mask &= np.isin(names, [*wanted])[codes]
    return mask


def box_text(box: Sequence[float] | None) -> str:
    """A box as a manifest in CSV writes it; empty for none.

    Example:
        >>> box_text([0.0, 1.5, 20.0, 30.0]), box_text(None)
        ('0 1.5 20 30', '')
    """
    return "" if box is None else " ".join(f"{number:.9g}" for number in box)


def path_keys(manifest: Manifest) -> pa.ChunkedArray:
    """A text for each image of a manifest: its path, followed by its box if it has one."""
    table = manifest.table
    if "box" not in table.column_names:
        return table["path"].cast(pa.string())
    both = zip(table["path"].to_pylist(), table["box"].to_pylist(), strict=True)
    return pa.chunked_array([pa.array([path_key(path, box_text(box)) for path, box in both], pa.string())])


def path_key(path: str, box: str) -> str:
    """The text of `path_keys` for an image whose box is written by `box_text`."""
    return f"{path} [{box}]" if box else path
