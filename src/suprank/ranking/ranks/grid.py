"""Sums of sigmoids over all items, at all items, without the pairs: Σ_j w_j σ((s_j − s_i)/τ) is smooth in s_i.

The scores are laid into bins of width 2τ. Within a bin, a score has a coordinate ξ from −1 to 1, and between any two bins the
sigmoid of the gap, 2·(bins apart) + ξ_j − ξ_i in units of τ, is a polynomial in both coordinates to float precision. Its
coefficients depend on the number of bins between them alone: one small table serves every τ. So a sum takes three steps:

    spread    the moments of a bin are Σ w_j T_a(ξ_j), for the Chebyshev polynomials T_0 … T_8
    connect   the moments of all bins, through the table, make the coefficients of the sum in each bin; further than 26τ away
              a sigmoid is 0 or 1, so that a band of bins and running totals do
    read      the sum at an item is Σ_b T_b(ξ_i) times the coefficients of its bin

Their cost grows with the number of items, however many of them the sum is wanted at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch.nn.functional import conv1d, pad

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

Kind = Literal["value", "slope"]

REACH = 13
"""Bins to either side that the table spans: σ(−26) = 5e−12, so that a million items beyond it change a sum by 5e−6."""

_TERMS = {torch.float32: 9, torch.float64: 20}  # Chebyshev polynomials: for errors of 1e−6 and 1e−12 of a sum


@dataclass(frozen=True, eq=False)
class Grid:
    """Where each score `[queries, items]` lies: its bin, and the Chebyshev polynomials of its coordinate in it."""

    tau: float
    bins: Int[Tensor, "queries items"]
    polynomials: Float[Tensor, "terms queries items"]
    width: int  # number of bins

    @classmethod
    def from_scores(cls, scores: Tensor, tau: float, width: int) -> Grid:
        """Lay finite scores into bins. In float64, as a coordinate is a small rest of a large number."""
        position = (scores.double() - scores.amin(-1, keepdim=True)).div_(2 * tau)
        bins = position.int().clamp_(max=width - 1)
        double = position.sub_(bins).mul_(4).sub_(2).to(scores.dtype)
        polynomials = scores.new_empty(_TERMS[scores.dtype], *scores.shape)
        polynomials[0] = 1
        torch.div(double, 2, out=polynomials[1])
        for n in range(2, len(polynomials)):
            torch.mul(double, polynomials[n - 1], out=polynomials[n]).sub_(polynomials[n - 2])
        return cls(tau, bins.long(), polynomials, width)

    def take(self, index: Int[Tensor, "queries some"]) -> Grid:
        """Some of the items on the same grid."""
        polynomials = self.polynomials.gather(-1, index.expand(len(self.polynomials), -1, -1))
        return Grid(self.tau, self.bins.gather(1, index), polynomials, self.width)

    def spread(
        self, group: Int[Tensor, "queries items"], groups: int, weights: Float[Tensor, "queries items"] | None = None
    ) -> Float[Tensor, "queries groups terms bins"]:
        """The moments of each group of items in every bin."""
        index = (group * self.width + self.bins).expand_as(self.polynomials)
        sources = self.polynomials if weights is None else self.polynomials * weights
        moments = sources.new_zeros(*sources.shape[:2], groups * self.width).scatter_add_(-1, index, sources)
        return moments.unflatten(-1, (groups, self.width)).permute(1, 2, 0, 3)

    def connect(
        self, moments: Float[Tensor, "queries columns terms bins"], *kinds: Kind
    ) -> Float[Tensor, "kinds queries columns terms bins"]:
        """The coefficients of Σ w_j σ((s_j − x)/τ) as a function of x in every bin, or of Σ w_j σ′((s_j − x)/τ)/τ, or both."""
        flat = moments.flatten(0, 1)
        table = _table(kinds, len(self.polynomials), flat.dtype)
        coefficients = conv1d(flat, table, padding=REACH).unflatten(1, (len(kinds), -1)).unflatten(0, moments.shape[:2])
        for kind, part in zip(kinds, coefficients.unbind(2), strict=True):
            if kind == "slope":
                part /= self.tau
            else:
                total = moments[:, :, 0].double().flip(-1).cumsum(-1).flip(-1)
                part[:, :, 0] += pad(total[..., REACH + 1 :], (0, REACH + 1))[..., : self.width]
        return coefficients.movedim(2, 0)

    def read(
        self, coefficients: Float[Tensor, "kinds queries columns terms bins"], column: Int[Tensor, "queries items"]
    ) -> Float[Tensor, "kinds queries items"]:
        """The sums at each item, of the column that it names."""
        by_term = coefficients.movedim(3, 0).flatten(3)
        index = (column * self.width + self.bins).expand(*by_term.shape[:2], -1, -1)
        return by_term.gather(-1, index).mul_(self.polynomials[:, None]).sum(0)


@cache
def _table(kinds: tuple[Kind, ...], terms: int, dtype: torch.dtype) -> Tensor:
    """The Chebyshev coefficients of σ, or of σ′, between two bins: `[terms at the target, terms at the source, bins apart]`.

    Those of several kinds follow each other in the first dimension.
    """
    nodes = chebyshev.chebpts1(terms)
    to_coefficients = np.linalg.inv(chebyshev.chebvander(nodes, terms - 1))
    table = np.empty((len(kinds), terms, terms, 2 * REACH + 1))
    for apart in range(-REACH, REACH + 1):
        gap = 2 * apart + nodes[None, :] - nodes[:, None]  # [target, source]
        falling, rising = 1 / (1 + np.exp(gap)), 1 / (1 + np.exp(-gap))
        for number, kind in enumerate(kinds):
            values = rising if kind == "value" else rising * falling
            table[number, :, :, apart + REACH] = to_coefficients @ values @ to_coefficients.T
    return torch.from_numpy(table.reshape(-1, terms, 2 * REACH + 1)).to(dtype)
