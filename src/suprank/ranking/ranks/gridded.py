"""Ranks in N log N for smooth steps: sigmoids are summed on a grid (`grid`), steps and lines are counted by sorting.

    H⁻(t) = σ(t/τ) + jump·[t ≥ 0] + [t > δ]·(ρ(t − δ) + height − jump − 1 + u/(1 + u)),   u = e^(−t/τ)

The first sum is the grid's, and the second the exact rank. The third goes over the items beyond s_k + δ, which are the first of
the sorted list: running totals count them and add up their scores, and u/(1 + u) is a short polynomial in u, whose powers fade
from item to item. The gradient is made of the same sums with σ′ in place of σ, at each positive over its lower items, and at
each item over the positives of higher levels.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch.nn.functional import conv1d, pad

from suprank.ranking.ranks.chunked import chunked
from suprank.ranking.ranks.grid import REACH, Grid
from suprank.ranking.ranks.result import Ranks, second_derivative_error
from suprank.ranking.ranks.sorting import MOST_LEVELS, Levels, levels_to_count
from suprank.ranking.steps import Heaviside, Sigmoid, SupStep, heaviside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxtyping import Float, Shaped
    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.ranking.steps import Step

BINS_PER_ITEM = 4
"""Bins of a grid at most, the range of the scores over 2τ: a larger grid takes longer than the items on it."""

FEW_BINS = 1024
"""A grid of so many bins is never too large."""

BUDGET = 16 * 2**20
"""Bytes for the polynomials and the grids of one block of queries."""

SATURATED = 2 * REACH  # in τ: further away, a sigmoid is 0 or 1
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
    levels = levels_to_count(level, relevance)
    if levels is None:
        raise ValueError(
            f"gridded ranks need integer levels up to {MOST_LEVELS} and one relevance for each level of a query, and the "
            f"levels here are {level.dtype}; leave `using` out, and an implementation that fits is chosen."
        )
    most = max(FEW_BINS, BINS_PER_ITEM * scores.shape[1])
    if not (scores.numel() and levels.depth and _bins(scores.detach(), level, plus, minus) <= most):
        return chunked(scores, level, relevance, plus=plus, minus=minus)
    results = _GriddedRanks.apply(scores, level, levels, plus, minus, budget)
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
        ctx: Any, scores: Tensor, level: Tensor, levels: Levels, plus: Step, minus: Step, budget: int
    ) -> tuple[Tensor, ...]:
        number = 2 if levels.weight is None else 3
        results, slopes = (scores.new_empty(number, *scores.shape) for _ in range(2))
        with torch.autocast("cpu", enabled=False):
            for rows in _blocks(scores, level, levels, plus, minus, budget):
                results[:, rows], slopes[:, rows] = _sums(scores[rows], level[rows], levels.take(rows), plus, minus)
        ctx.save_for_backward(scores, level, slopes)
        ctx.constants = levels, plus, minus, budget
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
        ctx: Any, levels: Levels, plus: Step, minus: Step, budget: int, scores: Tensor, level: Tensor, slopes: Tensor,
        *grads: Tensor | None,
    ) -> Tensor:  # fmt: skip
        known = torch.stack([torch.zeros_like(scores) if grad is None else grad.where(level > 0, 0) for grad in grads])
        gradient = -(known * slopes).sum(0)
        with torch.autocast("cpu", enabled=False):
            for rows in _blocks(scores, level, levels, plus, minus, budget):
                gradient[rows] += _pulls(scores[rows], level[rows], levels.take(rows), plus, minus, known[:, rows])
        return gradient

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise second_derivative_error("gridded")


def _blocks(scores: Tensor, level: Tensor, levels: Levels, plus: Step, minus: Step, budget: int) -> Iterator[slice]:
    """Rows whose polynomials and grids fit into the budget."""
    numbers = 12 * scores.shape[1] + 30 * (levels.depth + 1) * _bins(scores, level, plus, minus)  # of one row
    rows = max(1, int(budget / (scores.element_size() * numbers)))
    return (slice(start, start + rows) for start in range(0, len(scores), rows))


def _sums(scores: Tensor, level: Tensor, levels: Levels, plus: Step, minus: Step) -> tuple[Tensor, Tensor]:
    """rank⁺, rank⁻ and H-rank⁺ of some queries, and the slope of each with every gap: `[2 or 3, queries, items]`."""
    depth, weight = levels
    items = _Items.from_scores(scores, level, sort=not (isinstance(plus, Sigmoid) and isinstance(minus, Sigmoid)))
    results, slopes = scores.new_zeros(2, 2 if weight is None else 3, *scores.shape)
    for tau, parts in _grids(plus, minus, len(results)).items():
        grid = Grid.from_scores(items.scores, tau)
        moments = grid.spread((items.level >= 0).to(scores.dtype), items.own, depth + 1)
        for part in parts:
            sources = _to_columns(moments, part, weight)
            results[part] = grid.read(grid.connect(sources, "value"), items.own)
            slopes[part] = grid.read(grid.connect(sources, "slope"), items.own)
    if isinstance(plus, Sigmoid):  # the grid counts k itself, by σ(0) = ½
        results[PLUS] += 0.5
        if weight is not None:
            results[HIERARCHICAL] += 0.5 * weight.to(scores.dtype).gather(1, items.own)
    if items.ranking is not None:
        counts = _Counts(items, depth)
        at_or_above = torch.searchsorted(-items.scores, -items.scores, right=True)
        if isinstance(plus, Heaviside):
            results[PLUS] = counts.not_lower(at_or_above)
            if weight is not None:
                results[HIERARCHICAL] = counts.weighted(at_or_above, weight.to(scores.dtype))
        if isinstance(minus, Heaviside):
            results[MINUS] = counts.lower(at_or_above)
        if isinstance(minus, SupStep):
            beyond = _Beyond(items.scores, items.scores + minus.delta, minus)
            lower = torch.stack([(items.level >= 0) & (items.level < current) for current in range(1, depth + 1)], 1)
            column = (items.own - 1).clamp(min=0)
            count = counts.lower(beyond.number)
            total, value, slope = beyond.sums(lower.double(), column, with_scores=True)
            excess = (total - count * (items.scores.double() + minus.delta)).clamp(min=0)
            results[MINUS] += minus.jump * counts.lower(at_or_above) + minus.rho * excess.to(scores.dtype)
            results[MINUS] += (minus.height - minus.jump - 1) * count + value
            slopes[MINUS] += minus.rho * count - slope / minus.tau
    positive = items.level > 0
    results = results.where(positive, 0)
    results[MINUS].masked_fill_(~positive, torch.inf)
    return items.unsorted(results), items.unsorted(slopes)


def _pulls(scores: Tensor, level: Tensor, levels: Levels, plus: Step, minus: Step, grads: Tensor) -> Tensor:
    """At each item j: Σ grad(k) times the slope of k's ranks with the score of j."""
    depth, weight = levels
    items = _Items.from_scores(scores, level, sort=isinstance(minus, SupStep))
    grads = items.sorted(grads)
    result = torch.zeros_like(scores)
    for tau, parts in _grids(plus, minus, len(grads)).items():
        grid = Grid.from_scores(items.scores, tau)
        for part in parts:
            sources = _to_columns(grid.spread(grads[part], items.own, depth + 1), part, weight, pulled=True)
            result += grid.read(grid.connect(sources, "slope"), items.own)
    if isinstance(minus, SupStep):
        # The lists from their other end: over the positives k with s_k + δ < s_j, whose negatives fall.
        thresholds, ends = (-(items.scores + minus.delta)).flip(-1), (-items.scores).flip(-1)
        higher = torch.stack([grads[MINUS].where(items.level > current, 0) for current in range(depth)], 1).flip(-1)
        column = items.own.clamp(max=depth - 1).flip(-1)
        count, _, slope = _Beyond(thresholds, ends, minus).sums(higher.double(), column)
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


class _Items(NamedTuple):
    """The items of some queries, by decreasing score if `ranking` is there; ignored ones have the lowest score of the list."""

    scores: Tensor
    level: Tensor
    own: Tensor  # the level as an index, 0 for ignored items
    ranking: Tensor | None

    @classmethod
    def from_scores(cls, scores: Tensor, level: Tensor, *, sort: bool) -> _Items:
        listed = level >= 0
        low = scores.where(listed, torch.inf).amin(-1, keepdim=True)
        scores, ranking = scores.where(listed, low.where(low.isfinite(), 0)), None
        if sort:
            scores, ranking = scores.sort(-1, descending=True)
            level = level.gather(1, ranking)
        return cls(scores, level, level.clamp(min=0).long(), ranking)

    def sorted(self, values: Tensor) -> Tensor:
        """Values `[..., queries, items]` in the order of these items."""
        return values if self.ranking is None else values.gather(-1, self.ranking.expand_as(values))

    def unsorted(self, values: Tensor) -> Tensor:
        """The inverse of `sorted`."""
        if self.ranking is None:
            return values
        return torch.empty_like(values).scatter_(-1, self.ranking.expand_as(values), values)


class _Counts:
    """How many of the first items of a sorted list have a level below 1, 2, …, and any: running totals, several in a word."""

    def __init__(self, items: _Items, depth: int) -> None:
        self._own, self._depth, self._dtype = items.own, depth, items.scores.dtype
        self._bits = items.scores.shape[1].bit_length()
        self._in_word = 63 // self._bits
        level = items.level.long()
        shifts = [self._bits * (number % self._in_word) for number in range(depth + 1)]
        self._words = []
        for first in range(0, depth + 1, self._in_word):
            word = torch.zeros_like(level)
            for number in range(first, min(first + self._in_word, depth + 1)):
                below = (level >= 0) if number == depth else (level >= 0) & (level <= number)
                word += below.long() << shifts[number]
            self._words.append(pad(word.cumsum(-1), (1, 0)))

    def below(self, number: Tensor, current: Tensor | int) -> Tensor:
        """How many of the first `number` items are in the list and of a level below `current`, from 1 to depth + 1."""
        at = torch.as_tensor(current) - 1
        words = torch.stack([word.gather(1, number) for word in self._words])
        word = words[0] if len(words) == 1 else words.gather(0, (at // self._in_word).expand_as(number)[None])[0]
        return (word >> (at % self._in_word * self._bits)) & ((1 << self._bits) - 1)

    def lower(self, number: Tensor) -> Tensor:
        """Those of a level below the item's own, as a number of the scores' type."""
        return self.below(number, self._own.clamp(min=1)).to(self._dtype)

    def not_lower(self, number: Tensor) -> Tensor:
        """Those of the item's own level and above."""
        return self.below(number, self._depth + 1).to(self._dtype) - self.lower(number)

    def weighted(self, number: Tensor, weight: Tensor) -> Tensor:
        """Σ min(rel_j, rel_k) over the positives among them."""
        own = weight.gather(1, self._own)
        result, below = torch.zeros_like(own), self.below(number, 1)
        for current in range(1, self._depth + 1):
            up_to = self.below(number, current + 1)
            result += (up_to - below) * torch.minimum(own, weight[:, current, None])
            below = up_to
        return result


class _Beyond:
    """Sums at each target over the sources above it; both fall along a row.

    With v = e^((target − source)/τ), a source adds its weight times b·v/(1 + b·v) and times b·v/(1 + b·v)², b = e^(−δ/τ): two
    polynomials in v. The powers of v are summed within bins of width 2τ, from the lower end of the target's bin, and those of
    the bins above fade by e^(−2) from one to the next.
    """

    def __init__(self, sources: Tensor, targets: Tensor, step: SupStep) -> None:
        self.sources = sources
        self.number = torch.searchsorted(-sources, -targets)
        low = torch.minimum(sources[:, -1:], targets[:, -1:]).double()
        self._fading = _fading(math.exp(-step.delta / step.tau), sources.dtype)
        self._width = 4 / max(2, len(self._fading))  # of a bin, in τ: so narrow that no power grows by more than e⁴ in it
        position, target = ((one.double() - low) / (self._width * step.tau) for one in (sources, targets))
        bins = position.long()
        width = int(bins[:, 0].max()) + 1
        self._bin = target.long().clamp_(max=width - 1)
        edges = 1 - torch.arange(width + 1)
        self._starts = torch.searchsorted(-bins, edges.expand(len(sources), -1).contiguous())  # in bins above −1, 0, 1, …
        self._in_bin = torch.exp(self._width * (bins - position))
        self._to_edge = torch.exp(self._width * (target - self._bin).clamp(max=1))

    def sums(self, weights: Tensor, column: Tensor, *, with_scores: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Σ w (or Σ w·source), Σ w·b·v/(1 + b·v) and Σ w·b·v/(1 + b·v)², of the column of weights that each target names."""
        first = self._read(_running(weights * self.sources[:, None] if with_scores else weights), column, self.number)
        fading = weights.new_zeros(2, *column.shape)
        start = self._starts.gather(1, self._bin + 1)
        powers, scale = weights, torch.ones_like(self._to_edge)
        for n, coefficients in enumerate(self._fading, start=1):
            powers, scale = powers * self._in_bin[:, None], scale * self._to_edge
            running = _running(powers)
            ends = running.gather(2, self._starts[:, None].expand(-1, running.shape[1], -1))
            carry = _carry(ends[..., :-1] - ends[..., 1:], n * self._width)
            total = self._read(running, column, self.number) - self._read(running, column, start)
            total = (total + self._read(carry, column, self._bin)) * scale
            for sums, coefficient in zip(fading, coefficients, strict=True):
                sums.add_(total, alpha=coefficient)
        return first, *fading

    @staticmethod
    def _read(values: Tensor, column: Tensor, index: Tensor) -> Tensor:
        """Values `[queries, columns, n]` at a column and an index."""
        return values.flatten(1).gather(1, column * values.shape[2] + index)


def _running(values: Tensor) -> Tensor:
    return pad(values.cumsum(-1), (1, 0))


def _carry(totals: Tensor, decay: float) -> Tensor:
    """Σ over the bins above each, from its upper end: those of each fade by e^(−decay) to the next."""
    kernel = torch.exp(-decay * torch.arange(1 + int(SATURATED / decay), dtype=totals.dtype))
    kernel[0] = 0
    return conv1d(pad(totals, (0, len(kernel) - 1)).flatten(0, 1)[:, None], kernel[None, None]).view_as(totals)


@cache
def _fading(b: float, dtype: torch.dtype) -> tuple[tuple[float, float], ...]:
    """Coefficients of v, v², … in b·v/(1 + b·v) and b·v/(1 + b·v)² for v from 0 to 1; none where these are nothing."""
    accuracy = 3e-8 if dtype == torch.float32 else 1e-13
    values, slopes = (_polynomial(lambda v, power=power: b / (1 + b * v) ** power, accuracy) for power in (1, 2))  # type: ignore[misc]
    return tuple(zip_longest(values, slopes, fillvalue=0.0))


def _polynomial(function: Callable[[NDArray[np.float64]], NDArray[np.float64]], accuracy: float) -> list[float]:
    """The fewest coefficients of 1, v, v², … that come so close to the function on [0, 1]; none if it is so close to 0."""
    v = np.linspace(0, 1, 201)
    if np.abs(function(v)).max() < accuracy:
        return []
    fits = (Chebyshev.interpolate(function, degree, [0, 1]) for degree in range(20))
    close = next(fit for fit in fits if np.abs(fit(v) - function(v)).max() < accuracy)
    coefficients: list[float] = close.convert(kind=Polynomial).coef.tolist()
    return coefficients
