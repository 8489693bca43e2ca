"""The sum of one loss for each level of the label tree."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from suprank.losses.base import RetrievalLoss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from suprank.losses.base import QueryMean
    from suprank.losses.batch import RetrievalBatch


class SumOverLevels(RetrievalLoss):
    """L = Σ_l w_l·L_l: each loss on the classes of its level. Losses and weights are finest first; by default w_l = 1/L.

    The paper's ΣTL_SH, ΣNSM and ΣNCA++ are this with `TripletSemiHard`, `ProxySoftmax` or `ProxyNCA` at every level. Level l
    sees the labels from column l on: its classes are the finest, and classes that differ further up are two. Losses with
    proxies read their column alone, and have a set of proxies for each level.

    The batch is checked and normalized once, and scored at most once. After a call, `log` holds the value of each level before
    weighting, as in "level 0 ProxySoftmax", what the loss of that level logs, and the total under "loss".

    Example:
        >>> from suprank.losses import ProxySoftmax
        >>> loss = SumOverLevels([ProxySoftmax(4, 16), ProxySoftmax(2, 16)])
        >>> labels = torch.tensor([[0, 0], [1, 0], [2, 1], [3, 1]])
        >>> loss(torch.randn(4, 16, requires_grad=True), labels).backward()
        >>> sorted(loss.log)
        ['level 0 ProxySoftmax', 'level 1 ProxySoftmax', 'loss']
    """

    def __init__(self, losses: Sequence[RetrievalLoss], *, weights: Sequence[float] | None = None) -> None:
        super().__init__()
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
        self.weights = (1 / len(losses),) * len(losses) if weights is None else tuple(weights)
        if len(self.weights) != len(losses) or not all(0 <= weight < math.inf for weight in self.weights):
            raise ValueError(
                f"weights={self.weights} must be {len(losses)} finite numbers from 0 on, one for each loss, finest level first."
            )
        self.losses = nn.ModuleList(losses)
        self.log: dict[str, Tensor] = {}

    @property
    def ranks_items(self) -> bool:  # type: ignore[override]
        """Whether the loss of any level compares a query with other images."""
        return any(loss.ranks_items for loss in self._losses())

    def extra_repr(self) -> str:
        return f"weights={self.weights}"

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        losses = self._check(batch)
        values = [loss.compute(batch.at_level(level)) for level, loss in enumerate(losses)]
        total = torch.stack(
            [weight * value if weight else value.new_zeros(()) for weight, value in zip(self.weights, values, strict=True)]
        ).sum()
        log: dict[str, Tensor] = {}
        for level, (loss, value) in enumerate(zip(losses, values, strict=True)):
            parts = {**getattr(loss, "log", {}), type(loss).__name__: value.detach()}
            log |= {f"level {level} {name}": part for name, part in parts.items() if name != "loss"}
        self.log = self.loggable({**log, "loss": total.detach()})
        return total

    def means(self, batch: RetrievalBatch) -> Sequence[QueryMean]:
        levels = enumerate(zip(self._check(batch), self.weights, strict=True))
        return [mean.times(weight) for level, (loss, weight) in levels if weight for mean in loss.means(batch.at_level(level))]

    def _check(self, batch: RetrievalBatch) -> list[RetrievalLoss]:
        """The losses, one for each level of the batch's labels."""
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
        return losses

    def _losses(self) -> list[RetrievalLoss]:
        return list(self.losses)  # type: ignore[arg-type]
