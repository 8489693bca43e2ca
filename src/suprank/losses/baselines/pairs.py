"""The contrastive pair loss that XBM was published with (Wang et al., CVPR 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.losses.base import RetrievalLoss

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from suprank.losses.batch import RetrievalBatch

_COPY = 1 - 1e-5  # a positive this similar is taken for the image itself


class ContrastiveXBM(RetrievalLoss):
    """L = mean_i ( Σ_{p: s_p < 1 − 1e-5} (1 − s_p) + Σ_{n: s_n > m} s_n ), m = `margin`.

    Sums and not means over pairs, so the loss grows with the number of items; a memory is just more of them (`ref_emb`). The
    mean is over all queries: one without positives still has negatives. Both inequalities are strict, and the second term
    jumps by m where a negative passes it, which gradients do not see: they are those of Σ [s_n − m]₊. Positives are of
    the fine class, all other items are negatives, the query itself is neither.
    """

    def __init__(self, *, margin: float = 0.5) -> None:
        super().__init__()
        if not 0 <= margin < 1:
            raise ValueError(
                f"margin={margin} must be a cosine similarity from 0 to below 1, above which a negative is too close; "
                f"Wang et al. use 0.5."
            )
        self.margin = margin

    def extra_repr(self) -> str:
        return f"margin={self.margin}"

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        scores, level = batch.scores, batch.fine_level()
        too_far = (1 - scores).where((level > 0) & (scores < _COPY), 0)
        too_close = scores.where((level == 0) & (scores > self.margin), 0)
        return (too_far + too_close).sum(-1).mean()
