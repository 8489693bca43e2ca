"""Identifiers in addresses: an image by run, side and row, a label by level and number, never a file path."""

from __future__ import annotations

import re
from typing import NamedTuple

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
    """A label: its level, 0 the finest, and its number in `RetrievalData.names` of that level.

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
