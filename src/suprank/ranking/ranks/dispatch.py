"""The primitive of the losses: `ranks`, and how it chooses an implementation."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, get_args

import torch

from suprank.ranking.ranks.chunked import chunked
from suprank.ranking.ranks.definition import definition
from suprank.ranking.ranks.gridded import gridded, levels_to_count
from suprank.ranking.seam import transforming, with_kernels
from suprank.ranking.steps import Heaviside, Sigmoid, SupStep, heaviside

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from torch import Tensor

    from suprank.ranking.ranks.definition import Implementation, Ranks
    from suprank.ranking.steps import Step


ImplementationName = Literal["definition", "chunked", "gridded", "fused"]
"""The ways to compute ranks, by name: docs/ranking.md says what each is for."""


def ranks(
    scores: Float[Tensor, "queries items"],
    level: Shaped[Tensor, "queries items"],
    relevance: Float[Tensor, "queries items"] | None = None,
    *,
    plus: Step = heaviside,
    minus: Step = SupStep(),
    using: Implementation | ImplementationName | None = None,
) -> Ranks:
    """rank⁺, rank⁻ and H-rank⁺ of every positive k of every query, summed over (positive, item) pairs.

        rank⁺(k)   = 1      + Σ_{j≠k, level_j ≥ level_k} plus(s_j − s_k)                 (eq:definition_rank)
        rank⁻(k)   =          Σ_{j,   level_j < level_k} minus(s_j − s_k)                (eq:rank_minus)
        H-rank⁺(k) = rel(k) + Σ_{j≠k, level_j > 0} min(rel_j, rel_k) · plus(s_j − s_k)   (eq:hierarchical_rank)

    `level` orders the items: above 0 is a positive, 0 a negative, and a negative number takes the item out of the
    query's list (`IGNORED`). A matrix of graded relevance may stand in its place, and then relevance orders.
    `relevance` only weighs H-rank⁺ and must be 0 or more; without it H-rank⁺ is None. Two exact steps (`heaviside`)
    give the ranks of the metrics; the default is the paper's SupRank, differentiable through rank⁻ alone.

    Items that are not positive get rank⁺ 0 and rank⁻ ∞. Scores of half precision are ranked in float32: float16 counts to
    2048, bfloat16 to 256. Gradients are for `scores`; `relevance` is a constant. Under an exact step rank⁻ has a gradient of
    zeros, and rank⁺ none. Second derivatives and torch.func (grad, vmap) are for `using="definition"`.

    All implementations give the same numbers. By default one is chosen by device, steps, relevance and size; `using` names
    another ("definition", "chunked", "gridded" or "fused"), or is a function.

    Example:
        >>> result = ranks(torch.tensor([[0.9, 0.8, 0.7]]), torch.tensor([[0, 1, 1]]), minus=heaviside)
        >>> result.plus.tolist(), result.minus.tolist()
        ([[0.0, 1.0, 2.0]], [[inf, 1.0, 1.0]])
    """
    if scores.ndim != 2 or not scores.dtype.is_floating_point or level.shape != scores.shape:
        raise _shape_error(scores, level=level)
    if relevance is not None and relevance.shape != scores.shape:
        raise _shape_error(scores, relevance=relevance)
    scores = scores.float() if scores.element_size() < 4 else scores
    relevance = None if relevance is None else relevance.detach()
    implementation = fastest(scores, level, relevance, plus, minus) if using is None else resolve_implementation(using)
    return implementation(scores, level, relevance, plus=plus, minus=minus)


IMPLEMENTATIONS: dict[str, Implementation] = {"definition": definition, "chunked": chunked, "gridded": gridded}
"""Those that `using` names; `suprank.ranking.gpu` adds "fused"."""


def resolve_implementation(using: Implementation | ImplementationName) -> Implementation:
    """The implementation of this name; a function is returned as it is."""
    if not isinstance(using, str):
        return using
    if using in IMPLEMENTATIONS:
        return IMPLEMENTATIONS[using]
    if using != "fused":
        names = ", ".join(map(repr, get_args(ImplementationName)))
        raise ValueError(f"using={using!r} is not an implementation of ranks; choose from {names}, or leave it out.")
    if find_spec("triton") is None:
        raise ModuleNotFoundError(
            "using='fused' needs Triton, which comes with CUDA builds of torch and is not installed; leave `using` out, or use "
            "'chunked'.",
            name="triton",
        )
    import_module("suprank.ranking.gpu")  # without CUDA, for Triton's interpreter in tests
    return IMPLEMENTATIONS[using]


GRID_FROM = 16
"""Positives per query (on average) from which `gridded` pays against `chunked`'s pairs on a CPU: the two met at 8 to 16 of them
from 256 to 8,192 items, under all steps (`python benchmarks/choice.py`).
"""


@partial(with_kernels, compiled=True)
def fastest(scores: Tensor, level: Tensor, relevance: Tensor | None, plus: Step, minus: Step) -> Implementation:
    """The fastest implementation for these inputs (docs/ranking.md)."""
    if not torch.compiler.is_compiling() and transforming():
        raise NotImplementedError(
            "torch.func transforms plain operations only, and the fast ways to compute ranks have gradients of their own; use "
            "using='definition', which needs queries × items² memory: SupAP(using='definition')."
        )
    if scores.device.type != "cpu" or torch.compiler.is_compiling():
        return chunked
    if not (isinstance(plus, Heaviside | Sigmoid) and isinstance(minus, Heaviside | Sigmoid | SupStep)):
        return chunked
    levels = levels_to_count(level, relevance) if (level > 0).sum() >= GRID_FROM * len(level) else None
    return chunked if levels is None else partial(gridded, levels=levels)


def _shape_error(scores: Tensor, **values: Tensor) -> ValueError:
    if scores.ndim != 2 or not scores.dtype.is_floating_point:
        return ValueError(
            f"scores is {scores.dtype} of shape {tuple(scores.shape)}, but must be floating point [queries, items]; "
            f"one query's scores become that with scores[None]."
        )
    ((name, wrong),) = values.items()
    return ValueError(f"{name} has shape {tuple(wrong.shape)} but scores {tuple(scores.shape)}; both are [queries, items].")
