"""What finds the nearest images of a gallery: every one compared, or an index asked and its answer scored again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.explorer.images import Images
    from suprank.explorer.index.protocol import Index

_BLOCK_BYTES = 16 * 2**20
EXACTLY = 256
"""So many of what an index finds are scored again, each read from its own place in the file. With all of a thousand, one search
in twenty took 0.6 s on a busy machine."""

_TRIED = 16  # rows that an index is asked for, to know that it is of these embeddings


class Nearest(Protocol):
    """What finds the images of a gallery with the highest cosines. Threads may ask at once."""

    @property
    def told(self) -> str:
        """What it is, for the foot of the page: exact, or approximate and with which recall."""

    def nearest(self, query: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows and cosines of the k best for a vector of length 1, best first, equals by row; fewer where it finds no more."""


class Exact:
    """Compares a query with every embedding, read from where they are, a block at a time."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._lengths: NDArray[np.float32] | None = None
        self._lock = threading.Lock()

    @property
    def told(self) -> str:
        return f"exact search among {len(self._images):,} images"

    def nearest(self, query: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        lengths = self._measured()
        scores = np.empty(len(self._images), np.float32)
        step = max(1, _BLOCK_BYTES // (4 * self._images.dim))
        for first in range(0, len(scores), step):
            block = np.asarray(self._images.embeddings[first : first + step], np.float32)
            np.matmul(block, query, out=scores[first : first + step])
        scores /= lengths
        chosen = np.arange(len(scores))
        if k < len(scores):
            # All that equal the last: which of them are in is for their rows to say, or copies would come twice, or never, on
            # the pages of one list.
            chosen = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
        rows, found = _ordered(chosen, scores[chosen])
        return rows[:k], found[:k]

    def _measured(self) -> NDArray[np.float32]:
        """The length of every embedding; 1 for zeros."""
        with self._lock:
            if self._lengths is None:
                found = np.empty(len(self._images), np.float32)
                step = max(1, _BLOCK_BYTES // (4 * self._images.dim))
                for first in range(0, len(found), step):
                    block = np.asarray(self._images.embeddings[first : first + step], np.float32)
                    found[first : first + step] = np.sqrt(np.einsum("ij,ij->i", block, block))
                self._lengths = np.where(found > 0, found, 1).astype(np.float32)
            return self._lengths


class Indexed:
    """Asks an index of the gallery, whose ids are rows; the first `EXACTLY` are ordered by their embeddings' own cosines.

    An index of another number of rows or dimensions, or one that does not find rows by their own embeddings, is refused: it is
    of another model, or of an earlier state.
    """

    def __init__(self, images: Images, index: Index) -> None:
        self._images, self._index = images, index
        self._info: dict[str, Any] = index.info()
        if (len(index), index.dim) != (len(images), images.dim):
            raise ValueError(
                f"the index {self._address} holds {len(index):,} items of {index.dim} dimensions, and the gallery has "
                f"{len(images):,} of {images.dim}; build it again, from these embeddings."
            )
        rows = np.unique(np.linspace(0, len(images) - 1, _TRIED).round().astype(np.int64))
        found = index.search(images.unit(rows), 1)
        same = np.abs((images.unit(rows) * images.unit(np.maximum(found.ids[:, 0], 0))).sum(1)) > 0.99  # itself, or a copy
        if same.mean() < 0.75:
            raise ValueError(f"the index {self._address} is of other embeddings than these; build it again.")

    @property
    def _address(self) -> str:
        return str(self._info.get("address", ""))

    @property
    def told(self) -> str:
        kind, recall = self._info.get("kind", "?"), self._info.get("recall")
        if kind == "exact":
            return f"exact search among {len(self._images):,} images"
        measured = f"{kind}, of unknown recall"
        if recall is not None:
            measured = f"{kind}, finds {recall['value']:.1%} of the {recall['at']} nearest"
        return f"approximate search ({measured}) among {len(self._images):,} images"

    def nearest(self, query: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        found = self._index.search(query[None], k)
        there = (found.ids[0] >= 0) & (found.ids[0] < len(self._images))
        rows, scores = np.asarray(found.ids[0][there], np.int64), np.asarray(found.scores[0][there], np.float32)
        first = np.sort(rows[:EXACTLY])  # in the order of the file
        own, exact = _ordered(first, self._images.unit(first) @ query)
        # What comes after keeps its codes' scores, but none above the last: a list falls.
        return np.concatenate([own, rows[EXACTLY:]]), np.concatenate(
            [exact, np.minimum(scores[EXACTLY:], exact.min(initial=1))]
        )


def _ordered(rows: NDArray[np.int64], scores: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    order = np.lexsort((rows, -scores))
    return rows[order], scores[order]
