"""The rows of a manifest that a filter chooses."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from suprank.data.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


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
