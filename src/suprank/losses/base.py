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
    ) -> Float[Tensor, ""]:
        """The loss of `embeddings` as queries, against each other or against `ref_emb`.

        Embeddings of any floating dtype are normalised here and scored in float32. Labels are integers `[B]` or
        `[B, L]`, column 0 the finest. `relevance` gives a graded relevance for each pair in place of levels (labels
        are then needed by proxies only). `self_index` is the position of each query among the references, −1 where it
        is absent: the query is never in its own list. `indices_tuple` is refused: a rank needs the whole batch.
        """
        batch = RetrievalBatch.of(
            embeddings, labels, indices_tuple, ref_emb, ref_labels, relevance=relevance, self_index=self_index
        )
        return self.on(batch)

    def on(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        """The loss on a batch that was already checked, normalised and, if need be, scored."""
        raise NotImplementedError
