"""Triplet losses: semi-hard mining (Schroff et al., CVPR 2015) and distance-weighted sampling (Wu et al., ICCV 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from suprank.losses.base import QueryMean, RetrievalLoss
from suprank.ranking.hyper_parameters import is_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from suprank.losses.batch import RetrievalBatch

_BLOCK = 2**20  # pairs handled at a time: few enough for the caches of a CPU, and temporaries of some 40 MiB
_HEAVIEST = 2.0**40  # the weight that the likeliest negative of a query gets, in whole numbers


class TripletSemiHard(RetrievalLoss):
    """L = mean of s_n − s_p + m over all semi-hard triplets: s_p − m < s_n < s_p for a positive p, a negative n, m = `margin`.

    The triplets of all queries are pooled, and equal pytorch-metric-learning's semi-hard miner with its triplet loss on
    cosine. Both inequalities are strict, so a tie is not semi-hard, nor is a negative that keeps the margin exactly: L is
    above 0 and below m, or 0 (with zero gradients) where no triplet is semi-hard. Positives are of the fine class, all
    other items are negatives, the query itself is neither.

    Triplets are counted and not listed: M·log M steps a query for M items, and memory queries × items, however large the
    classes. After a call `log` has their number in "triplets", and "queries_without_positives".
    """

    def __init__(self, *, margin: float = 0.05) -> None:
        super().__init__()
        if not (is_number(margin) and margin > 0):
            raise ValueError(f"margin={margin!r} must be a finite number above 0: a gap of cosines; the authors use 0.05.")
        self.margin = margin
        self.log: dict[str, Tensor] = {}

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        scores, level = batch.scores, batch.fine_level()
        totals, triplets = _SemiHardHinges.apply(scores, level, self.margin)
        skipped = _without_positives(level)
        self.log = self.loggable({"triplets": triplets.sum(), "queries_without_positives": skipped})
        self.check_positives(batch.checks, skipped, len(level))
        return QueryMean(totals, triplets).value.to(scores.dtype)

    def means(self, batch: RetrievalBatch) -> Sequence[QueryMean]:
        return [QueryMean(*_SemiHardHinges.apply(batch.scores, batch.fine_level(), self.margin))]


class _SemiHardHinges(torch.autograd.Function):
    """The sum of the hinges of every query in float64, and their number.

    A hinge is linear in the scores: each triplet adds 1 to the slope of its negative and takes 1 from that of its positive.
    So both the sum and the slopes come from two counts, in how many triplets each item is the one and the other. The
    negatives of a positive are a range of the negatives in order, and the other way around; both ranges come from the same
    comparisons of the same floats, ties and rounding included. A slope that autograd finds through a sort and sums over
    ranges takes 3 times the time and 4 times the memory (4,096 images, one CPU thread).
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, level: Tensor, margin: float) -> tuple[Tensor, Tensor]:
        slope = torch.empty_like(scores)
        totals = scores.new_empty(len(scores), dtype=torch.float64)
        triplets = scores.new_empty(len(scores), dtype=torch.int64)
        for rows in _blocks(*scores.shape):
            block, positive, negative = scores[rows], level[rows] > 0, level[rows] == 0
            # Items of the other kind are put at ∞, which is in no range. p − m may round to p: then no n is between.
            p, n = block.masked_fill(~positive, torch.inf), block.masked_fill(~negative, torch.inf)
            in_order = n.sort(-1).values
            as_positive = (_below(in_order, p) - _up_to(in_order, p - margin)).clamp_(min=0)
            in_order = p.sort(-1).values
            as_negative = (_below(in_order - margin, n) - _up_to(in_order, n)).clamp_(min=0)
            slope[rows] = as_negative - as_positive
            totals[rows] = (torch.where(positive, block - margin, block).double() * slope[rows]).sum(-1)
            triplets[rows] = as_positive.sum(-1)
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(triplets)
        return totals, triplets

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * grad[:, None].to(slope.dtype), None, None


def _below(in_order: Tensor, values: Tensor) -> Tensor:
    return torch.searchsorted(in_order, values, out_int32=True)


def _up_to(in_order: Tensor, values: Tensor) -> Tensor:
    return torch.searchsorted(in_order, values, right=True, out_int32=True)


class DistanceWeightedTriplet(RetrievalLoss):
    """L = mean of d_p − d_n + m over the violating triplets, one for each positive pair, m = `margin`, d = √(2 − 2s).

    The negative is drawn with probability ∝ 1/q(d_n), where q is the density of the distance between random points of the
    unit sphere in n dimensions:

        q(d) = d^(n−2) · (1 − d²/4)^((n−3)/2)

    so that distances are drawn evenly. For this d counts as `cutoff` where it is below, and items at `farthest` or beyond
    are not drawn. A pair whose query has no negative nearer than that is left out, and L is 0, with zero gradients, if
    no hinge is above 0. Positives are of the fine class, all other items are negatives, the query itself is neither.

    Weights are taken relative to the heaviest of the same query; relative to that of the batch, as in pytorch-metric-learning,
    one near pair in 512 dimensions leaves the other queries without any. Random numbers are torch's of the device, drawn at
    each call. Where two images coincide (s ≥ 1) d is 0 with no slope: the root's own is infinite there.

    After a call `log` has the number of violating triplets in "triplets", and "queries_without_positives".
    """

    def __init__(self, *, margin: float = 0.2, cutoff: float = 0.5, farthest: float = 1.4) -> None:
        super().__init__()
        if not (is_number(margin) and margin > 0):
            raise ValueError(f"margin={margin!r} must be a finite number above 0: a gap of distances; Wu et al. use 0.2.")
        if not (is_number(cutoff) and is_number(farthest) and 0 < cutoff < farthest <= 2):
            raise ValueError(
                f"cutoff={cutoff!r} and farthest={farthest!r} must be distances on the unit sphere with "
                f"0 < cutoff < farthest ≤ 2; Wu et al. use 0.5 and 1.4."
            )
        self.margin, self.cutoff, self.farthest = margin, cutoff, farthest
        self.log: dict[str, Tensor] = {}

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        distance = _distances(batch.scores)
        negative, has_negative = self.draw_negatives(batch)
        hinge = (distance - distance.gather(-1, negative) + self.margin).clamp(min=0).where(has_negative, 0)
        triplets = (hinge > 0).sum()
        skipped = _without_positives(batch.fine_level())
        self.log = self.loggable({"triplets": triplets, "queries_without_positives": skipped})
        self.check_positives(batch.checks, skipped, len(distance))
        return hinge.sum() / triplets.clamp(min=1)

    def draw_negatives(self, batch: RetrievalBatch) -> tuple[Int[Tensor, "queries items"], Bool[Tensor, "queries items"]]:
        """Draw a negative for each pair: its index, and which pairs are positive and have one."""
        scores, level = batch.scores.detach(), batch.fine_level()
        negative = torch.empty_like(level, dtype=torch.int64)
        has_negative = torch.empty_like(level, dtype=torch.bool)
        for rows in _blocks(*scores.shape):
            distance, positive = _distances(scores[rows]), level[rows] > 0
            allowed = (level[rows] == 0) & (distance < self.farthest)
            weight = -self.log_density(distance.clamp(min=self.cutoff), batch.queries.shape[1])
            weight.masked_fill_(~allowed, -torch.inf)
            weight -= weight.amax(-1, keepdim=True).clamp(min=torch.finfo(weight.dtype).min)  # −∞ where none is allowed
            # Sums of whole numbers are exact in whatever order a device adds, so no item of weight 0 is ever drawn.
            running = weight.exp_().mul_(_HEAVIEST).long().cumsum(-1)
            total = running[:, -1:]
            uniform = torch.rand(running.shape, dtype=torch.float64, device=running.device)
            # −1 finds index 0 in any row, and at once: most pairs are not positive and draw for nobody.
            point = (uniform * total).long().minimum(total - 1).where(positive, -1)
            negative[rows] = torch.searchsorted(running, point, right=True)
            has_negative[rows] = positive & (total > 0)
        return negative, has_negative

    @staticmethod
    def log_density(distance: Tensor, dim: int) -> Tensor:
        """log q(d), up to a constant, of distances above 0 and below 2 between points on the unit sphere."""
        return (dim - 2) * distance.log() + (dim - 3) / 2 * torch.log1p(-0.25 * distance.square())


def _distances(scores: Tensor) -> Tensor:
    # The clamp stops the slope at s ≥ 1, and the smallest of floats leaves d at 0 and its infinite slope finite.
    return (2 - 2 * scores).clamp(min=torch.finfo(scores.dtype).tiny).sqrt()


def _without_positives(level: Tensor) -> Tensor:
    return (~(level > 0).any(-1)).sum()


def _blocks(queries: int, items: int) -> Iterator[slice]:
    rows = max(1, _BLOCK // items)
    return (slice(start, start + rows) for start in range(0, queries, rows))
