"""One side of a search: images with their embeddings and labels, and the pictures themselves, read when asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.data.archives import UnreadableArchiveError
from suprank.data.datasets import Broken, ImageDataset, Item

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from PIL.Image import Image

    from suprank.data.manifest import Manifest

_BLOCK_BYTES = 4 * 2**20  # of embeddings that are read at once


class Images:
    """Queries or gallery, a row an image.

    embeddings  `[rows, dim]`, float32 or float16 as stored, memory-mapped where they come from a file
    labels      `[rows, levels]`, finest first: places in `Source.names`; −1 is no label
    items       the manifest of the rows. Its `names` and `labels` number the classes of this side alone: take `labels` here
    ids         what tells that two rows are one image; None where only a row's own number does
    """

    def __init__(
        self, embeddings: NDArray[Any], labels: NDArray[np.int64], items: Manifest, ids: Sequence[str] | None = None
    ) -> None:
        self.embeddings, self.labels, self.items, self.ids = embeddings, labels, items, ids
        self._datasets: dict[int | None, ImageDataset | str] = {}

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def dim(self) -> int:
        return int(self.embeddings.shape[1])

    def unit(self, rows: slice | NDArray[np.int64] | Sequence[int]) -> NDArray[np.float32]:
        """The embeddings of these rows in float32, each of length 1; a row of zeros stays one."""
        found = np.asarray(self.embeddings[rows], np.float32)
        lengths = np.linalg.norm(found, axis=1, keepdims=True).astype(np.float32)
        lengths[lengths == 0] = 1
        return np.divide(found, lengths, dtype=np.float32)

    def blocks(self, rows: int | None = None) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """All rows in turn, `rows` at a time (some megabytes by default): the first one's number, and their `unit`."""
        step = rows or max(1, _BLOCK_BYTES // (4 * self.dim))
        for first in range(0, len(self), step):
            yield first, self.unit(slice(first, first + step))

    def path(self, row: int) -> str:
        """Where the image is, relative to the manifest's root: a file, or `archive.zip::member`."""
        return self.items.paths[row].as_py()

    @cached_property
    def splits(self) -> NDArray[Any]:
        """The split of each row."""
        return np.asarray(self.items.table["split"].to_pylist())

    def picture(self, row: int, at_least: int | None = None) -> Image | Broken:
        """The picture in RGB, upright and cropped to its box; `Broken` says why there is none: deleted, damaged, no image.

        `at_least` lets a large JPEG be decoded at a fraction of its size, its short side having that many pixels or more.
        Use few different ones: each keeps a list of the archives.
        """
        dataset = self._datasets.get(at_least) or self._opened(at_least)
        if isinstance(dataset, str):
            return Broken(row, self.path(row), dataset)
        try:
            found = dataset[row]
        except OSError as error:  # such as of a disk that is gone
            return Broken(row, self.path(row), str(error))
        return found.image if isinstance(found, Item) else found

    def _opened(self, at_least: int | None) -> ImageDataset | str:
        """The pictures, or why none of them can be read."""
        opened: ImageDataset | str
        try:
            opened = ImageDataset(self.items, on_broken="skip", at_least=at_least)
        except (OSError, UnreadableArchiveError) as error:
            return str(error)  # not kept: the folder may come back
        self._datasets[at_least] = opened
        return opened


def levels_between(own: NDArray[np.int64], theirs: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many levels the rows share, from the coarsest on: 0 for a negative, and the number of levels for the same fine class.

    Labels `[..., levels]`, finest first, which broadcast against each other; −1 is shared with nobody.

    Example:
        >>> levels_between(np.array([3, 1]), np.array([[3, 1], [4, 1], [5, 2], [-1, 1], [-1, -1]])).tolist()
        [2, 1, 0, 1, 0]
    """
    shared = (own == theirs) & (own >= 0)
    return np.logical_and.accumulate(shared[..., ::-1], axis=-1).sum(-1)
