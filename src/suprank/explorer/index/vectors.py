"""Embeddings as an index takes them: float32 of length 1, a few thousand rows at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.embeddings import Embeddings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from suprank.evaluation.embeddings import Source

BLOCK_BYTES = 32 * 2**20  # of float32, held at once: faiss assigns large blocks faster than small ones


def opened(source: Source, dim: int | None = None, address: str = "the index") -> Embeddings:
    """The embeddings, checked against the dimensions of an index if they are known."""
    found = Embeddings.of(source)
    if dim is not None and found.dim != dim:
        raise ValueError(
            f"{found.name} have {found.dim} dimensions, and {address} {dim}; embed with the model that the index was built "
            f"with."
        )
    return found


def unit(vectors: Any, name: str, first: int = 0) -> NDArray[np.float32]:
    """The rows brought to length 1; one without a direction is refused. `first` is the number of the first in `name`."""
    rows = np.ascontiguousarray(vectors, np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    wrong = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
    if len(wrong):
        raise ValueError(
            f"{name}: row {first + wrong[0]} holds NaN, infinity or nothing but zeros, and a vector without a direction has no "
            f"cosine; remove such rows, and their labels."
        )
    return np.asarray(rows / lengths[:, None], np.float32)


def unit_blocks(embeddings: Embeddings) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """All rows in their order, a block at a time."""
    step = max(1, BLOCK_BYTES // (4 * embeddings.dim))
    for start in range(0, len(embeddings), step):
        rows = slice(start, min(start + step, len(embeddings)))
        yield rows, unit(embeddings.rows(rows).cpu().numpy(), embeddings.name, start)


def checked_queries(queries: Any, dim: int, address: str) -> NDArray[np.float32]:
    """Queries `[queries, dim]` of length 1; one vector alone is a query too."""
    rows = np.atleast_2d(np.asarray(queries))
    if rows.ndim != 2 or rows.shape[1] != dim or rows.dtype.kind != "f":
        raise ValueError(
            f"the queries have shape {list(rows.shape)} of {rows.dtype}, and {address} holds {dim} dimensions; embed them with "
            f"the model that the index was built with."
        )
    return unit(rows, "the queries")
