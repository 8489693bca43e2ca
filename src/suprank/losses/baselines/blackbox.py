"""BlackBox-AP: exact ranks, differentiated as the output of a solver (Rolínek et al., CVPR 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from suprank.losses.base import MeasureLoss, RetrievalLoss
from suprank.ranking.hyper_parameters import is_number

if TYPE_CHECKING:
    from jaxtyping import Float, Integer
    from torch import Tensor

    from suprank.losses.score_batch import RankingBatch


class BlackBoxAP(MeasureLoss):
    """L = 1 − mean_i 1/N⁺ Σ_{k∈Ω⁺} rank⁺(k) / rank(k), exact, with a slope for r = rank/n, n the number of items listed:

        ∂L/∂s = (r(s + λ·∂L/∂r) − r(s)) / λ,   λ = `interpolation`

    so that an item is pulled to where a step of size λ against the loss would take it. rank⁺, the place among the
    positives, is a constant. Ranks are a permutation, by a stable sort: of equal scores the earlier item is first. Positives
    are of the fine class.

    Scores are ranked as s − `margin`·|ε|·(y − ½), y 1 for a positive and 0 for a negative, ε ~ N(0, 1) for each pair at
    each call, from torch's random numbers of the device: positives are moved down and negatives up. So the loss has
    another value at each call; with a `margin` of 0 it is 1 − AP.

    The rule is not linear in ∂L/∂r, so that a GradScaler or a weight on the loss would change λ. The slope is therefore that of
    L itself, and is scaled afterwards.
    """

    means = RetrievalLoss.means  # none: λ is that of the mean over all queries, and the slope not linear in it

    def __init__(self, *, interpolation: float = 4.0, margin: float = 0.02, include_self: bool = False) -> None:
        super().__init__(include_self=include_self)
        if not (is_number(interpolation) and interpolation > 0):
            raise ValueError(f"interpolation={interpolation!r} must be a finite number above 0; the authors use 4.")
        if not (is_number(margin) and margin >= 0):
            raise ValueError(f"margin={margin!r} must be a finite number, 0 or more; the authors use 0.02.")
        self.interpolation, self.margin = interpolation, margin

    def per_query(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        level = batch.fine_level(include_self=self.include_self)
        scores = batch.scores
        if self.margin:
            scores = scores - self.margin * torch.randn_like(scores).abs_() * (level - 0.5)
        value: Tensor = _SolverAP.apply(scores, level, self.interpolation)
        return value, (level > 0).sum(-1)


class _SolverAP(torch.autograd.Function):
    """AP of every query, 0 without positives, for a loss that averages 1 − AP over the queries that have positives."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, level: Tensor, interpolation: float) -> Tensor:
        rank, order = _ranks(scores, level)
        positives_so_far = (level > 0).gather(-1, order).cumsum(-1)  # from the top down to each place
        precision = torch.empty_like(scores).scatter_(-1, order, positives_so_far.to(scores.dtype)).div_(rank)
        precision.masked_fill_(level <= 0, 0)
        ctx.save_for_backward(scores, level, rank, precision)
        ctx.interpolation = interpolation
        return precision.sum(-1) / (level > 0).sum(-1).clamp(min=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        scores, level, rank, precision = ctx.saved_tensors
        listed, count = (level >= 0).sum(-1, keepdim=True), (level > 0).sum(-1, keepdim=True)
        queries = (count > 0).sum().clamp(min=1)
        # L = 1 − 1/queries Σ 1/count Σ rank⁺/(n·r): its slope in r is rank⁺/(n·r²) = precision·n/rank, over both counts.
        to_rank = precision * listed / (rank * count.clamp(min=1) * queries)
        moved, _ = _ranks(scores + ctx.interpolation * to_rank, level)
        slope = (moved - rank) / (ctx.interpolation * listed.clamp(min=1))
        return slope * (grad[:, None] * -queries), None, None


def _ranks(
    scores: Float[Tensor, "queries items"], level: Integer[Tensor, "queries items"]
) -> tuple[Float[Tensor, "queries items"], Integer[Tensor, "queries items"]]:
    """The place of each item from 1 on, and the items in that order. Ignored items (level below 0) come last."""
    order = scores.masked_fill(level < 0, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)
    return torch.empty_like(scores).scatter_(-1, order, places.expand_as(scores)), order
