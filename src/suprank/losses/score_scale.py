"""τ for scores that are no cosines: `suggest_tau` proposes one, and `scaled_step` scales all of H⁻ to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from suprank.losses.score_batch import check_mask
from suprank.ranking import SupStep
from suprank.ranking.hyper_parameters import is_number
from suprank.ranking.steps import SupStepOptions

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

SHARE_OF_SPREAD = 1 / 16
"""τ over the standard deviation of a query's scores.

The paper's 0.01 over that of cosines was 0.062 and 0.058 for unseen birds of CUB after a projection of features of
`tf_efficientnet_lite0` was trained with Sup-AP and with ROADMAP, and 0.10 for the features as they are.
"""


def suggest_tau(scores: Float[Tensor, "queries items"], mask: Bool[Tensor, "queries items"] | None = None) -> float:
    """Propose τ for scores of any scale: 1/16 of their standard deviation within a query, the median over the queries.

    τ is a difference of scores: a rank loss takes an item that is 5 τ above another as ranked before it, and one that is 1 τ
    above as almost equal. The paper's 0.01 is for cosines, and cosines of a trained model get about 0.01 here. Logits of a
    cross-encoder or the scores of a recommender spread more. Call this once, on scores of a model that ranks already, and keep
    the result for the whole training. `mask` is False for padding, as in `from_scores`; queries whose scores are all equal do
    not count.

    Example:
        >>> scores = torch.tensor([[3.0, 1.0, -1.0], [2.0, 0.0, 9.0]])
        >>> mask = torch.tensor([[True, True, True], [True, True, False]])
        >>> round(suggest_tau(scores, mask), 4)  # standard deviations of 1.633 and 1
        0.0823
    """
    if not isinstance(scores, torch.Tensor) or scores.ndim != 2 or not scores.dtype.is_floating_point:
        raise ValueError("scores must be a floating-point tensor [queries, items], as for from_scores.")
    if mask is not None:
        check_mask(mask, scores)
    listed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.to(scores.device)
    values = scores.detach().double().where(listed, 0)
    count = listed.sum(-1).clamp(min=1)
    mean = values.sum(-1, keepdim=True) / count[:, None]
    spread = ((values - mean).square().where(listed, 0).sum(-1) / count).sqrt()
    if not spread.isfinite().all():
        raise ValueError("scores hold NaN or infinity; give a mask that is False for padding.")
    spread = spread[spread > 0]
    if not len(spread):
        raise ValueError(
            "the scores of every query are equal, so that they have no spread; give scores of a model that ranks items, or "
            "choose tau yourself."
        )
    return SHARE_OF_SPREAD * float(spread.quantile(0.5))


def scaled_step(tau: float) -> SupStepOptions:
    """The parameters of `SupStep` for scores whose τ is `tau`: ρ is divided and δ multiplied by tau / 0.01.

    τ and δ are differences of scores, and ρ is a slope per score. So c times the scores have, with this step of c·τ, the same
    loss as the scores with that of τ.

    Example:
        >>> from suprank.losses import SupNDCG
        >>> scaled_step(0.5)
        {'tau': 0.5, 'rho': 2.0, 'delta': 2.5}
        >>> loss = SupNDCG(k=10, **scaled_step(0.5))
    """
    if not (is_number(tau) and tau > 0):
        raise ValueError(f"tau={tau!r} must be a finite number above 0; suggest_tau(scores) proposes one.")
    scale = tau / SupStep.tau
    return {"tau": tau, "rho": SupStep.rho / scale, "delta": SupStep.delta * scale}
