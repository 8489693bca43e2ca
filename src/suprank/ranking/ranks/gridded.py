"""Ranks in N log N for smooth steps: sigmoids are summed on a grid (`grid`), steps and lines are counted by sorting.

    H⁻(t) = σ(t/τ) + jump·[t ≥ 0] + [t > δ]·(ρ(t − δ) + height − jump − 1 + u/(1 + u)),   u = e^(−t/τ)

The first sum is the grid's, and the second the exact rank. The third goes over the items beyond s_k + δ, which are the first of
the sorted list: running totals count them and add up their scores, and u/(1 + u) is a short polynomial in u, whose powers fade
from item to item. The gradient is made of the same sums with σ′ in place of σ, at each positive over its lower items, and at
each item over the positives of higher levels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from suprank.ranking.ranks.chunked import chunked
from suprank.ranking.ranks.grid import Grid
from suprank.ranking.ranks.result import Ranks, second_derivative_error
from suprank.ranking.ranks.running_sums import Beyond, Counts, Items
from suprank.ranking.ranks.sorting import MOST_LEVELS, Levels, levels_to_count
from suprank.ranking.steps import Heaviside, Sigmoid, SupStep, heaviside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float, Shaped
    from torch import Tensor

    from suprank.ranking.steps import Step

BINS_PER_ITEM = 4
"""Bins of a grid at most, the range of the scores over 2τ: a larger grid takes longer than the items on it."""

FEW_BINS = 1024
"""A grid of so many bins is never too large."""

BUDGET = 8 * 2**20
"""Bytes for the polynomials and the grids of one block of queries."""

PLUS, MINUS, HIERARCHICAL = range(3)


def gridded(
    scores: Float[Tensor, "queries items"],
    level: Shaped[Tensor, "queries items"],
    relevance: Float[Tensor, "queries items"] | None = None,
    *,
    plus: Step = heaviside,
    minus: Step = SupStep(),
    budget: int = BUDGET,
) -> Ranks:
    """Ranks as in `definition`, for the steps of the losses, integer levels and a relevance that depends on the level alone.

    Ranks are within 2e−6 of their value in float32, and gradients within 1e−5 of their norm. Scores that are not finite, or
    whose range is too wide for a grid (thousands of τ), are ranked by `chunked`. There is no second derivative.
    """
    if not (isinstance(plus, Heaviside | Sigmoid) and isinstance(minus, Heaviside | Sigmoid | SupStep)):
        raise ValueError(
            f"gridded ranks need steps out of (heaviside | Sigmoid, heaviside | Sigmoid | SupStep), not {plus} and {minus}; "
            f"leave `using` out."
        )
    if scores.is_cuda:
        from suprank.ranking.ranks.gridded_triton import gridded_on_gpu  # it imports Triton

        return gridded_on_gpu(scores, level, relevance, plus=plus, minus=minus)
    if scores.device.type != "cpu":
        raise ValueError(f"gridded ranks are for a CPU or CUDA, and the scores are on {scores.device}; leave `using` out.")
    levels = levels_to_count(level, relevance)
    if levels is None:
        raise ValueError(
            f"gridded ranks need integer levels up to {MOST_LEVELS} and one relevance for each level of a query, and the "
            f"levels here are {level.dtype}; leave `using` out, and an implementation that fits is chosen."
        )
    items = scores.shape[1]
    bins = _bins(scores.detach(), level, plus, minus) if scores.numel() and levels.depth else math.inf
    if not bins <= max(FEW_BINS, BINS_PER_ITEM * items):
        return chunked(scores, level, relevance, plus=plus, minus=minus)
    numbers = 12 * items + 30 * (levels.depth + 1) * bins  # of the polynomials and the grids of one query
    rows = max(1, int(budget / (scores.element_size() * numbers)))
    results = _GriddedRanks.apply(scores, level, levels, plus, minus, rows)
    return Ranks(results[PLUS], results[MINUS], None if relevance is None else results[HIERARCHICAL])


def _bins(scores: Tensor, level: Tensor, plus: Step, minus: Step) -> float:
    """The number of bins that the widest list needs; ∞ or NaN for scores that are."""
    listed = level >= 0
    span = scores.where(listed, -torch.inf).amax(-1).double() - scores.where(listed, torch.inf).amin(-1)
    widest = float(span.where(listed.any(-1), 0).max())
    return max((widest / (2 * step.tau) for step in (plus, minus) if isinstance(step, Sigmoid | SupStep)), default=0.0)


class _GriddedRanks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, level: Tensor, levels: Levels, plus: Step, minus: Step, rows: int
    ) -> tuple[Tensor, ...]:
        number = 2 if levels.weight is None else 3
        results, slopes = (scores.new_empty(number, *scores.shape) for _ in range(2))
        ranking = (
            None if isinstance(plus, Sigmoid) and isinstance(minus, Sigmoid) else torch.empty_like(scores, dtype=torch.int64)
        )
        with torch.autocast("cpu", enabled=False):
            for block in _blocks(scores, rows):
                items = Items.from_scores(scores[block], level[block], sort=ranking is not None)
                results[:, block], slopes[:, block] = _sums(items, levels.take(block), plus, minus)
                if ranking is not None and items.ranking is not None:
                    ranking[block] = items.ranking
        results[MINUS].masked_fill_(level <= 0, torch.inf)
        ctx.save_for_backward(scores, level, slopes, ranking)
        ctx.constants = levels, plus, minus, rows
        ctx.set_materialize_grads(False)
        parts = results.unbind()
        if plus.flat:
            ctx.mark_non_differentiable(*parts[::2])
        return parts

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return _GriddedGradient.apply(*ctx.constants, *ctx.saved_tensors, *grads), None, None, None, None, None


class _GriddedGradient(torch.autograd.Function):
    """The gradient with respect to scores, as a function of its own only to refuse being differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, levels: Levels, plus: Step, minus: Step, rows: int, scores: Tensor, level: Tensor, slopes: Tensor,
        ranking: Tensor | None, *grads: Tensor | None,
    ) -> Tensor:  # fmt: skip
        known = torch.stack([torch.zeros_like(scores) if grad is None else grad.where(level > 0, 0) for grad in grads])
        gradient = -(known * slopes).sum(0)
        with torch.autocast("cpu", enabled=False):
            for block in _blocks(scores, rows):
                order = None if ranking is None else ranking[block]
                items = Items.from_scores(scores[block], level[block], ranking=order)
                gradient[block] += _pulls(items, levels.take(block), plus, minus, known[:, block])
        return gradient

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise second_derivative_error("gridded")


def _blocks(scores: Tensor, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, len(scores), rows))


def _sums(items: Items, levels: Levels, plus: Step, minus: Step) -> tuple[Tensor, Tensor]:
    """rank⁺, rank⁻ and H-rank⁺ of positives, and the slope of each with every gap, 0 elsewhere: `[2 or 3, queries, items]`."""
    depth, weight = levels
    scores = items.scores
    found, own = scores.gather(1, items.positives), items.own.gather(1, items.positives)
    results, slopes = scores.new_zeros(2, 2 if weight is None else 3, *own.shape)
    for tau, parts in _grids(plus, minus, len(results)).items():
        grid = Grid.from_scores(scores, tau)
        moments = grid.spread((items.level >= 0).to(scores.dtype), items.own, depth + 1)
        positives = grid.take(items.positives)
        for part in parts:
            sources = _to_columns(moments, part, weight)
            results[part] = positives.read(grid.connect(sources, "value"), own)
            slopes[part] = positives.read(grid.connect(sources, "slope"), own)
    if isinstance(plus, Sigmoid):  # the grid counts k itself, by σ(0) = ½
        results[PLUS] += 0.5
        if weight is not None:
            results[HIERARCHICAL] += 0.5 * weight.to(scores.dtype).gather(1, own)
    if items.ranking is not None:
        counts = Counts(items, own, depth)
        at_or_above = torch.searchsorted(-scores, -found, right=True)
        if isinstance(plus, Heaviside):
            results[PLUS] = counts.not_lower(at_or_above)
            if weight is not None:
                results[HIERARCHICAL] = counts.weighted(at_or_above, weight.to(scores.dtype))
        if isinstance(minus, Heaviside):
            results[MINUS] = counts.lower(at_or_above)
        if isinstance(minus, SupStep):
            beyond = Beyond(scores, found + minus.delta, minus)
            lower = torch.stack([(items.level >= 0) & (items.level < current) for current in range(1, depth + 1)], 1)
            count = counts.lower(beyond.number)
            total, value, slope = beyond.sums(lower.double(), (own - 1).clamp(min=0), with_scores=True)
            excess = (total - count * (found.double() + minus.delta)).clamp(min=0)
            results[MINUS] += minus.jump * counts.lower(at_or_above) + minus.rho * excess.to(scores.dtype)
            results[MINUS] += (minus.height - minus.jump - 1) * count + value
            slopes[MINUS] += minus.rho * count - slope / minus.tau
    return items.all_items(results), items.all_items(slopes)


def _pulls(items: Items, levels: Levels, plus: Step, minus: Step, grads: Tensor) -> Tensor:
    """At each item j: Σ grad(k) times the slope of k's ranks with the score of j."""
    depth, weight = levels
    scores = items.scores
    own = items.own.gather(1, items.positives)
    grads = items.of_positives(grads)
    result = torch.zeros_like(scores)
    for tau, parts in _grids(plus, minus, len(grads)).items():
        grid = Grid.from_scores(scores, tau)
        positives = grid.take(items.positives)
        for part in parts:
            sources = _to_columns(positives.spread(grads[part], own, depth + 1), part, weight, pulled=True)
            result += grid.read(grid.connect(sources, "slope"), items.own)
    if isinstance(minus, SupStep):
        # The lists from their other end: over the positives k with s_k + δ < s_j, whose negatives fall.
        thresholds = -(scores.gather(1, items.positives) + minus.delta)
        higher = torch.stack([grads[MINUS].where(own > current, 0) for current in range(depth)], 1)
        beyond = Beyond(thresholds.flip(-1), (-scores).flip(-1), minus)
        column = items.own.clamp(max=depth - 1).flip(-1)
        count, _, slope = beyond.sums(higher.flip(-1).double(), column)
        pull = (minus.rho * count - slope / minus.tau).flip(-1)
        result += pull.where(items.own < depth, 0).to(result.dtype)
    return items.unsorted(result.where(items.level >= 0, 0))


def _grids(plus: Step, minus: Step, parts: int) -> dict[float, list[int]]:
    """The parts of the result that each τ has a grid for."""
    found: dict[float, list[int]] = {}
    for step, own in ((minus, [MINUS]), (plus, [PLUS, HIERARCHICAL][: parts - 1])):
        if isinstance(step, Sigmoid | SupStep):
            found.setdefault(step.tau, []).extend(own)
    return found


def _to_columns(moments: Tensor, part: int, weight: Tensor | None, *, pulled: bool = False) -> Tensor:
    """From moments by the level of the sources to a column for each level of the targets, `[queries, levels, terms, bins]`.

    A positive k counts the items of lower levels in rank⁻, the others in rank⁺, and all in H-rank⁺, by the smaller relevance.
    An item j is `pulled` by the positives that count it.
    """
    if part == HIERARCHICAL:
        assert weight is not None
        weight = weight.to(moments.dtype)
        closest = torch.minimum(weight[:, :, None], weight[:, None, :])
        return torch.einsum("qtl,qlnb->qtnb", closest, moments)
    at_or_below = moments.cumsum(1)
    at_or_above = moments.flip(1).cumsum(1).flip(1)
    if part == PLUS:
        return at_or_below if pulled else at_or_above
    return (at_or_above if pulled else at_or_below) - moments
