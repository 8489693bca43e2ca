"""SupRank on a CPU: the parts of H⁻ that are a step or a line are counted by sorting, and pairs are left with one sigmoid.

    H⁻(t) = jump·[t ≥ 0] + [t > δ]·(ρ(t − δ) + height − σ(δ/τ) − jump) + σ(min(t, δ)/τ)

The sums of the first two over lower items are running totals of the sorted scores. The third goes over (positive, item) pairs
of one level of k at a time: items that are not lower are moved out of reach beforehand, so that no pair needs a mask.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from suprank.ranking.ranks.result import Ranks, second_derivative_error
from suprank.ranking.ranks.sorting import MOST_LEVELS, SortedItems, exact_ranks, levels_to_count
from suprank.ranking.steps import Heaviside, SupStep, heaviside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float, Shaped
    from torch import Tensor

    from suprank.ranking.steps import Step

BUDGET = 8 * 2**20
"""Bytes for the pairs of one block. From 1 to 8 MiB no difference stood out of the noise."""


def levelwise(
    scores: Float[Tensor, "queries items"],
    level: Shaped[Tensor, "queries items"],
    relevance: Float[Tensor, "queries items"] | None = None,
    *,
    plus: Step = heaviside,
    minus: Step = SupStep(),
    budget: int = BUDGET,
) -> Ranks:
    """Ranks as in `definition`, for SupRank's steps, integer levels and a relevance that depends on the level alone.

    A block of pairs takes `budget` bytes, or one positive's row of items. There is no second derivative: asking for one
    raises, and `ranks(..., using="definition")` has it.
    """
    if not (isinstance(plus, Heaviside) and isinstance(minus, SupStep)):
        raise ValueError(f"levelwise ranks need heaviside and SupStep, not {plus} and {minus}; leave `using` out.")
    levels = levels_to_count(level, relevance)
    if levels is None:
        raise ValueError(
            f"levelwise ranks need integer levels up to {MOST_LEVELS} and one relevance for each level of a query, and the "
            f"levels here are {level.dtype}; leave `using` out, and an implementation that fits is chosen."
        )
    sorted_items = SortedItems.from_scores(scores.detach(), level)
    exact = exact_ranks(sorted_items, level, levels)
    return exact._replace(minus=_SupRanks.apply(scores, level, exact.minus, sorted_items, minus, levels.depth, budget))


class _SupRanks(torch.autograd.Function):
    """rank⁻ under H⁻, given rank⁻ under Heaviside."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        level: Tensor,
        exact: Tensor,
        sorted_items: SortedItems,
        step: SupStep,
        depth: int,
        budget: int,
    ) -> Tensor:
        on_line, excess = _line(sorted_items, level, step, depth)
        at_delta = 1 / (1 + math.exp(-step.delta / step.tau))
        positive = level > 0
        rank = step.jump * exact.where(positive, 0) + step.rho * excess + (step.height - at_delta - step.jump) * on_line
        slope = (step.rho - at_delta * (1 - at_delta) / step.tau) * on_line
        with torch.autocast("cpu", enabled=False):  # which would round Σσ², and the difference with it, to bfloat16
            for rows, k, is_member, pairs in _sigmoids(scores, level, step, depth, budget):
                total = pairs.sum(-1)
                _add_at(rank[rows], k, is_member, total)
                if ctx.needs_input_grad[0]:
                    _add_at(slope[rows], k, is_member, (total - torch.linalg.vecdot(pairs, pairs)) / step.tau)
        ctx.save_for_backward(scores, level, slope, *sorted_items)
        ctx.constants = step, depth, budget, at_delta
        return rank.where(positive, torch.inf)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradient = _SupGradient.apply(grad, *ctx.constants, *ctx.saved_tensors)
        return gradient, None, None, None, None, None, None


class _SupGradient(torch.autograd.Function):
    """The gradient with respect to scores, as a function of its own only to refuse being differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, step: SupStep, depth: int, budget: int, at_delta: float,
        scores: Tensor, level: Tensor, slope: Tensor, *sorted_items: Tensor,
    ) -> Tensor:  # fmt: skip
        grad = grad.where(level > 0, 0)
        gradient = _line_gradient(SortedItems(*sorted_items), level, grad, step, depth)
        gradient *= step.rho - at_delta * (1 - at_delta) / step.tau
        gradient -= grad * slope
        with torch.autocast("cpu", enabled=False):
            for rows, k, is_member, pairs in _sigmoids(scores, level, step, depth, budget):
                weight = grad[rows].gather(1, k).where(is_member, 0) / step.tau
                pairs.addcmul_(pairs, pairs, value=-1)
                gradient[rows] += torch.bmm(weight[:, None, :], pairs)[:, 0]
        return gradient

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise second_derivative_error("levelwise")


def _sigmoids(
    scores: Tensor, level: Tensor, step: SupStep, depth: int, budget: int
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Blocks of σ(min(s_j − s_k, δ)/τ) over lower items j, 0 over the others: `[queries, positives, items]`.

    With them the block's rows, the positives' indices `[queries, positives]`, and which of those are more than padding.
    """
    queries, items = scores.shape
    at_once = max(1, budget // max(1, items * scores.element_size()))  # positives
    for current in range(1, depth + 1):
        lower = scores.where((level >= 0) & (level < current), -torch.inf)
        members = level == current
        rows = max(1, at_once // max(1, int(members.sum(-1).max())))
        for start in range(0, queries, rows):
            block = slice(start, start + rows)
            width = int(members[block].sum(-1).max())
            is_member, k = members[block].to(torch.int8).topk(width, dim=-1)
            # More than one part only where a single query has more positives than fit.
            for in_part, part in zip(is_member.split(at_once, 1), k.split(at_once, 1), strict=True):
                pairs = lower[block, None, :] - scores[block].gather(1, part)[:, :, None]
                yield block, part, in_part > 0, pairs.clamp_(max=step.delta).div_(step.tau).sigmoid_()


def _add_at(row: Tensor, k: Tensor, is_member: Tensor, values: Tensor) -> None:
    row.scatter_add_(1, k, values.where(is_member, 0))


def _line(sorted_items: SortedItems, level: Tensor, step: SupStep, depth: int) -> tuple[Tensor, Tensor]:
    """At each k: how many lower items are more than δ above it, and Σ (s_j − s_k − δ) over them."""
    threshold = sorted_items.scores + step.delta
    number = sorted_items.count_at_or_above(threshold, strictly=True)
    count, total = torch.zeros_like(threshold), torch.zeros_like(threshold, dtype=torch.float64)
    for current in range(depth):
        lower = current < level
        count += sorted_items.counts(current, number).where(lower, 0)
        total += sorted_items.totals(-sorted_items.ascending, current, number).where(lower, 0)
    excess = total - count * (sorted_items.scores.double() + step.delta)
    return count, excess.clamp(min=0).to(threshold.dtype)


def _line_gradient(sorted_items: SortedItems, level: Tensor, grad: Tensor, step: SupStep, depth: int) -> Tensor:
    """At each j: Σ grad(k) over the k of higher levels that are more than δ below it."""
    # Rounded as in `_line`, so that j gets what k pays at a gap of δ too: −(s_k + δ) ≤ −s_j.
    number = torch.searchsorted(sorted_items.ascending - step.delta, sorted_items.scores.neg().contiguous(), right=True)
    ranked = grad.gather(1, sorted_items.ranking)
    below = torch.zeros_like(grad)
    for current in range(1, depth + 1):
        everything = ranked.where(sorted_items.level == current, 0).sum(-1, keepdim=True, dtype=torch.float64)
        nearer = everything - sorted_items.totals(ranked, current, number)
        below += nearer.to(grad.dtype).where((level >= 0) & (level < current), 0)
    return below
