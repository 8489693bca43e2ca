"""Scores and levels of all items for some queries, a block at a time: what curves and histograms are counted from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.search import Search

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from suprank.explorer.source import Source

PAIRS = 50_000_000
"""Pairs of query and item that are looked at: more take minutes, and change no curve by the width of a line."""

LEAST_QUERIES = 200
"""That are looked at even in a gallery of millions."""

_BLOCK = 2**21  # pairs at once: some 50 MB with what is computed from them


class Scored(NamedTuple):
    """Of some queries against all items, `[queries, items]`: cosines, −∞ for the query itself, and levels shared, 0 there."""

    scores: NDArray[np.float32]
    levels: NDArray[np.int8]


def looked_at(source: Source, seed: int = 0, pairs: int | None = None) -> NDArray[np.int64]:
    """The queries to look at: all, or of a large collection as many as make `pairs` with its items (by default `PAIRS`).

    They are drawn at random, the same for the same seed, and sorted.
    """
    number = len(source.queries)
    most = max((PAIRS if pairs is None else pairs) // len(source.gallery), LEAST_QUERIES)
    if number <= most:
        return np.arange(number)
    return np.sort(np.random.default_rng(seed).choice(number, most, replace=False))


def scored(source: Source, rows: NDArray[np.int64]) -> Iterator[Scored]:
    """The queries of these rows in turn, some at a time. The scores are those of `evaluate`, to the last bit."""
    queries = Embeddings.of(source.queries.embeddings, "embeddings")
    items = queries if source.against_each_other else Embeddings.of(source.gallery.embeddings, "gallery")
    search = Search(queries, items, device=torch.device("cpu"), wanted=len(items))
    labels = source.gallery.labels.astype(np.int32)
    step = max(1, _BLOCK // len(items))
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        scores = np.empty((len(some), len(items)), np.float32)
        hidden = [source.itself(int(row)) for row in some]
        for start, piece in search.scored(some):
            width = min(piece.shape[1], len(items) - start)
            scores[:, start : start + width] = piece[:, :width].numpy()
        levels = _levels(source.queries.labels[some].astype(np.int32), labels)
        for place, out in enumerate(hidden):
            scores[place, out], levels[place, out] = -np.inf, 0
        yield Scored(scores, levels)


def ranked_levels(block: Scored) -> NDArray[np.int64]:
    """The levels of each query's items in the order of evaluation: score descending, on equal scores the lower level first."""
    # Bits of a float, as integers that grow with it; −0 and 0 are one number.
    bits = (block.scores + np.float32(0)).view(np.int32)
    growing = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64)
    return np.sort((-growing << 8) | block.levels, axis=1) & 0xFF


def _levels(own: NDArray[np.int32], theirs: NDArray[np.int32]) -> NDArray[np.int8]:
    """`levels_between` every query and every item, in the memory of few masks."""
    found = np.zeros((len(own), len(theirs)), np.int8)
    shared = np.ones(found.shape, bool)
    for column in range(own.shape[1] - 1, -1, -1):
        shared &= (own[:, column, None] == theirs[:, column]) & (own[:, column, None] >= 0)
        found += shared
    return found
