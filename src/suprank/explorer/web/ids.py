"""Identifiers in addresses: an image by run, side and row, a label by level and number, never a file path. And the same image
in two runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import Items


RUNS = "ab"
SIDES = ("gallery", "query")


class ImageId(NamedTuple):
    """An image: its run (0 or 1), its side (gallery or query) and its row.

    Example:
        >>> str(ImageId(0, "query", 12)), ImageId.parse("a/query/12"), ImageId.parse("a/train/12")
        ('a/query/12', ImageId(run=0, side='query', row=12), None)
    """

    run: int
    side: str
    row: int

    def __str__(self) -> str:
        return f"{RUNS[self.run]}/{self.side}/{self.row}"

    @classmethod
    def parse(cls, text: str) -> ImageId | None:
        """Parse what `str` returned; None for anything else."""
        found = re.fullmatch(rf"([{RUNS}])/({'|'.join(SIDES)})/([0-9]{{1,12}})", text)
        return None if found is None else cls(RUNS.index(found[1]), found[2], int(found[3]))


class Node(NamedTuple):
    """A label: its level, 0 the finest, and its number in `Source.names` of that level.

    Example:
        >>> str(Node(1, 12)), Node.parse("1.12"), Node.parse("1.x"), Node.parse("")
        ('1.12', Node(level=1, label=12), None, None)
    """

    level: int
    label: int

    def __str__(self) -> str:
        return f"{self.level}.{self.label}"

    @classmethod
    def parse(cls, text: str) -> Node | None:
        """Parse what `str` returned; None for anything else."""
        found = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,9})", text)
        return None if found is None else cls(int(found[1]), int(found[2]))


class ImageMatching:
    """Maps rows of one run to the rows of the same images in the other: same path, and same box if there are boxes.

    It is computed on first use: for two runs of a million images this takes a second, less if both have the same rows.
    """

    def __init__(self, one: Items, other: Items) -> None:
        self._one, self._other = one, other
        self._rows: NDArray[np.int64] | None = None
        self._same: bool | None = None

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows in the other run; −1 if it does not have the image."""
        if self._same is None:
            ours, theirs = (pa.array(one.manifest.keys, pa.string()) for one in (self._one, self._other))
            if not ours.equals(theirs):
                self._rows = np.asarray(pc.fill_null(pc.index_in(ours, value_set=theirs), -1), np.int64)
            self._same = self._rows is None
        return rows if self._rows is None else self._rows[rows]
