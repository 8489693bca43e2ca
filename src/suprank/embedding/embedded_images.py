"""The images of a part as they were embedded: their rows and labels, and which bytes they had.

out/test/items.parquet         the rows of the manifest
out/test/contents/02048.npy    the bytes of those of the shard that begins with row 2,048: see `suprank.data.contents`
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from suprank.data.columns import PREFIX
from suprank.data.contents import file_stamps, replaced_rows
from suprank.data.manifest import Manifest
from suprank.embedding.shards import ITEMS
from suprank.files.atomic import own_file
from suprank.files.binary import open_npy, write_npy
from suprank.files.labels import label_digests

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

_log = logging.getLogger(__name__)


class EmbeddedImages:
    """The images of a part. `begin` is called before a shard is read, `note` as hashes come, and `save` at the end."""

    def __init__(self, images: Manifest, folder: Path) -> None:
        self.images, self._folder = images, folder
        self._contents = np.zeros((len(images), 4), np.int64)
        self._begun: dict[int, NDArray[np.int64]] = {}

    def begin(self, rows: NDArray[np.int64]) -> None:
        """Look at sizes and times: an image that is replaced from here on has others at the end, and is hashed again then."""
        self._contents[rows, :2] = file_stamps(self.images.take(rows))
        self._begun[int(rows[-1])] = rows

    def note(self, rows: NDArray[np.int64], digests: NDArray[np.int64]) -> None:
        """Note the hashes of rows, and save those of a shard with its last, before its embeddings are there to be saved."""
        self._contents[rows, 2:] = digests
        if (shard := self._begun.pop(int(rows[-1]), None)) is not None:
            self._write(self._file(shard[0]), self._contents[shard])

    def replaced(self, shards: Iterable[int] | None = None) -> str:
        """How many images have other bytes than when they were embedded, and the first; "" if none.

        Only those of `shards` are looked at, if given: the first rows of shards that are there, of which none may be unknown.
        """
        files = sorted((self._folder / "contents").glob("*.npy")) if shards is None else [self._file(row) for row in shards]
        if unknown := [file for file in files if not file.exists()]:
            raise FileNotFoundError(
                f"{unknown[0].parent} lacks {len(unknown):,} of {len(files):,} files, the first {unknown[0].name}, which tell "
                f"the images of a shard; copy them with the shards, or delete the folder to start again."
            )
        found: list[str] = []
        for file in files:
            before = np.array(open_npy(own_file(file)))
            contents = before.copy()
            shard = self.images.take(np.arange(int(file.stem), int(file.stem) + len(contents)))
            found += shard.paths.take(replaced_rows(shard, contents)).to_pylist()
            if (before != contents).any():
                with suppress(OSError):  # a copy: the next time its files are not read again, if it can be written to
                    self._write(file, contents)
        return f"{len(found):,} of {len(self.images):,}, the first {found[0]}" if found else ""

    def save(self, broken: NDArray[np.int64]) -> None:
        """Write the rows, with a column for which images were broken, if any was; say so if labels are others than before."""
        items, file = self.images, own_file(self._folder / ITEMS)
        if "broken" in items.table.column_names or len(broken):  # a column of an earlier run is replaced
            items = items.with_columns(broken=np.isin(np.arange(len(items)), broken))
        if file.exists() and (other := self.other_labels(Manifest.read(file))):
            _log.warning("%s: the labels (%s) are replaced by those of the manifest.", self._folder, ", ".join(other))
        items.save(file)

    def other_labels(self, items: Manifest) -> list[str]:
        """The levels at which the images have other labels than in these rows of the same images."""
        before, after = (
            label_digests(None, {level: rows.table[PREFIX + level].to_pylist() for level in rows.levels})
            for rows in (items, self.images)
        )
        return [level for level in before | after if before.get(level) != after.get(level)]

    def _file(self, first: int) -> Path:
        return self._folder / "contents" / f"{first:05d}.npy"

    def _write(self, file: Path, contents: NDArray[np.int64]) -> None:
        file.parent.mkdir(exist_ok=True)
        write_npy(file, contents)
