"""AP of a histogram of the scores: FastAP (Cakir et al., CVPR 2019) and SoftBin-AP (Revaud et al., ICCV 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from suprank.losses.base import MeasureLoss
from suprank.ranking.hyper_parameters import is_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float, Integer
    from torch import Tensor

    from suprank.losses.score_batch import RankingBatch


# Pairs handled at a time. On a CPU they stay in its caches: histograms of 4,096 images take a seventh of the time that one
# large block takes. A GPU wants few and large kernels.
_CPU_BLOCK = 2**18
_GPU_BLOCK = 2**24


class _BinnedAP(MeasureLoss):
    """1 − mean_i 1/N⁺ Σ_m h⁺_m · H⁺_m / H_m, histograms of the positives and of all items over `knots` on [−1, 1].

    H is h summed from the highest score down to m, and a bin that H has not reached counts 0. Every score is shared
    between the two knots around it, the nearer one getting more: see `soft_histograms`, also for scores on a knot.
    Positives are of the fine class. Memory is a few tensors of queries × items, whatever the number of knots.
    """

    cosines_only = True
    default_bins: ClassVar[int]
    extra_knots: ClassVar[int] = 0

    def __init__(self, bins: int, *, include_self: bool) -> None:
        super().__init__(include_self=include_self)
        fewest = 2 - self.extra_knots
        if not (is_whole(bins) and bins >= fewest):
            raise ValueError(
                f"bins={bins!r} must be a whole number from {fewest} on, because a score is shared between two knots; "
                f"the authors use {self.default_bins}."
            )
        self.bins = bins

    @property
    def knots(self) -> int:
        """The number of knots, evenly spaced from −1 to 1."""
        return self.bins + self.extra_knots

    def per_query(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        level = batch.fine_level(include_self=self.include_self)
        positives, all_items = soft_histograms(batch.scores, level, self.knots)
        positives_so_far, items_so_far = positives.cumsum(-1), all_items.cumsum(-1)
        precision = positives_so_far / items_so_far.masked_fill(items_so_far <= 0, 1)  # 0/1 before the first item, not NaN
        count = (level > 0).sum(-1)
        return (positives * precision).sum(-1) / count.clamp(min=1), count


class FastAP(_BinnedAP):
    """FastAP: 1 − mean_i 1/N⁺ Σ_m h⁺_m · H⁺_m / H_m, soft histograms of squared distance in [0, 4] at `bins` + 1 knots.

    H is h summed from the highest score down. On unit vectors d² = 2 − 2s, so this is `SoftBinAP` with one bin more: both
    cut the same line evenly. Scores far apart, each on a knot of its own, give 1 − AP; between knots an item is counted in
    two parts, the first of them among fewer, and the loss is up to (3 − 2√2)/2 ≈ 0.086 above that, whatever the bins.
    """

    default_bins = 10
    extra_knots = 1

    def __init__(self, *, bins: int = default_bins, include_self: bool = False) -> None:
        super().__init__(bins, include_self=include_self)


class SoftBinAP(_BinnedAP):
    """SoftBin-AP: 1 − mean_i 1/N⁺ Σ_m h⁺_m · H⁺_m / H_m, soft histograms of the scores at `bins` knots on [−1, 1].

    See `FastAP`, which is this with another number of knots.
    """

    default_bins = 20

    def __init__(self, *, bins: int = default_bins, include_self: bool = False) -> None:
        super().__init__(bins, include_self=include_self)


def soft_histograms(
    scores: Float[Tensor, "queries items"], level: Integer[Tensor, "queries items"], knots: int
) -> tuple[Float[Tensor, "queries knots"], Float[Tensor, "queries knots"]]:
    """Histograms of each query's positives and of all its listed items, over knots c_m from 1 down to −1, Δ apart:

        h_m = Σ_j [1 − |s_j − c_m| / Δ]₊

    A score between two knots is shared between them, linearly, so its weights sum to 1, and its derivative is the
    difference of theirs over Δ. On a knot it has the derivative of the scores just below; at −1, of those just above. A
    score beyond ±1, which rounding makes, counts as ±1 and has the derivative there. Levels below 0 are in no list.
    """
    positives, all_items = _SoftHistograms.apply(scores, level, knots)
    return positives, all_items


class _SoftHistograms(torch.autograd.Function):
    """One knot at a time: autograd would store queries × items × knots, and adding by index is not reproducible on GPUs."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, level: Tensor, knots: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(scores, level)
        ctx.knots = knots
        positives, all_items = scores.new_empty(len(scores), knots), scores.new_empty(len(scores), knots)
        for rows in _blocks(scores):
            positive = (level[rows] > 0).to(scores.dtype)
            position = _position(scores[rows], knots).masked_fill_(level[rows] < 0, torch.inf)
            for knot in range(knots):
                share = (position - knot).abs_().neg_().add_(1).clamp_(min=0)
                all_items[rows, knot] = share.sum(-1)
                positives[rows, knot] = share.mul_(positive).sum(-1)
        return positives, all_items

    @staticmethod
    def backward(ctx: Any, to_positives: Tensor, to_all: Tensor) -> tuple[Tensor, None, None]:
        scores, level = ctx.saved_tensors
        between = ctx.knots - 1
        # The slope of a score in each interval, first for negatives, then for positives.
        slopes = torch.stack([to_all, to_all + to_positives], -2).diff(dim=-1).flatten(-2) * (-between / 2)
        slope = torch.empty_like(scores)
        for rows in _blocks(scores):
            interval = _position(scores[rows], ctx.knots).floor_().clamp_(max=between - 1).to(torch.int64)
            column = interval.add_(level[rows] > 0, alpha=between)
            slope[rows] = slopes[rows].gather(-1, column).masked_fill_(level[rows] < 0, 0)
        return slope, None, None


def _position(scores: Tensor, knots: int) -> Tensor:
    """The position of scores in units of Δ, from 0 at s = 1 to knots − 1 at s = −1."""
    return (1 - scores).mul_((knots - 1) / 2).clamp_(0, knots - 1)


def _blocks(scores: Tensor) -> Iterator[slice]:
    rows = max(1, (_CPU_BLOCK if scores.device.type == "cpu" else _GPU_BLOCK) // scores.shape[1])
    return (slice(start, start + rows) for start in range(0, len(scores), rows))
