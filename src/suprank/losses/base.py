"""The call that every loss shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from suprank.losses.batch import RetrievalBatch

if TYPE_CHECKING:
    from jaxtyping import Float, Integer
    from torch import Tensor


class RetrievalLoss(nn.Module):
    """A loss called as pytorch-metric-learning's are; a subclass says what it is `on` a checked batch."""

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

        Embeddings of any floating dtype are normalised here and scored in float32. Labels are integers `[B]` or
        `[B, L]`, column 0 the finest. `relevance` gives a graded relevance for each pair in place of levels (labels
        are then needed by proxies only). `indices_tuple` is refused: a rank needs the whole batch.

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
        return self.on(batch)

    def on(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        """The loss on a batch that was already checked, normalised and, if need be, scored."""
        raise NotImplementedError
