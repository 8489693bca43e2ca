"""Sample pictures of items and labels, from the manifest that the project names. Rows of it stand in addresses, never paths."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from suprank.data.files import Files
from suprank.hierarchy.text import key_of
from suprank.web.pictures import Encoded, Pictures

if TYPE_CHECKING:
    from PIL.Image import Image

    from suprank.data import Manifest
    from suprank.hierarchy.project import Project

SIDE = 120
"""The longest side of a picture, in pixels."""


DECODED = 2
"""Pictures that are decoded at the same time: a page asks for hundreds at once, and a large one takes half a gigabyte."""


class Samples:
    """Rows of a manifest by the name of their label at one level."""

    def __init__(self, manifest: Manifest, level: str, splits: set[str]) -> None:
        """`splits` are those of the project's items: where the manifest has the same, rows of another split are not theirs."""
        if level not in manifest.levels:
            raise ValueError(f"the manifest has no level {level!r}; choose from {', '.join(manifest.levels) or 'none'}.")
        codes = manifest.labels[:, manifest.levels.index(level)]
        self.manifest, self._theirs = manifest, splits
        self._order = np.argsort(codes, kind="stable")
        self._sorted = codes[self._order]
        self._codes = {key_of(name): code for code, name in enumerate(manifest.names[level])}
        self._pictures, self._files = Pictures(), Files(manifest.root)
        self._decoding = threading.Semaphore(DECODED)

    @classmethod
    def of(cls, project: Project) -> Samples | None:
        """Those of the manifest that the project names; None where it names none."""
        from suprank.data import Manifest

        path, level, root = (project.value(key) for key in ("manifest", "manifest_level", "manifest_root"))
        if path is None or level is None:
            return None
        with project.reading() as db:
            splits = {row[0] for row in db.execute("SELECT DISTINCT split FROM item")}
        return cls(Manifest.read(path, root=root), level, splits)

    def rows(self, name: str, split: str | None = None, most: int = 3) -> list[int]:
        """Some rows of a label, or of an item of this split."""
        code = self._codes.get(key_of(name))
        if code is None:
            return []
        first, last = np.searchsorted(self._sorted, [code, code + 1])
        found = (int(row) for row in self._order[first:last] if split is None or self._belongs(int(row), split))
        return list(islice(found, most))

    def picture(self, row: int) -> Encoded:
        """A small picture of a row."""
        return self._pictures.encoded(row, SIDE, lambda: self._read(row))

    def _belongs(self, row: int, split: str) -> bool:
        own = self.manifest.table["split"][row].as_py()
        return own == split or (split not in self.manifest.splits and own not in self._theirs)

    def _read(self, row: int) -> Image | None:
        # Not by an ImageDataset: that takes seconds to import, for torch.
        from suprank.data.images import decoded

        path, table = self.manifest.paths[row].as_py(), self.manifest.table
        box = table["box"][row].as_py() if "box" in table.column_names else None
        try:
            with self._decoding:
                data = self._files.read(path)
                return decoded(data, path, at_least=SIDE) if box is None else decoded(data, path).crop(tuple(map(round, box)))
        except (OSError, ValueError):  # of archives and images: ValueErrors
            return None
