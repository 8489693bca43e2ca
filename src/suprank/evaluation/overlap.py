"""A warning for queries that are in the gallery and in their own lists: each finds itself first, and R@1 is 100 %."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import Embeddings

_SAMPLED = 256  # queries that are compared
_FEWEST = 8  # queries: with fewer, as in a worked example, equal rows mean little, unless both are one tensor or file
_COLUMNS = 8  # of an embedding that are hashed
_LARGEST_FILE = 2**30  # bytes: a larger file is not read an extra time for this
_MOST_COPIES = 16  # of a query in the gallery: with more, rows are codes that many images share
_BLOCK = 2**18  # rows hashed at once


class QueryInGalleryWarning(UserWarning):
    """Most queries have an exact copy in the gallery that is not left out of their lists."""


_LEAVE_OUT = (
    "Leave each query out of its own list: give ids (of files id_column) of queries and gallery, or self_index, or leave the "
    "gallery out to rank the queries against each other."
)


def warn_if_queries_in_gallery(
    source: Embeddings, items: Embeddings, excluded: Tensor, *, self_index: bool, stacklevel: int
) -> None:
    """Warn if more than half of the queries have an exact copy in the gallery, and no copy is among their `excluded` items.

    An evenly spaced sample of the queries is compared with a few columns of the gallery; in a file beyond 1 GiB only the rows
    of the same numbers are compared. Rows that were normalized or rounded on one side only are not recognized. There is no
    warning for few copies, or for rows that many images share, such as short binary codes. `self_index` says whether the
    excluded items come from that argument, and `stacklevel` whose line of code the warning names.
    """
    if source.dim != items.dim:
        return
    rows = torch.arange(len(source))[:: max(1, -(-len(source) // _SAMPLED))]
    queries, same = source.rows(rows.to(source.device)).cpu(), source.is_same(items)
    copies = _find_copies(rows, queries, items, same=same)
    listed = [pair for pair in copies.items() if not _excludes_copy(excluded[pair[0]], queries, rows, pair[0], items)]
    if 2 * len(listed) <= len(rows) or (len(rows) < _FEWEST and not same):
        return
    query, item = listed[0]
    what = "the gallery is the queries themselves" if same else "most queries are in the gallery"
    part = "" if len(rows) == len(source) else " that were compared"
    summary = f"{what}: {len(listed)} of {len(rows)} queries{part} have an exact copy there that is not left out of their lists"
    if self_index and int(excluded[query].max()) >= 0:
        summary += f"; self_index leaves out item {int(excluded[query, 0])} for query {query}, whose copy is item {item}"
    warnings.warn(QueryInGalleryWarning(f"{summary}. {_LEAVE_OUT}"), stacklevel=stacklevel)


def warn_if_queries_repeat(source: Embeddings, excluded: Tensor, *, stacklevel: int) -> None:
    """Warn if more than half of the queries, which rank each other, have one exact copy that is not left out of their lists.

    A sample of the queries is compared, as above, and a file beyond 1 GiB is not.
    """
    if len(source) < _FEWEST or (source.on_disk and 4 * len(source) * source.dim > _LARGEST_FILE):
        return
    rows = torch.arange(len(source))[:: -(-len(source) // _SAMPLED)]
    found = _find_by_hash(rows, source.rows(rows.to(source.device)).cpu(), source, same=True)
    copies = {query: copy for query, copy in found.items() if copy not in excluded[query].tolist()}
    listed = {*copies, *copies.values()}.intersection(rows.tolist())
    if 2 * len(listed) > len(rows):
        query, copy = min(copies.items())
        warnings.warn(
            f"most images are there twice: {len(listed)} of {len(rows)} queries compared have an exact copy, as row {query} "
            f"has in row {copy}, and find it first; list each image once, or give both one id.",
            stacklevel=stacklevel,
        )


def _excludes_copy(excluded: Tensor, queries: Tensor, rows: Tensor, query: int, items: Embeddings) -> bool:
    """Whether one of the excluded items is a copy of the query."""
    numbers = excluded[excluded >= 0]
    if not len(numbers):
        return False
    own = queries[int((rows == query).nonzero()[0])]
    return bool((items.rows(numbers.to(items.device)).cpu() == own).all(1).any())


def _find_copies(rows: Tensor, queries: Tensor, items: Embeddings, *, same: bool) -> dict[int, int]:
    """The number of a copy in the gallery, for each query that has one, by the query's number."""
    shared = rows[rows < len(items)]
    equal = (items.rows(shared.to(items.device)).cpu() == queries[: len(shared)]).all(1)
    by_number = {row: row for row in shared[equal].tolist()}
    if same or 2 * len(by_number) > len(rows) or (items.on_disk and 4 * len(items) * items.dim > _LARGEST_FILE):
        return by_number
    return _find_by_hash(rows, queries, items)


def _find_by_hash(rows: Tensor, queries: Tensor, items: Embeddings, *, same: bool = False) -> dict[int, int]:
    """The copy of each query that has exactly one: rows of equal hashes are compared. `same`: the queries are among the items,
    and of a query and its copy one is returned."""
    columns = torch.arange(items.dim)[:: max(1, -(-items.dim // _COLUMNS))]
    hashes, first, times = np.unique(_hashes(queries[:, columns]), return_index=True, return_counts=True)
    hashes, first = hashes[times <= 1 + same], first[times <= 1 + same]
    places: list[NDArray[np.int64]] = []
    for start, block in _blocks(items, columns):
        places.append(start + np.flatnonzero(np.isin(_hashes(block), hashes)))
        if sum(map(len, places)) > _MOST_COPIES * len(rows):
            return {}
    candidates = torch.from_numpy(np.concatenate(places))
    if not len(candidates):
        return {}
    vectors = items.rows(candidates.to(items.device)).cpu()
    query = torch.from_numpy(first[np.searchsorted(hashes, _hashes(vectors[:, columns]))])
    equal = (vectors == queries[query]).all(1)
    if same:
        equal &= rows[query] != candidates
    query, candidates = query[equal], candidates[equal]
    only = torch.bincount(query, minlength=len(rows)) == 1
    chosen = only[query]
    return dict(zip(rows[query[chosen]].tolist(), candidates[chosen].tolist(), strict=True))


def _blocks(items: Embeddings, columns: Tensor) -> Iterator[tuple[int, Tensor]]:
    """These columns of all rows, some rows at a time."""
    rows = max(1, min(_BLOCK, 2**26 // (4 * items.dim))) if items.on_disk else _BLOCK
    for start in range(0, len(items), rows):
        yield start, items.part(slice(start, start + rows), columns)


def _hashes(values: Tensor) -> NDArray[np.uint64]:
    """A hash of each row's bits."""
    bits = (values.contiguous() + 0.0).numpy().view(np.uint32).astype(np.uint64)  # + 0.0 makes 0.0 of −0.0
    odd = np.asarray(np.random.default_rng(0).integers(2**63, size=bits.shape[1], dtype=np.uint64)) | np.uint64(1)
    mixed = (bits + np.uint64(1)) * odd
    mixed ^= mixed >> np.uint64(29)
    return np.asarray((mixed * odd[::-1]).sum(1, dtype=np.uint64))
