"""One side of a search, queries or gallery: embeddings, labels, and the pictures, which are read on demand."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.data.image_files import ImageFiles
from suprank.data.images import BrokenImage, crop_to_box, decode_image
from suprank.data.members import UnreadableArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from PIL.Image import Image

    from suprank.data.manifest import Manifest
    from suprank.files.sharded_array import Shards

_BLOCK_BYTES = 4 * 2**20  # of embeddings, read at once


class Images:
    """The queries or the gallery, one row per image.

    embeddings  `[rows, dim]`, float32 or float16 as stored; memory-mapped if they come from a file or several
    labels      `[rows, levels]`, finest first: indices into `Source.names`; −1 means no label
    manifest    the manifest of the rows. Its own `names` and `labels` number the classes of this side only: use `labels` here
    ids         rows with the same id are the same image; None if every row is an image of its own
    """

    def __init__(
        self,
        embeddings: NDArray[Any] | Shards,
        labels: NDArray[np.int64],
        manifest: Manifest,
        ids: Sequence[str] | None = None,
    ) -> None:
        self.embeddings, self.labels, self.manifest, self.ids = embeddings, labels, manifest, ids
        self._files: ImageFiles | None = None
        self._opening = Lock()

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def dim(self) -> int:
        return int(self.embeddings.shape[1])

    def unit_embeddings(self, rows: slice | NDArray[np.int64] | Sequence[int]) -> NDArray[np.float32]:
        """The embeddings of these rows in float32, scaled to length 1; a row of zeros stays zero."""
        vectors = np.asarray(self.embeddings[rows], np.float32)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)
        lengths[lengths == 0] = 1
        return np.divide(vectors, lengths, dtype=np.float32)

    def blocks(self, rows: int | None = None) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Go through all rows, `rows` at a time (a few megabytes by default): the first row number and the unit embeddings."""
        step = rows or max(1, _BLOCK_BYTES // (4 * self.dim))
        for first in range(0, len(self), step):
            yield first, self.unit_embeddings(slice(first, first + step))

    def path(self, row: int) -> str:
        """Path of the image relative to the manifest's root: a file, or `archive.zip::member`."""
        return self.manifest.paths[row].as_py()

    @cached_property
    def splits(self) -> NDArray[Any]:
        """The split of each row."""
        return np.asarray(self.manifest.table["split"].to_pylist())

    def picture(self, row: int, min_short_side: int | None = None) -> Image | BrokenImage:
        """The picture in RGB, upright and cropped to its box; `BrokenImage` with the reason if it cannot be read.

        With `min_short_side`, a large JPEG may be decoded at a fraction of its size, its short side keeping at least that many
        pixels.
        """
        path = self.path(row)
        try:
            return self._read(row, path, min_short_side)
        except (ValueError, FileNotFoundError, PermissionError) as error:  # errors of archives and images are ValueErrors
            return BrokenImage(row, path, str(error).removeprefix(f"{path}: "))
        except OSError as error:  # for example a disk that was unmounted
            return BrokenImage(row, path, str(error))

    def list_archives(self) -> None:
        """List the archives of the pictures, so that the first picture need not wait for it; in a thread, if you like."""
        with suppress(OSError, UnreadableArchiveError):  # which the pictures will say
            self._open_files()

    def _read(self, row: int, path: str, min_short_side: int | None) -> Image:
        data, table = (self._files or self._open_files()).read(path), self.manifest.table
        box = table["box"][row].as_py() if "box" in table.column_names else None
        if box is not None:  # in pixels of the whole picture
            return crop_to_box(decode_image(data, path), box, path)
        return decode_image(data, path, min_short_side=min_short_side)

    def _open_files(self) -> ImageFiles:
        """The files of the pictures, with the archives listed; the next call tries again if that fails: they may come back."""
        with self._opening:  # a page asks for dozens of pictures at once, and one thread is to list the archives
            if self._files is None:
                files = ImageFiles(self.manifest.root)
                files.index(self.manifest.paths)
                self._files = files
            return self._files


def shared_levels(own: NDArray[np.int64], theirs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of levels that rows share, counted from the coarsest: 0 for a negative, all levels for the same finest class.

    Labels are `[..., levels]`, finest first, and broadcast against each other; −1 is never shared.

    Example:
        >>> shared_levels(np.array([3, 1]), np.array([[3, 1], [4, 1], [5, 2], [-1, 1], [-1, -1]])).tolist()
        [2, 1, 0, 1, 0]
    """
    shared = (own == theirs) & (own >= 0)
    return np.logical_and.accumulate(shared[..., ::-1], axis=-1).sum(-1)
