"""The scores of a block of queries, as whole rows or in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.evaluation.search import Search


class ScoreBlock:
    """Scores of a block of queries: whole rows, which stay in memory, or pieces, which are computed anew each time."""

    def __init__(self, search: Search, rows: NDArray[np.int64], embeddings: Tensor):
        self.search, self.rows = search, rows
        self._embeddings = embeddings
        self._scores: Tensor | None = None

    @property
    def in_memory(self) -> bool:
        """Whether changes to the scores last until they are read again."""
        return self.search.whole

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """The number of the first item, and the scores from there on, `[queries, items]`, which may be written to."""
        if not self.in_memory:
            yield from ((which.start, piece) for which, piece in self._pieces() if isinstance(which, slice))
            return
        if self._scores is None:
            self._scores = self._whole_rows()
        yield 0, self._scores

    def _pieces(self) -> Iterator[tuple[slice | Tensor, Tensor]]:
        for which, items, number in self.search.chunks():
            yield which, self.search.shared_product(self._embeddings, items, number)[: len(self.rows)]

    def _whole_rows(self) -> Tensor:
        if self.search.resident:
            ((_, piece),) = self._pieces()
            return piece
        scores = self.search.buffer("rows", len(self.rows), len(self.search.gallery))
        if not self.search.divided:
            for which, piece in self._pieces():
                if isinstance(which, slice):
                    scores[:, which] = piece[:, : which.stop - which.start]
                else:
                    scores.scatter_(1, which.expand(len(scores), -1), piece[:, : len(which)])
            return scores

        def fill(part: slice) -> None:
            _, items, number = self.search.load(part)
            piece = self.search.product(self._embeddings, items, number)[: len(scores), :number]
            np.copyto(scores.numpy()[:, part], piece.numpy())  # numpy's operations stay in the calling thread

        self.search.map_parts(fill)
        return scores
