"""The best items of every query, by exact search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.arguments import as_array, excluded_items
from suprank.evaluation.block_ranking import top_items
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.rankings import RankingRun
from suprank.evaluation.search import Search, check_dimensions, choose_device
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.ranking.exact import Top
    from suprank.system.progress import Progress


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
) -> RankingRun:
    """The k best items of every query, by exact search, as a `RankingRun` that saves to TREC, ranx and GLDv2 formats.

    Arguments are as in `evaluate`. Items are named by their ids, or by their numbers if there are none; items of equal scores
    are listed in their order in the gallery. Lists are shorter than k where the gallery is.
    """
    source = Embeddings.from_source(embeddings, "embeddings")
    items = source if gallery is None else Embeddings.from_source(gallery, "gallery")
    check_dimensions(source, items)
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k={k!r} must be an integer of at least 1; try 100.")
    query_ids = list(range(len(source))) if ids is None else as_array(ids).tolist()
    if len(set(query_ids)) < len(query_ids):
        twice = next(one for one, times in Counter(query_ids).items() if times > 1)
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
    names = np.arange(len(items)) if given is None else as_array(given)
    names = names.astype(np.int64) if names.dtype.kind in "iu" else names
    item_ids = np.where(numbers >= 0, names[numbers.clip(0)], "" if names.dtype.kind in "US" else -1)
    return RankingRun(query_ids, item_ids, scores)
