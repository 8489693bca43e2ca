"""What addresses name: an image by run, side and row, and a label by level and number. No path of a file stands in one."""

from __future__ import annotations

import re
from typing import NamedTuple

RUNS = "ab"
SIDES = ("gallery", "query")


class Place(NamedTuple):
    """An image: of which run (0 or 1), among gallery or queries, in which row."""

    run: int
    side: str
    row: int

    def __str__(self) -> str:
        return f"{RUNS[self.run]}/{self.side}/{self.row}"


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
        """What `str` gave; None for anything else."""
        found = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,9})", text)
        return None if found is None else cls(int(found[1]), int(found[2]))
