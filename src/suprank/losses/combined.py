"""`Combined`, (1 − λ)·surrogate + λ·decomposability (eq:rod_framework), and the paper's four combinations by name."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from suprank.losses.base import RetrievalLoss
from suprank.losses.decomposability import ProxySoftmax
from suprank.losses.surrogate import (
    APMeasure,
    HAPMeasure,
    NDCGMeasure,
    RecallMeasure,
    SupAP,
    SupHAP,
    SupNDCG,
    SupRecall,
)
from suprank.ranking import SupStep
from suprank.ranking.hyper_parameters import is_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from suprank.losses.base import QueryMean
    from suprank.losses.batch import RetrievalBatch
    from suprank.losses.score_batch import ScoreBatch
    from suprank.ranking import Implementation, ImplementationName


class Combined(RetrievalLoss):
    """L = (1 − λ)·surrogate + λ·decomposability (eq:rod_framework), λ = `decomposability_weight`.

    The batch is checked, normalized and scored once for both. After a call, `log` holds both values before weighting,
    under their class names, and the total under "loss": detached tensors, ready for a logger. A name that both would log has
    "surrogate" or "decomposability" in front. A compiled loss writes the next values into the same tensors. `from_scores` takes
    scores if both parts do. A part of weight 0 is computed for the log only.
    """

    def __init__(self, surrogate: RetrievalLoss, decomposability: RetrievalLoss, decomposability_weight: float = 0.1) -> None:
        super().__init__()
        if not (is_number(decomposability_weight) and 0 <= decomposability_weight <= 1):
            raise ValueError(
                f"decomposability_weight={decomposability_weight!r} must be between 0 and 1: the surrogate gets the rest; "
                f"the paper uses 0.1 for ROADMAP."
            )
        for role, part in (("surrogate", surrogate), ("decomposability", decomposability)):
            if not isinstance(part, RetrievalLoss):
                raise TypeError(
                    f"{role} is a {type(part).__name__}, but must be a loss of suprank, which shares the batch's scores; "
                    f"add other losses outside of Combined."
                )
        self.surrogate = surrogate
        self.decomposability = decomposability
        self.decomposability_weight = decomposability_weight
        self.log: dict[str, Tensor] = {}

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        return self._combine(self.surrogate.compute(batch), self.decomposability.compute(batch))

    def compute_lists(self, batch: ScoreBatch) -> Float[Tensor, ""]:
        return self._combine(self.surrogate.compute_lists(batch), self.decomposability.compute_lists(batch))

    def _combine(self, rank: Tensor, calibration: Tensor) -> Tensor:
        dtype = torch.promote_types(rank.dtype, calibration.dtype)  # a loss of the user's own may follow autocast
        values, weight = (rank.to(dtype), calibration.to(dtype)), self.decomposability_weight
        loss = values[0].lerp(values[1], weight) if 0 < weight < 1 else values[int(weight)]  # 0·∞ would be NaN
        parts = {"surrogate": rank, "decomposability": calibration}
        logs = {role: self._log_of(role, value) for role, value in parts.items()}
        both = set.intersection(*map(set, logs.values()))
        named = {f"{role} {name}" if name in both else name: one for role, log in logs.items() for name, one in log.items()}
        self.log = self.loggable({**named, "loss": loss.detach()})
        return loss

    def _log_of(self, role: str, value: Tensor) -> dict[str, Tensor]:
        """What a part logs, and its value under its class name, which a part within it may have too."""
        part = getattr(self, role)
        log = {name: one for name, one in getattr(part, "log", {}).items() if name != "loss"}
        name = type(part).__name__
        return {**log, f"{role} {name}" if name in log else name: value.detach()}

    def means(self, batch: RetrievalBatch) -> Sequence[QueryMean]:
        weight = self.decomposability_weight
        parts = ((self.surrogate, 1 - weight), (self.decomposability, weight))
        return [mean.times(share) for part, share in parts if share for mean in part.means(batch)]


def roadmap(
    num_classes: int | None = None,
    embedding_size: int | None = None,
    *,
    decomposability: RetrievalLoss | None = None,
    decomposability_weight: float = 0.1,
    k: int | None = None,
    rank_tau: float = APMeasure.rank_tau,
    tau: float = SupStep.tau,
    rho: float = SupStep.rho,
    delta: float = SupStep.delta,
    jump: float = SupStep.jump,
    value_at_delta: float | None = None,
    include_self: bool = False,
    using: Implementation | ImplementationName | None = None,
) -> Combined:
    """ROADMAP: (1 − λ)·L_Sup-AP + λ·L*_DG (eq:roadmap with eq:cluster_loss), as the recipes `*/roadmap` train it.

    L*_DG is `ProxySoftmax(num_classes, embedding_size)`, whose proxies are parameters to optimize. To calibrate pairs instead
    (eq:labs), as eq:roadmap first has it, give `decomposability=PairCalibration()`. λ = `decomposability_weight`; the other
    arguments are those of `SupAP`.

    Example:
        >>> loss = roadmap(num_classes=4, embedding_size=16)
        >>> embeddings, labels = torch.randn(8, 16, requires_grad=True), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
        >>> loss(embeddings, labels).backward()
        >>> sorted(loss.log)
        ['ProxySoftmax', 'SupAP', 'loss', 'queries_without_positives']
    """
    decomposability = _decomposability("roadmap", num_classes, embedding_size, decomposability)
    step = SupStep(tau, rho, delta, jump, value_at_delta)
    surrogate = SupAP(k=k, rank_tau=rank_tau, **asdict(step), include_self=include_self, using=using)
    return Combined(surrogate, decomposability, decomposability_weight)


def rod_recall(
    num_classes: int | None = None,
    embedding_size: int | None = None,
    *,
    decomposability: RetrievalLoss | None = None,
    decomposability_weight: float = 0.1,
    ks: Sequence[int] | int = RecallMeasure.ks,
    rank_tau: float = RecallMeasure.rank_tau,
    tau: float = SupStep.tau,
    rho: float = SupStep.rho,
    delta: float = SupStep.delta,
    jump: float = SupStep.jump,
    value_at_delta: float | None = None,
    include_self: bool = False,
    using: Implementation | ImplementationName | None = None,
) -> Combined:
    """ROD-R@k: (1 − λ)·L_Sup-R@K + λ·L*_DG (eq:def_rod_rk). Arguments are those of `roadmap` and `SupRecall`.

    The authors' recipes use λ = 0.5 here. The paper states λ = 0.1 for ROADMAP, and no value for this loss.
    """
    decomposability = _decomposability("rod_recall", num_classes, embedding_size, decomposability)
    step = SupStep(tau, rho, delta, jump, value_at_delta)
    surrogate = SupRecall(ks=ks, rank_tau=rank_tau, **asdict(step), include_self=include_self, using=using)
    return Combined(surrogate, decomposability, decomposability_weight)


def happier(
    num_classes: int | None = None,
    embedding_size: int | None = None,
    *,
    decomposability: RetrievalLoss | None = None,
    decomposability_weight: float = 0.1,
    decay: float = HAPMeasure.decay,
    weights: Sequence[float] | None = None,
    tau: float = SupStep.tau,
    rho: float = SupStep.rho,
    delta: float = SupStep.delta,
    jump: float = SupStep.jump,
    value_at_delta: float | None = None,
    include_self: bool = False,
    using: Implementation | ImplementationName | None = None,
) -> Combined:
    """HAPPIER: (1 − λ)·L_Sup-H-AP + λ·L*_DG (sec:happier). Arguments are those of `roadmap` and `SupHAP`.

    `decay` above 1 is HAPPIER_F: 5 on SOP, 3 on iNaturalist. `weights` are given finest level first.
    """
    decomposability = _decomposability("happier", num_classes, embedding_size, decomposability)
    step = SupStep(tau, rho, delta, jump, value_at_delta)
    surrogate = SupHAP(decay=decay, weights=weights, **asdict(step), include_self=include_self, using=using)
    return Combined(surrogate, decomposability, decomposability_weight)


def rod_ndcg(
    num_classes: int | None = None,
    embedding_size: int | None = None,
    *,
    decomposability: RetrievalLoss | None = None,
    decomposability_weight: float = 0.1,
    k: int | None = None,
    rank_tau: float = NDCGMeasure.rank_tau,
    tau: float = SupStep.tau,
    rho: float = SupStep.rho,
    delta: float = SupStep.delta,
    jump: float = SupStep.jump,
    value_at_delta: float | None = None,
    include_self: bool = False,
    using: Implementation | ImplementationName | None = None,
) -> Combined:
    """ROD-NDCG: (1 − λ)·L_Sup-NDCG + λ·L*_DG (sec:ndcg). Arguments are those of `roadmap` and `SupNDCG`."""
    decomposability = _decomposability("rod_ndcg", num_classes, embedding_size, decomposability)
    step = SupStep(tau, rho, delta, jump, value_at_delta)
    surrogate = SupNDCG(k=k, rank_tau=rank_tau, **asdict(step), include_self=include_self, using=using)
    return Combined(surrogate, decomposability, decomposability_weight)


def _decomposability(
    name: str, num_classes: int | None, embedding_size: int | None, decomposability: RetrievalLoss | None
) -> RetrievalLoss:
    """The decomposability loss that was given, or `ProxySoftmax` of the sizes that were."""
    if isinstance(num_classes, RetrievalLoss):
        raise TypeError(f"num_classes is a {type(num_classes).__name__}; pass a loss by name: {name}(decomposability=...).")
    sizes = {"num_classes": num_classes, "embedding_size": embedding_size}
    given = [size for size, value in sizes.items() if value is not None]
    if decomposability is not None and given:
        raise ValueError(
            f"{name} got decomposability={type(decomposability).__name__} and {' and '.join(given)}, which are for its "
            f"ProxySoftmax; give one or the other."
        )
    if decomposability is not None:
        return decomposability
    if num_classes is None or embedding_size is None:
        missing = " and ".join(size for size in sizes if size not in given)
        raise ValueError(
            f"{name} needs {missing} for its ProxySoftmax, which the recipes train; to calibrate pairs instead, write "
            f"{name}(decomposability=PairCalibration())."
        )
    return ProxySoftmax(num_classes, embedding_size)
