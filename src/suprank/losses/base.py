"""The call that every loss shares, and the mean over queries that every loss on a measure of lists shares."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from suprank.losses.batch import RetrievalBatch, may_wait_for

if TYPE_CHECKING:
    from jaxtyping import Float, Integer, Shaped
    from torch import Tensor

_LOOKS = 10  # batches whose label columns are looked at
_CALLER = 5  # above `_warn_of_labels`, `forward` and two frames of nn.Module: who called the loss


class LabelTreeWarning(UserWarning):
    """Label columns that are not a tree, finest level first: reversed, a class under two parents, or one without."""


def loggable(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """`values`, or none of them while torch.compile traces the loss.

    What a compiled graph returns may lie in memory that its next call writes over (`mode="reduce-overhead"`), and is then
    refused: such a tensor must not be kept from one step to the next.
    """
    return {} if torch.compiler.is_compiling() else values


class RetrievalLoss(nn.Module):
    """A loss called as pytorch-metric-learning's are; a subclass says what it is `on` a checked batch.

    `ranks_items` says whether a query is held against other images, so that a memory of them has a use. Losses that
    compare it with proxies only set it False.
    """

    ranks_items: ClassVar[bool] = True
    _batches_looked_at = 0

    def forward(
        self,
        embeddings: Float[Tensor, "queries dim"],
        labels: Integer[Tensor, "queries ..."] | None = None,
        indices_tuple: object = None,
        ref_emb: Float[Tensor, "items dim"] | None = None,
        ref_labels: Integer[Tensor, "items ..."] | None = None,
        *,
        relevance: Float[Tensor, "queries items"] | None = None,
        self_index: Integer[Tensor, " queries"] | None = None,
        ids: Integer[Tensor, " queries"] | None = None,
        ref_ids: Integer[Tensor, " items"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of `embeddings` as queries, against each other or against `ref_emb`.

        Embeddings of any floating dtype are normalized here and scored in float32. Labels are integers `[B]` or
        `[B, L]`, column 0 the finest, and −1 is no label: such an item is nobody's positive and everybody's negative, as
        in `evaluate`. `relevance` gives a graded relevance for each pair in place of levels (labels are then needed by
        proxies only). `indices_tuple` is refused: a rank needs the whole batch.

        The query is never in its own list, and among references it is found in one of two ways. `self_index` is the
        position of each query, −1 where it is absent. `ids` and `ref_ids` number the images: a reference with the
        query's id is the query, however many there are, as in a memory that has seen an image several times. An id
        below 0 is no identity, and matches nothing.
        """
        batch = RetrievalBatch.of(
            embeddings,
            labels,
            indices_tuple,
            ref_emb,
            ref_labels,
            relevance=relevance,
            self_index=self_index,
            ids=ids,
            ref_ids=ref_ids,
        )
        self._warn_of_labels(batch)
        return self.on(batch)

    def _warn_of_labels(self, batch: RetrievalBatch) -> None:
        """Warn once if the labels of one of the first batches form no tree. Later ones are not looked at: a GPU would wait."""
        if batch.labels is None or self._batches_looked_at >= _LOOKS or not may_wait_for(batch.labels):
            return
        self._batches_looked_at += 1
        fault = batch.tree_fault()
        if fault is not None:
            self._batches_looked_at = _LOOKS
            warnings.warn(f"labels of {type(self).__name__}: {fault}", LabelTreeWarning, stacklevel=_CALLER)

    def on(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        """The loss on a batch that was already checked, normalized and, if need be, scored."""
        raise NotImplementedError


@dataclass(eq=False, kw_only=True)
class MeasureLoss(RetrievalLoss):
    """1 − the mean of a measure over the queries that have positives (eq:optimizing_M).

    A query without positives is left out of the mean; a batch of such queries gives 0, with zero gradients. How many
    were left out is in `log["queries_without_positives"]` after a call, unless torch.compile has traced it. `include_self=True`
    keeps each query in its own list as a positive, as the authors' training code does.
    """

    include_self: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self.log: dict[str, Tensor] = {}

    def measured(self, batch: RetrievalBatch) -> tuple[Float[Tensor, " queries"], Shaped[Tensor, " queries"]]:
        """The measure of every query, and what it divides by: 0 for a query without positives."""
        raise NotImplementedError

    def on(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        value, weight = self.measured(batch)
        empty = weight <= 0
        skipped = empty.sum()
        self.log = loggable({"queries_without_positives": skipped})
        return (1 - value).masked_fill(empty, 0).sum() / (len(value) - skipped).clamp(min=1)
