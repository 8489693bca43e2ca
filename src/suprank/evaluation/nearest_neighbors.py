"""The best items of every query, by exact search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.arguments import as_array, excluded_items
from suprank.evaluation.block_ranking import top_items
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.runs import Run
from suprank.evaluation.search import Search, check_dimensions, choose_device
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.ranking.exact import Top
    from suprank.system.progress import Progress


@dataclass(frozen=True, eq=False)
class TopItems:
    """The best items of every query: their `rows` in the gallery and their `scores`, `[queries, k]`, best first.

    A list that is shorter than k ends in row −1 with score −inf. `query_ids` and `item_ids` are row numbers where no ids were
    given.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    query_ids: NDArray[Any]
    item_ids: NDArray[Any]

    def __iter__(self) -> Iterator[tuple[Any, list[tuple[Any, float]]]]:
        """The id of each query with the (id, score) of its items."""
        for query, rows, scores in zip(self.query_ids.tolist(), self.rows, self.scores, strict=True):
            listed = rows >= 0
            yield query, list(zip(self.item_ids[rows[listed]].tolist(), scores[listed].tolist(), strict=True))

    def run(self) -> Run:
        """The lists by ids, to evaluate or to save for other tools."""
        listed = self.rows >= 0
        query = np.broadcast_to(np.arange(len(self.rows))[:, None], listed.shape)[listed]
        return Run(self.query_ids[query], self.item_ids[self.rows[listed]], self.scores[listed])


def top_k(
    embeddings: EmbeddingSource,
    gallery: EmbeddingSource | None = None,
    k: int = 100,
    *,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    gallery_ids: Sequence[Any] | NDArray[Any] | None = None,
    self_index: Tensor | ArrayLike | None = None,
    ignored: Sequence[Sequence[int]] | None = None,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: bool | Progress = True,
    normalize: bool = True,
) -> TopItems:
    """The k best items of every query, by exact search; `run()` of them saves to TREC, ranx and GLDv2 formats.

    Arguments are as in `evaluate`. Items of equal scores are listed in their order in the gallery. Lists are shorter than k
    where the gallery is.

    Example:
        >>> top_k(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), k=2).rows
        array([[1, 2],
               [0, 2],
               [1, 0]])
    """
    source = Embeddings.from_source(embeddings, "embeddings")
    items = source if gallery is None else Embeddings.from_source(gallery, "gallery")
    check_dimensions(source, items)
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k={k!r} must be an integer of at least 1; try 100.")
    query_ids = np.arange(len(source)) if ids is None else as_array(ids)
    if len(set(query_ids.tolist())) < len(query_ids):
        twice = next(one for one, times in Counter(query_ids.tolist()).items() if times > 1)
        raise ValueError(f"ids hold {twice!r} more than once, but a run has one list per query; give each query its own id.")
    search = Search(source, items, device=choose_device(device, source), memory_budget=memory_budget, normalize=normalize)
    excluded = excluded_items(source, None if gallery is None else items, self_index, ids, gallery_ids, ignored)
    excluded = excluded.to(search.device)
    k = min(k, len(items))
    scores, numbers = np.empty((len(source), k), np.float32), np.empty((len(source), k), np.int64)
    show = progress_function(progress, "searching")
    blocks = [np.arange(block.start, block.stop) for block in search.blocks(np.full(len(source), k))]

    def best(rows: NDArray[np.int64]) -> Top:
        return top_items(search.score(rows), excluded[rows[0] : rows[-1] + 1], k)

    with closing(search.map_blocks(best, blocks)) as tops:
        for rows, top in zip(blocks, tops, strict=True):
            scores[rows], numbers[rows] = top.scores.cpu().numpy(), top.item.cpu().numpy()
            show(int(rows[-1]) + 1, len(source))
    given = ids if gallery is None else gallery_ids
    return TopItems(numbers, scores, query_ids, np.arange(len(items)) if given is None else as_array(given))
