"""The label tree: the parent of every class, from the finest level up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.files.atomic import write_atomically
from suprank.files.reading import reading

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray

NO_PARENT = -1
FORMAT = "suprank.label-tree"
VERSION = 1


@dataclass(frozen=True, eq=False)
class LabelTree:
    """The classes of every level, finest first, with their parents at the next level and their numbers of images.

    `names[l][i]` is the name of class i of level l; `parents[l][i]` the id of its parent in level l + 1, for all levels but
    the coarsest; `images[l][i]` its number of images. A class without images in a subset of a manifest keeps its id, with 0
    images and the parent −1.

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

    @classmethod
    def from_json(cls, text: str, *, about: str = "the label tree") -> LabelTree:
        """Read and check a tree that `to_json` wrote; errors call it `about`."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{about} is not JSON: {error}.") from None
        levels, names, parents, images = zip(*_levels(content, about), strict=True)
        ids = [{name: index for index, name in enumerate(level)} for level in names]
        parent_ids = []
        for level, above in enumerate(ids[1:]):
            for name, parent in zip(names[level], parents[level], strict=True):
                if parent is not None and parent not in above:
                    raise ValueError(
                        f"{about}: {levels[level]} {name!r} stands under {parent!r}, which is not a {levels[level + 1]}."
                    )
            parent_ids.append(np.array([NO_PARENT if one is None else above[one] for one in parents[level]], np.int64))
        return cls(levels, names, tuple(parent_ids), tuple(np.array(counts, np.int64) for counts in images))

    @classmethod
    def read(cls, path: str | PathLike[str]) -> LabelTree:
        """Read a tree from a .json file."""
        with reading(path, "label tree"):
            return cls.from_json(Path(path).read_text(encoding="utf-8-sig"), about=str(path))

    def to_json(self) -> str:
        """The tree as JSON, one line per class; the same tree gives the same bytes.

        An object with `format` "suprank.label-tree", `version` 1 and `levels`, finest first. A level has its `name` and its
        `classes`; the index of a class in that list is its id. A class has a `name`, unique in its level, its number of
        `images`, and below the coarsest level its `parent`: the name of a class of the next level, or null if that is unknown.
        """
        lines = ["{", f' "format": "{FORMAT}",', f' "version": {VERSION},', ' "levels": [']
        for level, name in enumerate(self.levels):
            lines.append(f'  {{"name": {_text(name)}, "classes": [')
            lines.append(",\n".join(self._classes(level)))
            lines.append("  ]}" + ("," if level < len(self.levels) - 1 else ""))
        return "\n".join((*lines, " ]", "}", ""))

    def save(self, path: str | PathLike[str]) -> None:
        """Write `to_json` to a file, atomically."""
        write_atomically(Path(path), self.to_json().encode())

    def _classes(self, level: int) -> Iterator[str]:
        for place, name in enumerate(self.names[level]):
            entry = f'   {{"name": {_text(name)}, '
            if level < len(self.levels) - 1:
                parent = int(self.parents[level][place])
                entry += f'"parent": {_text(None if parent == NO_PARENT else self.names[level + 1][parent])}, '
            yield f'{entry}"images": {int(self.images[level][place])}}}'

    def path(self, fine: int) -> tuple[str, ...]:
        """The names of a class of the finest level and of its ancestors, up to the first unknown parent."""
        names, current = [self.names[0][fine]], fine
        for level, parents in enumerate(self.parents, start=1):
            current = int(parents[current])
            if current == NO_PARENT:
                break
            names.append(self.names[level][current])
        return tuple(names)

    def children(self, level: int, parent: int) -> NDArray[np.int64]:
        """The ids at level `level` − 1 of the children of class `parent` of level `level`."""
        if not 1 <= level < len(self.levels):
            raise ValueError(f"level {level} has no level below it; choose from 1 to {len(self.levels) - 1}.")
        order, starts = self._by_parent[level - 1]
        return order[starts[parent] : starts[parent + 1]]

    @cached_property
    def _by_parent(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """For every level but the coarsest: its ids sorted by parent, and the place at which the children of each begin."""
        sorted_levels = []
        for parents, above in zip(self.parents, self.names[1:], strict=True):
            order = np.argsort(parents, kind="stable")
            sorted_levels.append((order, np.searchsorted(parents[order], np.arange(len(above) + 1))))
        return sorted_levels

    def text(self, *, most: int | None = None) -> str:
        """The tree drawn in text, coarsest first, with the numbers of images and of children.

        At most `most` classes are shown under one parent (and at the top), the largest; the rest are counted.
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


def _text(value: str | None) -> str:
    return json.dumps(value, ensure_ascii=False)


def _levels(content: Any, about: str) -> Iterator[tuple[str, tuple[str, ...], tuple[str | None, ...], tuple[int, ...]]]:
    """(name, names, parents, images) of each level, checked: the file may come from anybody."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'{about} is not a label tree; it must be an object with "format": "{FORMAT}".')
    if content.get("version") != VERSION:
        raise ValueError(f"{about} has version {content.get('version')!r}, and this suprank reads {VERSION}; update suprank.")
    levels = content.get("levels")
    if not isinstance(levels, list) or not levels:
        raise ValueError(f"{about}: levels must be a list of one level or more, finest first.")
    seen: set[str] = set()
    for number, level in enumerate(levels):
        if not isinstance(level, dict) or not isinstance(level.get("name"), str) or not isinstance(level.get("classes"), list):
            raise ValueError(f"{about}: level {number} must have a name and a list of classes.")
        name = level["name"]
        if name in seen:
            raise ValueError(f"{about} has two levels called {name!r}; rename one.")
        seen.add(name)
        yield name, *_columns(level["classes"], name, number == len(levels) - 1, about)


def _columns(
    classes: list[Any], level: str, coarsest: bool, about: str
) -> tuple[tuple[str, ...], tuple[str | None, ...], tuple[int, ...]]:
    """Names, parents and images of the classes of a level."""
    names: dict[str, None] = {}
    parents, images = [], []
    for number, one in enumerate(classes):
        where = f"{about}: class {number} of {level}"
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not one["name"]:
            raise ValueError(f"{where} must have a name.")
        if one["name"] in names:
            raise ValueError(f"{about} has two classes of {level} called {one['name']!r}; rename one.")
        if ("parent" in one) == coarsest or not isinstance(one.get("parent"), str | None):
            rule = "must have no parent: its level is the coarsest" if coarsest else "must have a parent: a name, or null"
            raise ValueError(f"{where} ({one['name']!r}) {rule}.")
        count = one.get("images")
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 2**63:
            raise ValueError(f"{where} ({one['name']!r}): images is {count!r}, but must be a whole number, 0 or more.")
        names[one["name"]] = None
        parents.append(one.get("parent"))
        images.append(count)
    return tuple(names), tuple(parents), tuple(images)
