"""The images of a part as they were embedded: their rows and labels, and which bytes they had.

out/test/items.parquet         the rows of the manifest
out/test/contents/02048.npy    the bytes of those of the shard that begins with row 2,048: see `suprank.data.contents`
"""

from __future__ import annotations

import io
import logging
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from suprank.data.columns import PREFIX
from suprank.data.contents import file_stamps, replaced_rows
from suprank.data.manifest import Manifest
from suprank.embedding.shards import ITEMS
from suprank.files.label_digest import label_digests

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.files.storage import Storage

_log = logging.getLogger(__name__)


class EmbeddedImages:
    """The images of a part. `begin` is called before a shard is read, `note` as hashes come, and `save` at the end."""

    def __init__(self, images: Manifest, storage: Storage, part: str) -> None:
        self.images, self._storage, self._part = images, storage, part
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
            self._write(f"{shard[0]:05d}.npy", self._contents[shard])

    def replaced(self) -> str:
        """How many images have other bytes than when they were embedded, and the first; "" if none. Older parts do not know."""
        found: list[str] = []
        for name in sorted(self._storage.sizes(f"{self._part}/contents")):
            contents = np.load(io.BytesIO(self._storage.read(f"{self._part}/contents/{name}") or b""))
            shard = self.images.take(np.arange(int(name[:-4]), int(name[:-4]) + len(contents)))
            before = contents.copy()
            found += shard.paths.take(replaced_rows(shard, contents)).to_pylist()
            if (before != contents).any():
                with suppress(OSError):  # a copy: the next time its files are not read again, if it can be written to
                    self._write(name, contents)
        return f"{len(found):,} of {len(self.images):,}, the first {found[0]}" if found else ""

    def save(self, broken: NDArray[np.int64]) -> None:
        """Write the rows, with a column for which images were broken, if any was; say so if labels are others than before."""
        items = self.images
        if "broken" in items.table.column_names or len(broken):  # a column of an earlier run is replaced
            items = items.with_columns(broken=np.isin(np.arange(len(items)), broken))
        with tempfile.TemporaryDirectory() as folder:
            old, new = Path(folder) / f"old-{ITEMS}", Path(folder) / ITEMS
            if (content := self._storage.read(f"{self._part}/{ITEMS}")) is not None:
                old.write_bytes(content)
                if other := self.other_labels(Manifest.read(old)):
                    where = self._storage.address(self._part)
                    _log.warning("%s: the labels (%s) are replaced by those of the manifest.", where, ", ".join(other))
            items.save(new)
            self._storage.write(f"{self._part}/{ITEMS}", new.read_bytes())

    def other_labels(self, items: Manifest) -> list[str]:
        """The levels at which the images have other labels than in these rows of the same images."""
        before, after = (
            label_digests(None, {level: rows.table[PREFIX + level].to_pylist() for level in rows.levels})
            for rows in (items, self.images)
        )
        return [level for level in before | after if before.get(level) != after.get(level)]

    def _write(self, name: str, contents: NDArray[np.int64]) -> None:
        file = io.BytesIO()
        np.save(file, contents)
        self._storage.write(f"{self._part}/contents/{name}", file.getvalue())
