"""The same images in two runs, by path: what lets two lists stand side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.explorer.images import Images


class Matching:
    """Rows of one side → rows of the other that are the same image: of the same path, and the same box where there are boxes.

    Made when first asked, for two runs of a million images take a second; runs of one manifest, whose rows are the same, less.
    """

    def __init__(self, one: Images, other: Images) -> None:
        self._one, self._other = one, other
        self._rows: NDArray[np.int64] | None = None
        self._same: bool | None = None

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The other side's rows; −1 where it does not have the image."""
        if self._same is None:
            ours, theirs = _keys(self._one), _keys(self._other)
            if not ours.equals(theirs):
                self._rows = np.asarray(pc.fill_null(pc.index_in(ours, value_set=theirs), -1), np.int64)
            self._same = self._rows is None
        return rows if self._rows is None else self._rows[rows]


def _keys(images: Images) -> pa.Array:
    table = images.items.table
    paths = table["path"].combine_chunks()
    if "box" not in table.column_names:
        return paths.cast(pa.string())
    both = zip(paths.to_pylist(), table["box"].to_pylist(), strict=True)
    return pa.array([f"{path} {box}" for path, box in both], pa.string())
