"""Sums of losses: one for each level of the label tree (`SumOverLevels`), or for each width of the embedding (`Matryoshka`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from suprank.losses.base import RetrievalLoss
from suprank.ranking.hyper_parameters import as_tuple, is_number, is_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from suprank.losses.base import QueryMean
    from suprank.losses.batch import RetrievalBatch

    Parts = Sequence[tuple[str, RetrievalLoss, RetrievalBatch]]


class WeightedSum(RetrievalLoss):
    """L = Σ w·L_part, by default their mean. A subclass implements `parts`: for each its name, its loss, and what that sees.

    The batch is checked once for all. After a call `log` holds the value of each part before weighting, as in "level 0 SupAP",
    what the loss of that part logs, and the total under "loss".
    """

    def __init__(self, weights: Sequence[float] | None, count: int, each: str) -> None:
        super().__init__()
        self.weights = (1 / count,) * count if weights is None else as_tuple(weights)
        if len(self.weights) != count or not all(is_number(weight) and weight >= 0 for weight in self.weights):
            raise ValueError(f"weights={self.weights} must be {count} finite numbers from 0 on, one for each {each}.")
        self.log: dict[str, Tensor] = {}

    def parts(self, batch: RetrievalBatch) -> Parts:
        """The name, the loss and the batch of each part."""
        raise NotImplementedError

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        values: list[Tensor] = []
        log: dict[str, Tensor] = {}
        for name, loss, own in self.parts(batch):
            value = loss.compute(own)
            values.append(value)
            logged = {**getattr(loss, "log", {}), type(loss).__name__: value.detach()}
            log |= {f"{name} {key}": part for key, part in logged.items() if key != "loss"}
        # A part of weight 0 is computed for the log only: 0·∞ would be NaN.
        weighted = zip(self.weights, values, strict=True)
        total = torch.stack([weight * value if weight else value.new_zeros(()) for weight, value in weighted]).sum()
        self.log = self.loggable({**log, "loss": total.detach()})
        return total

    def means(self, batch: RetrievalBatch) -> Sequence[QueryMean]:
        weighted = zip(self.weights, self.parts(batch), strict=True)
        return [mean.times(weight) for weight, (_, loss, own) in weighted if weight for mean in loss.means(own)]


class SumOverLevels(WeightedSum):
    """L = Σ_l w_l·L_l: each loss on the classes of its level. Losses and weights are finest first; by default w_l = 1/L.

    The paper's ΣTL_SH, ΣNSM and ΣNCA++ are this with `TripletSemiHard`, `ProxySoftmax` or `ProxyNCA` at every level. Level l
    sees the labels from column l on: its classes are the finest, and classes that differ further up are two. Losses with
    proxies read their column alone, and have a set of proxies for each level. The batch is scored at most once.

    Example:
        >>> from suprank.losses import ProxySoftmax
        >>> loss = SumOverLevels([ProxySoftmax(4, 16), ProxySoftmax(2, 16)])
        >>> labels = torch.tensor([[0, 0], [1, 0], [2, 1], [3, 1]])
        >>> loss(torch.randn(4, 16, requires_grad=True), labels).backward()
        >>> sorted(loss.log)
        ['level 0 ProxySoftmax', 'level 1 ProxySoftmax', 'loss']
    """

    def __init__(self, losses: Sequence[RetrievalLoss], *, weights: Sequence[float] | None = None) -> None:
        losses = list(losses)
        if not losses:
            raise ValueError("losses is empty; give one loss for each level, finest first.")
        for level, loss in enumerate(losses):
            if not isinstance(loss, RetrievalLoss):
                raise TypeError(f"losses[{level}] is a {type(loss).__name__}, but must be a loss of suprank.")
        parameters = [parameter for loss in losses for parameter in loss.parameters()]
        if len({id(parameter) for parameter in parameters}) < len(parameters):
            raise ValueError(
                "two levels have the same proxies, but the classes of each level need their own; "
                "make a loss for each level: [loss] * L repeats one and the same."
            )
        super().__init__(weights, len(losses), "loss, finest level first")
        self.losses = nn.ModuleList(losses)

    @property
    def ranks_items(self) -> bool:  # type: ignore[override]
        """Whether the loss of any level compares a query with other images."""
        return any(loss.ranks_items for loss in self._losses())

    def parts(self, batch: RetrievalBatch) -> Parts:
        losses = self._losses()
        if batch.labels is None:
            raise ValueError("SumOverLevels needs labels [B, L]: a relevance has no levels to sum over.")
        if batch.relevance is not None and self.ranks_items:
            raise ValueError(
                "relevance was given, but has no levels: the losses of all levels would see the same; give labels alone."
            )
        if batch.depth != len(losses):
            raise ValueError(
                f"labels have {batch.depth} level(s), but SumOverLevels {len(losses)} loss(es); "
                f"give one loss for each column of the labels, finest first."
            )
        return [(f"level {level}", loss, batch.at_level(level)) for level, loss in enumerate(losses)]

    def _losses(self) -> list[RetrievalLoss]:
        return list(self.losses)  # type: ignore[arg-type]


class Matryoshka(WeightedSum):
    """L = Σ_d w_d·L(v_1..d): one loss on the first d dimensions of the embeddings, for each d of `dims` (Kusupati et al.,
    NeurIPS 2022), so that embeddings may be cut to any of these widths after training; by default w_d = 1/|dims|.

    Each width is normalized on its own. A loss with proxies has one set, and compares each width with the same dimensions of
    the proxies (the paper's efficient variant). Include the whole width if you use it. `collection_loss` and `EmbeddingMemory`
    take it as they take `loss`.

    Example:
        >>> from suprank.losses import SupAP
        >>> loss = Matryoshka(SupAP(), dims=(4, 16))
        >>> loss(torch.randn(4, 16, requires_grad=True), torch.tensor([0, 0, 1, 1])).backward()
        >>> [name for name in loss.log if "SupAP" in name]
        ['4 dimensions SupAP', '16 dimensions SupAP']
    """

    def __init__(self, loss: RetrievalLoss, dims: Sequence[int], *, weights: Sequence[float] | None = None) -> None:
        if not isinstance(loss, RetrievalLoss):
            raise TypeError(f"loss is a {type(loss).__name__}, but must be a loss of suprank.")
        dims = as_tuple(dims)
        if not dims or not all(is_whole(dim) and dim >= 1 for dim in dims) or len(set(dims)) < len(dims):
            raise ValueError(f"dims={dims} must be different whole numbers from 1 on, such as (64, 128, 256, 512).")
        super().__init__(weights, len(dims), "width")
        self.loss, self.dims = loss, dims

    @property
    def ranks_items(self) -> bool:  # type: ignore[override]
        """Whether the loss compares a query with other images."""
        return self.loss.ranks_items

    def parts(self, batch: RetrievalBatch) -> Parts:
        if max(self.dims) > batch.dim:
            raise ValueError(f"dims={self.dims}, but embeddings have dimension {batch.dim}; leave larger ones out.")
        return [(f"{dim} dimensions", self.loss, batch.at_dim(dim)) for dim in self.dims]
