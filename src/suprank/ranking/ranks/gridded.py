"""Ranks in N log N for smooth steps: sigmoids are summed on a grid (`grid`), steps and lines are counted by sorting.

    H⁻(t) = σ(t/τ) + jump·[t ≥ 0] + [t > δ]·(ρ(t − δ) + height − jump − 1 + u/(1 + u)),   u = e^(−t/τ)

The first sum is the grid's, and the second the exact rank. The third goes over the items beyond s_k + δ, which are the first of
the sorted list: running totals count them and add up their scores, and u/(1 + u) is a short polynomial in u, whose powers fade
from item to item. The gradient is made of the same sums with σ′ in place of σ, at each positive over its lower items, and at
each item over the positives of higher levels.
"""

from __future__ import annotations

import math
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from suprank.ranking.ranks.chunked import chunked
from suprank.ranking.ranks.definition import Ranks
from suprank.ranking.ranks.grid import Grid
from suprank.ranking.ranks.running_sums import Beyond, Counts, Positives, SortedItems, select
from suprank.ranking.seam import Algorithm, Ranked, with_kernels
from suprank.ranking.steps import Heaviside, Sigmoid, SupStep, heaviside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Float, Shaped
    from torch import Tensor

    from suprank.ranking.seam import Grads, Saved
    from suprank.ranking.steps import Step

MOST_LEVELS = 32
"""Each level costs a pass over the scores; with more of them than this, pairs are cheaper."""

BINS_PER_ITEM = 4
"""Bins of a grid at most, the range of the scores over 2τ: a larger grid takes longer than the items on it."""

FEW_BINS = 1024
"""A grid of so many bins is never too large."""

BUDGET = 8 * 2**20
"""Bytes for the polynomials and the grids of one block of queries."""

_FADED = 4
"""Beyond so many τ, e^(−δ/τ) is so small that sums of fading terms lose nothing in float32."""

PLUS, MINUS, HIERARCHICAL = range(3)


@partial(with_kernels, compiled=True)
def gridded(
    scores: Float[Tensor, "queries items"],
    level: Shaped[Tensor, "queries items"],
    relevance: Float[Tensor, "queries items"] | None = None,
    *,
    plus: Step = heaviside,
    minus: Step = SupStep(),
    budget: int = BUDGET,
    levels: Levels | None = None,
) -> Ranks:
    """Ranks as in `definition`, for the steps of the losses, integer levels and a relevance that depends on the level alone.

    Ranks are within 2e−6 of their value in float32, and gradients within 1e−5 of their norm. Scores that are not finite, or
    whose range is too wide for a grid (thousands of τ), are ranked by `chunked`. There is no second derivative.
    `levels` are the result of `levels_to_count`, if it is known.
    """
    if not (isinstance(plus, Heaviside | Sigmoid) and isinstance(minus, Heaviside | Sigmoid | SupStep)):
        raise ValueError(
            f"gridded ranks need steps out of (heaviside | Sigmoid, heaviside | Sigmoid | SupStep), not {plus} and {minus}; "
            f"leave `using` out."
        )
    if scores.device.type != "cpu":
        raise ValueError(
            f"gridded ranks are for a CPU, or float32 on CUDA with Triton, and the scores are {scores.dtype} on "
            f"{scores.device}; leave `using` out."
        )
    levels = levels or levels_to_count(level, relevance)
    if levels is None:
        raise ValueError(
            f"gridded ranks need integer levels up to {MOST_LEVELS} and one relevance for each level of a query, and the "
            f"levels here are {level.dtype}; leave `using` out, and an implementation that fits is chosen."
        )
    items = scores.shape[1]
    ignored = torch.from_numpy(np.flatnonzero(level.numpy() < 0))
    listed = _listed(scores.detach(), ignored)
    span = float((listed.amax(-1).double() - listed.amin(-1)).max()) if scores.numel() and levels.depth else math.inf
    taus = [step.tau for step in (plus, minus) if isinstance(step, Sigmoid | SupStep)]
    bins = max((span / (2 * tau) for tau in taus), default=0.0)
    if not math.isfinite(span) or bins > max(FEW_BINS, BINS_PER_ITEM * items):
        return chunked(scores, level, relevance, plus=plus, minus=minus)
    numbers = 12 * items + 30 * (levels.depth + 1) * bins  # of the polynomials and the grids of one query
    rows = max(1, int(budget / (scores.element_size() * numbers)))
    settings = _Settings(plus, minus, span, rows, levels, ignored)
    return Ranks(*Ranked.apply(_GRIDDED, (settings,), plus, minus, scores.contiguous(), level, None))  # flat indices


class Levels(NamedTuple):
    """The deepest level, and the relevance that each level 0..depth of each query has, `[queries, depth + 1]`, if any."""

    depth: int
    weight: Tensor | None

    def take(self, rows: slice) -> Levels:
        """The levels of some queries."""
        return self if self.weight is None else self._replace(weight=self.weight[rows])


def levels_to_count(level: Tensor, relevance: Tensor | None) -> Levels | None:
    """The levels, if they are integers, few enough to go through one by one, and each of one relevance; else None."""
    if level.dtype.is_floating_point:
        return None
    depth = max(0, int(level.max())) if level.numel() else 0
    if depth > MOST_LEVELS:
        return None
    if relevance is None:
        return Levels(depth, None)
    group = level.clamp(min=0).long()
    weight = relevance.new_zeros(len(level), depth + 1).scatter_(1, group, relevance)  # of one of the items of each level
    if ((weight.gather(1, group) != relevance) & (level > 0)).any():
        return None
    weight[:, 0] = 0
    return Levels(depth, weight)


def _listed(scores: Tensor, ignored: Tensor) -> Tensor:
    """The scores, with those of ignored items (their flat indices) just below all others of their list."""
    if not len(ignored):
        return scores
    listed = scores.contiguous().clone()
    low = listed.view(-1).index_fill_(0, ignored, torch.inf).view_as(listed).amin(-1)
    low = torch.nextafter(low, -torch.ones_like(low) * torch.inf).where(low.isfinite(), 0)
    listed.view(-1).index_copy_(0, ignored, low[ignored // scores.shape[1]])
    return listed


class _Settings(NamedTuple):
    plus: Step
    minus: Step
    span: float  # of the scores of a query, at most
    rows: int  # of a block
    levels: Levels
    ignored: Tensor  # flat indices of the items that are in no list

    def grid(self, scores: Tensor, tau: float) -> Grid:
        return Grid.from_scores(scores, tau, int(self.span / (2 * tau)) + 1)

    def parts(self, number: int) -> dict[float, list[int]]:
        """The parts of the result that each τ has a grid for."""
        found: dict[float, list[int]] = {}
        for step, own in ((self.minus, [MINUS]), (self.plus, [PLUS, HIERARCHICAL][: number - 1])):
            if isinstance(step, Sigmoid | SupStep):
                found.setdefault(step.tau, []).extend(own)
        return found

    def blocks(self, scores: Tensor) -> Iterator[slice]:
        return (slice(start, start + self.rows) for start in range(0, len(scores), self.rows))


class _Saved(NamedTuple):
    """What backward needs of a block: the positives, the slopes of their ranks, and the order of the items."""

    at: Tensor  # where the positives are in the batch, in the order of their scores under SupStep
    is_positive: Tensor | None
    slopes: Tensor
    ranking: Tensor | None
    beyond: Tensor | None  # how many items score more than s_k + δ


def _gridded_ranks(
    scores: Tensor, level: Tensor, relevance: None, plus: Step, minus: Step, settings: _Settings, *, sloped: bool
) -> tuple[Sequence[Tensor], Saved]:
    """The relevance is that of each level, in the settings."""
    listed, levels = _listed(scores, settings.ignored), settings.levels
    results = scores.new_zeros(2 if levels.weight is None else 3, *scores.shape)
    results[MINUS].fill_(torch.inf)
    saved: list[Tensor | None] = []
    with torch.autocast("cpu", enabled=False):
        for block in settings.blocks(scores):
            saved += _sums(listed[block], level[block], levels.take(block), settings, results[:, block])
    return results.unbind(), saved


def _gridded_gradient(
    grads: Grads, scores: Tensor, level: Tensor, relevance: None, plus: Step, minus: Step, settings: _Settings, *, saved: Saved
) -> Tensor:
    listed, levels = _listed(scores, settings.ignored), settings.levels
    gradient = torch.empty_like(listed)
    with torch.autocast("cpu", enabled=False):
        for number, block in enumerate(settings.blocks(listed)):
            of_block = _Saved(*saved[5 * number : 5 * number + 5])
            known = [grad if grad is None else grad[block] for grad in grads]
            gradient[block] = _pulls(listed[block], level[block], levels.take(block), settings, of_block, known)
    return gradient.view(-1).index_fill_(0, settings.ignored, 0).view_as(gradient)


_GRIDDED = Algorithm("gridded", _gridded_ranks, _gridded_gradient)


def _sums(scores: Tensor, level: Tensor, levels: Levels, settings: _Settings, results: Tensor) -> _Saved:
    """Write rank⁺, rank⁻ and H-rank⁺ of the positives into `results`, `[2 or 3, queries, items]`."""
    depth, weight = levels
    plus, minus, *_ = settings
    weight = None if weight is None else weight.to(scores.dtype)
    items = None if isinstance(plus, Sigmoid) and isinstance(minus, Sigmoid) else SortedItems.from_scores(scores, level)
    positives = Positives.from_level(level if items is None else items.level)
    index = positives.places if items is None else items.ranking.gather(1, positives.places)
    own = level.gather(1, index).long().clamp_(min=1)
    values, slopes = scores.new_zeros(2, len(results), *index.shape)
    for tau, parts in settings.parts(len(results)).items():
        grid = settings.grid(scores, tau)
        moments = grid.spread(level.long() + 1, depth + 2)[:, 1:]  # without those of the ignored items
        of_positives = grid.take(index)
        for part in parts:
            coefficients = grid.connect(_counted(moments, part, weight), "value", "slope")
            values[part], slopes[part] = of_positives.read(coefficients, own - 1)
    if isinstance(plus, Sigmoid):  # the grid counts k itself, by σ(0) = ½
        values[PLUS] += 0.5
        if weight is not None:
            values[HIERARCHICAL] += 0.5 * weight.gather(1, own)
    number = None
    if items is not None:
        counts, column = Counts(items, depth), own[None] - 1
        above = counts.below(items.at_or_above(positives.places))
        lower = above.gather(0, column)[0]
        if isinstance(plus, Heaviside):
            torch.sub(above[-1], lower, out=values[PLUS])
            if weight is not None:
                closest = torch.minimum(weight[:, 1:].T[:, :, None], weight.gather(1, own))  # by the level of j
                torch.sum(above.diff(dim=0).mul_(closest), 0, out=values[HIERARCHICAL])
        if isinstance(minus, Heaviside):
            values[MINUS] = lower
        if isinstance(minus, SupStep):
            threshold = scores.gather(1, index).double() + minus.delta  # in float64: rounding would move items over the kink
            number = torch.searchsorted(-items.scores.double(), -threshold)
            is_lower = scores.new_ones(depth, depth + 2, dtype=torch.float64).tril_(1)  # by the level of k, and the group of j
            is_lower[:, 0] = 0
            weights = torch.stack([select(row, items.group) for row in is_lower])
            count = counts.below(number).gather(0, column)[0]
            total, value, slope = Beyond(items.scores, threshold, number, minus).sums(weights, own - 1, with_scores=True)
            excess = total.sub_(threshold * count).clamp_(min=0)
            values[MINUS] += value.add_(excess, alpha=minus.rho)
            values[MINUS].add_(lower, alpha=minus.jump).add_(count, alpha=minus.height - minus.jump - 1)
            slopes[MINUS].add_(count, alpha=minus.rho).sub_(slope, alpha=1 / minus.tau)
    for part, result in zip(values, results, strict=True):
        positives.scatter(part, index, result)
    ranking = None if items is None else items.ranking
    return _Saved(index, positives.is_positive, slopes, ranking, number)


def _pulls(
    scores: Tensor, level: Tensor, levels: Levels, settings: _Settings, saved: _Saved, grads: list[Tensor | None]
) -> Tensor:
    """At each item j: Σ grad(k) times the slope of k's ranks with the score of j, and at k itself their sum, taken off."""
    depth, weight = levels
    weight = None if weight is None else weight.to(scores.dtype)
    minus, index = settings.minus, saved.at
    positives = Positives(index, saved.is_positive)
    known = [None if grad is None else positives.masked(grad.gather(1, index)) for grad in grads]
    own = level.gather(1, index).long().clamp_(min=1)
    group = level.long().clamp(min=0)  # not in place: long() copies no int64
    result = torch.zeros_like(scores)
    for grad, slope in zip(known, saved.slopes, strict=True):
        if grad is not None:
            result.scatter_add_(1, index, -grad * slope)
    for tau, parts in settings.parts(len(grads)).items():
        grid = settings.grid(scores, tau)
        of_positives = grid.take(index)
        sources = [
            _pulling(of_positives.spread(own - 1, depth, grad), part, weight)
            for part, grad in enumerate(known)
            if part in parts and grad is not None
        ]
        if sources:
            result += grid.read(grid.connect(reduce(add, sources), "slope"), group)[0]
    grad = known[MINUS]
    if isinstance(minus, SupStep) and grad is not None:
        result += _pulls_beyond(scores, level, depth, minus, saved, own, grad)
    return result


def _pulls_beyond(
    scores: Tensor, level: Tensor, depth: int, minus: SupStep, saved: _Saved, own: Tensor, grad: Tensor
) -> Tensor:
    """The part of `_pulls` beyond δ: the lists from their other end, over the positives k with s_k + δ < s_j."""
    assert saved.ranking is not None and saved.beyond is not None
    ranking = saved.ranking.flip(-1)
    thresholds = scores.gather(1, saved.at).double().add_(minus.delta).neg_().flip(-1)
    # The k that has `beyond` items beyond δ is among those of the last of these, and of all above it.
    starts = saved.beyond.new_zeros(len(scores), scores.shape[1] + 1)
    starts.scatter_add_(1, scores.shape[1] - saved.beyond, torch.ones_like(saved.beyond))
    number = starts.cumsum(-1)[:, :-1]
    higher = pad(torch.stack([grad.where(own > current, 0) for current in range(depth + 1)]).flip(-1), (1, 0))
    if minus.delta < _FADED * minus.tau:
        higher = higher.double()
    column = level.gather(1, ranking).long().clamp_(min=0)
    count, _, slope = Beyond(thresholds, scores.gather(1, ranking).neg_(), number, minus).sums(higher, column)
    pull = count.mul_(minus.rho).sub_(slope, alpha=1 / minus.tau).to(scores.dtype)
    return torch.empty_like(scores).scatter_(1, ranking, pull)


def _counted(moments: Tensor, part: int, weight: Tensor | None) -> Tensor:
    """From moments by the level 0, 1, … of the items to what a positive of each level 1, 2, … counts of them.

    That is the items of lower levels in rank⁻, the others in rank⁺, and all in H-rank⁺, by the smaller relevance.
    """
    if part == MINUS:
        return moments[:, :-1].cumsum(1)
    if part == PLUS:
        return moments[:, 1:].flip(1).cumsum(1).flip(1)
    assert weight is not None
    return torch.einsum("qtl,qlnb->qtnb", torch.minimum(weight[:, 1:, None], weight[:, None, 1:]), moments[:, 1:])


def _pulling(moments: Tensor, part: int, weight: Tensor | None) -> Tensor:
    """From moments by the level 1, 2, … of the positives to those that count an item of each level 0, 1, …"""
    if part == HIERARCHICAL:
        assert weight is not None
        sources = torch.einsum("qtl,qlnb->qtnb", torch.minimum(weight[:, 1:, None], weight[:, None, 1:]), moments)
        return torch.cat([torch.zeros_like(sources[:, :1]), sources], 1)
    sources = moments.cumsum(1) if part == PLUS else moments.flip(1).cumsum(1).flip(1)
    none = torch.zeros_like(sources[:, :1])
    return torch.cat([none, sources] if part == PLUS else [sources, none], 1)
