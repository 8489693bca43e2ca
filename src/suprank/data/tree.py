"""The label tree: which class stands under which, from the finest level up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_PARENT = -1


@dataclass(frozen=True, eq=False)
class LabelTree:
    """Classes of every level, finest first, each with its parent in the next level and its number of images.

    `names[l][i]` is the name of class i of level l; `parents[l][i]` the id of its parent in level l + 1, for all levels but
    the coarsest; `images[l][i]` how many images it has. A class that a subset of a manifest has no image of keeps its id,
    with 0 images and the parent −1.

    Example:
        >>> tree = LabelTree(("species", "family"), (("crow", "jay", "wren"), ("Corvidae", "Troglodytidae")),
        ...                  (np.array([0, 0, 1]),), (np.array([5, 2, 4]), np.array([7, 4])))
        >>> print(tree.text())
        Corvidae  7 images, 2 species
        ├── crow  5
        └── jay  2
        Troglodytidae  4 images, 1 species
        └── wren  4
    """

    levels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    parents: tuple[NDArray[np.int64], ...]
    images: tuple[NDArray[np.int64], ...]

    def path(self, fine: int) -> tuple[str, ...]:
        """The names of a class of the finest level and of all above it; it ends early where a parent is unknown."""
        found, current = [self.names[0][fine]], fine
        for level, parents in enumerate(self.parents, start=1):
            current = int(parents[current])
            if current == NO_PARENT:
                break
            found.append(self.names[level][current])
        return tuple(found)

    def children(self, level: int, parent: int) -> NDArray[np.int64]:
        """The ids in level `level` − 1 that stand under class `parent` of level `level`."""
        if not 1 <= level < len(self.levels):
            raise ValueError(f"level {level} has no level below it; choose from 1 to {len(self.levels) - 1}.")
        return np.flatnonzero(self.parents[level - 1] == parent)

    def text(self, *, most: int | None = None) -> str:
        """The tree drawn with lines, coarsest first, with the number of images and of classes below.

        At most `most` classes are drawn under one parent (and at the top), the largest first; the rest are counted.
        """
        top = len(self.levels) - 1
        lines: list[str] = []
        self._draw(top, np.flatnonzero(self.images[top]), "", most, lines)
        return "\n".join(lines)

    def _draw(self, level: int, ids: NDArray[np.int64], margin: str, most: int | None, lines: list[str]) -> None:
        at_top = level == len(self.levels) - 1
        shown = ids
        if most is not None and len(ids) > most:
            largest = np.argsort(-self.images[level][ids], kind="stable")[:most]
            shown = ids[np.sort(largest)]
        hidden = len(ids) - len(shown)
        for place, one in enumerate(shown):
            last = place == len(shown) - 1 and not hidden
            branch, below = ("", "") if at_top else ("└── ", "    ") if last else ("├── ", "│   ")
            children = self.children(level, int(one)) if level else np.empty(0, np.int64)
            lines.append(f"{margin}{branch}{self.names[level][one]}  {self._size(level, int(one), len(children))}")
            if len(children):
                self._draw(level - 1, children, margin + below, most, lines)
        if hidden:
            lines.append(f"{margin}{'' if at_top else '└── '}... and {hidden:,} more")

    def _size(self, level: int, one: int, children: int) -> str:
        images = f"{self.images[level][one]:,}"
        return f"{images} images, {children:,} {self.levels[level - 1]}" if level else images
