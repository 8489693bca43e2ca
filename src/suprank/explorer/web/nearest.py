"""Search in a gallery: exactly, or by an index whose best results are scored again exactly."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from suprank.explorer.index.address import build_index, open_index
from suprank.explorer.index.kinds import resolve_kind
from suprank.explorer.index.storage import META
from suprank.files.folders import ForeignFilesError

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.explorer.images import Images
    from suprank.explorer.index.protocol import Index
    from suprank.explorer.source import Source

_BLOCK_BYTES = 16 * 2**20
RESCORED = 256
"""Number of an index's results that are scored again, each read from its own position in the file. With all of a thousand, one
search in twenty took 0.6 s on a busy machine."""

_PROBES = 16  # rows searched in an index, to check that it was built from these embeddings


class GallerySearch(Protocol):
    """Finds the images of a gallery with the highest cosines. Safe to call from several threads."""

    @property
    def description(self) -> str:
        """One line for the footer of the page: exact, or approximate with its recall."""

    def nearest(self, query: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows and cosines of the k best for a unit vector, best first, ties by row; fewer if it finds no more."""


class ExactSearch:
    """Compares a query with every embedding, read block by block from where they are stored."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._lengths: NDArray[np.float32] | None = None
        self._lock = threading.Lock()

    @property
    def description(self) -> str:
        return f"exact search among {len(self._images):,} images"

    def nearest(self, query: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        lengths = self._embedding_lengths()
        scores = np.empty(len(self._images), np.float32)
        step = max(1, _BLOCK_BYTES // (4 * self._images.dim))
        for first in range(0, len(scores), step):
            block = np.asarray(self._images.embeddings[first : first + step], np.float32)
            np.matmul(block, query, out=scores[first : first + step])
        scores /= lengths
        chosen = np.arange(len(scores))
        if k < len(scores):
            # Include all ties with the last one and let the row decide, or copies would appear twice or never on the pages of
            # one list.
            chosen = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
        rows, found = _sorted_by_score(chosen, scores[chosen])
        return rows[:k], found[:k]

    def _embedding_lengths(self) -> NDArray[np.float32]:
        """The length of every embedding; 1 for a zero embedding."""
        with self._lock:
            if self._lengths is None:
                found = np.empty(len(self._images), np.float32)
                step = max(1, _BLOCK_BYTES // (4 * self._images.dim))
                for first in range(0, len(found), step):
                    block = np.asarray(self._images.embeddings[first : first + step], np.float32)
                    found[first : first + step] = np.sqrt(np.einsum("ij,ij->i", block, block))
                self._lengths = np.where(found > 0, found, 1).astype(np.float32)
            return self._lengths


class IndexedSearch:
    """Searches an index of the gallery whose ids are row numbers; the first `RESCORED` results are scored again exactly.

    Raises ValueError if the index has another size, or does not find rows by their own embeddings: then it belongs to another
    model or an earlier state of the gallery.
    """

    def __init__(self, images: Images, index: Index) -> None:
        self._images, self._index = images, index
        self._info: dict[str, Any] = index.info()
        if (len(index), index.dim) != (len(images), images.dim):
            raise ValueError(
                f"the index {self._address} holds {len(index):,} items of {index.dim} dimensions, but the gallery has "
                f"{len(images):,} of {images.dim}; build the index from these embeddings."
            )
        rows = np.unique(np.linspace(0, len(images) - 1, _PROBES).round().astype(np.int64))
        found = index.search(images.unit_embeddings(rows), 1)
        # The image itself, or a copy.
        same = np.abs((images.unit_embeddings(rows) * images.unit_embeddings(np.maximum(found.ids[:, 0], 0))).sum(1)) > 0.99
        if same.mean() < 0.75:
            raise ValueError(f"the index {self._address} was built from other embeddings; build it again from these.")

    @property
    def _address(self) -> str:
        return str(self._info.get("address", ""))

    @property
    def description(self) -> str:
        kind, recall = self._info.get("kind", "?"), self._info.get("recall")
        if kind == "exact":
            return f"exact search among {len(self._images):,} images"
        measured = f"{kind}, unknown recall"
        if recall is not None:
            measured = f"{kind}, finds {recall['value']:.1%} of the {recall['at']} nearest"
        return f"approximate search ({measured}) among {len(self._images):,} images"

    def nearest(self, query: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        found = self._index.search(query[None], k)
        valid = (found.ids[0] >= 0) & (found.ids[0] < len(self._images))
        rows, scores = np.asarray(found.ids[0][valid], np.int64), np.asarray(found.scores[0][valid], np.float32)
        first = np.sort(rows[:RESCORED])  # in file order
        own, exact = _sorted_by_score(first, self._images.unit_embeddings(first) @ query)
        # The rest keeps the scores of the index, capped so that scores never increase down the list.
        return np.concatenate([own, rows[RESCORED:]]), np.concatenate(
            [exact, np.minimum(scores[RESCORED:], exact.min(initial=1))]
        )


def open_search(
    source: Source,
    address: str | PathLike[str] | None = None,
    *,
    index_folder: str | PathLike[str],
    progress: Callable[[int, int], None] = lambda done, total: None,
    warn: Callable[[str], None] = warnings.warn,
) -> GallerySearch:
    """Choose how the gallery of a source is searched: by the index at `address` if given, else exactly if it is small enough.

    For a large gallery without an address, an index is built once in `index_folder` and opened from there the next time. If
    that is not possible, `warn` says why, and the gallery is searched exactly.
    """
    gallery = source.gallery
    if address is not None:
        return IndexedSearch(gallery, open_index(address))
    if resolve_kind("auto", len(gallery), gallery.dim) == "exact":
        return ExactSearch(gallery)
    try:
        if (Path(index_folder) / META).is_file():
            try:
                return IndexedSearch(gallery, open_index(index_folder))
            except ValueError as error:
                warn(f"{error} It is being rebuilt.")
        return IndexedSearch(gallery, build_index(index_folder, gallery.embeddings, overwrite=True, progress=progress))
    except (OSError, ForeignFilesError) as error:
        warn(f"every search compares all {len(gallery):,} images, because no index can be stored: {error}")
        return ExactSearch(gallery)


def _sorted_by_score(rows: NDArray[np.int64], scores: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    order = np.lexsort((rows, -scores))
    return rows[order], scores[order]
