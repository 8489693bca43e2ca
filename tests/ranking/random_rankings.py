"""Small random rankings for hypothesis: every size, level and kind of tie, drawn so that a failure shrinks to a few numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from suprank.ranking import Ranks, Sigmoid, Step, SupStep, heaviside

PLENTY = settings(deadline=None, max_examples=40)
SOME = settings(deadline=None, max_examples=20)

STEP_PAIRS: dict[str, tuple[Step, Step]] = {
    "SupRank": (heaviside, SupStep()),
    "exact": (heaviside, heaviside),
    "Smooth-AP": (Sigmoid(), Sigmoid()),
    "soft Smooth-AP": (Sigmoid(0.2), Sigmoid(0.1)),
    "SOP recipes": (heaviside, SupStep(value_at_delta=1.44)),
    "iNaturalist recipes": (heaviside, SupStep(jump=0.0, value_at_delta=1.0)),
    "no margin": (heaviside, SupStep(tau=0.05, rho=3.0, delta=0.0, jump=0.7)),
    "bound on both sides": (SupStep(tau=0.1), SupStep(delta=0.2)),
}


class Ranking(NamedTuple):
    scores: Tensor  # float64 [queries, items], negative ones among them
    level: Tensor  # int8 [queries, items], −1 to 4


@st.composite
def rankings(draw, *, tied: bool | None = None, queries: int = 3, items: int = 12, lowest: int = -1, deepest: int = 4):
    """Scores and levels of a few queries. Tied scores come from a grid whose gaps include 0 and ±δ; others are distinct."""
    rows, columns = draw(st.integers(1, queries)), draw(st.integers(1, items))
    tied = draw(st.booleans()) if tied is None else tied
    if tied:
        row = st.lists(st.integers(-5, 5), min_size=columns, max_size=columns)
        scores = 0.05 * torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)), dtype=torch.float64)
    else:
        orders = [draw(st.permutations(range(columns))) for _ in range(rows)]
        spread = draw(st.sampled_from([0.0007, 0.0173, 0.11]))
        scores = spread * (torch.tensor(orders, dtype=torch.float64) - columns / 2)
    row = st.lists(st.integers(lowest, deepest), min_size=columns, max_size=columns)
    level = torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)), dtype=torch.int8)
    return Ranking(scores, level)


def random_ranking(
    seed: int, queries: int = 3, items: int = 9, deepest: int = 3, dtype: torch.dtype = torch.float64
) -> Ranking:
    """A ranking without ties, scores both positive and negative, a third of the items ignored or negative."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(queries, items, generator=generator, dtype=torch.float64) - 0.5
    level = torch.randint(-1, deepest + 1, (queries, items), generator=generator, dtype=torch.int8)
    return Ranking(scores.to(dtype), level)


def assert_near(found: Tensor, expected: Tensor, tolerance: float, scale: float = 1.0) -> None:
    """Equal to `tolerance` of the largest expected value (or of `scale`), infinities and NaN in the same places."""
    assert found.shape == expected.shape
    finite = expected.isfinite()
    assert torch.equal(found.isfinite(), finite)
    torch.testing.assert_close(found[~finite], expected[~finite], equal_nan=True, rtol=0, atol=0)
    largest = max(scale, expected[finite].abs().max().item()) if finite.any() else scale
    assert (found[finite] - expected[finite]).abs().le(tolerance * largest).all(), (found, expected)


def steepest(*steps: Step) -> float:
    """The largest slope of the steps: what errors of a gradient are measured by, as float32 holds 1 − σ only to 6e-8."""
    gaps = torch.tensor([0.0, 10.0], dtype=torch.float64)
    return max(step.derivative(gaps).max().item() for step in steps)


def algorithm_of(ranks: Ranks) -> str:
    """The name of the algorithm that computed these ranks, whose scores have a gradient."""
    return ranks.minus.grad_fn.constants[0].name
