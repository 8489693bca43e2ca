"""Counts and sums over the first items of sorted lists, from running totals: what `gridded` needs beside the grid."""

from __future__ import annotations

import math
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch.nn.functional import pad

from suprank.ranking.ranks.grid import REACH

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.ranking.steps import SupStep

SATURATED = 2 * REACH  # in τ: further away, a sigmoid is 0 or 1
_FREE_BITS = 29  # of the mantissa of a float64 that holds a float32


class Positives(NamedTuple):
    """The positions of each query's positives in their list, in order.

    Where a query has fewer than another, its last one is repeated, and `is_positive` is False; None if all have as many.
    """

    places: Tensor
    is_positive: Tensor | None

    @classmethod
    def from_level(cls, level: Tensor) -> Positives:
        """Find the items of a level above 0."""
        is_positive = level > 0
        number = is_positive.sum(-1, keepdim=True)
        flat = torch.from_numpy(np.flatnonzero(is_positive.numpy()))  # a fifth of the time of torch's nonzero
        most = max(1, int(number.max()))
        if len(flat) == len(level) * most:
            rows = torch.arange(len(level), device=level.device)[:, None]
            return cls(flat.view(len(level), most) - level.shape[1] * rows, None)
        is_filled = torch.arange(most, device=level.device) < number
        places = flat.new_zeros(is_filled.shape).masked_scatter_(is_filled, flat % level.shape[1])
        last = places.gather(1, (number - 1).clamp(min=0))
        return cls(places.where(is_filled, last), is_filled)

    def masked(self, values: Tensor) -> Tensor:
        """Values `[..., queries, positives]`, 0 where there is no positive."""
        return values if self.is_positive is None else values.where(self.is_positive, 0)

    def scatter(self, values: Tensor, index: Tensor, into: Tensor) -> None:
        """Write values to the positives' columns of a matrix, and leave the rows of queries without any as they are."""
        if self.is_positive is not None:
            values = values.where(self.is_positive[:, :1], into.gather(1, index))
        into.scatter_(1, index, values)


class SortedItems(NamedTuple):
    """The items of some queries by decreasing score, and where they were. `group` has one column more, in front."""

    scores: Tensor
    ranking: Tensor
    level: Tensor
    group: Tensor  # the level + 1: 0 for ignored items, and for nothing in column 0

    @classmethod
    def from_scores(cls, scores: Tensor, level: Tensor) -> SortedItems:
        """Sort the items by score."""
        scores, ranking = sort_falling(scores)
        level = level.gather(1, ranking)
        return cls(scores, ranking, level, pad(level.long() + 1, (1, 0)))

    def at_or_above(self, places: Tensor) -> Tensor:
        """How many items score as much as those at some places, or more."""
        number = places + 1
        if self.scores.shape[1] > 1:
            tied = np.flatnonzero((self.scores[:, :-1] - self.scores[:, 1:]).amin(-1).numpy() == 0)
            scores = self.scores[tied].neg_()
            number[tied] = torch.searchsorted(scores, scores.gather(1, places[tied]), right=True)
        return number


def sort_falling(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Scores by decreasing value, and their indices.

    A float32 leaves 29 bits of a float64 free. With the index in them, numpy's vectorized sort of numbers takes a third of the
    time of torch's sort on a CPU.
    """
    if scores.device.type != "cpu" or scores.dtype != torch.float32 or scores.shape[1] >= 1 << _FREE_BITS or not scores.numel():
        return scores.sort(-1, descending=True)
    if not all(bound.isfinite() for bound in torch.aminmax(scores)):  # an index would turn ∞ into NaN
        return scores.sort(-1, descending=True)
    packed = scores.neg().double().view(torch.int64)
    packed |= torch.arange(scores.shape[1], device=scores.device)
    packed.view(torch.float64).numpy().sort(-1)
    ranking = packed & ((1 << _FREE_BITS) - 1)
    packed ^= ranking
    return packed.view(torch.float64).float().neg_(), ranking


class Counts:
    """How many of the first items of a sorted list have a level below 1, 2, …, and any: running totals, several in a word."""

    def __init__(self, items: SortedItems, depth: int) -> None:
        self._dtype = items.scores.dtype
        self._bits = items.scores.shape[1].bit_length()
        self._words, self._shifts = [], []
        in_word = 63 // self._bits
        for first in range(0, depth + 1, in_word):
            numbers = range(first, min(first + in_word, depth + 1))
            shifts = [self._bits * (number - first) for number in numbers]
            adds = [
                sum(1 << shift for number, shift in zip(numbers, shifts, strict=True) if number >= level)
                for level in range(depth + 1)
            ]
            self._words.append(select(items.group.new_tensor([0, *adds]), items.group).cumsum(-1))
            self._shifts.append(items.group.new_tensor(shifts)[:, None, None])

    def below(self, number: Tensor) -> Float[Tensor, "levels queries positives"]:
        """How many of the first `number` items are in the list and of a level below 1, 2, …, depth + 1."""
        parts = [word.gather(1, number) >> shifts for word, shifts in zip(self._words, self._shifts, strict=True)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).bitwise_and_((1 << self._bits) - 1).to(self._dtype)


class Beyond:
    """Sums at each target over the sources above it; both fall along a row, and `number` says how many these are.

    With v = e^((target − source)/τ), a source adds its weight times b·v/(1 + b·v) and times b·v/(1 + b·v)², b = e^(−δ/τ): two
    polynomials in v. The powers of v are summed within bins of width 2τ, from the lower end of the target's bin, and those of
    the bins above fade by e^(−2) from one to the next.
    """

    def __init__(self, sources: Tensor, targets: Tensor, number: Tensor, step: SupStep) -> None:
        self.sources, self.number = sources, number
        low = torch.minimum(sources[:, -1:], targets[:, -1:]).double()
        precision = min(sources.dtype, targets.dtype, key=lambda dtype: dtype.itemsize)
        self._fading = _fading(math.exp(-step.delta / step.tau), precision)
        self._width = 4 / max(2, len(self._fading))  # of a bin, in τ: so narrow that no power grows by more than e⁴ in it
        position, target = ((one.double() - low).div_(self._width * step.tau) for one in (sources, targets))
        bins = position.int()
        width = int(bins[:, 0].max()) + 1
        self._bin = target.long().clamp_(max=width - 1)
        edges = 1 - torch.arange(width + 1, dtype=bins.dtype, device=bins.device)
        self._starts = torch.searchsorted(-bins, edges.expand(len(sources), -1).contiguous())  # in bins above −1, 0, 1, …
        self._in_bin = position.sub_(bins).mul_(-self._width)
        self._to_edge = target.sub_(self._bin).clamp_(max=1).mul_(self._width)

    def sums(self, weights: Tensor, column: Tensor, *, with_scores: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Σ w (or Σ w·source), Σ w·b·v/(1 + b·v) and Σ w·b·v/(1 + b·v)², of the column of weights that each target names.

        The weights are `[columns, queries, sources + 1]`, 0 in front, so that running totals start there; they are overwritten.
        """
        row = column * len(column) + torch.arange(len(column), device=column.device)[:, None]
        at = (row * weights.shape[-1]).add_(self.number)
        at_bin = row.mul_(self._starts.shape[1] - 1).add_(self._bin)
        buffer = torch.empty_like(weights)
        if with_scores:
            torch.mul(weights, pad(self.sources.double(), (1, 0)), out=buffer)
        first = select(torch.cumsum(buffer if with_scores else weights, -1, out=buffer), at)
        fading = weights.new_zeros(2, *column.shape)
        in_bin, to_edge = pad(self._in_bin.to(weights.dtype).exp_(), (1, 0)), self._to_edge.to(weights.dtype).exp_()
        scale = torch.ones_like(to_edge)
        for n, coefficients in enumerate(self._fading, start=1):
            powers, scale = weights.mul_(in_bin), scale.mul_(to_edge)
            running = torch.cumsum(powers, -1, out=buffer)
            ends = running.gather(-1, self._starts.expand(len(running), -1, -1))
            carry = _carry(ends[..., :-1] - ends[..., 1:], n * self._width).sub_(ends[..., 1:])
            total = select(running, at).add_(select(carry, at_bin)).mul_(scale)
            for sums, coefficient in zip(fading, coefficients, strict=True):
                sums.add_(total, alpha=coefficient)
        return first, *fading


def select(values: Tensor, index: Tensor) -> Tensor:
    """The values at positions in their flat order: `torch.take`, but faster."""
    return values.flatten().index_select(0, index.flatten()).view(index.shape)


def _carry(totals: Tensor, decay: float) -> Tensor:
    """Σ over the bins above each, from its upper end: those of each fade by e^(−decay) to the next."""
    result = pad(totals[..., 1:] * math.exp(-decay), (0, 1))
    apart = 1  # bins that are summed so far, twice as many in each step
    while apart < totals.shape[-1] and apart * decay < SATURATED:
        result = result + pad(result[..., apart:] * math.exp(-decay * apart), (0, apart))
        apart *= 2
    return result


@cache
def _fading(b: float, dtype: torch.dtype) -> tuple[tuple[float, float], ...]:
    """Coefficients of v, v², … in b·v/(1 + b·v) and b·v/(1 + b·v)² for v from 0 to 1; none where these are nothing."""
    accuracy = 1.5e-7 if dtype == torch.float32 else 1e-13
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
