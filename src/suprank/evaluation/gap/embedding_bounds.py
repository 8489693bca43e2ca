"""Upper bounds on the decomposability gap of AP, from embeddings, labels and batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from suprank.evaluation.arguments import check_label_pair
from suprank.evaluation.block_ranking import remove_excluded
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.gap.bound_formulas import (
    gap_bound,
    gap_bound_in_any_order,
    refined_gap_bound,
    refined_gap_bound_in_any_order,
)
from suprank.evaluation.gap.partition import as_numpy, partition_items
from suprank.evaluation.metrics import mean_over_queries
from suprank.evaluation.search import Search, choose_device
from suprank.ranking.relevance import refuse_label_sets
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.evaluation.gap.partition import Batches
    from suprank.system.progress import Progress


@dataclass(frozen=True, eq=False)
class GapBounds:
    """Upper bounds on the gap of AP at the finest level: means over the queries, and each query's.

        plain              eq:upperBound, batches in the order given (`gap_bound`)
        refined            eq:upperBoundRefined, batches in the order given (`refined_gap_bound`)
        plain_any_order    holds whatever the order (`gap_bound_in_any_order`)
        refined_any_order  holds whatever the order (`refined_gap_bound_in_any_order`)
        queries_left_out   queries without positives; NaN in `per_query`, which has the four names above as keys

    All of them assume that each batch is ranked perfectly for the query. Otherwise the gap can be larger: with batches A and
    B of one positive and one negative each, ranked A⁻ B⁺ B⁻ A⁺, the gap is 1/4 and the plain bound 1/6.
    """

    plain: float
    refined: float
    plain_any_order: float
    refined_any_order: float
    queries_left_out: int
    per_query: Mapping[str, NDArray[np.float64]] = field(repr=False)


def gap_bounds(
    embeddings: EmbeddingSource,
    labels: Tensor | ArrayLike,
    batches: Batches,
    positive_floor: float = 0.9,
    negative_ceiling: float = 0.6,
    *,
    gallery: EmbeddingSource | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: bool | Progress = True,
    normalize: bool = True,
    seed: int = 0,
) -> GapBounds:
    """The two bounds of the paper's appendix on the decomposability gap of AP, from the composition of the batches.

    Positives share the query's finest label; G⁺ of them have s ≥ α = `positive_floor`. All other items are negatives; E⁻
    of them have s > β = `negative_ceiling`: the pairs that eq:labs penalizes are E⁺ = |Ω⁺| − G⁺ and E⁻. The query is not
    counted. Other arguments are as in `decomposability_gap`; batches are taken in the order given, or of their numbers.

    Without a gallery the query's own batch has one item fewer than the others, so that the paper's assumption of equal
    batches never holds: use `plain_any_order` and `refined_any_order`, which do not need it. Under torch.distributed every
    process does all the work.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
        >>> bounds = gap_bounds(embeddings, torch.tensor([0, 0, 0, 1]), [[0, 1], [2, 3]])
        >>> bounds.per_query["plain"].round(4).tolist()  # the first batch has no negatives
        [0.0, 0.0, 0.0, nan]
        >>> bounds.per_query["plain_any_order"].round(4).tolist()  # the second batch could be ranked above it
        [0.1667, 0.1667, 0.4167, nan]
    """
    if not positive_floor > negative_ceiling:
        raise ValueError(
            f"positive_floor={positive_floor} must be above negative_ceiling={negative_ceiling}, or items that satisfy both "
            f"could be ranked in the wrong order; the authors' code has 0.9 and 0.6."
        )
    source = Embeddings.from_source(embeddings, "embeddings")
    items = source if gallery is None else Embeddings.from_source(gallery, "gallery")
    parts = partition_items(batches, len(items), seed)
    pair = check_label_pair(labels, gallery_labels, source, None if gallery is None else items)
    refuse_label_sets(pair[0], "the bound of the decomposability gap", "leave out all but one label of an image")
    own, theirs = _class_numbers(*map(as_numpy, pair))
    search = Search(source, items, device=choose_device(device, source), memory_budget=memory_budget, normalize=normalize)
    counter = _BatchCounter(search, own, theirs, parts, itself=gallery is None)
    bounds = np.empty((4, len(source)))
    show = progress_function(progress, "bounding the gap")
    # A batch takes about as much as four positives do in a search, and the masks take as much as the scores.
    for block in search.blocks(np.full(len(source), 4 * len(parts) + search.chunk // 8)):
        rows = np.arange(block.start, block.stop)
        positives, negatives, good, bad = counter.count(rows, positive_floor, negative_ceiling)
        bounds[0, block] = gap_bound(positives, negatives)
        bounds[1, block] = refined_gap_bound(positives, negatives, good, bad)
        bounds[2, block] = gap_bound_in_any_order(positives, negatives)
        bounds[3, block] = refined_gap_bound_in_any_order(positives, negatives, good, bad)
        show(block.stop, len(source))
    names = ("plain", "refined", "plain_any_order", "refined_any_order")
    per_query = dict(zip(names, bounds, strict=True))
    means = {name: mean_over_queries(values) for name, values in per_query.items()}
    return GapBounds(**means, queries_left_out=int(np.isnan(bounds[0]).sum()), per_query=per_query)


class _BatchCounter:
    """Counts the positives and negatives of each query in each batch."""

    def __init__(
        self, search: Search, own: NDArray[np.int64], theirs: NDArray[np.int64], parts: list[NDArray[np.int64]], *, itself: bool
    ):
        self.search, self.itself = search, itself
        self.sizes = np.array([len(part) for part in parts])
        batch = np.empty(len(theirs), np.int64)
        for number, part in enumerate(parts):
            batch[part] = number
        self.own, self.theirs, self.batch = (torch.from_numpy(array).to(search.device) for array in (own, theirs, batch))

    def count(self, rows: NDArray[np.int64], floor: float, ceiling: float) -> tuple[NDArray[np.int64], ...]:
        """Positives, negatives, good positives and bad negatives, each `[rows, batches]`."""
        device = self.search.device
        excluded = torch.from_numpy(rows)[:, None].to(device) if self.itself else torch.empty(len(rows), 0, dtype=torch.int64)
        label = self.own[torch.from_numpy(rows).to(device), None]
        positives, good, bad = (np.zeros((len(rows), len(self.sizes)), np.int64) for _ in range(3))
        for first, piece in self.search.score(rows):
            last = min(first + piece.shape[1], len(self.theirs))
            scores, batch = piece[:, : last - first], self.batch[first:last]
            same = (label == self.theirs[first:last]) & (label >= 0)
            remove_excluded(self.search, piece, excluded, first)  # to −∞: neither good nor bad
            good += self._per_batch(same & (scores >= floor), batch)
            bad += self._per_batch(~same & (scores > ceiling), batch)
            positives += self._per_batch(same & (scores > -torch.inf), batch)
        negatives = self.sizes - positives
        if self.itself:
            negatives[np.arange(len(rows)), self.batch.cpu().numpy()[rows]] -= 1
        return positives, negatives, good, bad

    def _per_batch(self, mask: Tensor, batch: Tensor) -> NDArray[np.int64]:
        """How many items of each batch the mask selects, for every query."""
        row, column = mask.nonzero(as_tuple=True)
        number = len(self.sizes)
        counts = torch.bincount(row * number + batch[column], minlength=len(mask) * number)
        return counts.view(len(mask), number).cpu().numpy()


def _class_numbers(own: NDArray[np.int64], theirs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A number for each distinct row of labels, which is a class of the finest level; −1 where a label is missing."""
    both = np.concatenate([own, theirs])
    _, number = np.unique(both, axis=0, return_inverse=True)
    number = np.where((both < 0).any(1), -1, number.reshape(-1))
    return number[: len(own)], number[len(own) :]
