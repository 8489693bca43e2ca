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

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.ranking.steps import SupStep

SATURATED = 2 * REACH  # in τ: further away, a sigmoid is 0 or 1


class Items(NamedTuple):
    """The items of some queries, by decreasing score if `ranking` is there; ignored ones have the lowest score of the list.

    `positives` are the positions of each query's positives, in order; where a query has fewer than another, its last one is
    repeated, and `is_positive` is False.
    """

    scores: Tensor
    level: Tensor
    own: Tensor  # the level as an index, 0 for ignored items
    positives: Tensor
    is_positive: Tensor
    ranking: Tensor | None

    @classmethod
    def from_scores(cls, scores: Tensor, level: Tensor, *, sort: bool = False, ranking: Tensor | None = None) -> Items:
        """Sort the items, or put them in the order of a `ranking`, or leave them as they are."""
        listed = level >= 0
        low = scores.where(listed, torch.inf).amin(-1, keepdim=True)
        scores = scores.where(listed, low.where(low.isfinite(), 0))
        if sort:
            scores, ranking = scores.sort(-1, descending=True)
        elif ranking is not None:
            scores = scores.gather(1, ranking)
        level = level if ranking is None else level.gather(1, ranking)
        counts = (level > 0).cumsum(-1)
        number = counts[:, -1:]
        wanted = torch.arange(1, max(1, int(number.max())) + 1).expand(len(level), -1)
        positives = torch.searchsorted(counts, torch.minimum(wanted, number))
        return cls(scores, level, level.clamp(min=0).long(), positives, wanted <= number, ranking)

    def of_positives(self, values: Tensor) -> Tensor:
        """Values `[parts, queries, items]` in the order of the batch, at the positives; 0 where there is none."""
        index = self.positives if self.ranking is None else self.ranking.gather(1, self.positives)
        return values.gather(-1, index.expand(len(values), -1, -1)).where(self.is_positive, 0)

    def all_items(self, values: Tensor) -> Tensor:
        """The inverse of `of_positives`: 0 for the other items."""
        parts, queries, _ = values.shape
        width = self.scores.shape[1]
        index = self.positives if self.ranking is None else self.ranking.gather(1, self.positives)
        index = index.where(self.is_positive, width)  # one more column, for what is repeated
        result = values.new_zeros(parts, queries, width + 1)
        return result.scatter_(-1, index.expand(parts, -1, -1), values)[..., :width].contiguous()

    def unsorted(self, values: Tensor) -> Tensor:
        """Values of the items `[queries, items]`, in the order of the batch."""
        return values if self.ranking is None else torch.empty_like(values).scatter_(-1, self.ranking, values)


class Counts:
    """How many of the first items of a sorted list have a level below 1, 2, …, and any: running totals, several in a word.

    They are asked for at positives, whose levels are `own`.
    """

    def __init__(self, items: Items, own: Tensor, depth: int) -> None:
        self._own, self._depth, self._dtype = own, depth, items.scores.dtype
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


class Beyond:
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
    width = totals.shape[-1]
    result = torch.zeros_like(totals)
    for apart in range(1, min(width, 1 + int(SATURATED / decay))):
        result[..., : width - apart].add_(totals[..., apart:], alpha=math.exp(-decay * apart))
    return result


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
