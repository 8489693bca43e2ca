"""(1 − λ)·surrogate + λ·decomposability (eq:rod_framework), and the paper's four combinations by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from suprank.losses.base import RetrievalLoss, loggable
from suprank.losses.decomposability import PairCalibration
from suprank.losses.surrogate import SupAP, SupHAP, SupNDCG, SupRecall

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from suprank.losses.batch import RetrievalBatch
    from suprank.ranking import Implementation


class SupOptions(TypedDict, total=False):
    """What any Sup-loss takes: the step's parameters (see `SupStep`), and what `RankLoss` adds."""

    tau: float
    rho: float
    delta: float
    jump: float
    value_at_delta: float | None
    include_self: bool
    using: Implementation | None


class Combined(RetrievalLoss):
    """L = (1 − λ)·surrogate + λ·decomposability (eq:rod_framework), λ = `decomposability_weight`.

    The batch is checked, normalized and scored once for both. After a call, `log` holds both values before weighting,
    under their class names, and the total under "loss": detached tensors, ready for a logger. Under torch.compile it is empty.
    """

    def __init__(self, surrogate: RetrievalLoss, decomposability: RetrievalLoss, decomposability_weight: float = 0.1) -> None:
        super().__init__()
        if not 0 <= decomposability_weight <= 1:
            raise ValueError(
                f"decomposability_weight={decomposability_weight} must be between 0 and 1: the surrogate gets the rest; "
                f"the paper uses 0.1."
            )
        for role, part in (("surrogate", surrogate), ("decomposability", decomposability)):
            if not isinstance(part, RetrievalLoss):
                raise TypeError(
                    f"{role} is a {type(part).__name__}, but must be a loss of suprank, which shares the batch's scores; "
                    f"add any other loss outside."
                )
        self.surrogate = surrogate
        self.decomposability = decomposability
        self.decomposability_weight = decomposability_weight
        self.log: dict[str, Tensor] = {}

    def extra_repr(self) -> str:
        return f"decomposability_weight={self.decomposability_weight}"

    def on(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        rank, calibration = self.surrogate.on(batch), self.decomposability.on(batch)
        loss = (1 - self.decomposability_weight) * rank + self.decomposability_weight * calibration
        names = [type(self.surrogate).__name__, type(self.decomposability).__name__]
        if names[0] == names[1]:
            names = [f"surrogate {names[0]}", f"decomposability {names[1]}"]
        self.log = loggable(
            {
                **getattr(self.surrogate, "log", {}),
                **getattr(self.decomposability, "log", {}),
                names[0]: rank.detach(),
                names[1]: calibration.detach(),
                "loss": loss.detach(),
            }
        )
        return loss


def roadmap(
    decomposability: RetrievalLoss | None = None, *, decomposability_weight: float = 0.1, **options: Unpack[SupOptions]
) -> Combined:
    """ROADMAP: (1 − λ)·L_Sup-AP + λ·L_DG (eq:roadmap), with `PairCalibration` unless a decomposability loss is given.

    Example:
        >>> loss = roadmap()
        >>> embeddings, labels = torch.randn(8, 16, requires_grad=True), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
        >>> loss(embeddings, labels).backward()
        >>> sorted(loss.log)
        ['PairCalibration', 'SupAP', 'loss', 'queries_without_positives']
    """
    return Combined(SupAP(**options), decomposability or PairCalibration(), decomposability_weight)


def rod_recall(
    decomposability: RetrievalLoss | None = None,
    *,
    ks: tuple[int, ...] = (1, 2, 4, 8, 16),
    rank_tau: float = 1.0,
    decomposability_weight: float = 0.1,
    **options: Unpack[SupOptions],
) -> Combined:
    """ROD-R@k: (1 − λ)·L_Sup-R@K + λ·L_DG (eq:def_rod_rk), with `PairCalibration` unless a decomposability loss is given.

    The authors' recipes use λ = 0.5 here, where the paper says 0.1.
    """
    surrogate = SupRecall(ks=ks, rank_tau=rank_tau, **options)
    return Combined(surrogate, decomposability or PairCalibration(), decomposability_weight)


def happier(
    decomposability: RetrievalLoss,
    *,
    decay: float = 1.0,
    weights: tuple[float, ...] | None = None,
    decomposability_weight: float = 0.1,
    **options: Unpack[SupOptions],
) -> Combined:
    """HAPPIER: (1 − λ)·L_Sup-H-AP + λ·L*_DG (sec:happier). `decay` above 1 is HAPPIER_F: 5 on SOP, 3 on iNaturalist.

    The paper's decomposability loss is `ProxySoftmax(num_classes, embedding_size)`; `PairCalibration()` works too.
    """
    return Combined(SupHAP(decay=decay, weights=weights, **options), decomposability, decomposability_weight)


def rod_ndcg(decomposability: RetrievalLoss, *, decomposability_weight: float = 0.1, **options: Unpack[SupOptions]) -> Combined:
    """ROD-NDCG: (1 − λ)·L_Sup-NDCG + λ·L*_DG (sec:ndcg). The paper's decomposability loss is `ProxySoftmax`."""
    return Combined(SupNDCG(**options), decomposability, decomposability_weight)
